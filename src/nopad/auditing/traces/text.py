"""A trace as text: a line per module, a column per token, with colours or with plain characters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from nopad.auditing.traces.influence import Trace
from nopad.errors import OptionError

__all__ = ["drawn", "shade"]

SHADES = "░▒▓█"  # below 1e-4, 1e-2, 1e-1, above
BOUNDS = (1e-4, 1e-2, 1e-1)
LEAK, LARGE_LEAK = "x", "X"  # without colours, below and above BOUNDS[1]
STILL, NOTHING = "·", " "
OWN, OTHER, RESET = "\x1b[38;5;33m", "\x1b[38;5;208m", "\x1b[0m"
NAME = 44  # most characters of a module's name
USUAL = 120  # characters of a line up to which each token has two


def shade(value: float) -> int:
    """Return how dark a change of this size is drawn: 0 (below 1e-4), 1 (below 1e-2), 2 (below 0.1) or 3 (otherwise).

    This is the index of a character in `SHADES`.
    """
    return sum(value >= bound for bound in BOUNDS)


@dataclass(frozen=True)
class _Block:
    """The columns of one sequence or target in one row of the batch, divided into cells.

    Attributes:
        sequence: index of the sequence.
        row: index of the row.
        target: whether these are tokens of the sequence's target.
        columns: the columns; int64.
        cells: the columns of each cell; the tokens of a cell share a character.
    """

    sequence: int
    row: int
    target: bool
    columns: NDArray[np.int64]
    cells: list[NDArray[np.int64]]


def drawn(trace: Trace, width: int | None, colour: bool) -> str:
    """Return a trace as text: its summary, a picture for each poisoned token, and a legend.

    No line of the pictures is longer than `width` characters (None: no limit); the summary and the legend may be.

    For each poisoned token, there is a line for each drawn module, and a column for each token, darker for larger
    changes. With `colour`, the poisoned token's own sequence and leaks have different ANSI colours.

    Raises:
        OptionError: `width` is too small for one character per sequence.
    """
    names = [_short(trace.modules[at]) for at in trace.drawn]
    margin = max(map(len, names)) + 1
    blocks, size = _fitted(trace, margin, width)
    lines = [trace.summary()]
    for number, column in enumerate(trace.poisoned):
        lines += ["", *_head(trace, blocks, margin, size, int(column))]
        for name, row in zip(names, trace.drawn, strict=True):
            cells = ["".join(_cell(trace, number, int(row), at, colour) * size for at in one.cells) for one in blocks]
            line = f"{name:<{margin}}{_bordered(blocks, cells)}"
            lines.append(line.replace(f"{RESET}{OWN}", "").replace(f"{RESET}{OTHER}", "") if colour else line)
    merged = any(len(cell) > 1 for block in blocks for cell in block.cells)
    return "\n".join([*lines, *_legend(colour, merged, any(block.target for block in blocks))])


def _fitted(trace: Trace, margin: int, width: int | None) -> tuple[list[_Block], int]:
    """Return ``(blocks, size)``: the sequences as blocks of cells, and the number of characters of a cell (1 or 2).

    A cell has one token if the line then fits into `width`; otherwise several tokens of a sequence share a cell, as few
    as possible. A cell of one token has 2 characters if the line then still fits (into 120 characters if `width` is
    None), else 1. `margin` is the number of characters before the first block, `width` the most characters of a line
    (None: no limit).

    Raises:
        OptionError: `width` is too small for one character per sequence.
    """
    keys = zip(trace.rows, trace.sequences, np.arange(len(trace.sequences)) >= trace.source, strict=True)
    groups = [(key, [at for at, _ in group]) for key, group in groupby(enumerate(keys), key=lambda pair: pair[1])]
    tokens, borders = len(trace.sequences), len(groups) + 1
    for size in (2, 1):
        limit = width if width is not None else USUAL if size == 2 else math.inf
        if margin + tokens * size + borders <= limit:
            return [_block(key, at, 1) for key, at in groups], size
    assert width is not None
    for each in range(2, tokens + 1):
        blocks = [_block(key, at, each) for key, at in groups]
        if margin + sum(len(block.cells) for block in blocks) + borders <= width:
            return blocks, 1
    least = margin + len(groups) + borders
    raise OptionError(f"width is {width}; this trace needs at least {least} characters, one per sequence and the names")


def _block(key: tuple[int, int, bool], at: list[int], each: int) -> _Block:
    row, sequence, target = key
    columns = np.array(at, dtype=np.int64)
    cells = [columns[begin : begin + each] for begin in range(0, len(columns), each)]
    return _Block(int(sequence), int(row), bool(target), columns, cells)


def _head(trace: Trace, blocks: list[_Block], margin: int, size: int, column: int) -> list[str]:
    """Return two lines for the top of a picture: the sequences' numbers, and a mark over the poisoned token.

    `margin` is the number of characters before the first block, `size` that of a cell, and `column` the column of the
    poisoned token.
    """
    numbers, marks = [], []
    for block in blocks:
        room = len(block.cells) * size
        said = f"{'t' if block.target and room > 1 else ''}{block.sequence}"
        numbers.append(f"{said:<{room}}"[:room])
        marks.append("".join(("▼" if column in cell else " ") * size for cell in block.cells))
    name = f"token {trace.positions[column]} of sequence {trace.sequences[column]}"
    name = name if len(name) < margin else "poisoned"
    return [
        f"{'sequence':<{margin}}{_bordered(blocks, numbers)}",
        f"{name[: margin - 1]:<{margin}}{_bordered(blocks, marks)}",
    ]


def _bordered(blocks: list[_Block], parts: list[str]) -> str:
    """Return a line of text that joins `parts`, one for each of `blocks` (the tokens of one sequence or target).

    A thin border separates sequences. A double one separates rows of the batch, and sequences from targets.
    """
    line = "│"
    for at, part in enumerate(parts):
        after = blocks[at + 1] if at + 1 < len(blocks) else None
        new = after is not None and (after.row, after.target) != (blocks[at].row, blocks[at].target)
        line += part + ("║" if new else "│")
    return line


def _cell(trace: Trace, number: int, row: int, cell: NDArray[np.int64], colour: bool) -> str:
    values = trace.influence[number, row, cell]
    if np.isnan(values).all():
        return NOTHING
    leak = float(trace.leaking[number, row, cell].max())
    value = leak or float(np.nan_to_num(values, nan=0.0, posinf=np.inf).max())
    own = trace.sequences[cell[0]] == trace.sequences[trace.poisoned[number]]
    if not value or not (own or leak):
        return STILL
    if colour:
        return f"{OTHER if leak else OWN}{SHADES[shade(value)]}{RESET}"
    return (LARGE_LEAK if value >= BOUNDS[1] else LEAK) if leak else SHADES[shade(value)]


def _legend(colour: bool, merged: bool, targets: bool) -> list[str]:
    own, other = (OWN, OTHER) if colour else ("", "")
    end = RESET if colour else ""
    lowest, middle, highest = (f"{bound:g}" for bound in BOUNDS)
    shades = f"{SHADES[0]} below {lowest}, {SHADES[1]} {middle}, {SHADES[2]} {highest}, {SHADES[3]} above"
    leak = f"{other}{SHADES[3]}{end}, in the same shades" if colour else f"{LEAK} below {middle}, {LARGE_LEAK} above"
    return [
        "",
        f"moved, of the largest value: {own}{shades}{end}; in another sequence, a leak: {leak}",
        *(["t0 is the target of sequence 0"] if targets else []),
        *(["a character stands for several tokens, and shows the largest"] if merged else []),
    ]


def _short(name: str) -> str:
    return name if len(name) <= NAME else f"…{name[1 - NAME :]}"
