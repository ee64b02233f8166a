"""The charts of the report: one function each, which takes a subject and returns an altair chart."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.histogram import exact_sum
from nopad.report.drawing import BLUE, COLOURS, ORANGE, load_altair
from nopad.report.subject import Subject

__all__ = [
    "charts_of",
    "depth_chart",
    "efficiency_chart",
    "fill_chart",
    "length_chart",
    "packs_chart",
    "source_chart",
]

BINS = 64
PACK_HEIGHT = 15


def length_chart(subject: Subject) -> Any:
    """Return a chart of the lengths: share of sequences and of tokens by length."""
    alt = load_altair()
    histogram, capacity = subject.histogram, subject.plan.capacity
    bins = min(BINS, capacity)
    edges = (-(-np.arange(bins + 1) * capacity // bins)).tolist()
    place = (histogram.lengths - 1) * bins // capacity
    sequences = _totals(place, histogram.counts, bins)
    tokens = _totals(place, histogram.counts.astype(object) * histogram.lengths, bins)
    rows = [
        {
            "from": edges[b],
            "to": edges[b + 1],
            "share": sequences[b] / histogram.sequences,
            "tokens": tokens[b] / histogram.tokens,
        }
        for b in range(bins)
    ]
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(color=BLUE)
        .encode(
            x=alt.X("from:Q", bin="binned", title="length in tokens", scale=alt.Scale(domain=[0, capacity])),
            x2="to:Q",
            y=alt.Y("share:Q", title="share of sequences", axis=alt.Axis(format="%")),
            tooltip=[
                alt.Tooltip("from:Q", title="longer than"),
                alt.Tooltip("to:Q", title="up to"),
                alt.Tooltip("share:Q", title="of the sequences", format=".2%"),
                alt.Tooltip("tokens:Q", title="of the tokens", format=".2%"),
            ],
        )
        .properties(height=220)
    )


def efficiency_chart(subject: Subject) -> Any:
    """Return a chart of the efficiency by depth: one line per algorithm, and the proven limit of any plan."""
    alt = load_altair()
    depths = list(dict.fromkeys(_depth(row["depth"]) for row in subject.comparison))
    rows = []
    for row in subject.comparison:
        rows.append(
            {
                "depth": _depth(row["depth"]),
                "algorithm": row["algorithm"],
                "efficiency": row["efficiency"],
                "packs": row["packs"],
            }
        )
        best = row["tokens"] / (row["lower_bound"] * subject.plan.capacity)
        rows.append(
            {
                "depth": _depth(row["depth"]),
                "algorithm": "proven limit",
                "efficiency": best,
                "packs": row["lower_bound"],
            }
        )
    names = [*dict.fromkeys(row["algorithm"] for row in subject.comparison), "proven limit"]
    x = alt.X("depth:N", sort=depths, title="most sequences a pack may hold", axis=alt.Axis(labelAngle=0))
    y = alt.Y("efficiency:Q", title="efficiency", axis=alt.Axis(format="%"), scale=alt.Scale(zero=False))
    colours = alt.Scale(domain=names, range=[*COLOURS[: len(names) - 1], "#888888"])
    colour = alt.Color("algorithm:N", scale=colours, sort=names, title=None, legend=alt.Legend(orient="bottom"))
    tooltip = ["algorithm:N", "depth:N", alt.Tooltip("efficiency:Q", format=".3%"), alt.Tooltip("packs:Q", format=",")]
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y, color=colour, tooltip=tooltip)
    lines = base.transform_filter("datum.algorithm != 'proven limit'").mark_line(point=True)
    limit = base.transform_filter("datum.algorithm == 'proven limit'").mark_tick(
        thickness=2, width=26, orient="horizontal"
    )
    return alt.layer(lines, limit).properties(height=220)


def _totals(places: NDArray[np.int64], numbers: NDArray[Any], size: int) -> list[int]:
    """Return the sum of the numbers at each place, as Python integers: counts may add up to more than 64 bits."""
    totals = np.zeros(size, dtype=object)
    np.add.at(totals, places, numbers.astype(object))
    return [int(total) for total in totals]


def fill_chart(subject: Subject) -> Any:
    """Return a chart of how full the packs are."""
    alt = load_altair()
    sums, counts = subject.fills()
    share = np.minimum(sums * 20 // subject.plan.capacity, 19)
    full = sums == subject.plan.capacity
    packs = _totals(share[~full], counts[~full], 20)
    rows = [{"fill": f"{5 * b}–{5 * b + 5} %", "packs": n} for b, n in enumerate(packs)]
    rows.append({"fill": "full", "packs": exact_sum(counts[full])})
    first = next(at for at, row in enumerate(rows) if row["packs"])
    return _bars(alt, rows[first:], "fill", "tokens in a pack, of its capacity")


def depth_chart(subject: Subject) -> Any:
    """Return a chart of the number of sequences per pack."""
    alt = load_altair()
    deepest = subject.plan.max_depth_used
    packs = _totals(np.diff(subject.plan.indptr), subject.plan.counts, deepest + 1)
    width = -(-deepest // 24)
    rows = []
    for begin in range(1, deepest + 1, width):
        end = min(begin + width - 1, deepest)
        rows.append({"depth": str(begin) if begin == end else f"{begin}–{end}", "packs": sum(packs[begin : end + 1])})
    return _bars(alt, rows, "depth", "sequences in a pack")


def packs_chart(subject: Subject) -> Any:
    """Return a chart of packs as bars: one colour per sequence, grey for empty slots."""
    alt = load_altair()
    rows = []
    for number, pack in enumerate(subject.packs):
        at = 0
        for place, (length, record) in enumerate(pack):
            what = f"{length:,} tokens" + (f", {record}" if record else "")
            rows.append({"pack": number, "from": at, "to": at + length, "colour": place % len(COLOURS), "what": what})
            at += length
        if at < subject.plan.capacity:
            empty = f"{subject.plan.capacity - at:,} slots empty"
            rows.append({"pack": number, "from": at, "to": subject.plan.capacity, "colour": -1, "what": empty})
    colours = alt.Scale(domain=[-1, *range(len(COLOURS))], range=["#8884", *COLOURS])
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(stroke="#fff8", strokeWidth=0.6)
        .encode(
            x=alt.X(
                "from:Q",
                scale=alt.Scale(domain=[0, subject.plan.capacity], nice=False),
                title=None,
                axis=alt.Axis(orient="top", grid=False),
            ),
            x2="to:Q",
            y=alt.Y("pack:O", axis=None, scale=alt.Scale(paddingInner=0.15)),
            color=alt.Color("colour:O", scale=colours, legend=None),
            tooltip=[alt.Tooltip("what:N", title="sequence")],
        )
        .properties(height=PACK_HEIGHT * len(subject.packs))
    )


def source_chart(subject: Subject) -> Any:
    """Return a chart of what happened to the tokens of each named source."""
    alt = load_altair()
    fates = {
        "packed": "tokens",
        "not held out" if subject.split == "validation" else "held out": "other_split_tokens",
        "cut off or dropped": None,
    }
    rows = []
    for part in subject.sources:
        for place, (fate, key) in enumerate(fates.items()):
            tokens = part["truncated_tokens"] + part["dropped_tokens"] if key is None else part[key]
            share = part["tokens"] / subject.plan.tokens
            rows.append({"source": part["name"], "fate": fate, "at": place, "tokens": tokens, "share": share})
    used = [fate for fate in fates if any(row["tokens"] for row in rows if row["fate"] == fate)]
    colours = dict(zip(fates, [BLUE, "#e69f00", ORANGE], strict=True))
    return (
        alt.Chart(alt.Data(values=[row for row in rows if row["fate"] in used]))
        .mark_bar()
        .encode(
            y=alt.Y("source:N", sort=None, title=None, axis=alt.Axis(labelLimit=160)),
            x=alt.X("tokens:Q", title="tokens", axis=alt.Axis(format="~s")),
            order=alt.Order("at:Q"),
            color=alt.Color(
                "fate:N",
                title=None,
                sort=used,
                scale=alt.Scale(domain=used, range=[colours[fate] for fate in used]),
                legend=alt.Legend(orient="bottom", columns=2),  # for the narrow screen of a phone
            ),
            tooltip=[
                "source:N",
                "fate:N",
                alt.Tooltip("tokens:Q", format=","),
                alt.Tooltip("share:Q", title="of all packed tokens", format=".2%"),
            ],
        )
        .properties(height=34 * len(subject.sources))
    )


def charts_of(subject: Subject) -> dict[str, Any]:
    """Return all charts of a subject by name; "sources" is included only if the subject has named sources."""
    makers = {
        "packs": packs_chart,
        "lengths": length_chart,
        "efficiency": efficiency_chart,
        "fill": fill_chart,
        "depth": depth_chart,
        **({"sources": source_chart} if subject.sources else {}),
    }
    return {name: make(subject) for name, make in makers.items()}


def _bars(alt: Any, rows: list[dict[str, Any]], name: str, title: str) -> Any:
    order = [row[name] for row in rows]
    total = sum(row["packs"] for row in rows)
    rows = [{**row, "share": row["packs"] / total} for row in rows]
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(color=ORANGE)
        .encode(
            x=alt.X(f"{name}:N", sort=order, title=title, axis=alt.Axis(labelAngle=-40, labelOverlap=True)),
            y=alt.Y("share:Q", title="share of packs", axis=alt.Axis(format="%")),
            tooltip=[f"{name}:N", alt.Tooltip("packs:Q", format=","), alt.Tooltip("share:Q", format=".3%")],
        )
        .properties(height=180)
    )


def _depth(depth: int | None) -> str:
    return "no limit" if depth is None else str(depth)
