from __future__ import annotations

import inspect
import re
from typing import Literal

import pytest

import nopad
from nopad import errors
from nopad.corpus.pretraining import PairOptions
from nopad.options import check_choice, check_integer, check_number, shown
from nopad.report import Settings

CLASSES = {name: value for name, value in vars(errors).items() if inspect.isclass(value)}


def drawn():
    """The tree of the module docstring: name -> (parent, exit code or None)."""
    path, found = [], {}
    for line in errors.__doc__.splitlines():
        match = re.match(r"([│├└─ ]*)(\w+Error)\b", line)
        if not match or (found and not match[1]):
            continue
        del path[len(match[1]) // 4 :]
        code = re.search(r"exit (\d+)$", line)
        found[match[2]] = (path[-1] if path else None, int(code[1]) if code else None)
        path.append(match[2])
    return found


def test_the_drawing_holds_every_class_and_no_other():
    assert list(CLASSES) == list(drawn())  # in the drawn order, too
    assert sorted(CLASSES) == errors.__all__


@pytest.mark.parametrize(("name", "parent", "code"), [(name, *rest) for name, rest in drawn().items()])
def test_the_drawing_is_true(name, parent, code):
    error = CLASSES[name]
    assert error.__bases__[0] is (CLASSES[parent] if parent else Exception)
    if code is not None:
        assert error.exit_code == code
    elif parent:  # not drawn: as above it
        assert "exit_code" not in vars(error)
    assert error.__doc__


def test_every_branch_below_the_root_states_its_exit_code():
    assert all(code is not None for parent, code in drawn().values() if parent == "NopadError")


def test_exit_codes():
    codes = {name: error.exit_code for name, error in CLASSES.items()}
    assert {name: code for name, code in codes.items() if code != 2} == {
        "StorageError": 3,
        "CorruptError": 1,
        "DeviceMemoryError": 1,
        "LossError": 1,
        "DeadlineError": 1,
        "QueueFullError": 1,
        "RequestError": 1,
        "RunnerClosedError": 1,
        "ServingError": 1,
        "TrainingError": 1,
        "InterruptedJobError": 130,
    }


def test_also_builtin_errors():
    also = {name: error.__bases__[1:] for name, error in CLASSES.items() if error.__bases__[1:]}
    assert also == {
        "InputError": (ValueError,),
        "MissingExtraError": (ImportError,),
        "NotPackSafeError": (AttributeError, TypeError),
    }
    assert issubclass(errors.OptionError, ValueError)


class Odd:
    """An object that has no text."""

    def __repr__(self):
        raise RuntimeError("no text")


PUBLIC = {
    "check_number": lambda odd: check_number("x", odd, low=0, high=1),
    "check_integer": lambda odd: check_integer("x", odd),
    "check_choice": lambda odd: check_choice("last", odd, Literal["drop", "fill"]),
    "algorithm": lambda odd: nopad.plan([3, 4], 8, algorithm=odd),
    "depth": lambda odd: nopad.plan([3, 4], 8, depth=odd),
    "counts": lambda odd: nopad.Histogram.from_counts({3: odd}),
    "length": lambda odd: nopad.Histogram.from_counts({odd: 3}),
    "several": lambda odd: nopad.plan_several([3, 4], [8, odd], [2, 1]),
    "several in depth": lambda odd: nopad.plan_several([3, 4], [8, 4], [2, 1], depth=odd),
    "flat": lambda odd: nopad.Flat(pad_to_multiple_of=odd),
    "rows": lambda odd: nopad.Rows(odd),
    "rows of packs": lambda odd: nopad.Rows(odd, packs=nopad.pack([3, 4], 8)),
    "end to end": lambda odd: nopad.Rows(8, end_to_end=odd),
    "form": lambda odd: nopad.PackedBatch.from_sequences([[1]], form=odd),
    "start": lambda odd: nopad.PackedBatch.from_sequences([[1]]).with_decoder([[1]], odd),
    "mask": lambda odd: nopad.PackedBatch.from_features([{"input_ids": [1], "attention_mask": odd}]),
    "values": lambda odd: nopad.PackedBatch.from_features(
        [{"input_ids": [1], "attention_mask": [1], "y": y} for y in ([1], odd)]
    ),
    "text field": lambda odd: nopad.ReaderOptions(text_field=odd),
    "pad id": lambda odd: nopad.ReaderOptions(pad_id=odd),
    "carry": lambda odd: nopad.ReaderOptions(carry=odd),
    "suffixes": lambda odd: nopad.ReaderOptions(suffixes=odd),
    "corpus": lambda odd: nopad.CorpusOptions(capacity=odd),
    "vocabulary": lambda odd: nopad.CorpusOptions(capacity=8, vocab_size=-odd if isinstance(odd, int) else odd),
    "shards": lambda odd: nopad.PackOptions(shard_tokens=-odd if isinstance(odd, int) else odd),
    "pairs": lambda odd: PairOptions(max_length=64, rate=odd),
    "settings": lambda odd: Settings(title=odd),
    "loader": lambda odd: nopad.PackedLoader([[1, 2], [3]], tokens=8, last="fill", cost=odd),
    "groups": lambda odd: nopad.PackedLoader([[1, 2], [3]], tokens=8, last="fill", groups=odd),
    "output": lambda odd: nopad.pack_dataset([[1, 2]], 8, output=odd),
    "chat": lambda odd: nopad.pack_dataset([{"text": "a"}], 8, chat=odd),
}


@pytest.mark.parametrize("odd", [10**5000, Odd()], ids=["large", "odd"])
@pytest.mark.parametrize("name", PUBLIC)
def test_a_message_names_any_value(name, odd):
    """Python makes no text of such an integer, and raised a ValueError instead of the message."""
    with pytest.raises(errors.NopadError, match=re.escape(shown(odd))):
        PUBLIC[name](odd)
