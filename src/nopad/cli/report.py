"""``nopad report``: one page about histograms, plans and packed datasets."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from nopad.cli.monitor import Bars
from nopad.cli.options import Overwrite
from nopad.cli.render import console
from nopad.errors import OptionError
from nopad.report import read_subject, write_pictures, write_report
from nopad.report.drawing import load_altair
from nopad.report.settings import Settings
from nopad.report.ways import ways_of
from nopad.store.manifest import split_folders

__all__ = ["report"]

KINDS = (".html", ".png")
T = TypeVar("T")


def report(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Histograms (.json), plans (.plan.json), packed datasets.")
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="The page (.html), or one picture for a slide (.png)."),
    ] = Path("report.html"),
    title: Annotated[str | None, typer.Option("--title", metavar="TEXT", help="Heading of the page.")] = None,
    png: Annotated[
        Path | None,
        typer.Option("--png", metavar="FOLDER", help="Save slides and charts as PNG too, in this folder."),
    ] = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", metavar="N", help="Sequences in a batch without packing.")
    ] = 32,
    rows_per_step: Annotated[
        int | None,
        typer.Option("--rows-per-step", metavar="N", help="Rows of an optimiser step, on all GPUs: shows steps."),
    ] = None,
    epochs: Annotated[int, typer.Option("--epochs", metavar="N", help="Show what this number of epochs takes.")] = 1,
    of_tokens: Annotated[
        int | None,
        typer.Option(
            "--of-tokens",
            metavar="N",
            help="The input is a sample of a corpus of N tokens: extrapolate rows, hours and cost to it.",
        ),
    ] = None,
    tokens_per_second: Annotated[
        float | None,
        typer.Option(
            "--tokens-per-second", metavar="N", help="What one GPU computes, measured on full rows: shows hours."
        ),
    ] = None,
    price_per_hour: Annotated[
        float | None, typer.Option("--price-per-hour", metavar="N", help="Price of a GPU for an hour: shows the cost.")
    ] = None,
    currency: Annotated[
        str, typer.Option("--currency", metavar="TEXT", help='What the price is in, such as "$" or EUR.')
    ] = "",
    watts: Annotated[
        float | None, typer.Option("--watts", metavar="N", help="Power of a GPU: shows the energy.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", metavar="N", help="Number of GPUs: shows the hours of all.")
    ] = None,
    force: Overwrite = False,
) -> None:
    """Write one offline page: what packing saves per epoch, packs as coloured bars, lengths, efficiency and its limit.

    Needs the extra report: in a clone, pip install -e '.[report]'. Several paths are shown side by side.

    Examples:
      nopad report packed --title "Packing our chats"

      nopad report packed -o report.png

      nopad report packed --tokens-per-second 45000 --gpus 8 --price-per-hour 2.5 --currency '$' --watts 700

      nopad report sample.plan.json --of-tokens 30000000000 --epochs 3 --tokens-per-second 45000

      nopad report histogram.json packed -o both.html --png pictures
    """
    load_altair()
    settings = _settings(
        title=title,
        batch_size=batch_size,
        rows_per_step=rows_per_step,
        epochs=epochs,
        of_tokens=of_tokens,
        tokens_per_second=tokens_per_second,
        price_per_hour=price_per_hour,
        currency=currency,
        watts=watts,
        gpus=gpus,
    )
    if output.suffix not in KINDS:
        raise OptionError(f"{output}: a report is saved as {' or '.join(KINDS)}")
    for folder in (output.parent, None if png is None else png.parent):  # the pictures' folder is created below
        if folder is not None and not folder.is_dir():
            raise OptionError(f"there is no folder {folder}; make it, or choose another")
    if png is not None and png.exists() and not png.is_dir():
        raise OptionError(f"--png {png} is a file; give a folder")
    with Bars() as monitor:
        subjects = []
        for path in dict.fromkeys(found for given in paths for found in split_folders(given) or [given]):
            monitor.stage(f"planning {path.name}", None, "")
            subjects.append(read_subject(path))
            _named(partial(ways_of, subjects[-1].plan, settings))
        monitor.stage("drawing", None, "")
        write_report(subjects, output, settings)
        if png is not None:
            png.mkdir(exist_ok=True)
        pictures = write_pictures(subjects, png, settings) if png is not None else []
    screen = console()
    for subject in subjects:
        screen.print(f"{subject.name}: {subject.answer}", markup=False, soft_wrap=True)
    opened = "a picture of 1920 x 1080 pixels" if output.suffix == ".png" else "open it in a browser"
    screen.print(f"saved {output}, {output.stat().st_size / 1e6:.2f} MB; {opened}", markup=False, soft_wrap=True)
    if pictures:
        screen.print(f"saved {len(pictures)} pictures in {png}", markup=False, soft_wrap=True)


def _settings(**given: Any) -> Settings:
    """Return ``Settings(**given)``; in error messages, its fields are named as the command's flags.

    Raises:
        OptionError: a value is not allowed, or needs another value that is not given.
    """
    return _named(partial(Settings, **given))


def _named(made: Callable[[], T]) -> T:
    """Call `made` and return its result; in an error message, fields of `Settings` are replaced by the command's flags.

    Raises:
        OptionError: `made` raised an `OptionError`.
    """
    try:
        return made()
    except OptionError as error:
        names = re.compile(rf"\b({'|'.join(field.name for field in fields(Settings))})\b")
        raise OptionError(names.sub(lambda name: f"--{name[0].replace('_', '-')}", str(error))) from None
