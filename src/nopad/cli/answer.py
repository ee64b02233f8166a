"""The answer of `nopad plan`: padding without packing and with it, the proven minimum of packs, and what a depth costs.

The `rows` that functions take are dicts, each about one plan, as `nopad.planning.comparison.compare` returns them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nopad.cli.lengths import Given
from nopad.cli.render import least_packs, seconds
from nopad.planning.baselines import Padded
from nopad.planning.comparison import notes_of
from nopad.wording import counted, spanned

__all__ = [
    "advice",
    "answer",
    "became",
    "best_of",
    "chosen",
    "facts",
    "headline",
    "left_out",
    "listed_sources",
    "of_reading",
    "share",
    "sources",
    "text_unit",
]

NEAR = 1.01  # a depth counts as free if it needs at most this multiple of the packs at unlimited depth


def best_of(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the row with the fewest packs.

    If several rows have that few packs, the one without a depth limit is returned or, if each has a limit, the one with
    the largest limit.
    """
    return min(rows, key=lambda row: (row["packs"], 0 if row["depth"] is None else 1, -(row["depth"] or 0)))


def answer(given: Given, without: Padded, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what packing gains, as lines of text.

    Four lines are always there: the lengths, with what became of the records; the padding without packing and with it;
    the packs; and the slots that each way of padding needs, as a multiple of the slots of packs. A slot is the place of
    one token in a batch, real or padding. Then comes a line for each named input, and, if text files were read, a line
    that says what a record is.

    `given` has the lengths and the capacity, and `without` the numbers of slots without packing. `rows` has a dict
    about each plan, from `nopad.planning.comparison.compare`.
    """
    best = best_of(rows)
    times = {"fixed": without.fixed, "dynamic": without.dynamic, "length-sorted": without.by_length}
    shares = [f"{name} {without.share(slots):.1%}" for name, slots in {**times, "packed": best["slots"]}.items()]
    others = ", ".join(f"{name} {slots / best['slots']:.2f} ×" for name, slots in times.items())
    return [
        "; ".join([headline(given), *became(given)]),
        f"padding: {', '.join(shares)}",
        f"{counted(best['packs'], 'pack')} of {given.capacity:,} tokens, {_from_least(given, rows)}: "
        f"factor {best['packing_factor']:.3f} (sequences per pack)",
        f"slots to compute, as multiples of those of packs: {others} (batches of {without.batch_size})",
        *sources(given),
        *text_unit(given),
    ]


def headline(given: Given) -> str:
    """Return a text with the number of sequences in a plan, their lengths, and their tokens in all.

    If some sequences are above the capacity, the text also has the number of all sequences, and the share of all tokens
    that is in the plan.

    >>> from nopad.histogram import Histogram
    >>> headline(Given(capacity=512, histogram=Histogram.from_lengths([5, 500]), lengths=None))
    '2 sequences of 5 to 500 tokens, 505 in all'
    >>> over_long = {"over_long": 2, "over_long_tokens": 2000, "longest": 1500}
    >>> headline(Given(capacity=512, histogram=Histogram.from_lengths([5, 500]), lengths=None, **over_long))
    '2 of 4 sequences, 20.2% of the tokens (the others are above 512): 5 to 500 tokens each, 505 in all'
    """
    found = given.histogram
    sizes, total = spanned(int(found.lengths[0]), found.max_length, "token"), f"{found.tokens:,} in all"
    if not given.over_long:
        return f"{counted(found.sequences, 'sequence')} of {sizes}, {total}"
    others = "the other is" if given.over_long == 1 else "the others are"
    return (
        f"{found.sequences:,} of {counted(found.sequences + given.over_long, 'sequence')}, "
        f"{share(found.tokens, found.tokens + given.over_long_tokens)} of the tokens ({others} above "
        f"{given.capacity:,}): {sizes} each, {total}"
    )


def share(part: int, whole: int) -> str:
    """Return ``part / whole`` as a percentage; it is "0%" or "100%" only if it is exactly that.

    >>> share(0, 7), share(1, 7), share(1, 10**6), share(10**6 - 1, 10**6), share(7, 7)
    ('0%', '14.3%', 'under 0.1%', 'over 99.9%', '100%')
    """
    if part in (0, whole):
        return "100%" if part else "0%"
    return "under 0.1%" if part < whole / 1000 else "over 99.9%" if part > whole * 0.999 else f"{part / whole:.1%}"


def sources(given: Given) -> list[str]:
    """Return a line for each named input: its tokens, its share of all tokens, and its sequences.

    >>> from nopad.histogram import Histogram
    >>> named = {"web": (3, 60), "code": (1, 20)}
    >>> sources(Given(capacity=32, histogram=Histogram.from_lengths([20] * 4), lengths=None, sources=named))
    ['source web: 60 tokens, 75.0%; 3 sequences', 'source code: 20 tokens, 25.0%; 1 sequence']
    """
    whole = sum(tokens for _, tokens in given.sources.values())
    return [
        f"source {name}: {counted(tokens, 'token')}, {share(tokens, whole)}; {counted(number, 'sequence')}"
        for name, (number, tokens) in given.sources.items()
    ]


def listed_sources(given: Given) -> list[dict[str, Any]]:
    """Return a dict for each named input: its name, its number of sequences, and its number of tokens."""
    return [{"name": name, "sequences": n, "tokens": tokens} for name, (n, tokens) in given.sources.items()]


def text_unit(given: Given) -> list[str]:
    """Return a line that says what a record of the text files is, in a list; an empty list if no text files were read.

    The line also says what a record is in `nopad train` and `nopad predict`.

    >>> from nopad.histogram import Histogram
    >>> text_unit(Given(capacity=8, histogram=Histogram.from_lengths([5]), lengths=None, text_unit="line"))
    ['text files: each line is a record, as in nopad train and nopad predict']
    """
    if given.text_unit is None:
        return []
    named = {"file": "each file is a record (a document)"}.get(given.text_unit, f"each {given.text_unit} is a record")
    if given.text_unit == "line":
        return [f"text files: {named}, as in nopad train and nopad predict"]
    return [
        f"text files: {named}; nopad train and nopad predict take each line, unless data.text_unit or --text-unit says "
        "otherwise"
    ]


def became(given: Given) -> list[str]:
    """Return a text for each kind of change that records went through between reading and planning.

    Records may be truncated, split, dropped or skipped, and sentences may be too long for a pair. The list is empty if
    nothing was changed, or if the input has no records.

    >>> from nopad import Histogram
    >>> from nopad.corpus import Counts
    >>> counts = Counts(truncated=11, truncated_tokens=2859, empty_skipped=1)
    >>> became(Given(capacity=8, histogram=Histogram.from_lengths([8, 8]), lengths=None, counts=counts))
    ['11 truncated, 2,859 tokens cut off', '1 skipped as empty']
    """
    found = given.counts
    if found is None:
        return []
    long, lost = counted(found.long_sentences, "sentence"), counted(found.long_sentences_tokens, "token")
    parts = {
        f"{found.truncated:,} truncated, {counted(found.truncated_tokens, 'token')} cut off": found.truncated,
        f"{found.split:,} split": found.split,
        f"{found.dropped:,} dropped as over-long, {counted(found.dropped_tokens, 'token')}": found.dropped,
        f"{long} too long for a pair, {lost} lost": found.long_sentences,
        f"{found.empty_skipped:,} skipped as empty": found.empty_skipped,
        f"{found.bad_skipped:,} skipped as bad": found.bad_skipped,
    }
    return [said for said, number in parts.items() if number]


def _from_least(given: Given, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a text that compares the fewest packs with the proven minimum, such as "3 above the proven minimum".

    The fewest packs are those of the plan from `best_of`. The minimum is the one without a depth limit if this plan has
    no limit, or if it has a limit but exactly as many packs as that minimum. Otherwise, it is the minimum at the depth
    of the plan.
    """
    best, least = best_of(rows), least_packs(given.histogram, given.capacity, rows)
    if best["depth"] is None or best["packs"] == least:
        above = best["packs"] - least
        return f"{above:,} above the proven minimum" if above else "the proven minimum"
    above = best["packs"] - best["lower_bound"]
    return f"{f'{above:,} above ' if above else ''}the proven minimum at depth {best['depth']}"


def chosen(given: Given) -> str:
    """Return a sentence which says that nopad chose the capacity, and how; "" if the user or the input gave it."""
    if not given.chosen:
        return ""
    return (
        f"no --capacity is given, so this plan takes {given.capacity:,}, the smallest power of two that holds the "
        "longest sequence; -c sets another, such as the longest input of your model"
    )


def left_out(given: Given, options: str) -> str:
    """Return a sentence on the sequences above the capacity, which the plan leaves out; "" if there are none.

    The sentence ends with what can be done about these sequences: first `options`, which is a part of a sentence, then
    a larger capacity. In `options`, ``{it}`` is replaced by "it" or "them".
    """
    if not given.over_long:
        return ""
    ways = options.format(it="it" if given.over_long == 1 else "them")
    return (
        f"not in this plan: {counted(given.over_long, 'sequence')} of more than {counted(given.capacity, 'token')}, "
        f"{given.over_long_tokens:,} in all, the longest {given.longest:,}; {ways}"
        f", or choose a capacity of at least {given.longest:,}"
    )


def advice(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return lines of text on the choice of ``--depth``.

    The first line says how long planning took without a limit, and how many sequences the deepest pack of that plan
    holds. A second line, if there is one, says how many more packs some limits need. The list is empty if all `rows`
    have a limit, or none has.
    """
    whole = next((row for row in rows if row["depth"] is None), None)
    limited = [row for row in rows if row["depth"] is not None]
    if whole is None or not limited:
        return []
    costs = {row["depth"]: row["packs"] / whole["packs"] for row in limited}
    free = min((depth for depth, cost in costs.items() if cost <= NEAR), default=None)
    lines = [
        f"--depth: leave it out. Unlimited took {seconds(whole['seconds'])} to plan; its deepest pack holds "
        f"{counted(whole['max_depth_used'], 'sequence')}."
    ]
    words = []
    if free is not None:
        more = next(row["packs"] for row in limited if row["depth"] == free) - whole["packs"]
        words.append(f"--depth {free} costs {counted(more, 'pack') if more > 0 else 'no pack'} more")
    dear = [depth for depth in sorted(costs, reverse=True) if costs[depth] > NEAR and depth > 1]
    words += [f"--depth {depth} takes {costs[depth]:.2f} times the packs" for depth in dear[:2]]
    return [*lines, f"Where what reads the packs needs a limit: {', '.join(words)}."] if words else lines


def of_reading(given: Given) -> dict[str, Any]:
    """Return what was counted while the input was read, and what was passed over, as JSON values by name."""
    return {
        "counts": None if given.counts is None else given.counts.to_dict(),
        "passed_over": list(given.passed_over),
    }


def facts(given: Given, without: Padded, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the facts of the answer as JSON values by name.

    Among them are the numbers of sequences, tokens and packs; "slots" and "padding", each a dict with a value for each
    way of padding and one for packs; "advice", the lines on ``--depth``; and "plans", the dicts in `rows`.
    """
    best = best_of(rows)
    slots = {
        "fixed": without.fixed,
        "dynamic": without.dynamic,
        "length_sorted": without.by_length,
        "packed": best["slots"],
    }
    return {
        "capacity": given.capacity,
        "capacity_chosen": given.chosen,
        "sequences": given.histogram.sequences,
        "tokens": given.histogram.tokens,
        "shortest": int(given.histogram.lengths[0]),
        "longest": given.histogram.max_length,
        "batch_size": without.batch_size,
        "slots": slots,
        "padding": {name: without.share(number) for name, number in slots.items()},
        "packs": best["packs"],
        "lower_bound": least_packs(given.histogram, given.capacity, rows),
        "packing_factor": best["packing_factor"],
        "over_long": {
            "sequences": given.over_long,
            "tokens": given.over_long_tokens,
            "longest": given.longest,
        },
        "sources": listed_sources(given),
        "text_unit": given.text_unit,
        **of_reading(given),
        "advice": advice(rows),
        "notes": notes_of(rows),
        "plans": list(rows),
    }
