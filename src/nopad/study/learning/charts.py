"""The chart of `nopad study learning`, like the paper's Figures 3 and 4: accuracy on held-out masked tokens."""

from __future__ import annotations

import statistics
from typing import Any

from nopad.report.drawing import BLUE, COLOURS, load_altair
from nopad.study.learning.setups import BASE, GROUPS, RIGHT
from nopad.study.learning.study import Learning

__all__ = ["learning_chart"]

_TITLES = {
    "equal batch": "as many sequences a step",
    "larger batch": "p times as many sequences a step",
    "tuned": "learning rates",
    "faults": "faults",
    "choices": "choices",
}
BLACK = "#000000"


def learning_chart(found: Learning) -> Any:
    """Return an altair chart of accuracy on the masked tokens of held-out pairs, with a panel for each comparison.

    The comparison at equal batch is drawn twice: over the number of sequences trained on, and over the seconds of
    training. Each other comparison is drawn over the number of sequences. Every panel also shows "packed" and "not
    packed", if they were run. A panel with fewer than three recipes is left out, except at equal batch. A line is the
    mean over seeds; the band around it spans the lowest to the highest value.

    Raises:
        MissingExtraError: altair or vl-convert is not installed.
    """
    alt = load_altair()
    known = set(found.names())
    panels = []
    for group, recipes in GROUPS:
        names = list(dict.fromkeys(one.name for one in (BASE, RIGHT, *recipes) if one.name in known))
        if group != "equal batch" and len(names) < 3:
            continue
        for what, title in (("samples", "sequences"), ("seconds", "seconds"))[: 2 if group == "equal batch" else 1]:
            panels.append(_panel(alt, found, names, what, title, _TITLES[group]))
    return alt.concat(*panels, columns=2).resolve_scale(color="independent", strokeDash="independent", x="independent")


def _panel(alt: Any, found: Learning, names: list[str], what: str, title: str, heading: str) -> Any:
    values = []
    for name in names:
        curves = found.of(name)
        for at in range(min(len(one.points) for one in curves)):
            accuracies = [one.points[at].accuracy for one in curves]
            values.append(
                {
                    "run": name,
                    "x": statistics.fmean(getattr(one.points[at], what) for one in curves),
                    "accuracy": statistics.fmean(accuracies),
                    "least": min(accuracies),
                    "most": max(accuracies),
                }
            )
    colours = [BLACK, BLUE, *COLOURS[1:]][: len(names)]
    # Both layers share one legend, so its symbols are set to lines.
    legend = alt.Legend(labelLimit=260, symbolType="stroke", symbolOpacity=1, symbolStrokeWidth=3, symbolSize=400)
    scale = alt.Scale(domain=names, range=colours)
    base = alt.Chart(alt.Data(values=values), title=heading, width=300, height=210).encode(
        x=alt.X("x:Q", title=title, axis=alt.Axis(format="~s")),
        color=alt.Color("run:N", title=None, sort=names, legend=legend, scale=scale),
    )
    accuracy = alt.Y("accuracy:Q", title="masked tokens right", axis=alt.Axis(format="%"))
    dashes = [[1, 0], [5, 4], [2, 2], [8, 3], [4, 2], [6, 2]]  # so that lines on top of each other can be seen
    dash = alt.StrokeDash(
        "run:N", title=None, sort=names, legend=legend, scale=alt.Scale(domain=names, range=dashes[: len(names)])
    )
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("least:Q", title="masked tokens right"), y2="most:Q")
    return alt.layer(band, base.mark_line(strokeWidth=2).encode(y=accuracy, strokeDash=dash))
