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


def _none(lengths, capacity, depth):
    return [[length] for length in lengths]


def _sort(lengths, capacity, depth):
    return _greedy(sorted(lengths, reverse=True), capacity, depth)


def _first_fit(lengths, capacity, depth):
    packs = []
    for length in lengths:
        for pack in packs:
            if sum(pack) + length <= capacity and (depth is None or len(pack) < depth):
                pack.append(length)
                break
        else:
            packs.append([length])
    return packs


def _best_fit(lengths, capacity, depth):
    packs = []  # the one touched last comes last
    for length in lengths:
        fits = [p for p in packs if sum(p) + length <= capacity and (depth is None or len(p) < depth)]
        fullest = max(map(sum, fits), default=None)
        chosen = next((p for p in reversed(fits) if sum(p) == fullest), [])
        packs = [p for p in packs if p is not chosen]
        packs.append(chosen)
        chosen.append(length)
    return packs


def _harmonic(lengths, capacity, depth):
    classes = [[length for length in lengths if min(capacity // length, 12) == j] for j in range(1, 13)]
    return [pack for members in classes for pack in _greedy(members, capacity, depth)]


def _mffd(lengths, capacity, depth):
    most = capacity if depth is None else depth
    rest = sorted((length for length in lengths if 2 * length <= capacity), reverse=True)
    packs = [[length] for length in sorted(lengths, reverse=True) if 2 * length > capacity]

    def fitting(pack):
        return [length for length in rest if length + sum(pack) <= capacity and len(pack) < most]

    def move(length, pack):
        rest.remove(length)
        pack.append(length)

    for pack in packs:
        medium = [length for length in fitting(pack) if 3 * length > capacity]
        if medium:
            move(max(medium), pack)
    for pack in reversed(packs):
        small = sorted(length for length in rest if capacity < 6 * length and 3 * length <= capacity)
        if len(pack) == 1 and most > 2 and len(small) > 1 and sum(pack) + small[0] + small[1] <= capacity:
            move(small[0], pack)
            move(max(length for length in small[1:] if length in fitting(pack)), pack)
    for pack in packs:
        while fits := fitting(pack):
            move(max(fits), pack)
    return packs + _ffd(rest, capacity, depth)


@pytest.fixture(scope="session")
def one_by_one():
    """`one_by_one(algorithm, lengths, capacity, depth)`: how often each strategy (lengths longest first) occurs."""
    walks = {
        "best_fit": _best_fit,
        "bfd": _lpfhp,
        "ffd": _ffd,
        "first_fit": _first_fit,
        "greedy": _greedy,
        "harmonic": _harmonic,
        "lpfhp": _lpfhp,
        "mffd": _mffd,
        "none": _none,
        "sort": _sort,
        "spfhp": _spfhp,
    }

    def run(algorithm, lengths, capacity, depth):
        packs = walks[algorithm](list(lengths), capacity, depth)
        return Counter(tuple(sorted(pack, reverse=True)) for pack in packs)

    return run


@pytest.fixture(scope="session")
def fewest():
    """`fewest(lengths, capacity, depth, squares, align)`: the optimum by branch and bound over all placements."""
    return _fewest


def _fewest(lengths, capacity, depth=None, squares=None, align=1):
    best = len(lengths)
    ordered = sorted(lengths, reverse=True)
    most = sum(n * n for n in lengths) if squares is None else squares

    def place(i, packs):
        nonlocal best
        if len(packs) >= best:
            return
        if i == len(ordered):
            best = len(packs)
            return
        size, cost = -(-ordered[i] // align) * align, ordered[i] ** 2
        for p, (room, money, used) in enumerate(packs):
            fits = room >= size and money >= cost and (depth is None or used < depth)
            if fits and packs[p] not in packs[:p]:
                place(i + 1, [*packs[:p], (room - size, money - cost, used + 1), *packs[p + 1 :]])
        place(i + 1, [*packs, (capacity - size, most - cost, 1)])

    place(0, [])
    return best
