"""Rows that a trainer chose, as batches: the same as a loader makes of the same sequences."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from tests.tasks.tiny import tokenizer

import nopad
from nopad.errors import BatchError, LengthError, MissingExtraError, OptionError
from nopad.tasks import Masking

RNG = np.random.default_rng(0)
TEXTS = [RNG.integers(10, 40, n).tolist() for n in RNG.integers(2, 24, 60)]
CLASSES = [{"input_ids": ids, "label": n % 3} for n, ids in enumerate(TEXTS)]


def packed(rows, **options):
    return nopad.pack_dataset(rows, 32, **options)


def same(one, other):
    assert sorted(one) == sorted(other)
    for name in one:
        if name != "attention_mask":
            assert torch.equal(one[name], other[name]), name
    assert one.seq_lengths.tolist() == other.seq_lengths.tolist()


def without(rows, *names):
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


@pytest.mark.parametrize("form", [None, nopad.Rows(32)])
def test_rows_of_the_dataset_and_of_to_hf_alike(form):
    dataset = packed(CLASSES)
    collator, rows = dataset.collator(form=form), dataset.to_hf()
    batch = collator([dataset[2], dataset[0]])
    same(batch, collator([rows[2], rows[0]]))
    same(batch, collator(without([rows[2], rows[0]], "seq_lengths", "seq_index")))  # as Trainer leaves them
    assert batch["labels"].tolist() == [*dataset[2]["label"], *dataset[0]["label"]]
    assert batch["input_ids"].shape == ((1, batch.layout.tokens) if form is None else (2, 32))
    assert [ids.tolist() for ids in batch.unpack_tokens(batch["input_ids"])] == [
        TEXTS[number] for row in (2, 0) for number in dataset[row].seq_index
    ]


def test_it_is_pickled_for_workers():
    dataset = packed(CLASSES)
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=2, collate_fn=pickle.loads(pickle.dumps(dataset.collator())), num_workers=1
    )
    assert sum(batch.layout.sequences for batch in loader) == 60


def test_a_loader_without_a_collator_says_which():
    with pytest.raises(
        OptionError, match=r"torch would stack packs.*; give the DataLoader collate_fn=dataset.collator"
    ):
        next(iter(torch.utils.data.DataLoader(packed(CLASSES), batch_size=2)))


@pytest.mark.parametrize("form", ["rows", "hf", "bare"])
def test_labels_of_a_causal_model(form):
    dataset = packed(TEXTS)
    hf = dataset.to_hf()
    rows = {"rows": [dataset[1], dataset[3]], "hf": [hf[1], hf[3]]}
    rows["bare"] = without(rows["hf"], "seq_lengths", "seq_index")
    batch = dataset.collator(causal=True)(rows[form])
    assert batch.layout.causal
    for ids, labels in zip(batch.unpack_tokens(batch["input_ids"]), batch.unpack_tokens(batch["labels"]), strict=True):
        assert labels.tolist() == [-100, *ids.tolist()[1:]]


def test_columns_of_single_tokens_keep_what_they_are():
    dataset = packed([{"input_ids": [n + 5], "label": n} for n in range(8)])
    for rows in ([dataset[0]], [dataset.to_hf()[0]]):
        assert dataset.collator()(rows)["labels"].shape == (8,)


class TestMasks:
    def test_by_the_same_rule_as_a_loader(self):
        dataset = packed(TEXTS)
        collator = dataset.collator(mlm_probability=0.3, tokenizer=tokenizer(), seed=5)
        loader = nopad.PackedLoader(dataset, rows=1, collate=Masking(tokenizer(), rate=0.3, seed=5))
        rows = {tuple(row.seq_index.tolist()): row for row in dataset}
        for epoch in range(2):
            collator.set_epoch(epoch)
            for batch in loader:
                mine = collator([rows[tuple(batch.records["seq_index"].tolist())]])
                assert torch.equal(mine["input_ids"].flatten(), batch["input_ids"].flatten()[: mine.layout.tokens])
                assert torch.equal(mine["labels"].flatten(), batch["labels"].flatten()[: mine.layout.tokens])

    def test_new_ones_at_each_call_by_the_generator_of_torch(self):
        dataset = packed(TEXTS)
        collator = dataset.collator(mlm_probability=0.3, tokenizer=tokenizer())
        row = dataset.to_hf(causal=False)[0]

        def drawn(seed):
            torch.manual_seed(seed)
            return [collator([row])["labels"].tolist() for _ in range(3)]

        first = drawn(1)
        assert first == drawn(1)
        assert len({str(one) for one in first}) == 3

    def test_an_epoch_needs_no_torch(self, monkeypatch):
        def missing(what):
            raise MissingExtraError(what)

        dataset = packed(TEXTS)
        collator = dataset.collator(mlm_probability=0.3, tokenizer=tokenizer())
        monkeypatch.setattr("nopad.loading.collator.load_torch", missing)
        with pytest.raises(MissingExtraError):
            collator([dataset[0]])
        collator.set_epoch(3)
        assert (collator([dataset[0]])["labels"] != -100).any()

    def test_what_masks_need(self):
        dataset = packed(TEXTS)
        collator = dataset.collator(mlm_probability=0.3, tokenizer=tokenizer())
        with pytest.raises(BatchError, match=r"the rows have labels: .* make them with to_hf\(causal=False\)"):
            collator([dataset.to_hf()[0]])
        with pytest.raises(BatchError, match="the rows have no seq_index; train with remove_unused_columns=False"):
            collator(without([dataset.to_hf(causal=False)[0]], "seq_index"))
        with pytest.raises(OptionError, match="give causal=True or mlm_probability=, not both"):
            dataset.collator(causal=True, mlm_probability=0.3, tokenizer=tokenizer())
        with pytest.raises(OptionError, match="mlm_probability needs the mask token: give tokenizer="):
            dataset.collator(mlm_probability=0.3)
        with pytest.raises(OptionError, match="tokenizer is for masks"):
            dataset.collator(tokenizer=tokenizer())
        with pytest.raises(OptionError, match="epoch"):
            collator.set_epoch(-1)


def test_what_is_per_sequence_where_every_sequence_has_one_token():
    """A string was refused as one per token, before the names of such columns were looked at."""
    records = [{"input_ids": [5], "label": 1, "id": "a"}, {"input_ids": [6], "label": 0, "id": "b"}]
    dataset = nopad.pack_dataset(records, 4, order="source")
    for rows in ([dataset[0]], [dataset.to_hf()[0]]):
        batch = dataset.collator()(rows)
        assert (batch["labels"].tolist(), batch["id"].tolist()) == ([1, 0], ["a", "b"])


def test_rows_that_say_too_little():
    dataset = packed(TEXTS)
    [row] = without([dataset.to_hf()[0]], "seq_lengths", "position_ids")
    with pytest.raises(BatchError, match=r"row 0 has neither seq_lengths nor position_ids, .* remove_unused_columns"):
        dataset.collator()([row])
    with pytest.raises(BatchError, match="position_ids of row 0 do not begin at 0"):
        dataset.collator()([{**row, "position_ids": [3] * len(row["input_ids"])}])
    with pytest.raises(BatchError, match="row 0 is a list"):
        dataset.collator()([[1, 2]])
    with pytest.raises(LengthError):
        dataset.collator(form=nopad.Rows(8))([dataset[0]])
