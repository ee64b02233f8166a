"""Numbers and sentences for the report; `percent` and `quantity` never round a small number to 0."""

from __future__ import annotations

from nopad.histogram import Histogram
from nopad.planning import Plan
from nopad.report.composition import Composition
from nopad.wording import counted

__all__ = ["alike", "answer", "big", "mean", "median_of", "percent", "quantity", "times"]

_UNITS = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"))


def answer(plan: Plan, *, packed: bool) -> str:
    """Return two sentences on what packing does to an epoch; `packed` says whether packs were made or only planned.

    >>> import nopad
    >>> answer(nopad.plan([5, 3, 4, 2, 8], capacity=8), packed=True)
    'An epoch takes 3 rows instead of 5: 40.0% fewer. 8.33% padding, exactly the proven minimum.'
    """
    takes, rows, before = "takes" if packed else "would take", plan.packs, plan.sequences
    padding = f"{percent(1 - plan.efficiency, 2)} padding"
    above = plan.gap
    minimum = (
        f"{counted(above, 'row')} above the proven minimum of {plan.lower_bound:,}"
        if above
        else "exactly the proven minimum"
    )
    if rows == before:
        said = f"An epoch {takes} {counted(rows, 'row')}, as many as without packing: no two sequences share one."
    else:
        saved = 1 - rows / before
        fewer = f"{before / rows:,.1f} times fewer" if before >= 2 * rows else f"{percent(saved, 1)} fewer"
        said = f"An epoch {takes} {counted(rows, 'row')} instead of {before:,}: {fewer}."
    return f"{said} {padding}, {minimum}."


def alike(found: Composition) -> str:
    """Return a text on how much two sequences of a pack differ in length, compared with two drawn at random.

    >>> import nopad
    >>> print(alike(Composition(nopad.plan([6, 2, 6, 2, 4, 4], capacity=8))).partition(":")[0])
    Two sequences of one pack differ by 2.7 tokens on average, 1.25 times as much as two drawn at random (2.1)
    """
    if not found.in_company:
        return "No two sequences share a pack."
    if not found.at_random:
        return "All sequences that share a pack have the same length."
    ratio, random = found.likeness, f"two drawn at random ({mean(found.at_random)})"
    said = f"Two sequences of one pack differ by {mean(found.together)} tokens on average"
    if 0.95 <= ratio <= 1.05:
        return f"{said}, about as much as {random}."
    compared = "less" if ratio > 1 else "more"
    factor = "under 0.01" if 0 < ratio < 0.005 else f"{ratio:.2f}"
    return f"{said}, {factor} times as much as {random}: the lengths in a pack are {compared} alike than by chance."


def mean(tokens: float) -> str:
    """Return a mean number of tokens as text, with one decimal; below 0.1, as `quantity` gives it.

    >>> mean(1234.56), mean(0.01485), mean(0.0)
    ('1,234.6', '0.0149', '0')
    """
    return quantity(tokens) if tokens < 0.1 else f"{tokens:,.1f}"


def median_of(histogram: Histogram) -> int:
    """Return the median length in tokens: the shortest length that at least half of the sequences do not exceed.

    The histogram must hold a sequence.

    >>> median_of(Histogram.from_lengths([3, 9, 4]))
    4
    """
    seen = 0
    for length, count in zip(histogram.lengths.tolist(), histogram.counts.tolist(), strict=True):
        seen += count
        if 2 * seen >= histogram.sequences:
            return int(length)
    raise AssertionError("a histogram of no sequences")


def times(slots: int, least: int) -> str:
    """Return ``slots / least`` as text; `least` is the number of slots with packing.

    >>> times(3000, 1000), times(1004, 1000), times(1000, 1000)
    ('3.00×', '1.004×', '1×')
    """
    ratio = slots / least
    return "1×" if slots == least else f"{ratio:,.{3 if 0.9 < ratio < 1.1 else 2 if ratio < 10 else 1}f}×"


def percent(share: float, places: int) -> str:
    """Return a share from 0 to 1 as a percentage with `places` decimals; only 0 is shown as 0, and only 1 as 100.

    >>> percent(0.12345, 1), percent(0.0, 2), percent(1e-9, 2), percent(0.99999, 1)
    ('12.3%', '0.00%', 'under 0.01%', 'over 99.9%')
    """
    text, least = f"{share:.{places}%}", 0.1**places
    if share > 0 and float(text[:-1]) == 0:
        return f"under {least:.{places}f}%"
    if share < 1 and float(text[:-1]) == 100:
        return f"over {100 - least:.{places}f}%"
    return text


def big(number: int) -> str:
    """Return a number as text: up to 99,999 exactly, above to about three digits and with a word such as "million".

    >>> big(2088), big(24_599_552), big(1_068_648), big(750_000)
    ('2,088', '24.6 million', '1.07 million', '750 thousand')
    """
    if number < 100_000:
        return f"{number:,}"
    for size, name in (*_UNITS, (1000, "thousand")):
        if number >= size * 0.9995:  # which is rounded up to 1 of this unit
            value = number / size
            return f"{value:,.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {name}"
    raise AssertionError("unreachable")


def quantity(amount: float) -> str:
    """Return hours or energy as text, with three significant digits; from 1,000 on, as a whole number.

    An amount above 0 but below 0.0001 becomes "under 0.0001".

    >>> quantity(1234.5), quantity(12.34), quantity(0.01234), quantity(0.0)
    ('1,234', '12.3', '0.0123', '0')
    """
    if amount >= 999.5:
        return f"{amount:,.0f}"
    if 0 < amount < 0.0001:
        return "under 0.0001"
    return f"{amount:.3g}"
