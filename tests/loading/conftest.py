"""All ranks of a run in one process, in lockstep: what a loader must hold, judged from its batches alone."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from nopad import PackedLoader


class Fleet:
    """`world_size` loaders that take their batches together."""

    def __init__(self, data, world_size, *, state=None, **options):
        options.setdefault("prefetch", 0)
        self.loaders = [PackedLoader(data, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
        if state is not None:
            for loader in self.loaders:
                loader.load_state_dict(json.loads(json.dumps(state)))
        self.begin()

    def begin(self):
        self.iterators = [iter(loader) for loader in self.loaders]

    def take(self, batches=None):
        """Return the next batches of all ranks, ``[batches][rank]``; None: what is left of the epoch."""
        out = []
        while batches is None or len(out) < batches:
            found = [next(iterator, None) for iterator in self.iterators]
            if found[0] is None:
                assert all(batch is None for batch in found), "ranks do not stop together"
                break
            assert all(batch is not None for batch in found), "ranks do not stop together"
            out.append(found)
        return out

    def state(self):
        """Return the state, which is the same on every rank."""
        states = [loader.state_dict() for loader in self.loaders]
        assert all(state == states[0] for state in states)
        return states[0]

    @staticmethod
    def sequences_of(batch) -> list[int]:
        """The numbers of the sequences in a batch; a stand-in has none."""
        numbers = batch.records["seq_index"].tolist()
        assert bool(numbers) == bool(batch.weight)
        return numbers

    @classmethod
    def counts(cls, batches) -> Counter:
        """How often each sequence is in these batches."""
        return Counter(number for ranks in batches for batch in ranks for number in cls.sequences_of(batch))

    @staticmethod
    def contents(batches):
        """The token ids by slot of every batch, to compare runs."""
        return [[batch.input_ids.tolist() for batch in ranks] for ranks in batches]


@pytest.fixture(scope="session")
def fleet():
    """All ranks of a run in one process."""
    return Fleet
