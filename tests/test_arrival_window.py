from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nopad
from nopad import ALGORITHMS, CorpusOptions, PackOptions, pack, pack_corpus
from nopad.corpus import IterableSource
from nopad.errors import OptionError, OutputExistsError

QUICK = sorted({*ALGORITHMS} - {"ennlshp", "nnlshp", "optimal"})


@pytest.mark.parametrize("algorithm", QUICK)
@pytest.mark.parametrize("order", ["random", "source"])
@given(lengths=st.lists(st.integers(1, 8), max_size=40), window=st.integers(1, 50), multiple=st.integers(1, 3))
def test_members_come_from_one_window(algorithm, order, lengths, window, multiple):
    how = {"algorithm": algorithm, "order": order, "arrival_window": window}
    packs = pack(lengths, 8, **how)
    packs.check(lengths)
    windows = [{member // window for member in held} for held in packs]
    assert all(len(found) == 1 for found in windows)
    assert [found.pop() for found in windows] == sorted(
        member // window for member in packs.sequence[packs.indptr[:-1]]
    )
    assert pack(lengths, 8, **how) == packs
    if -(-len(packs) // multiple) * multiple <= len(lengths):
        rounded = pack(lengths, 8, pack_multiple=multiple, **how)
        rounded.check(lengths)
        assert len(rounded) % multiple == 0


def test_a_window_over_everything_costs_nothing():
    lengths = np.random.default_rng(0).integers(1, 64, 500)
    whole = pack(lengths, 64, order="source")
    assert pack(lengths, 64, order="source", arrival_window=500) == whole
    assert pack(lengths, 64, order="source", arrival_window=10**6) == whole


def test_the_seed_decides_within_windows():
    lengths = np.random.default_rng(0).integers(1, 64, 500)
    assert pack(lengths, 64, arrival_window=100) != pack(lengths, 64, arrival_window=100, seed=1)
    assert len(pack(lengths, 64, arrival_window=100)) == len(pack(lengths, 64, arrival_window=100, seed=1))


@pytest.mark.parametrize("window", [0, -1, 1.5, "8", True])
def test_refused(refuses, window):
    with refuses(OptionError, f"arrival_window must be an integer from 1 to 2147483647 or None, got {window!r}"):
        pack([1, 2], 8, arrival_window=window)


def test_too_few_for_a_multiple(refuses):
    with refuses(OptionError, "2 sequences cannot make a multiple of 3 packs"):
        pack([1, 2], 8, arrival_window=2, pack_multiple=3)


class TestInADataset:
    @pytest.fixture
    def source(self):
        return IterableSource([[n] * n for n in (5, 3, 4, 2, 8, 3, 1, 6, 7, 2, 2)])

    @pytest.mark.parametrize(
        "packing",
        [
            PackOptions(arrival_window=4),
            PackOptions(arrival_window=4, algorithm="best_fit", options={"window": 2}),
            PackOptions(algorithm="lpfhp", options={"distribute": False, "align": 4}, order="source"),
            PackOptions(algorithm="harmonic", options={"k": 3, "pack_multiple": 4}),
            PackOptions(options={"max_squares": 70, "pack_multiple": 3}, seed=5),
        ],
    )
    def test_packs_and_proves(self, tmp_path, source, packing):
        made = pack_corpus(source, tmp_path / "out", CorpusOptions(capacity=8), packing=packing)
        assert (made.sequences, made.options["arrival_window"]) == (11, packing.arrival_window)
        assert nopad.verify(tmp_path / "out", source=source) == []
        assert pack_corpus(source, tmp_path / "out", CorpusOptions(capacity=8), packing=packing) == made

    def test_the_price_of_a_window_is_noted(self, tmp_path, source):
        pack_corpus(source, tmp_path / "out", CorpusOptions(capacity=8), packing=PackOptions(arrival_window=2))
        plan = nopad.Plan.load(tmp_path / "out" / "plan.json")
        free = nopad.plan([5, 3, 4, 2, 8, 3, 1, 6, 7, 2, 2], 8).packs
        assert plan.packs > free
        assert plan.notes == (f"packed 2 sequences at a time: +{plan.packs - free} packs against all at once",)

    def test_another_window_than_stated_is_found(self, tmp_path, source, write_manifest):
        pack_corpus(source, tmp_path / "out", CorpusOptions(capacity=8), packing=PackOptions(arrival_window=2))
        manifest = tmp_path / "out" / "nopad.json"
        document = json.loads(manifest.read_text())
        document["options"]["arrival_window"] = 4
        write_manifest(manifest, document)
        assert nopad.verify(tmp_path / "out") == [
            "these are not the packs that auto, seed 0 and order random give for these sequences"
        ]

    def test_an_unknown_option_is_refused_before_work(self, tmp_path, source):
        with pytest.raises(OptionError, match="algorithm 'auto' has no option 'k'"):
            pack_corpus(source, tmp_path / "o", CorpusOptions(capacity=8), packing=PackOptions(options={"k": 3}))
        assert not (tmp_path / "o").exists()

    def test_another_option_is_another_dataset(self, tmp_path, source):
        pack_corpus(source, tmp_path / "out", CorpusOptions(capacity=8))
        with pytest.raises(OutputExistsError, match="pack_multiple was none, now 2"):
            pack_corpus(
                source,
                tmp_path / "out",
                CorpusOptions(capacity=8),
                packing=PackOptions(options={"pack_multiple": 2}),
            )
