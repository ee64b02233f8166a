"""Lines that are decoded alone give what they give among the others."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nopad.corpus import jsonl
from nopad.corpus.inputs import InputFile
from nopad.corpus.jsonl import Field, JsonlFile, decode_objects, json_lines
from nopad.corpus.options import CorpusOptions
from nopad.corpus.thinning import Lines
from nopad.loading.streams.deal import Deal
from nopad.loading.streams.reading import Cursor, Reader

LINES = [
    b"",
    b"\r",
    b'{"text": "a"}',
    b'{"text": "two\\n\xc3\xa9"}\r',
    b"[1, 2]",
    b"broken",
    b'\xef\xbb\xbf{"text": "b"}',
]
LINES += [b" ", b"\r\r", b'{"text": 5}', b"\xff"]


def records(data, first_line):
    """Each record of the bytes by its line: a text, or why there is none."""
    found = []
    for one in decode_objects(data, first_line, field=Field(name="text", kind="text")):
        if getattr(one, "texts", None) is not None:
            found += zip(one.lines.tolist(), one.texts, strict=True)
        else:
            found.append((one.line, getattr(one, "text", None) or one.reason))
    return found


@given(st.data(), st.lists(st.sampled_from(LINES), max_size=12), st.booleans(), st.sampled_from([1, 7]))
def test_chosen_lines_are_decoded_as_among_the_others(data, lines, ended, first_line):
    content = b"\n".join(lines) + b"\n" * ended
    found, every = Lines(content), records(content, first_line)
    assert len(found) == len(every) == sum(1 for _ in json_lines(content, first_line))
    chosen = sorted(data.draw(st.sets(st.integers(0, len(every) - 1)))) if every else []
    thinned = found.only(np.array(chosen, dtype=np.int64))
    assert records(thinned, first_line) == [every[at] for at in chosen]
    assert thinned.count(b"\n") == content.count(b"\n")


def test_a_rank_decodes_its_own_lines_only(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"input_ids": [n]}) + "\n" * (1 + n % 3) for n in range(300)))
    source = JsonlFile(InputFile.found(path, "a.jsonl"), block_bytes=500)
    parsed, seen = [], []
    monkeypatch.setattr(jsonl, "_parse", lambda raw, line, plain=jsonl._parse: parsed.append(line) or plain(raw, line))
    reader = Reader(source, None, CorpusOptions(capacity=10), repeat=False)
    for read in reader.groups(Cursor(deal=Deal(world_size=5, rank=2))):
        seen += read.sequences.tokens.get("input_ids", np.zeros(0, int)).tolist()
    assert seen == list(range(2, 300, 5))
    assert len(parsed) == 60
