"""Charts of distributions: lengths, sequences per pack, fill of the packs, and differences in length within a pack.

Each public function takes a `Subject` and returns an altair chart, or None if there is nothing to compare. Bins that
would be empty are left out. Each public function raises `MissingExtraError` if altair or vl-convert is not installed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.histogram import exact_sum
from nopad.report.drawing import BLUE, ORANGE, SKY, load_altair
from nopad.report.ranges import in_ranges, name_of
from nopad.report.subject import Subject
from nopad.report.wording import mean, percent

__all__ = ["alike_chart", "depth_chart", "fill_chart", "length_chart"]

HEIGHT = 220
FILLS = (0, 50, 75, 90, 95, 100)  # percent of the capacity; the last range is of packs that are full
WIDEST = 46  # width of a bar in pixels, if there are few bars: else they would fill the whole chart


def length_chart(subject: Subject) -> Any | None:
    """Return a chart of the share of sequences, and of tokens, by length; None if all lengths are equal."""
    alt = load_altair()
    histogram = subject.histogram
    if histogram.lengths.size < 2:
        return None
    counts = dict(zip(histogram.lengths.tolist(), histogram.counts.tolist(), strict=True))
    kinds = ("of the sequences", "of the tokens")
    rows = []
    for first, last in in_ranges(counts):
        inside = {length: n for length, n in counts.items() if first <= length <= last}
        shares = (
            sum(inside.values()) / histogram.sequences,
            sum(length * n for length, n in inside.items()) / histogram.tokens,
        )
        name = name_of(first, last)
        for kind, share in zip(kinds, shares, strict=True):
            rows.append({"length": name, "first": first, "last": last, "kind": kind, "share": share})
    names = list(dict.fromkeys(row["length"] for row in rows))
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(aria=False)
        .encode(
            x=alt.X("length:N", sort=names, title="length in tokens", axis=_slanted(alt, names)),
            xOffset=alt.XOffset("kind:N", sort=list(kinds)),
            y=alt.Y("share:Q", title="share", axis=alt.Axis(format="%", tickCount=5)),
            color=alt.Color(
                "kind:N",
                sort=list(kinds),
                title=None,
                scale=alt.Scale(domain=list(kinds), range=[BLUE, SKY]),
                legend=alt.Legend(orient="top"),
            ),
            tooltip=[alt.Tooltip("length:N"), alt.Tooltip("kind:N", title="share"), _percent(alt, "share")],
        )
        .properties(
            height=HEIGHT,
            description=f"Bars: share of the sequences and of the tokens by length, from {histogram.lengths[0]:,} to "
            f"{histogram.max_length:,} tokens.",
        )
    )


def depth_chart(subject: Subject) -> Any | None:
    """Return a chart of the number of sequences per pack; None if it is the same for all packs."""
    alt = load_altair()
    packs = _totals(np.diff(subject.plan.indptr), subject.plan.counts)
    if len(packs) < 2:
        return None
    rows, names = [], []
    for first, last in in_ranges(packs):
        inside = sum(n for depth, n in packs.items() if first <= depth <= last)
        names.append(name_of(first, last))
        rows.append({"depth": names[-1], "packs": inside, "share": inside / subject.plan.packs})
    found = subject.composition
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(color=BLUE, aria=False, **({"size": WIDEST} if len(rows) < 8 else {}))
        .encode(
            x=alt.X("depth:N", sort=names, title="sequences in a pack", axis=_slanted(alt, names)),
            y=alt.Y("share:Q", title="share of packs", axis=alt.Axis(format="%", tickCount=5)),
            tooltip=[
                alt.Tooltip("depth:N", title="sequences"),
                alt.Tooltip("packs:Q", format=","),
                _percent(alt, "share"),
            ],
        )
        .properties(
            height=HEIGHT,
            description=f"Bars: share of packs by their number of sequences, from {found.fewest:,} to {found.most:,}.",
        )
    )


def fill_chart(subject: Subject) -> Any | None:
    """Return a chart of how full packs are, a bar for each range that occurs; None if all packs are in one range."""
    alt = load_altair()
    sums, counts = subject.fills()
    percents = sums * 100 // subject.plan.capacity
    rows = []
    for low, high in [(100, 100), *zip(FILLS[-2::-1], FILLS[:0:-1], strict=True)]:
        chosen = counts[(percents >= low) & ((percents < high) | (low == 100))]
        name = (
            "full"
            if low == 100
            else "95% or more, not full"
            if low == 95
            else f"{low} to {high}%"
            if low
            else "under 50%"
        )
        if chosen.size:
            packs = exact_sum(chosen)
            share = packs / subject.plan.packs
            rows.append({"fill": name, "packs": packs, "share": share, "label": percent(share, 1)})
    if len(rows) < 2:
        return None
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y(
            "fill:N",
            sort=[row["fill"] for row in rows],
            title=None,
            axis=alt.Axis(ticks=False, domain=False, labelPadding=6, labelLimit=200),
        ),
        x=alt.X(
            "share:Q",
            title="share of packs",
            axis=alt.Axis(format="%", values=[0, 0.25, 0.5, 0.75, 1]),
            scale=alt.Scale(domain=[0, 1.2]),
        ),
        tooltip=[alt.Tooltip("fill:N"), alt.Tooltip("packs:Q", format=","), _percent(alt, "share")],
    )
    bars = base.mark_bar(color=BLUE, aria=False, height={"band": 0.7})
    return alt.layer(bars, base.mark_text(align="left", dx=5, aria=False).encode(text="label:N")).properties(
        height=34 * len(rows),
        description="Bars: share of packs by how full they are. "
        + ", ".join(f"{row['fill']}: {row['label']}" for row in rows),
    )


def alike_chart(subject: Subject) -> Any | None:
    """Return a chart of how much two sequences of one pack differ in length, compared with two drawn at random.

    The result is None if all packs of several sequences hold one and the same length, or if there are no such packs.
    """
    alt = load_altair()
    found = subject.composition
    if not found.steps:
        return None
    kinds = ("of one pack", "drawn at random")
    rows = [
        {"difference": f"{step.difference:,}", "kind": kind, "share": share}
        for step in found.steps
        for kind, share in zip(kinds, (step.together, step.at_random), strict=True)
    ]
    names = [f"{step.difference:,}" for step in found.steps]
    # The dashed line lies over a wider one, so that both are visible where they are equal
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_line(aria=False)
        .encode(
            x=alt.X("difference:N", sort=names, title="differ by at most so many tokens", axis=_slanted(alt, names)),
            y=alt.Y("share:Q", title="share of pairs", axis=alt.Axis(format="%", tickCount=5)),
            color=alt.Color(
                "kind:N",
                sort=list(kinds),
                title="two sequences",
                scale=alt.Scale(domain=list(kinds), range=[BLUE, ORANGE]),
                legend=alt.Legend(orient="top", symbolType="stroke", symbolSize=400),
            ),
            strokeDash=alt.StrokeDash(
                "kind:N", sort=list(kinds), scale=alt.Scale(domain=list(kinds), range=[[1, 0], [5, 5]])
            ),
            strokeWidth=alt.StrokeWidth(
                "kind:N", sort=list(kinds), scale=alt.Scale(domain=list(kinds), range=[4, 2.5])
            ),
            tooltip=[
                alt.Tooltip("kind:N", title="two"),
                alt.Tooltip("difference:N", title="differ by at most"),
                _percent(alt, "share"),
            ],
        )
        .properties(
            height=HEIGHT,
            description=f"Lines: two sequences of one pack differ by {mean(found.together)} tokens on average, "
            f"two drawn at random by {mean(found.at_random)}.",
        )
    )


def _totals(numbers: NDArray[np.int64], counts: NDArray[np.int64]) -> dict[int, int]:
    """Return ``{number: total}``: the sum of ``counts[i]`` over all i with this number in ``numbers[i]``.

    Totals are Python integers, since they may need more than 64 bits.
    """
    totals: dict[int, int] = {}
    for number, n in zip(numbers.tolist(), counts.tolist(), strict=True):
        totals[number] = totals.get(number, 0) + n
    return totals


def _slanted(alt: Any, names: list[str]) -> Any:
    """Return an axis with labels `names`; all are slanted if they are too long to stand side by side."""
    room = sum(len(name) + 2 for name in names)
    long = room > 70 or (room > 40 and max(map(len, names)) > 3)
    return alt.Axis(labelAngle=-45 if long else 0, labelOverlap=False, ticks=False)


def _percent(alt: Any, field: str) -> Any:
    return alt.Tooltip(f"{field}:Q", format=".2%")
