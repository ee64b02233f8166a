"""What the commands of ``nopad study`` have in common: options, reading a histogram, printing below tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from nopad.cli.render import console
from nopad.errors import FormatError, OptionError
from nopad.histogram import Histogram, read_histogram
from nopad.report.drawing import CHART_KINDS

__all__ = ["AsJson", "Plot", "print_notes", "print_saved", "read_filled"]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot", metavar="FILE", help=f"Save a picture too: {', '.join(CHART_KINDS)}. Needs the extra report."
    ),
]


def read_filled(file: Path) -> tuple[Histogram, int | None]:
    """Return the histogram in `file`, and the capacity that the file states (None if it states none).

    Raises:
        FormatError: there is no such file, it cannot be read, or it is no histogram.
        LengthError: a length or count in it is not an integer, or is out of range.
        OptionError: the file holds no sequences.
    """
    if not file.exists():
        raise FormatError(
            f"cannot read the histogram {file}: No such file or directory; docs/reference/papers.md says how to get "
            "those of the papers"
        )
    histogram, capacity = read_histogram(file)
    if not histogram.sequences:
        raise OptionError(f"{file} holds no sequences")
    return histogram, capacity


def print_notes(notes: Iterable[str]) -> None:
    """Print notes about the table above, each as an indented line."""
    screen = console()
    for note in notes:
        screen.print(f"  {note}", style="dim", markup=False, soft_wrap=True)


def print_saved(plot: Path | None) -> None:
    """Print that the picture `plot` was saved; print nothing if `plot` is None."""
    if plot is not None:
        console().print(f"saved {plot}", markup=False, soft_wrap=True)
