"""The figures as pictures: one chart each, saved as HTML that works offline, SVG, PNG, or Vega-Lite JSON.

Needs the extra `report` (altair, vl-convert).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nopad.errors import MissingExtraError, OptionError
from nopad.files import write_atomic
from nopad.study.distributions import Distribution
from nopad.study.residuals import Residuals

__all__ = ["CHART_KINDS", "check_chart", "distributions_chart", "residuals_chart", "save_chart"]

CHART_KINDS = (".html", ".svg", ".png", ".json")
_BLUE, _ORANGE = "#0072b2", "#d55e00"  # Okabe and Ito: told apart by everyone
_BINS = 64


def residuals_chart(plain: Residuals, weighted: Residuals) -> Any:
    """Figures 10 and 11 as an altair chart: the residual by length; below with light short lengths."""
    alt = _altair()
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
                    scale=alt.Scale(domain=["no slot", "no sequence"], range=[_ORANGE, _BLUE]),
                ),
                tooltip=["length:Q", "residual:Q", "kind:N"],
            )
        )
    return alt.vconcat(*panels)


def distributions_chart(found: Sequence[Distribution]) -> Any:
    """Figure 1 as an altair chart: share of sequences by length, one panel a corpus with its two speed-ups."""
    alt = _altair()
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
            .mark_bar(color=_BLUE)
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


def check_chart(path: Path) -> None:
    """Refuse a chart that could not be saved, before anything is computed.

    Raises:
        OptionError: the suffix is none of `CHART_KINDS`, or the folder is not there.
        MissingExtraError: altair or vl-convert is not installed.
    """
    if path.suffix not in CHART_KINDS:
        raise OptionError(f"{path}: a chart is saved as one of {', '.join(CHART_KINDS)}")
    if not path.parent.is_dir():
        raise OptionError(f"{path}: there is no folder {path.parent}; make it, or choose another path")
    _altair()


def save_chart(chart: Any, path: Path) -> None:
    """Save a chart in the format of its suffix, whole or not at all.

    Raises:
        StorageError: it cannot be written.
    """
    import vl_convert

    spec = chart.to_json()
    if path.suffix == ".html":
        content = vl_convert.vegalite_to_html(spec, bundle=True).encode()
    elif path.suffix == ".svg":
        content = vl_convert.vegalite_to_svg(spec).encode()
    elif path.suffix == ".png":
        content = vl_convert.vegalite_to_png(spec, scale=2)
    else:
        content = spec.encode()
    write_atomic(path, content)


def _altair() -> Any:
    try:
        import altair
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(f"charts need {error.name}: pip install 'nopad[report]'") from error
    return altair
