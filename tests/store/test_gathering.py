from __future__ import annotations

import numpy as np
import pytest

import nopad
from nopad.errors import LengthError, OptionError, PlanMismatchError, SourceError

RNG = np.random.default_rng(0)
LENGTHS = RNG.integers(1, 20, 300)
ROWS = [
    {
        "input_ids": RNG.integers(0, 99, n).tolist(),
        "labels": RNG.integers(0, 99, n).tolist(),
        "label": int(n),
        "name": f"n{i}",
        "words": ["a"] * (i % 3),
    }
    for i, n in enumerate(LENGTHS)
]


def dataset_of(rows):
    import datasets

    return datasets.Dataset.from_list(rows)


@pytest.fixture(scope="module")
def dataset():
    return dataset_of(ROWS)


def test_every_value_is_in_its_pack(dataset):
    packs = nopad.pack(LENGTHS, capacity=32)
    packed = nopad.to_dataset(packs, dataset)
    assert len(packed) == len(packs)
    assert packed.column_names == ["seq_lengths", "seq_index", "input_ids", "labels", "label", "name", "words"]
    for row, members in zip(packed, packs, strict=True):
        originals = [ROWS[i] for i in members]
        assert row["seq_index"] == members.tolist()
        assert row["seq_lengths"] == [len(one["input_ids"]) for one in originals]
        for name in ("input_ids", "labels"):
            assert row[name] == [value for one in originals for value in one[name]]
        for name in ("label", "name", "words"):
            assert row[name] == [one[name] for one in originals]


def test_a_dataset_that_was_shuffled(dataset):
    mixed = dataset.shuffle(seed=1)
    lengths = [len(ids) for ids in mixed["input_ids"]]
    packs = nopad.pack(lengths, capacity=32, order="source")
    assert (
        nopad.to_dataset(packs, mixed)[0]["input_ids"][: lengths[packs.sequence[0]]]
        == mixed[int(packs.sequence[0])]["input_ids"]
    )


def test_an_index_over_an_untouched_dataset(dataset, tmp_path):
    source = nopad.open_source(dataset)
    made = nopad.pack_corpus(source, tmp_path / "index", nopad.CorpusOptions(capacity=32), index_only=True)
    assert nopad.verify(tmp_path / "index", source=source) == []
    packed = nopad.to_dataset(nopad.Packs.load(tmp_path / "index" / "packs.arrow"), dataset)
    assert len(packed) == made.packs
    assert sorted(i for row in packed for i in row["seq_index"]) == list(range(300))


def test_other_packs_are_refused(dataset):
    with pytest.raises(PlanMismatchError, match="the packs hold 3 sequences, the dataset has 300 rows"):
        nopad.to_dataset(nopad.pack([1, 2, 3], capacity=32), dataset)
    with pytest.raises(LengthError, match=r"pack \d+ would hold \d+ tokens, above the capacity of 32"):
        nopad.to_dataset(nopad.pack(LENGTHS[::-1], capacity=32, order="source"), dataset)
    with pytest.raises(OptionError, match="the dataset has no column 'input_ids'; it has labels"):
        nopad.to_dataset(nopad.pack(LENGTHS, capacity=32), dataset.select_columns(["labels"]))


def index_of(rows, out, **corpus):
    """Packs of an index-only job over these rows, as a later process finds them."""
    source = nopad.open_source(rows)
    nopad.pack_corpus(source, out, nopad.CorpusOptions(capacity=32, **corpus), index_only=True)
    return nopad.Packs.load(out / "packs.arrow")


