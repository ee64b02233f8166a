"""``nopad report``: one page about histograms, plans and packed datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nopad.cli.monitor import Bars
from nopad.cli.render import console
from nopad.errors import OptionError
from nopad.report import read_subject, write_pictures, write_report
from nopad.report.drawing import load_altair
from nopad.report.page import THROUGHPUT
from nopad.store.manifest import split_folders

__all__ = ["report"]


def report(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Histograms (.json), plans (.plan.json), packed datasets.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The page.")] = Path("report.html"),
    png: Annotated[
        Path | None,
        typer.Option("--png", metavar="FOLDER", help="Save the charts as PNG too, in this folder, which must exist."),
    ] = None,
    throughput: Annotated[
        float, typer.Option("--throughput", metavar="N", help="Slots per second and accelerator, for the hours saved.")
    ] = THROUGHPUT,
) -> None:
    r"""Write one offline page: padding before and after, packs as coloured bars, lengths, efficiency and its limit.

    Needs the extra nopad\[report]. Several paths stand side by side.

    Examples:
      nopad report packed

      nopad report histogram.json packed -o both.html --png pictures
    """
    load_altair()
    for folder in (output.parent, png):
        if folder is not None and not folder.is_dir():
            raise OptionError(f"there is no folder {folder}; make it, or choose another")
    with Bars() as monitor:
        subjects = []
        for path in dict.fromkeys(found for given in paths for found in split_folders(given) or [given]):
            monitor.stage(f"planning {path.name}", None, "")
            subjects.append(read_subject(path))
        monitor.stage("drawing", None, "")
        write_report(subjects, output, throughput=throughput)
        pictures = write_pictures(subjects, png) if png is not None else []
    screen = console()
    screen.print(
        f"saved {output}, {output.stat().st_size / 1e6:.2f} MB; open it in a browser", markup=False, soft_wrap=True
    )
    if pictures:
        screen.print(f"saved {len(pictures)} pictures in {png}", markup=False, soft_wrap=True)
