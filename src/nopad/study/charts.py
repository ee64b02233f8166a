"""Figures of the packing papers (arXiv 2107.02027 and its supplement) as altair charts, drawn from our own results.

There is one function for each chart. They need the extra `report`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nopad.report.drawing import BLUE, ORANGE, load_altair
from nopad.study.distributions import Distribution
from nopad.study.residuals import Residuals

__all__ = ["distributions_chart", "residuals_chart"]

_BINS = 64


def residuals_chart(plain: Residuals, weighted: Residuals) -> Any:
    """Return the residuals by length as a chart of two panels, like Figures 10 and 11.

    In the upper panel all lengths have weight 1; in the lower panel short lengths have a smaller weight.
    """
    alt = load_altair()
    panels = []
    for found, title in (
        (plain, "all lengths weigh 1 (figure 10)"),
        (weighted, f"lengths up to 8 weigh {weighted.weight:g} (figure 11)"),
    ):
        rows = [
            {"length": at + 1, "residual": int(value), "kind": "no slot" if value > 0 else "no sequence"}
            for at, value in enumerate(found.values)
            if value
        ]
        panels.append(
            alt.Chart(alt.Data(values=rows), title=title, width=640, height=200)
            .mark_bar(size=1.5)
            .encode(
                x=alt.X("length:Q", title="length in tokens", scale=alt.Scale(domain=[0, found.values.size])),
                y=alt.Y("residual:Q", title="sequences"),
                color=alt.Color(
                    "kind:N",
                    title="residual",
                    scale=alt.Scale(domain=["no slot", "no sequence"], range=[ORANGE, BLUE]),
                ),
                tooltip=["length:Q", "residual:Q", "kind:N"],
            )
        )
    return alt.vconcat(*panels)


def distributions_chart(found: Sequence[Distribution]) -> Any:
    """Return Figure 1 as a chart: a panel for each corpus shows the share of its sequences by length.

    The subtitle of a panel has the theoretical speed-up of packing, and the speed-up that is reached.
    """
    alt = load_altair()
    panels = []
    for one in found:
        bins = min(_BINS, one.capacity)
        edges = -(-np.arange(bins + 1) * one.capacity // bins)
        rows = [
            {"from": int(edges[b]), "to": int(edges[b + 1]), "share": float(share)}
            for b, share in enumerate(one.bars(bins))
        ]
        subtitle = f"theoretical speed-up {one.theoretical:.2f}, reached {one.factor:.2f}"
        panels.append(
            alt.Chart(
                alt.Data(values=rows),
                title=alt.Title(one.name, subtitle=subtitle, anchor="start"),
                width=280,
                height=160,
            )
            .mark_bar(color=BLUE)
            .encode(
                x=alt.X("from:Q", bin="binned", title="length in tokens", scale=alt.Scale(domain=[0, one.capacity])),
                x2="to:Q",
                y=alt.Y("share:Q", title="share of sequences", axis=alt.Axis(format="%")),
                tooltip=[
                    alt.Tooltip("from:Q", title="longer than"),
                    alt.Tooltip("to:Q", title="up to"),
                    alt.Tooltip("share:Q", format=".2%"),
                ],
            )
        )
    return alt.concat(*panels, columns=3)
