"""`nopad pack` and `nopad.pack_dataset` make the same packs, labels, counts and errors of the same records."""

from __future__ import annotations

import contextlib
import io
import json
import re
import tempfile
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tasks import templates
from tests.tasks.tiny import WORDS

import nopad
from nopad.cli import main
from nopad.cli.wording import worded
from nopad.errors import InputError

CAPACITY = 16
text = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)
said = st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map(" ".join)
ids = st.lists(st.integers(0, 99), max_size=24)


def turns(roles):
    return st.tuples(*(st.fixed_dictionaries({role[0]: st.just(role[1]), role[2]: said}) for role in roles)).map(list)


chats = turns([("role", "user", "content"), ("role", "assistant", "content")] * 2)
shared = turns([("from", "human", "value"), ("from", "gpt", "value")])
label = st.integers(0, 3)
marks = st.lists(st.integers(0, 1), min_size=3, max_size=3)


def records(columns, odd=None):
    good = st.fixed_dictionaries(columns)
    bad = [good.map(lambda record: record | odd)] if odd is not None else []
    return st.tuples(good, st.lists(st.one_of(good, good, good, *bad), max_size=5)).map(
        lambda both: [both[0], *both[1]]
    )


KINDS = {
    "chats": (records({"messages": chats, "id": label}, {"messages": "who"}), [], {}),
    "last turns": (
        records({"messages": chats}),
        ["--chat", "--chat-option", "last_only=true"],
        {"chat": {"last_only": True}},
    ),
    "conversations": (records({"conversations": shared}, {"conversations": []}), [], {}),
    "completions": (records({"prompt": said, "completion": said}, {"completion": ""}), [], {}),
    "pairs": (
        records({"a": text, "b": text, "label": label}, {"b": None}),
        ["--text-pair", "a", "b"],
        {"text_pair": ("a", "b")},
    ),
    "several texts": (
        records({"a": text, "b": text, "label": label}, {"b": 5}),
        ["--text-field", "a", "--text-field", "b"],
        {"text_field": ["a", "b"]},
    ),
    "texts": (records({"text": text, "label": label, "url": text}), [], {}),
    "texts that are bad": (records({"text": text, "label": label}, {"label": None}), [], {}),
    "texts by name": (
        records({"body": text, "stars": label}),
        ["--text-field", "body", "--carry", "stars"],
        {
            "text_field": "body",
            "carry": ["stars"],
        },
    ),
    "ids": (records({"input_ids": ids, "label": label, "where": text}), [], {}),
    "padded ids": (records({"input_ids": ids, "weight": st.floats(0, 1)}), ["--pad-id", "0"], {"pad_id": 0}),
    "ids with assistant masks": (records({"input_ids": st.just([7, 8, 9]), "assistant_masks": marks}), [], {}),
    "ids that are bad": (records({"input_ids": ids}, {"input_ids": [-1]}), [], {}),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    templates.tokenizer().save_pretrained(path)
    return path


def by_command(path, out, arguments):
    """What `nopad pack` makes of a file: an error, or None."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()), pytest.raises(SystemExit) as stop:
        main(["pack", str(path), "-o", str(out), "-c", str(CAPACITY), *map(str, arguments)])
    assert stop.value.code in (0, 2), said.getvalue()
    return said.getvalue().removeprefix("nopad: ").strip() or None


def by_function(found, **options):
    """What `pack_dataset` makes of records: the dataset, or an error as the command line words it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of empty records
            return nopad.pack_dataset(found, CAPACITY, **options), None
    except InputError as error:
        return None, worded(str(error), "pack")


def told(error):
    """An error without the name of its input, whose records are lines, rows or records.

    Lines of a file are counted from 1, and records in memory from 0.
    """
    in_memory = error and re.fullmatch(r"(?s)the dataset, record (\d+)(.*)", error)
    if in_memory:
        return f", record {int(in_memory[1]) + 1}{in_memory[2]}"
    return error and re.sub(r"\b(?:line|row) (?=\d)", "record ", re.sub(r"^[^\s,:]+", "", error))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=5)
@given(data=st.data())
def test_the_same(kind, tokenizer, data):
    wanted, arguments, options = KINDS[kind]
    found = data.draw(wanted)
    ways = ["error", "truncate", "drop", *(["split"] if {"text", "body", "input_ids"} & set(found[0]) else [])]
    over_long = data.draw(st.sampled_from(ways))
    on_bad = data.draw(st.sampled_from(["error", "skip"]))
    whole = data.draw(st.booleans())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("a.json" if whole else "a.jsonl")
        lines = [json.dumps(record) for record in found]
        path.write_text(f"[{', '.join(lines)}]" if whole else "".join(f"{line}\n" for line in lines))
        how = ["-t", tokenizer, "--over-long", over_long, "--on-bad-record", on_bad, *arguments]
        wrong = by_command(path, Path(folder) / "out", how)
        dataset, mistake = by_function(
            found, tokenizer=str(tokenizer), over_long=over_long, on_bad_record=on_bad, **options
        )
        if wrong is not None or mistake is not None:
            if whole or kind not in ("texts that are bad", "ids that are bad"):
                assert told(mistake) == told(wrong)
            else:  # lines of text say more of what they have
                assert told(mistake).split(":")[0] == told(wrong).split(":")[0]
            return
        other = nopad.open_packed(Path(folder) / "out")
        same(dataset, other)


def same(one, other):
    """Two packed datasets have the same packs, columns, counts, and names of what was left out."""
    assert one.manifest.counts == other.manifest.counts
    assert (one.manifest.carried, one.manifest.source["left_out"]) == (
        other.manifest.carried,
        other.manifest.source["left_out"],
    )
    assert len(one) == len(other)
    names = ["seq_index", "seq_lengths", "input_ids", *one.manifest.carried]
    for mine, theirs in zip(one, other, strict=True):
        assert [list(mine[name]) for name in names] == [list(theirs[name]) for name in names]


def test_labels_are_learned(tokenizer):
    messages = [{"role": "user", "content": "why"}, {"role": "assistant", "content": "yes no"}]
    (row,) = nopad.pack_dataset([{"messages": messages}], CAPACITY, tokenizer=str(tokenizer))
    assert templates.tokenizer().decode([one for one in row["labels"] if one != -100]) == "yes no [EOS]"


@pytest.mark.parametrize("form", [iter, lambda one: lambda: iter(one), lambda one: {"a": one[:1500], "b": one[1500:]}])
def test_more_chats_than_are_looked_at(tokenizer, form):
    messages = [{"role": "user", "content": "why"}, {"role": "assistant", "content": "yes no"}]
    found = nopad.pack_dataset(form([{"messages": messages}] * 2500), 64, tokenizer=str(tokenizer))
    assert (found.manifest.sequences, found.manifest.counts["records"]) == (2500, 2500)


def test_records_of_several_sequences_have_their_numbers(tmp_path):
    words = templates.tokenizer(templates.REWRITING)
    words.save_pretrained(tmp_path)
    found = [templates.chat("is it", "yes when no", "why", "no"), templates.chat("who", "a dog")] * 2
    rows = [{"messages": one, "n": at} for at, one in enumerate(found)]
    made = nopad.pack_dataset(rows, 64, tokenizer=words, chat={"rewriting": "expand"}, carry=["n"])
    pairs = sorted((number, n) for row in made for number, n in zip(row.seq_index.tolist(), row["n"], strict=True))
    assert pairs == [(0, 0), (0, 0), (1, 1), (2, 2), (2, 2), (3, 3)]
    assert made.manifest.counts["records"] == 4
    assert nopad.verify(made.path) == []
