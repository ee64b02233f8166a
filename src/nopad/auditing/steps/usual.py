"""Compute which loss each common mistake would give, so that the user's loss shows which mistake was made."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Counted", "Usual", "matching", "usual"]


@dataclass(frozen=True)
class Counted:
    """The loss, counts and place of one sequence of the step.

    An item has one loss: it is a labelled token, or a whole sequence with a label.

    Attributes:
        total: sum of its items' losses, run alone.
        items: number of its items.
        first: whether its first token has a label, although no token of the sequence predicts it.
        border: loss of its first token's label if the preceding sequence predicts this label; None: there is no such
            label or sequence, or the loss cannot be computed.
        tokens: number of its tokens.
        slots: number of slots (tokens and padding) of its row, for one sequence of each row; 0 for the others.
        rank, micro, row: numbers of its rank, micro-batch and row.
    """

    total: float
    items: int
    first: bool
    border: float | None
    tokens: int
    slots: int
    rank: int
    micro: int
    row: int


@dataclass(frozen=True)
class Usual:
    """A value that a step's loss has if it is right, or if certain mistakes were made.

    Attributes:
        kind: name of the mistake; "": it is no mistake.
        text: a description of the mean that gives this value.
        value: the loss.
        weights: the weight of each sequence's sum of losses in `value`; None: `value` is not a weighted sum of these.
        denominator: the number by which the sum is divided; None: there is no single one.
        oddities: number of mistakes combined in this value.
    """

    kind: str
    text: str
    value: float
    weights: list[float] | None
    denominator: float | None
    oddities: int


@dataclass(frozen=True)
class _Way:
    """A way to compute a mean from a value and a count of each sequence: the sum of values over the sum of counts.

    Attributes:
        kind: name of the mistake that this way is; "": it is no mistake.
        text: a description of the mean.
        values: the value of each sequence.
        counts: the count of each sequence.
        scales: for each sequence, the factor that turns the sum of its items' losses into its value; None: there is no
            such factor, since values also contain losses of labels that are not among the sequence's items.
        sums: whether values are sums of items' losses, so that a denominator of the mean can be given.
    """

    kind: str
    text: str
    values: list[float]
    counts: list[float]
    scales: list[float] | None
    sums: bool = True


def usual(sequences: Sequence[Counted], ranks: int, accumulation: int, per: str) -> list[Usual]:
    """Return the losses that a step has if it is right, or with common mistakes; the likeliest come first.

    Args:
        sequences: the sequences of the step.
        ranks: number of ranks.
        accumulation: number of micro-batches per rank.
        per: the mean that is right, "token" or "sequence"; its value has the kind "".
    """
    found = []
    for way in _ways(sequences, per):
        for kind, text, group in _groupings(sequences):
            base = _mean(way, [group(one) for one in sequences])
            if base is None:
                continue
            value, weights, denominator = base
            for factor, why in _factors(ranks, accumulation, bool(kind)):
                said = f"{way.text}{text}" if group(sequences[0]) is not None else text
                kinds = [part for part in (way.kind, kind, "wrong scale" if why else "") if part]
                found.append(
                    Usual(
                        kinds[0] if kinds else "",
                        said + (why and f", {why}"),
                        value * factor,
                        None if weights is None else [weight * factor for weight in weights],
                        None if denominator is None else denominator / factor,
                        len(kinds),
                    )
                )
    return sorted(found, key=lambda one: one.oddities)


def matching(observed: float, values: Sequence[Usual], limit: float) -> Usual | None:
    """Return the first of `values` that equals the loss `observed` up to a relative difference of `limit`, or None."""
    if not math.isfinite(observed):
        return None
    return next((one for one in values if abs(observed - one.value) <= limit * max(abs(one.value), 1e-300)), None)


def _ways(sequences: Sequence[Counted], per: str) -> Iterator[_Way]:
    totals, items = [one.total for one in sequences], [float(one.items) for one in sequences]
    ones = [1.0] * len(totals)
    labelled = [float(one.items > 0) for one in sequences]
    per_item = [1 / count if count else 0.0 for count in items]
    means = [total * share for total, share in zip(totals, per_item, strict=True)]
    by_token = _Way("", "the mean over labelled items", totals, items, ones)
    by_sequence = _Way("", "the mean of the sequences' means", means, labelled, per_item, sums=False)
    right, other = (by_token, by_sequence) if per == "token" else (by_sequence, by_token)
    yield right
    kind = "per sequence" if per == "token" else "per token"
    if max(items, default=0) > 1:  # else both means are the same
        yield _Way(kind, other.text, other.values, other.counts, other.scales, other.sums)
    if any(one.first for one in sequences):
        counts = [count + one.first for count, one in zip(items, sequences, strict=True)]
        text = "the sum over labelled items, divided by a number that counts first tokens, which nothing predicts"
        yield _Way("first token counted", text, totals, counts, ones)
    if any(one.border is not None for one in sequences):
        inside = [count + (one.border is not None) for count, one in zip(items, sequences, strict=True)]
        text = "the sum over labelled items, divided by a number that counts first tokens, but not those of rows"
        yield _Way("first token counted", text, totals, inside, ones)
        values = [total + (one.border or 0.0) for total, one in zip(totals, sequences, strict=True)]
        every = [count + one.first for count, one in zip(items, sequences, strict=True)]
        text = "a loss in which the last token of a sequence predicts the first label of the next one"
        for counts in (inside, items, every):
            yield _Way("label across a border", text, values, counts, None)
    for kind, text, counts in (
        ("wrong denominator", "the sum divided by all tokens, labelled or not", [float(o.tokens) for o in sequences]),
        ("wrong denominator", "the sum divided by all slots, padding too", [float(o.slots) for o in sequences]),
        ("wrong denominator", "the sum divided by the number of sequences", ones),
    ):
        if counts != items:
            yield _Way(kind, text, totals, counts, ones)


def _groupings(sequences: Sequence[Counted]) -> Iterator[tuple[str, str, Callable[[Counted], object]]]:
    everything: list[tuple[str, Callable[[Counted], object]]] = [
        ("", lambda one: 0),
        ("micro-batch", lambda one: (one.rank, one.micro)),
        ("rank", lambda one: one.rank),
        ("accumulation step", lambda one: one.micro),
        ("row", lambda one: (one.rank, one.micro, one.row)),
    ]
    seen: list[list[int]] = []
    for name, group in everything:
        numbers: dict[object, int] = {}
        partition = [numbers.setdefault(group(one), len(numbers)) for one in sequences]
        if partition in seen:
            continue
        seen.append(partition)
        text = name and f" within each {name}, averaged over the {name}{'e' * name.endswith('ch')}s, not over the step"
        yield "mean of means" if name else "", text, group
    yield "wrong denominator", "a sum that nothing divides", lambda one: None


def _mean(way: _Way, groups: list[object]) -> tuple[float, list[float] | None, float | None] | None:
    """Compute the mean of each group of sequences, and then the mean over the groups.

    `way` has a value and a count for each sequence, and `groups` the group of each, such as its micro-batch. A group's
    mean is the sum of its values divided by the sum of its counts; it is 0 if the counts are 0. If `groups` holds only
    None, the sum of all values is returned in place of a mean.

    Returns:
        ``(mean, weights, denominator)``: the mean; the weight of each sequence's sum of losses in it (None if the way
            has no `scales`); and the number that divides the sum of items' losses (None if there is no single one).
            None instead of all three: all counts are 0.
    """
    if groups[0] is None:
        return math.fsum(way.values), way.scales, 1.0 if way.sums else None
    totals: dict[object, float] = {}
    for group, count in zip(groups, way.counts, strict=True):
        totals[group] = totals.get(group, 0.0) + count
    if not any(totals.values()):
        return None
    shares = [1 / (len(totals) * totals[group]) if totals[group] else 0.0 for group in groups]
    value = math.fsum(value * share for value, share in zip(way.values, shares, strict=True))
    scales = way.scales
    weights = None if scales is None else [a * b for a, b in zip(scales, shares, strict=True)]
    return value, weights, totals[groups[0]] if len(totals) == 1 and way.sums else None


def _factors(ranks: int, accumulation: int, of_means: bool) -> list[tuple[float, str]]:
    """Return (factor, reason) for each factor by which a loss may be too large or too small; the first is (1.0, "").

    `of_means`: whether the loss is a mean of means, which decides which reason is named first.
    """
    apart = f"not divided by the {accumulation} accumulation steps"
    halved = f"divided by the {accumulation} accumulation steps, which its denominator has in it"
    less = f"not multiplied by the {ranks} ranks, over which gradients are averaged"
    more = f"multiplied by the {ranks} ranks, which its denominator does not have in it"
    singles = {
        float(accumulation): [apart],
        1 / accumulation: [halved],
    }
    for factor, why in ((1 / ranks, less), (float(ranks), more)):
        singles.setdefault(factor, []).insert(0 if not of_means else 1, why)
    singles.pop(1.0, None)
    found = [(1.0, ""), *((factor, f"times {factor:g}: " + ", or ".join(why)) for factor, why in singles.items())]
    for (one, a), (other, b) in itertools.product(
        ((float(accumulation), apart), (1 / accumulation, halved)), ((1 / ranks, less), (float(ranks), more))
    ):
        factor = one * other
        if ranks > 1 and accumulation > 1 and all(abs(factor - known) > 1e-9 for known, _ in found):
            found.append((factor, f"times {factor:g}: {a}, and {b}"))
    return found
