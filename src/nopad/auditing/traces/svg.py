"""A trace as SVG: a line per module, a column per token; blue for the poisoned token's sequence, orange for leaks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np

from nopad.auditing.traces.influence import Trace

__all__ = ["picture"]

CELL, STEP, GAP, ROW_GAP = 13, 14, 6, 18  # pixels: a cell, from cell to cell, between sequences, between rows
HEAD, LEGEND, LETTER = 34, 44, 6.7
FAINT, DECADES = 0.2, 5  # opacity of the smallest change; decades below 1 over which it grows
STYLE = """
.trace { --ink: #1d2125; --soft: #565e66; --paper: #fff; --still: #edeff1; --own: #0072b2; --leak: #d55e00; }
@media (prefers-color-scheme: dark) {
.trace { --ink: #e6e8ea; --soft: #9aa3ab; --paper: #14171a; --still: #262b30; --own: #4db1ee; --leak: #ff8a3c; } }
@media print {
.trace { --ink: #000; --soft: #444; --paper: #fff; --still: #edeff1; --own: #0072b2; --leak: #d55e00; } }
.trace text { font: 11px ui-monospace, monospace; fill: var(--ink); }
.trace .soft { fill: var(--soft); } .trace .paper { fill: var(--paper); }
.trace .still { fill: var(--still); } .trace .own { fill: var(--own); } .trace .leak { fill: var(--leak); }
.trace .brace { stroke: var(--soft); fill: none; } .trace .mark { fill: var(--ink); }
"""


def picture(trace: Trace) -> str:
    """Return a trace as the text of an SVG picture, with one panel for each poisoned token.

    A panel has a line for each drawn module, and a cell for each token; a larger change is drawn more opaque.
    """
    names = [trace.modules[at] for at in trace.drawn]
    left = round(max(map(len, names)) * LETTER) + 16
    across = _across(trace)
    right = across[-1] + STEP
    panel = HEAD + len(names) * STEP + 14
    width, height = max(left + right + 10, 560), 10 + panel * len(trace.poisoned) + LEGEND
    parts = [_tag("style", STYLE), _tag("rect", class_="paper", width=width, height=height)]
    for number in range(len(trace.poisoned)):
        panels = _panel(trace, number, names, across)
        parts.append(_tag("g", *panels, transform=f"translate({left},{10 + number * panel})"))
    legend = _legend(trace.source < len(trace.sequences))
    parts.append(_tag("g", *legend, transform=f"translate({left},{10 + panel * len(trace.poisoned)})"))
    seen = {"role": "img", "aria_label": trace.summary(), "viewBox": f"0 0 {width} {height}"}
    return _tag("svg", *parts, xmlns="http://www.w3.org/2000/svg", class_="trace", width=width, height=height, **seen)


def _tag(name: str, *inside: str, **given: Any) -> str:
    """Return an SVG element that contains the elements or text `inside`; keywords become its attributes.

    A ``_`` in a keyword becomes ``-``, and one at its end is left out, as in ``text_anchor`` and ``class_``.
    """
    said = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in given.items())
    return f"<{name}{said}>" + "\n".join(inside) + f"</{name}>" if inside else f"<{name}{said}/>"


def _across(trace: Trace) -> list[int]:
    """Return the x coordinate of each column in pixels.

    There is a gap between sequences. It is wider between rows of the batch, and between sequences and targets.
    """
    found, x = [], 0
    target = np.arange(len(trace.sequences)) >= trace.source
    for at in range(len(trace.sequences)):
        if at:
            row = trace.rows[at] != trace.rows[at - 1] or target[at] != target[at - 1]
            x += STEP + (ROW_GAP if row else GAP if trace.sequences[at] != trace.sequences[at - 1] else 0)
        found.append(x)
    return found


def _panel(trace: Trace, number: int, names: list[str], across: list[int]) -> Iterator[str]:
    """Yield the SVG elements of the panel for poisoned token number `number`.

    `names` are the modules, from top to bottom, and `across` has the x coordinate of each column.
    """
    column = int(trace.poisoned[number])
    for begin, end in _sequences(trace):
        x, after = across[begin], across[end - 1] + CELL
        said = f"{'t' if begin >= trace.source else ''}{trace.sequences[begin]}"
        yield _tag("text", said, class_="soft", x=f"{(x + after) / 2:g}", y=9, text_anchor="middle")
        yield _tag("path", class_="brace", d=f"M{x + 0.5} 18v-4h{after - x - 1}v4")
    poisoned = _tag("title", f"{_where(trace, column)}, poisoned")
    yield _tag("path", poisoned, class_="mark", d=f"M{across[column]} 22h{CELL}l-{CELL / 2} 9z")
    yield _tag("text", "sequence", class_="soft", x=-8, y=9, text_anchor="end")
    yield _tag("text", "poisoned token", class_="soft", x=-8, y=30, text_anchor="end")
    for down, (name, row) in enumerate(zip(names, trace.drawn, strict=True)):
        y = HEAD + down * STEP
        kind = "leak" if trace.leaks[row].any() else "mark"
        yield _tag("text", escape(name), class_=kind, x=-8, y=y + 11, text_anchor="end")
        there = [x for x, value in zip(across, trace.influence[number, row], strict=True) if not math.isnan(value)]
        yield _tag("path", class_="still", d="".join(f"M{x} {y}h{CELL}v{CELL}h-{CELL}" for x in there))
        for at, x in enumerate(across):
            yield from _cell(trace, number, int(row), at, x, y, name)


def _cell(trace: Trace, number: int, row: int, at: int, x: int, y: int, name: str) -> Iterator[str]:
    """Yield the SVG element for column `at` and module `row`, if poisoned token `number` changes the column's values.

    In a column of another sequence, a change of at most `trace.limit` is not drawn. `x` and `y` are the upper left
    corner of the element in pixels; `name` is the module's name, for the tooltip.
    """
    value = float(trace.influence[number, row, at])
    leak = trace.leaking[number, row, at] > 0
    own = trace.sequences[at] == trace.sequences[trace.poisoned[number]]
    if value > 0 and (own or leak):
        title = _tag("title", f"{escape(name)}: {_where(trace, at)} moves by {value:.1e}")
        yield _box("leak" if leak else "own", x, y, title, fill_opacity=_opacity(value))


def _box(kind: str, x: int, y: int, *inside: str, **given: Any) -> str:
    return _tag("rect", *inside, class_=kind, x=x, y=y, width=CELL, height=CELL, **given)


def _sequences(trace: Trace) -> Iterator[tuple[int, int]]:
    """Yield (first column, column after the last) of each sequence and each target, in each row of the batch."""
    target = np.arange(len(trace.sequences)) >= trace.source
    new = (np.diff(trace.sequences) != 0) | (np.diff(target) != 0) | (np.diff(trace.rows) != 0)
    borders = [0, *(np.flatnonzero(new) + 1).tolist(), len(trace.sequences)]
    yield from pairwise(borders)


def _where(trace: Trace, at: int) -> str:
    target = "the target of " if at >= trace.source else ""
    return f"token {trace.positions[at]} of {target}sequence {trace.sequences[at]}"


def _opacity(value: float) -> str:
    """Return the opacity of a change above 0, as text: 0.20 up to 1e-5, and 1.00 from 1 on, for infinity and for NaN.

    Between 1e-5 and 1, the opacity grows with the logarithm of the change. A change of 0 is not drawn, and has none.
    """
    decades = math.log10(value) if math.isfinite(value) else 0.0
    return f"{min(max(1 + decades / DECADES * (1 - FAINT), FAINT), 1.0):.2f}"


def _legend(targets: bool) -> Iterator[str]:
    for line, (kind, said) in enumerate((("own", "its own sequence"), ("leak", "another sequence: a leak"))):
        y = 4 + line * 18
        for step, value in enumerate((1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)):
            yield _box("still", step * STEP, y)
            yield _box(kind, step * STEP, y, fill_opacity=_opacity(value))
        tail = "" if line else ", by 1e-5 of the largest value and below, to 1"
        tail += "; t0 is the target of sequence 0" if line and targets else ""
        yield _tag("text", said + tail, x=6 * STEP + 8, y=y + 11)
