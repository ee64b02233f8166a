"""The algorithms again, slow and obvious: one sequence at a time over a plain list of packs, no classes, no index."""

from __future__ import annotations

from collections import Counter

import pytest


def _walk(lengths, capacity, depth, choose, *, open_together=False):
    """Longest first; `choose` picks a pack from those that fit, by (tokens held, when last touched, when opened)."""
    packs, touched = [], []
    opening = None  # the length for which packs are being opened: all its further copies open one too
    for now, length in enumerate(sorted(lengths, reverse=True)):
        fits = [
            p for p, pack in enumerate(packs) if sum(pack) + length <= capacity and (depth is None or len(pack) < depth)
        ]
        if fits and not (open_together and opening == length):
            p = choose(fits, key=lambda p: (sum(packs[p]), touched[p]))
            packs[p].append(length)
            touched[p] = now
        else:
            packs.append([length])
            touched.append(now)
            opening = length
    return packs


def _ffd(lengths, capacity, depth):
    return _walk(lengths, capacity, depth, lambda fits, key: min(fits))


def _lpfhp(lengths, capacity, depth):
    return _walk(lengths, capacity, depth, max)


def _spfhp(lengths, capacity, depth):
    def emptiest(fits, key):
        return min(fits, key=lambda p: (key(p)[0], -key(p)[1]))

    return _walk(lengths, capacity, depth, emptiest, open_together=True)


def _greedy(lengths, capacity, depth):
    packs = []
    for length in lengths:
        if not packs or sum(packs[-1]) + length > capacity or len(packs[-1]) == depth:
            packs.append([])
        packs[-1].append(length)
    return packs


@pytest.fixture(scope="session")
def one_by_one():
    """`one_by_one(algorithm, lengths, capacity, depth)`: how often each strategy (lengths longest first) occurs."""
    walks = {"ffd": _ffd, "greedy": _greedy, "lpfhp": _lpfhp, "spfhp": _spfhp}

    def run(algorithm, lengths, capacity, depth):
        packs = walks[algorithm](list(lengths), capacity, depth)
        return Counter(tuple(sorted(pack, reverse=True)) for pack in packs)

    return run
