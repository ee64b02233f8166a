"""Three thousand mutations of plan files: each is refused, found out, or all that the file claims is still true.

The judge knows nothing of nopad's bounds: it counts the packs of small histograms exactly, by a shortest path over all
states of what is left to pack.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from functools import cache
from itertools import product
from math import prod

import pytest

import nopad
from nopad import Histogram
from nopad.errors import FormatError
from nopad.planning import Certificate, Plan
from nopad.planning.cost_certificate import CostCertificate

_MOST_STATES = 1000  # of small histograms; of others the packs themselves are known to be possible
WRONG = (None, True, "3", 2.5, -1, 0, [], {}, 2**31, 2**62, 2**63, 10**40, [1], [1, 2, 3], float("nan"))


@cache
def fewest(lengths, counts, capacity, depth, squares, align):
    """The fewest packs of ``counts[i]`` sequences of ``lengths[i]`` tokens; None if some fit into no pack."""
    takes = [
        take
        for take in product(*(range(count + 1) for count in counts))
        if any(take)
        and sum(-(-n // align) * align * k for n, k in zip(lengths, take, strict=True)) <= capacity
        and sum(n * n * k for n, k in zip(lengths, take, strict=True)) <= squares
        and sum(take) <= depth
    ]
    front, seen, packs = {counts}, {counts}, 0
    while tuple(0 for _ in counts) not in front:
        front = {
            tuple(a - b for a, b in zip(left, take, strict=True))
            for left in front
            for take in takes
            if all(a >= b for a, b in zip(left, take, strict=True))
        } - seen
        seen |= front
        packs += 1
        if not front:
            return None
    return packs


def claims(document):
    """Assert that all a plan file says about its packs, its bound and its evenness is true."""
    options, capacity = document["options"], document["capacity"]
    align, multiple = options.get("align", 1), options.get("pack_multiple", 1)
    squares, depth = options.get("max_squares") or 10**30, document["depth"] or capacity
    held, packs = Counter(), 0
    for strategy in document["strategies"]:
        count, lengths = strategy["count"], strategy["lengths"]
        packs += count
        held.update({n: count * lengths.count(n) for n in lengths})
        assert count >= 1
        assert sum(-(-n // align) * align for n in lengths) <= capacity
        assert sum(n * n for n in lengths) <= squares
        assert 1 <= len(lengths) <= depth
    assert (document["packs"], document["sequences"]) == (packs, held.total())
    assert document["tokens"] == sum(n * count for n, count in held.items())
    assert document["histogram_sha256"] == Histogram.from_counts(held).fingerprint
    assert packs % multiple == 0
    lengths = tuple(sorted(held))
    counts = tuple(held[n] for n in lengths)
    few = prod(count + 1 for count in counts) <= _MOST_STATES
    true = fewest(lengths, counts, capacity, depth, squares, align) if few else packs
    assert document["lower_bound"]["packs"] <= -(-true // multiple) * multiple
    if options.get("even"):
        even = document["facts"]["even"]
        after, most, least = even["after"], even["most_packs"], even["least_cap"]
        assert (after["packs"], after["packs"] <= most) == (packs, True)
        assert after["cap"] == max(sum(n * n for n in strategy["lengths"]) for strategy in document["strategies"])
        assert after["depth"] == max(len(strategy["lengths"]) for strategy in document["strategies"])
        if few and least > max(lengths) ** 2:
            possible = fewest(lengths, counts, capacity, depth, min(squares, least - 1), align)
            assert possible is None or possible > most


def certified(lengths, capacity, depth, options, certificate):
    """A plan file whose bound rests on a certificate."""
    made = nopad.plan(lengths, capacity, depth=depth, **options)
    again = Plan.from_strategies(
        made.strategies,
        Histogram.from_lengths(lengths),
        capacity=capacity,
        depth=depth,
        algorithm=made.algorithm,
        options=made.options,
        certificate=certificate,
    )
    return json.loads(again.to_json())


def files():
    """Small plan files of every kind."""
    odd = [7, 7, 5, 5, 3, 3, 3, 2]
    return {
        "plain": json.loads(nopad.plan(odd, 12).to_json()),
        "depth": json.loads(nopad.plan(odd, 12, depth=2, algorithm="optimal").to_json()),
        "aligned": json.loads(nopad.plan(odd, 12, align=4, pack_multiple=2).to_json()),
        "even": json.loads(nopad.plan(odd, 14, even=True).to_json()),
        "even, multiple": json.loads(nopad.plan(odd, 14, even=True, pack_multiple=2, max_squares=100).to_json()),
        "certificate": certified([5] * 7, 12, None, {}, Certificate(((5, 1),))),
        "depth certificate": certified([8] * 4 + [5] * 4 + [2] * 2, 14, 3, {}, Certificate(((2, 1), (5, 2), (8, 6)))),
        "cost certificate": certified(
            [8] * 4 + [6] * 3 + [3] * 4,
            16,
            None,
            {"max_squares": 110},
            CostCertificate(((3, 2), (6, 4), (8, 6)), (16, 80)),
        ),
        "depth, cost certificate": certified(
            [3] * 4 + [5] * 3 + [6] * 2,
            13,
            3,
            {"max_squares": 100},
            CostCertificate(((3, 4), (5, 5), (6, 6)), (13, 100), by_depth=True),
        ),
    }


def places(value, path=()):
    """Every place of a document, containers included."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield from places(below, (*path, key))