class TestWhatSelectsTokens:
    """An index knows what was done to records before they were measured; rows to which it was not done are refused."""

    def test_padding_that_a_mask_stripped_does_not_come_back(self, tmp_path):
        padded = [
            {"input_ids": [7] * n + [0] * (8 - n), "attention_mask": [1] * n + [0] * (8 - n)} for n in range(1, 9)
        ]
        packs = index_of(padded, tmp_path / "index")
        dataset = dataset_of(padded)
        for given in (dataset, dataset.remove_columns("attention_mask")):
            with pytest.raises((PlanMismatchError, LengthError), match="padding was cut off 7 records when they were"):
                nopad.to_dataset(packs, given)
        cut = [{"input_ids": row["input_ids"][: sum(row["attention_mask"])]} for row in padded]
        packed = nopad.to_dataset(packs, dataset_of(cut))
        assert sorted(token for row in packed for token in row["input_ids"]) == [7] * 36

    @pytest.mark.parametrize("over_long", ["truncate", "split", "drop"])
    def test_records_that_were_cut(self, tmp_path, over_long):
        rows = [{"input_ids": [1] * 40}, {"input_ids": [2, 3]}, {"input_ids": [4]}]
        packs = index_of(rows, tmp_path / "index", over_long=over_long)
        with pytest.raises((PlanMismatchError, LengthError)):
            nopad.to_dataset(packs, dataset_of(rows))

    def test_rows_in_another_order(self, dataset):
        packs = nopad.pack(LENGTHS, capacity=10_000)  # one pack: no other check can find it
        with pytest.raises(PlanMismatchError, match="made for rows of other lengths, or in another order"):
            nopad.to_dataset(packs, dataset.select(range(299, -1, -1)))

    def test_a_mask_that_says_padding(self):
        padded = dataset_of([{"input_ids": [1, 2]}, {"input_ids": [3, 0]}])
        packs = nopad.pack([2, 2], capacity=4, order="source")
        with_mask = padded.add_column("attention_mask", [[1, 1], [1, 0]])
        with pytest.raises(OptionError, match="row 1 is padded: its attention_mask has a 0 at 1"):
            nopad.to_dataset(packs, with_mask)
        assert nopad.to_dataset(packs, padded)[0]["input_ids"] == [1, 2, 3, 0]


@pytest.mark.parametrize("name", ["seq_lengths", "seq_index", "seq_start", "seq_source"])
def test_columns_called_as_nopads(dataset, name):
    with pytest.raises(OptionError, match=f"has a column '{name}', and nopad writes one of that name; rename it"):
        nopad.to_dataset(nopad.pack(LENGTHS, capacity=32), dataset.rename_column("label", name))


def test_a_transform_is_refused(dataset):
    transformed = dataset.with_transform(lambda rows: {"input_ids": [[1] for _ in rows["input_ids"]]})
    with pytest.raises(SourceError, match="has a transform"):
        nopad.to_dataset(nopad.pack(LENGTHS, capacity=32), transformed)


def test_what_cannot_be_packed(dataset):
    packs = nopad.pack([1, 2], capacity=4)
    for rows, error, message in (
        ([{"input_ids": [1]}, {"input_ids": None}], OptionError, "holds nulls"),
        ([{"input_ids": [1]}, {"input_ids": [2, None]}], OptionError, "holds nulls"),
        ([{"input_ids": [1]}, {"input_ids": []}], LengthError, "row 1 has no token"),
        ([{"input_ids": ["a"]}, {"input_ids": ["b", "c"]}], OptionError, "not lists of integers"),
        (
            [{"input_ids": [1], "labels": [1]}, {"input_ids": [2, 3], "labels": [2, None]}],
            OptionError,
            "'labels' has one value per token, and some are null",
        ),
    ):
        with pytest.raises(error, match=message):
            nopad.to_dataset(packs, dataset_of(rows))
    with pytest.raises(OptionError, match=r"takes a datasets\.Dataset, not IterableDataset"):
        nopad.to_dataset(packs, dataset.to_iterable_dataset())
    twice = nopad.Packs(4, None, np.array([0, 1, 2], np.int32), np.array([0, 0], np.int32))
    with pytest.raises(PlanMismatchError, match="sequence 0 is in 2 packs"):
        nopad.to_dataset(twice, dataset_of([{"input_ids": [1]}, {"input_ids": [2, 3]}]))


def test_columns_of_one_value_per_token_that_are_no_numbers():
    """Strings and lists are values of tokens too: they were an error of the Arrow library."""
    rows = [
        {"input_ids": [5, 1], "tokens": ["a", "b"], "boxes": [[1], [2, 3]], "at": [{"x": 1}, {"x": 2}]},
        {"input_ids": [2], "tokens": ["c"], "boxes": [[4]], "at": [{"x": 3}]},
    ]
    [made] = nopad.to_dataset(nopad.pack([2, 1], 8, order="source"), dataset_of(rows))
    assert made == {
        "seq_lengths": [2, 1],
        "seq_index": [0, 1],
        **{name: [*rows[0][name], *rows[1][name]] for name in rows[0]},
    }


def test_what_are_no_packs(dataset):
    with pytest.raises(OptionError, match=r"to_dataset takes nopad.Packs, not list; make them with nopad.pack"):
        nopad.to_dataset([[0, 1]], dataset)
