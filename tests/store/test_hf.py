"""Packs as a `datasets.Dataset`: every value where it belongs, and the labels that a causal model may learn."""

from __future__ import annotations

import numpy as np
import pytest

import nopad
from nopad.errors import BatchError, OptionError, SourceError

RNG = np.random.default_rng(0)
ROWS = [
    {
        "input_ids": RNG.integers(0, 99, n).tolist(),
        "kind": RNG.integers(0, 4, n).tolist(),
        "label": int(n),
        "name": f"n{i}",
    }
    for i, n in enumerate(RNG.integers(1, 20, 300))
]


@pytest.fixture(scope="module")
def packed():
    return nopad.pack_dataset(ROWS, 32)


def test_every_value_is_in_its_pack(packed):
    rows = packed.to_hf()
    assert len(rows) == len(packed)
    for number, row in enumerate(rows):
        originals = [ROWS[i] for i in row["seq_index"]]
        assert row["seq_index"] == packed[number].seq_index.tolist()
        assert row["seq_lengths"] == [len(one["input_ids"]) for one in originals]
        assert row["position_ids"] == [at for n in row["seq_lengths"] for at in range(n)]
        for name in ("input_ids", "kind"):
            assert row[name] == [value for one in originals for value in one[name]]
        assert row["labels"] == [one["label"] for one in originals]
        assert row["name"] == [one["name"] for one in originals]
    assert sorted(i for row in rows for i in row["seq_index"]) == list(range(300))


def test_several_row_groups(tmp_path):
    nopad.pack_corpus(
        nopad.open_source([row["input_ids"] for row in ROWS]),
        tmp_path / "out",
        nopad.CorpusOptions(capacity=32),
        packing=nopad.PackOptions(shard_tokens=400),
    )
    dataset = nopad.open_packed(tmp_path / "out")
    assert dataset.row_groups > 3
    rows = dataset.to_hf(causal=False)
    assert [row["input_ids"] for row in rows] == [row.input_ids.tolist() for row in dataset]
    assert "labels" not in rows.column_names


class TestLabels:
    ids = ([7, 8, 9], [5, 6])

    def labels(self, labels, **how):
        rows = [{"input_ids": ids, "labels": one} for ids, one in zip(self.ids, labels, strict=True)]
        return nopad.pack_dataset(rows, 8, order="source").to_hf(**how)[0]["labels"]

    @pytest.mark.parametrize("causal", [None, True])
    def test_of_tokens_without_labels(self, causal):
        rows = nopad.pack_dataset(list(self.ids), 8, order="source").to_hf(causal=causal)
        assert rows[0]["labels"] == [-100, 8, 9, -100, 6]

    @pytest.mark.parametrize("causal", [None, True])
    def test_first_ones_are_ignored(self, causal):
        assert self.labels([[7, 8, -100], [-100, 6]], causal=causal) == [-100, 8, -100, -100, 6]

    def test_of_each_token_itself(self):
        assert self.labels([[1, 0, 1], [2, 2]], causal=False) == [1, 0, 1, 2, 2]
        with pytest.raises(OptionError, match=r"some first tokens are not these tokens; say to_hf\(causal=True\)"):
            self.labels([[1, 0, 1], [2, 2]])

    @pytest.mark.parametrize("causal", [None, True, False])
    def test_labels_beside_a_column_for_masks_are_labels_like_others(self, causal):
        """`maskable` says what may be hidden; it takes nothing from labels that are there, and adds none by itself."""
        rows = [{"input_ids": [7, 8, 9], "maskable": [0, 1, 1], "labels": [-100, 8, -100]}]
        assert nopad.pack_dataset(rows, 8).to_hf(causal=causal)[0]["labels"] == [-100, 8, -100]
        alone = nopad.pack_dataset([{"input_ids": [7, 8, 9], "maskable": [0, 1, 1]}], 8).to_hf(causal=causal)[0]
        assert alone.get("labels") == ([-100, 8, 9] if causal else None)
        odd = nopad.pack_dataset([{**rows[0], "labels": [3, 8, 4]}], 8)
        if causal is None:
            with pytest.raises(OptionError, match="some first tokens are not these tokens"):
                odd.to_hf()
        else:
            assert odd.to_hf(causal=causal)[0]["labels"] == [-100 if causal else 3, 8, 4]

    def test_one_per_sequence(self, packed):
        with pytest.raises(OptionError, match="the labels are one per sequence, and a causal language model"):
            packed.to_hf(causal=True)

    def test_two_columns_of_them(self):
        rows = [{"input_ids": [1], "label": 1, "label_ids": 2}]
        with pytest.raises(BatchError, match="label and label_ids, and only one can be the labels"):
            nopad.pack_dataset(rows, 8).to_hf()


def test_an_index_has_no_tokens(tmp_path):
    source = nopad.open_source(ROWS)
    nopad.pack_corpus(source, tmp_path / "index", nopad.CorpusOptions(capacity=32), index_only=True)
    with pytest.raises(OptionError, match="is an index without tokens; pack the dataset without index_only"):
        nopad.open_packed(tmp_path / "index").to_hf()


@pytest.mark.parametrize("given", [[[2, 3], [2, 3, 4]], [4, 5]])
def test_positions_of_the_users_do_not_take_the_place_of_those_of_the_packs(given):
    """They came out as they were, [2, 3, 2, 3, 4]: a collator of transformers found one sequence of 5 tokens."""
    records = [{"input_ids": ids, "position_ids": at} for ids, at in zip([[7, 8], [3, 4, 5]], given, strict=True)]
    with pytest.raises(SourceError, match="'position_ids' cannot be carried: nopad computes one of that name"):
        nopad.pack_dataset(records, 8)
    packed = nopad.pack_dataset(records, 8, carry=(), order="source")
    assert packed.to_hf()[0]["position_ids"] == [0, 1, 0, 1, 2]
