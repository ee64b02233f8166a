"""Save a picture of a `Subject`, 1920 x 1080 pixels: some text, and up to four charts.

The text is the title, what packing does to an epoch (`Subject.answer`), what it saves, and the main numbers. The charts
show slots, packs, lengths and sequences per pack.
"""

from __future__ import annotations

import dataclasses
import re
import textwrap
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from nopad.files import write_atomic
from nopad.report.charts import packs_chart, slots_chart
from nopad.report.distributions import depth_chart, length_chart
from nopad.report.drawing import INK, SOFT, load_altair, styled, unchecked
from nopad.report.settings import Settings
from nopad.report.subject import Subject
from nopad.report.ways import formulas, savings, ways_of
from nopad.wording import counted

__all__ = ["save_slide"]

WIDTH, HEIGHT, MARGIN = 1280, 720, 40  # in points
SCALE = 1.5  # pixels to a point
LEFT, RIGHT = 430, 500  # widths of the charts, without their axes
UPPER, LOWER = 200, 140  # their heights
SHOWN_PACKS = 16
GAP = 6  # between paragraphs


def save_slide(subject: Subject, path: Path, settings: Settings) -> None:
    """Save the picture of a subject as a PNG file at `path`.

    Raises:
        MissingExtraError: altair or vl-convert is not installed.
        OptionError: `settings.of_tokens` is below the number of tokens of the subject.
        StorageError: the file cannot be written.
    """
    load_altair()
    import vl_convert

    heading, below = _heading(subject, settings)
    room = (WIDTH - 2 * MARGIN, HEIGHT - below - MARGIN / 2)
    board, width, height = _drawn(subject, settings, wider=0)
    if height * room[0] / room[1] > width:  # charts as wide as the picture
        board, width, height = _drawn(subject, settings, wider=int(height * room[0] / room[1] - width) // 2)
    scale = min(room[0] / width, room[1] / height)
    picture = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>{heading}'
        f'<g transform="translate({MARGIN} {below}) scale({scale:.4f})">{board}</g></svg>'
    )
    write_atomic(path, vl_convert.svg_to_png(picture, scale=SCALE))


def _drawn(subject: Subject, settings: Settings, *, wider: int) -> tuple[str, float, float]:
    """Return the charts as SVG, and the width and height of this SVG in points.

    Each chart is `wider` points wider than its least width.
    """
    import vl_convert

    with unchecked():
        spec = _board(subject, settings, wider).to_json(validate=False)
    board: str = vl_convert.vegalite_to_svg(spec)
    width, height = (float(side) for side in re.findall(r' (?:width|height)="([\d.]+)"', board)[:2])
    return board, width, height


def _board(subject: Subject, settings: Settings, wider: int) -> Any:
    """Return the charts of the picture, at most four, each `wider` points wider than its least width."""
    alt = load_altair()
    few = dataclasses.replace(subject, packs=subject.packs[:: max(len(subject.packs) // SHOWN_PACKS, 1)][:SHOWN_PACKS])
    lower = [
        (length_chart(subject), LEFT, LOWER, "Lengths", 8),
        (depth_chart(subject), RIGHT, LOWER, "Sequences per pack", 37),
    ]
    upper = UPPER if any(chart is not None for chart, *_ in lower) else UPPER + 2 * LOWER
    # Offsets that align the titles of a row: larger for a chart with only an axis below its title, or with nothing
    rows = [
        [
            (slots_chart(subject, settings), LEFT, upper, f"Slots of {settings.span}", 8),
            (packs_chart(few), RIGHT, upper, "Packs: each colour is a sequence, grey is padding", 20),
        ],
        lower,
    ]
    lines = [
        alt.hconcat(
            *(
                chart.properties(width=width + wider, height=height, title=alt.TitleParams(title, offset=offset))
                for chart, width, height, title, offset in row
                if chart is not None
            ),
            spacing=45,
        ).resolve_scale(color="independent")
        for row in rows
        if any(chart is not None for chart, *_ in row)
    ]
    return styled(alt.vconcat(*lines, spacing=18, padding=0).resolve_scale(color="independent"))


def _heading(subject: Subject, settings: Settings) -> tuple[str, int]:
    """Return the text above the charts (title, answer, savings, numbers) as SVG, and the place where charts begin.

    The place is in points from the top of the picture, a little below the text.
    """
    plan = subject.plan
    basis = f"{counted(plan.sequences, 'sequence')}, {counted(plan.tokens, 'token')}, capacity {plan.capacity:,}."
    rate = [said for said in formulas(settings) if said.startswith("GPU-hours")]
    parts = [
        (settings.title or f"Packing report: {subject.name}", 30, 40, 62, f'fill="{INK}" font-weight="700"'),
        (subject.answer, 19, 28, 118, f'fill="{INK}"'),
        (savings(ways_of(plan, settings), settings), 15, 22, 150, f'fill="{INK}"'),
        (" ".join([basis, *rate]), 13, 20, 170, f'fill="{SOFT}"'),
    ]
    drawn, at = [], 16
    for text, size, height, most, style in parts:
        at += GAP
        for line in textwrap.wrap(text, most):
            at += height
            drawn.append(f'<text x="{MARGIN}" y="{at}" font-size="{size}" {style}>{escape(line)}</text>')
    return "".join(drawn), at + 26
