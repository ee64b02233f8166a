from __future__ import annotations

import numpy as np
import pytest

import nopad
from nopad.errors import LengthError, OptionError, PlanMismatchError

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


@pytest.fixture(scope="module")
def dataset():
    import datasets

    return datasets.Dataset.from_list(ROWS)


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
