"""The charts of the report: each public function but `charts_of` takes a `Subject` and returns an altair chart.

`slots_chart` takes `Settings` besides. Each public function raises `MissingExtraError` if altair or vl-convert is not
installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nopad.report.distributions import HEIGHT, alike_chart, depth_chart, fill_chart, length_chart
from nopad.report.drawing import BLUE, COLOURS, ORANGE, load_altair
from nopad.report.settings import Settings
from nopad.report.subject import Subject
from nopad.report.ways import ways_of
from nopad.report.wording import big, percent

__all__ = ["charts_of", "efficiency_chart", "packs_chart", "slots_chart", "source_chart"]

LIMIT = "proven limit"
DASHES = ([1, 0], [7, 4], [2, 3])
WIDTHS = (5, 3, 2)
EMPTY = "#f0b48a"  # colour of padding in `slots_chart`
PACK_HEIGHT = 15
CROWDED = 150  # if a pack has more sequences than this, bars have no outlines


def efficiency_chart(subject: Subject) -> Any:
    """Return a chart of the efficiency by depth: a line per algorithm, and a mark per depth at the proven limit.

    The limit is the efficiency with only as many packs as the lower bound.
    """
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
                "algorithm": LIMIT,
                "efficiency": best,
                "packs": row["lower_bound"],
            }
        )
    names = [*dict.fromkeys(row["algorithm"] for row in subject.comparison), LIMIT]
    shown = {
        "sort": names,
        "title": None,
        "legend": alt.Legend(orient="top", symbolType="stroke", symbolSize=400, columns=2),
    }
    tooltip = ["algorithm:N", "depth:N", alt.Tooltip("efficiency:Q", format=".3%"), alt.Tooltip("packs:Q", format=",")]
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("depth:N", sort=depths, title="most sequences a pack may hold", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("efficiency:Q", title="efficiency", axis=alt.Axis(format="%", tickCount=5)),
        color=alt.Color("algorithm:N", scale=_scale(alt, names, COLOURS, "#888888"), **shown),
        tooltip=tooltip,
    )
    # Each line is thinner than those below it and has other dashes, so that all are visible where they are equal
    lines = base.transform_filter(f"datum.algorithm != '{LIMIT}'").mark_line(aria=False)
    lines = lines.encode(
        strokeDash=alt.StrokeDash("algorithm:N", scale=_scale(alt, names, DASHES, [1, 0]), **shown),
        strokeWidth=alt.StrokeWidth("algorithm:N", scale=_scale(alt, names, WIDTHS, 2), **shown),
    )
    limit = base.transform_filter(f"datum.algorithm == '{LIMIT}'").mark_tick(
        thickness=2, width=26, orient="horizontal", aria=False
    )
    best = max(row["efficiency"] for row in subject.comparison)
    return alt.layer(lines, limit).properties(
        height=HEIGHT, description=f"Lines: efficiency by depth for {', '.join(names[:-1])}, up to {best:.1%}."
    )


def packs_chart(subject: Subject) -> Any:
    """Return a chart of the subject's sample of packs: a bar per pack, neighbouring sequences in different colours.

    Empty slots are grey.
    """
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
    crowded = max(map(len, subject.packs)) > CROWDED  # outlines would hide what they surround
    colours = alt.Scale(domain=[-1, *range(len(COLOURS))], range=["#8884", *COLOURS])
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(aria=False, **({} if crowded else {"stroke": "#fff8", "strokeWidth": 0.6}))
        .encode(
            x=alt.X(
                "from:Q",
                scale=alt.Scale(domain=[0, subject.plan.capacity], nice=False),
                title=None,
                axis=alt.Axis(orient="top", grid=False, tickMinStep=1, labelOverlap=True),
            ),
            x2="to:Q",
            y=alt.Y("pack:O", axis=None, scale=alt.Scale(paddingInner=0.15)),
            color=alt.Color("colour:O", scale=colours, legend=None),
            tooltip=[alt.Tooltip("what:N", title="sequence")],
        )
        .properties(
            height=PACK_HEIGHT * len(subject.packs),
            description=f"Bars: {len(subject.packs)} packs, each sequence in another colour than its neighbours.",
        )
    )


def source_chart(subject: Subject) -> Any:
    """Return a chart of the tokens of each named source: packed, held out, and cut off or dropped.

    For a validation dataset, the second part is the tokens that were not held out.
    """
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
        .mark_bar(aria=False)
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
        .properties(
            height=34 * len(subject.sources),
            description="Bars: tokens of each source, and what became of them.",
        )
    )


def slots_chart(subject: Subject, settings: Settings) -> Any:
    """Return a chart of slots: a bar for packing, and one for each of three ways without packing.

    Each bar is divided into tokens and padding. The slots are those of `settings.epochs` epochs, extrapolated to
    `settings.of_tokens` if it is given.

    Raises:
        OptionError: `settings.of_tokens` is below the number of tokens of the subject.
        MissingExtraError: altair or vl-convert is not installed.
    """
    alt = load_altair()
    ways = ways_of(subject.plan, settings)
    parts = ("tokens", "padding")
    rows = []
    for way in ways:
        label = f"{big(way.slots)}, {percent(way.padding, 2)} padding"
        for at, (part, slots) in enumerate(zip(parts, (way.tokens, way.slots - way.tokens), strict=True)):
            rows.append({"way": way.name, "part": part, "at": at, "slots": slots, "label": label if at else ""})
    widest = max(way.slots for way in ways)
    y = alt.Y("way:N", sort=[way.name for way in ways], title=None)
    axis = {"title": None, "domain": False, "ticks": False, "labelLimit": 260, "labelPadding": 8}
    bars = (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(aria=False, height={"band": 0.62})
        .encode(
            y=y.axis(**axis),
            x=alt.X(
                "slots:Q",
                axis=None,
                scale=alt.Scale(domain=[0, widest * 1.4], nice=False),
            ),
            order="at:Q",
            color=alt.Color(
                "part:N",
                title=None,
                sort=list(parts),
                scale=alt.Scale(domain=list(parts), range=[BLUE, EMPTY]),
                legend=alt.Legend(orient="top"),
            ),
            tooltip=["way:N", "part:N", alt.Tooltip("slots:Q", format=",")],
        )
    )
    ends = [
        {"way": way.name, "end": way.slots, "label": row["label"]} for way, row in zip(ways, rows[1::2], strict=True)
    ]
    labels = alt.Chart(alt.Data(values=ends)).mark_text(align="left", dx=7, aria=False)
    return alt.layer(bars, labels.encode(y=y, x="end:Q", text="label:N")).properties(
        height=46 * len(ways),
        description=f"Bars: slots of {settings.span}. " + ". ".join(f"{row['way']}: {row['label']}" for row in ends),
    )


def charts_of(subject: Subject) -> dict[str, Any]:
    """Return all charts of a subject that have something to show, as a dict by name, such as "lengths".

    The chart of slots (`slots_chart`) is not among them, since it needs settings.
    """
    made = {
        "packs": packs_chart(subject),
        "lengths": length_chart(subject),
        "efficiency": efficiency_chart(subject),
        "fill": fill_chart(subject),
        "depth": depth_chart(subject),
        "alike": alike_chart(subject),
        "sources": source_chart(subject) if subject.sources else None,
    }
    return {name: chart for name, chart in made.items() if chart is not None}


def _scale(alt: Any, names: list[str], those: Sequence[Any], limit: Any) -> Any:
    """Return an Altair scale that maps each name to its mark: a colour, a pattern of dashes or a width.

    The last name, which stands for the proven limit, gets the mark `limit`. The other names get the marks `those` in
    turn (from the start again if there are too few).
    """
    return alt.Scale(domain=names, range=[*(those[at % len(those)] for at in range(len(names) - 1)), limit])


def _depth(depth: int | None) -> str:
    return "no limit" if depth is None else str(depth)
