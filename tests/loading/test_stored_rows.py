from __future__ import annotations

import shutil

import numpy as np
import pytest

import nopad
from nopad import PackedLoader
from nopad.corpus import CorpusOptions, IterableSource
from nopad.corpus.objects import DictSource
from nopad.errors import CorruptError, OptionError, PlanMismatchError
from nopad.store import PackOptions

LENGTHS = np.random.default_rng(0).integers(1, 40, size=700)


def pack(folder, seed=0):
    records = [
        {"input_ids": np.full(length, number), "label": number % 3} for number, length in enumerate(LENGTHS.tolist())
    ]
    source = DictSource(lambda: iter(records))
    nopad.pack_corpus(source, folder, CorpusOptions(capacity=64), packing=PackOptions(seed=seed))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return pack(tmp_path_factory.mktemp("rows") / "packed")


@pytest.mark.parametrize("method", ["none", "karmarkar_karp", "sorted"])
def test_rows_stay_as_they_are_and_each_comes_once(fleet, folder, method):
    stored = {tuple(row.seq_index.tolist()) for row in nopad.open_packed(folder)}
    run = fleet(folder, 3, rows=2, last="fill", balance=method)
    for _ in range(2):
        batches = run.take()
        assert fleet.counts(batches) == dict.fromkeys(range(700), 1)
        rows = set()
        for ranks in batches:
            for batch in ranks:
                numbers, row_of = np.array(fleet.sequences_of(batch)), batch.layout.starts // 64
                rows |= {tuple(numbers[row_of == row].tolist()) for row in range(2) if (row_of == row).any()}
                assert batch.weight == 0 or (batch["labels"].numpy() == numbers % 3).all()
                assert batch.weight == 0 or (batch["input_ids"].numpy()[batch.sequence_ids > 0] < 700).all()
        assert {row for row in rows if row} == stored
        run.begin()


def test_rows_are_the_datasets_own(folder):
    dataset = nopad.open_packed(folder)
    order = dataset.order(5, epoch=0).tolist()
    loader = PackedLoader(dataset, rows=1, seed=5)
    for number, batch in zip(order, loader, strict=True):
        assert batch["input_ids"][0, : batch.layout.tokens].tolist() == dataset[number]["input_ids"].tolist()
        assert batch.seq_lengths.tolist() == dataset[number].seq_lengths.tolist()


def test_sequences_of_a_dataset_are_packed_anew_with_another_capacity(fleet, folder):
    run = fleet(folder, 2, capacity=128, rows=1, last="fill")
    batches = run.take()
    assert fleet.counts(batches) == dict.fromkeys(range(700), 1)
    assert batches[0][0].layout.shape == (1, 128)


def test_another_dataset_in_the_same_place_is_noticed(tmp_path, folder):
    here = tmp_path / "packed"
    shutil.copytree(folder, here)
    loader = PackedLoader(here, rows=1)
    state = loader.state_dict()
    next(iter(loader))
    shutil.rmtree(here)
    pack(here, seed=1)
    with pytest.raises(CorruptError, match="holds another dataset than when it was opened"):
        next(iter(loader))
    with pytest.raises(PlanMismatchError, match="data is"):
        PackedLoader(here, rows=1).load_state_dict(state)


def test_what_rows_cannot_be(folder, tmp_path):
    with pytest.raises(OptionError, match="rows of a packed dataset stay as they are"):
        PackedLoader(folder, rows=1, groups=2)
    with pytest.raises(OptionError, match="together is 'pack', and is about groups of sequences"):
        PackedLoader(folder, rows=2, together="pack")
    with pytest.raises(OptionError, match="depth are options of a plan"):
        PackedLoader(folder, rows=1, depth=2)
    nopad.pack_corpus(IterableSource([[1, 2], [3]]), tmp_path / "index", CorpusOptions(capacity=8), index_only=True)
    with pytest.raises(OptionError, match="holds an index without tokens"):
        PackedLoader(tmp_path / "index", rows=1)
