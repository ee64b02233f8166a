"""Records in parts give the examples of all at once, from files, with the numbers of the whole."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from runs import classify_records
from tests.tasks.tiny import tokenizer

from nopad.errors import FormatError, LengthError, RecordError, StorageError
from nopad.loading.sources import open_tokens
from nopad.seal import sealed, unsealed
from nopad.tasks import DPO, Classification, Contrastive, MaskedLM, Pairs, SeveralLabels
from nopad.training import encoding
from nopad.training.encoding import Part, encoded


def task(**options):
    return Classification(tokenizer(), ["bad", "fair", "good"], **options)


class Held(list):
    """Records in memory."""

    def fingerprint(self):
        return json.dumps(self)


def same(made, wanted):
    assert (len(made), made.records, made.group, dict(made.counts)) == (
        len(wanted),
        wanted.records,
        wanted.group,
        dict(wanted.counts),
    )
    np.testing.assert_array_equal(made.record, wanted.record)
    np.testing.assert_array_equal(made.sequences.seq_lengths, wanted.sequences.seq_lengths)
    for kind in ("tokens", "values"):
        ours, theirs = getattr(made.sequences, kind), getattr(wanted.sequences, kind)
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert ours[name].dtype == theirs[name].dtype
            np.testing.assert_array_equal(ours[name], theirs[name])


@pytest.mark.parametrize("at_once", [1, 7, 37, 100])
def test_parts_are_the_whole(tmp_path, at_once):
    records = Held(classify_records())
    for number, options in enumerate(
        ({}, {"max_length": 9, "over_long": "truncate"}, {"max_length": 9, "over_long": "drop"})
    ):
        made = encoded(task(**options), records, tmp_path, {"number": number}, at_once=at_once)
        same(made, task(**options).encode(records))


def test_labels_of_several_columns(tmp_path):
    records = Held({"text": "is it", "labels": [number % 3]} for number in range(9))
    several = SeveralLabels(tokenizer(), 3)
    same(encoded(several, records, tmp_path, {}, at_once=4), several.encode(records))


def pairs_of_texts(count):
    return [{"prompt": "is it ?", "chosen": f" yes {n}", "rejected": f" no {n}"} for n in range(1, count + 1)]


@pytest.mark.parametrize("at_once", [1, 2, 9])
@pytest.mark.parametrize(
    ("make", "records"),
    [
        (DPO, pairs_of_texts(5)),
        (Pairs, pairs_of_texts(5)),
        (Contrastive, [{"anchor": f"is it {n}", "positive": f"yes {n}"} for n in range(5)]),
        (partial(MaskedLM, rate=0.5, copies=1), [{"text": "the cat sleeps in the house of the dog ."}] * 5),
        (partial(MaskedLM, rate=0.5, copies=3), [{"text": ""}, *({"text": "the cat sleeps in Paris"} for _ in "four")]),
        (
            partial(MaskedLM, rate=0.5, copies=2, max_length=5, over_long="split"),
            [{"text": "one two three four five " * n} for n in (1, 3, 1, 2)],
        ),
    ],
    ids=["dpo", "pairs", "contrast", "masks", "masks and an empty text", "masks of split texts"],
)
def test_numbers_and_draws_do_not_restart_in_each_part(tmp_path, make, records, at_once):
    """Pairs of two parts had the same number, and sequences of two parts the same random draws."""
    made = encoded(make(tokenizer()), Held(records), tmp_path, {}, at_once=at_once)
    same(made, make(tokenizer()).encode(records))


def test_parts_with_groups_of_other_sizes_are_refused(tmp_path):
    """The size of the last part's groups was taken for all, so that groups began in the middle of others."""
    records = [{"anchor": "is it", "positive": "yes", "negative": ["no"] * (1 + n // 3)} for n in range(6)]
    with pytest.raises(RecordError, match="record 3 becomes 4 sequences that stay together, and records before it 3"):
        encoded(Contrastive(tokenizer()), Held(records), tmp_path, {}, at_once=3)


class Sometimes(DPO):
    """Makes a column only of records that have it."""

    def encode(self, records, *, labels=True):
        made = super().encode(records, labels=labels)
        if not any("more" in record for record in records):
            return made
        values = {**made.sequences.values, "more": np.ones(len(made), np.int64)}
        return replace(made, sequences=replace(made.sequences, values=values))


def test_parts_with_other_columns_are_refused(tmp_path):
    """Values of the later records would have come to belong to the earlier ones."""
    records = [{**one, **({"more": 1} if n > 2 else {})} for n, one in enumerate(pairs_of_texts(6))]
    with pytest.raises(RecordError, match=r"makes the columns .*more.* of records from 3 on, and .* of those before"):
        encoded(Sometimes(tokenizer()), Held(records), tmp_path, {}, at_once=3)


def test_numbers_of_a_part_of_the_records_are_different(tmp_path):
    task, records = DPO(tokenizer()), Held(pairs_of_texts(20))
    made = encoded(task, records, tmp_path, {}, at_once=3, part=Part(share=0.4, seed=3))
    numbers = made.sequences.values["pair"]
    np.testing.assert_array_equal(numbers, made.record)
    assert len(set(numbers.tolist())) == len(made) // 2


def test_what_was_encoded_is_used_again(tmp_path, monkeypatch):
    records = Held(classify_records())
    encoded(task(), records, tmp_path, {})
    (place,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    found = open_tokens(str(place))
    assert len(found) == len(records)
    facts = unsealed(json.loads((place / "examples.json").read_text()))["examples"]
    lacking = json.dumps(sealed({"examples": {name: facts[name] for name in facts.keys() - {"group"}}}))

    def never(*_, **__):
        raise AssertionError

    other = task()
    monkeypatch.setattr(other, "encode", never)
    same(encoded(other, records, tmp_path, {}), task().encode(records))
    with pytest.raises(AssertionError):
        encoded(other, records, tmp_path, {"max_length": 3})
    with pytest.raises(AssertionError):
        encoded(other, Held(records[1:]), tmp_path, {})
    (place / "labels.npy").write_bytes((place / "labels.npy").read_bytes()[:-8])  # damaged
    with pytest.raises(AssertionError):
        encoded(other, records, tmp_path, {})
    (place / "ids.npy").write_bytes(b"")
    with pytest.raises(AssertionError):
        encoded(other, records, tmp_path, {})
    for damaged in ("[", "[" * 60_000, "[]", '{"columns": []}', '{"columns": {}}', lacking):
        place.mkdir(exist_ok=True)
        (place / "examples.json").write_text(damaged)
        with pytest.raises(AssertionError):
            encoded(other, records, tmp_path, {})
    same(encoded(task(), records, tmp_path, {}), task().encode(records))
    kept = {path: path.read_bytes() for path in place.iterdir()}
    assert len(kept) > 4
    for path, content in kept.items():
        for at in (0, len(content) // 2, len(content) - 1):
            place.mkdir(exist_ok=True)
            for other_path, whole in kept.items():
                other_path.write_bytes(whole)
            path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
            with pytest.raises(AssertionError):
                encoded(other, records, tmp_path, {})


def test_a_bad_record_has_its_number_among_all(tmp_path):
    records = Held(classify_records())
    records[23] = {"text": "is it", "label": 7}
    with pytest.raises(RecordError, match=r"^record 23: label is 7"):
        encoded(task(), records, tmp_path, {}, at_once=10)
    odd = [number for number in range(37) if not Part(share=0.4, seed=3, held_out=True).has(number)]
    records = Held(classify_records())
    records[odd[9]] = {"text": "is it", "label": 7}
    with pytest.raises(RecordError, match=f"^record {odd[9]}: label is 7"):
        encoded(task(), records, tmp_path, {}, at_once=4, part=Part(share=0.4, seed=3))
    held = encoded(task(), records, tmp_path, {}, at_once=4, part=Part(share=0.4, seed=3, held_out=True))
    assert sorted([*held.record.tolist(), *odd]) == list(range(37))


def test_a_part_of_which_nothing_is_left(tmp_path):
    long = {"text": "is it not it is it", "label": 0}
    records = Held([*classify_records(4), *[long] * 5])
    made = encoded(
        task(max_length=5, over_long="drop"), Held([{"text": "is", "label": 1}, *records[4:]]), tmp_path, {}, at_once=2
    )
    assert (len(made), made.counts["dropped"], made.record.tolist()) == (1, 5, [0])
    with pytest.raises(LengthError, match="nothing is left of 5 records, 5 dropped; look at over_long"):
        encoded(task(max_length=5, over_long="drop"), Held(records[4:]), tmp_path, {}, at_once=2)
    with pytest.raises(LengthError, match="there is no record"):
        encoded(task(), Held(), tmp_path, {})


def test_an_error_of_the_task_is_not_one_of_the_files(tmp_path, monkeypatch):
    """A missing image of a user's task was reported as a failure to write."""
    given = task()

    def fails(_):
        raise FileNotFoundError(2, "No such file", "a.png")

    monkeypatch.setattr(given, "encode", fails)
    with pytest.raises(FileNotFoundError, match=r"a\.png"):
        encoded(given, Held(classify_records()), tmp_path, {})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "open", lambda path, mode: io.FileIO("/dev/full", mode), raising=False)
    with pytest.raises(StorageError, match=r"no space left while writing .*/offsets\.npy \("):
        encoded(task(), Held(classify_records()), tmp_path, {})


def test_numbers_in_a_quoted_text_stay(tmp_path):
    """A text with the word "record" and a number had this number changed, or was an IndexError."""
    records = Held([*classify_records(), {"text": "yes", "label": "see record 99"}])
    with pytest.raises(RecordError, match=f"record {len(records) - 1}: label is 'see record 99'"):
        encoded(task(), records, tmp_path, {}, at_once=7)


class Graded(Classification):
    """Adds a column of numbers in the smallest type that holds those of one call."""

    def encode(self, records, *, labels=True):
        made = super().encode(records, labels=labels)
        grades = [record["grade"] for record in records]
        grades = np.array(grades, np.int8 if max(grades) < 128 else np.int64)
        return replace(made, sequences=replace(made.sequences, values={**made.sequences.values, "grades": grades}))


def test_a_wider_type_never_changes_a_value(tmp_path):
    graded = Graded(tokenizer(), ["bad", "fair", "good"])
    records = Held([{"text": "yes", "label": 0, "grade": grade} for grade in (300, 7, 5)])
    made = encoded(graded, records, tmp_path, {}, at_once=1)  # int64, then int8: all fit
    assert made.sequences.values["grades"].tolist() == [300, 7, 5]
    with pytest.raises(FormatError, match=r"grades is int64 .* and int8 "):
        encoded(graded, Held(reversed(records)), tmp_path, {}, at_once=1)
