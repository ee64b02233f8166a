"""`python examples/stream.py`: a stream of texts that never ends, shuffled; a run stops, and goes on exactly."""

import itertools
import json
import tempfile
from pathlib import Path

import nopad


def texts():
    """Yield what is to be read: here sentences with numbers, in practice what no disk holds."""
    return ({"text": "padding is waste, " * (1 + number % 9)} for number in itertools.count())


def loader():
    """Return a new loader at the beginning of the stream."""
    tokenizer = nopad.load_tokenizer()
    return nopad.PackedLoader(texts, capacity=64, rows=4, tokenizer=tokenizer, shuffle_buffer=200, seed=1)


whole = [batch["input_ids"].tolist() for batch in itertools.islice(loader(), 12)]
first, checkpoint = loader(), Path(tempfile.mkdtemp()) / "loader.json"
begun = [batch["input_ids"].tolist() for batch in itertools.islice(first, 5)]
checkpoint.write_text(json.dumps(first.state_dict()))
second = loader()  # in practice in another process, on another day
second.load_state_dict(json.loads(checkpoint.read_text()))
rest = [batch["input_ids"].tolist() for batch in itertools.islice(second, 7)]
print(f"{second!r}\n5 and 7 batches are equal to 12 of one run: {begun + rest == whole}")