def mutate(document, rng):
    """Change, remove or repeat one part."""
    *above, last = rng.choice([path for path in places(document) if path])
    holder = document
    for key in above:
        holder = holder[key]
    old = holder[last]
    kind = rng.random()
    if isinstance(old, int) and kind < 0.7:
        holder[last] = old + rng.choice([-2, -1, -1, 1, 1, 2, 7, 10**6, 2**40, 2**62])
    elif isinstance(old, list) and old and kind < 0.5:
        rng.shuffle(old) if rng.random() < 0.5 else old.append(json.loads(json.dumps(rng.choice(old))))
    elif kind < 0.85:
        holder[last] = rng.choice(WRONG)
    else:
        del holder[last]


def mend(document):
    """Make the sums of a document agree again, as a forger would."""
    held, packs = Counter(), 0
    for strategy in document["strategies"]:
        packs += strategy["count"]
        held.update({n: strategy["count"] * strategy["lengths"].count(n) for n in set(strategy["lengths"])})
    histogram = Histogram.from_counts(held)
    document |= {"packs": packs, "sequences": histogram.sequences, "tokens": histogram.tokens}
    document["histogram_sha256"] = histogram.fingerprint


def forge(document, rng):
    """Raise the bound that the file states to what its own certificate claims to prove."""
    found = [problem for problem in Plan.from_json(json.dumps(document)).problems() if "can be proven" in problem]
    proven = [
        word for problem in found if problem.startswith("lower bound") for word in problem.split() if word.isdigit()
    ]
    if proven:
        document["lower_bound"]["packs"] = int(proven[-1])


@pytest.fixture(scope="module", name="originals")
def _originals():
    return files()


def test_the_originals_hold(originals):
    for document in originals.values():
        assert Plan.from_json(json.dumps(document)).problems() == []
        claims(document)
    proofs = [document["lower_bound"]["proof"] for name, document in originals.items() if "certificate" in name]
    assert proofs == ["certificate", "certificate", "cost certificate", "cost certificate"]


def test_three_thousand_mutations(originals):
    rng = random.Random(0)
    refused, found_out, true = 0, 0, 0
    for turn in range(3000):
        document = json.loads(json.dumps(list(originals.values())[turn % len(originals)]))
        for _ in range(rng.choice([1, 1, 2, 3])):
            mutate(document, rng)
        try:
            if rng.random() < 0.6:
                mend(document)
            if rng.random() < 0.5:
                forge(document, rng)
        except (FormatError, AttributeError, KeyError, TypeError, ValueError, OverflowError):
            pass  # nothing there to mend
        try:
            made = Plan.from_json(json.dumps(document))
        except FormatError:
            refused += 1
            continue
        if made.problems():
            found_out += 1
            continue
        claims(json.loads(made.to_json()))
        claims(document | {"facts": document.get("facts", {})})
        true += 1
    assert min(refused, found_out, true) > 100
