"""Charts of the studies of balance, long context, scaling and latency (altair), one function each.

They need the extra `report`. Figure 6 is that of "Breaking MLPerf Training" (Samsung).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nopad.report.drawing import BLUE, COLOURS, ORANGE, load_altair
from nopad.study.balance import BalanceRow
from nopad.study.latency import METHODS, LatencyRow
from nopad.study.long_context import LongRow
from nopad.study.scaling import PACKING, ScalingRow

__all__ = ["latency_chart", "long_context_chart", "ranges_chart", "scaling_chart"]

GREY = "#555555"  # in place of yellow, which is hard to see in thin lines
_SHOWN = {  # first the methods of the published Figure 6, then ours
    "none": "no balancing",
    "global_presort_raster": "global presorting",
    "packs_depth_3": "packing, depth 3",
    "local_presort": "Samsung",
    "quantile_node": "quantile strata, node",
    "karmarkar_karp": "Karmarkar-Karp",
    "packs": "packing, any depth",
}


def ranges_chart(rows: Sequence[BalanceRow]) -> Any:
    """Return Figure 6 as a chart: a panel for each method, and in it a bar for each number of GPUs.

    A bar reaches from the fewest tokens on a GPU in a step to the most, both averaged over the steps. Only the methods
    of the published figure and three of nopad's are shown, if `rows` has them.
    """
    alt = load_altair()
    found = {row.method for row in rows}
    names = [name for method, name in _SHOWN.items() if method in found]
    values = [
        {
            "method": _SHOWN[row.method],
            "gpus": row.gpus,
            "least": row.min_tokens,
            "most": row.max_tokens,
            "mean": row.mean_tokens,
            "waste": row.waste,
        }
        for row in rows
        if row.method in _SHOWN
    ]
    tooltip = [
        "method:N",
        "gpus:O",
        alt.Tooltip("least:Q", format=",.0f"),
        alt.Tooltip("most:Q", format=",.0f"),
        alt.Tooltip("waste:Q", format=".2%"),
    ]
    base = alt.Chart(width=118, height=260).encode(x=alt.X("gpus:O", title="GPUs"), tooltip=tooltip)
    axis = alt.Y("least:Q", title="tokens per GPU", scale=alt.Scale(zero=False))
    colour = alt.Color("method:N", legend=None, scale=alt.Scale(domain=names, range=[*COLOURS[:6], GREY][: len(names)]))
    bars = base.mark_bar(size=9, opacity=0.55).encode(y=axis, y2="most:Q", color=colour)
    # Where least and most are nearly equal, the bar is too thin to see; lines mark both ends
    ends = [base.mark_tick(thickness=2, size=9).encode(y=f"{end}:Q", color=colour) for end in ("least", "most")]
    return (
        alt.layer(bars, *ends, data=alt.Data(values=values))
        .facet(column=alt.Column("method:N", sort=names, title=None), spacing=12)
        .properties(
            title=alt.Title(
                "Tokens per GPU, fewest to most", subtitle=f"means over steps; {rows[0].batch} sequences per GPU"
            )
        )
    )


def long_context_chart(rows: Sequence[LongRow]) -> Any:
    """Return a chart of the waste at long context: a panel per workload, a bar per method and kind of wait.

    Waste is how much longer a step takes than if all ranks had the same cost. A black mark shows the floor, a lower
    bound on the waste. The kinds of wait: ranks wait for each other at each optimiser step, or at each micro-step.
    """
    alt = load_altair()
    methods = list(dict.fromkeys(row.method for row in rows))
    waits, panels = ["optimiser step", "micro-step"], []
    for workload in dict.fromkeys(row.workload for row in rows):
        values = [
            {
                "method": row.method.replace("_", " "),
                "wait": waits[row.wait == "micro"],
                "waste": row.waste,
                "floor": row.floor,
            }
            for row in rows
            if row.workload == workload
        ]
        base = alt.Chart(alt.Data(values=values), title=workload, width=300).encode(
            y=alt.Y("method:N", sort=[name.replace("_", " ") for name in methods], title=None),
            yOffset=alt.YOffset("wait:N", sort=waits),
            tooltip=["method:N", "wait:N", alt.Tooltip("waste:Q", format=".2%"), alt.Tooltip("floor:Q", format=".2%")],
        )
        bars = base.mark_bar().encode(
            x=alt.X("waste:Q", title="waste: time above the mean rank's", axis=alt.Axis(format="%")),
            color=alt.Color(
                "wait:N",
                title="ranks wait at each",
                scale=alt.Scale(domain=waits, range=[BLUE, ORANGE]),
            ),
        )
        floors = base.mark_tick(color="black", thickness=2, size=8).encode(x="floor:Q")
        panels.append(bars + floors)
    return alt.concat(*panels, columns=2).properties(
        title=alt.Title("Balance at long context", subtitle="black: the floor, the longest sequence alone on a rank")
    )


def scaling_chart(rows: Sequence[ScalingRow]) -> Any:
    """Return a chart of the speed-up over padding by number of devices.

    It has one line for each estimate of the speed-up, and a flat line at the speed-up measured for packing.
    """
    alt = load_altair()
    curves = {
        "un-padding, as printed": "printed",
        "un-padding, equations solved": "corrected",
        "un-padding, Gumbel times": "by_time",
        "un-padding, simulated": "simulated",
        "un-padding, balanced": "balanced",
        "packing": "packing",
    }
    values = [
        {"devices": row.devices, "curve": name, "speed-up": getattr(row, attribute)}
        for name, attribute in curves.items()
        for row in rows
        if getattr(row, attribute) is not None
    ]
    values += [{"devices": row.devices, "curve": "packing, as measured", "speed-up": PACKING} for row in rows]
    names = [*curves, "packing, as measured"]
    return (
        alt.Chart(
            alt.Data(values=values), width=560, height=320, title="Speed-up over padding, 32 sequences per device"
        )
        .mark_line(point=True)
        .encode(
            x=alt.X("devices:Q", title="devices", scale=alt.Scale(type="log", base=2), axis=alt.Axis(format="d")),
            y=alt.Y("speed-up:Q", scale=alt.Scale(zero=False)),
            color=alt.Color("curve:N", title=None, sort=names, scale=alt.Scale(domain=names, range=list(COLOURS))),
            tooltip=["curve:N", "devices:Q", alt.Tooltip("speed-up:Q", format=".3f")],
        )
    )


def latency_chart(rows: Sequence[LatencyRow]) -> Any:
    """Return a chart of a step's simulated latency, stacked by part: a panel per batch size and number of GPUs."""
    alt = load_altair()
    parts = ("compute", "waiting", "launch", "reduce", "exchange")
    methods = [name for name in METHODS if any(row.method == name for row in rows)]
    panels = []
    for batch in dict.fromkeys(row.batch for row in rows):
        line: list[Any] = []
        for gpus in dict.fromkeys(row.gpus for row in rows):
            values = [
                {"method": row.method, "part": part, "order": at, "ms": 1e3 * getattr(row, part)}
                for row in rows
                if (row.batch, row.gpus) == (batch, gpus)
                for at, part in enumerate(parts)
            ]
            line.append(
                alt.Chart(alt.Data(values=values), title=f"{batch} sequences, {gpus:,} GPUs", width=200, height=110)
                .mark_bar()
                .encode(
                    x=alt.X("sum(ms):Q", title="ms per step"),
                    y=alt.Y("method:N", sort=methods, title=None, axis=alt.Axis(labels=not line, ticks=not line)),
                    color=alt.Color("part:N", title=None, sort=parts, scale=alt.Scale(domain=parts, range=COLOURS[:5])),
                    order="order:Q",
                    tooltip=["method:N", "part:N", alt.Tooltip("ms:Q", format=".1f")],
                )
            )
        panels.append(alt.hconcat(*line).resolve_scale(x="shared"))
    return alt.vconcat(*panels, title="Latency of a step, simulated from a cost model")
