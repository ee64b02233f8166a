"""Helpers for all charts: importing altair, colours for colour-blind readers, the style of pictures, and saving.

The functions need the extra `report` (altair, vl-convert).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nopad.errors import MissingExtraError, OptionError, install
from nopad.files import write_atomic

__all__ = [
    "BLUE",
    "CHART_KINDS",
    "COLOURS",
    "INK",
    "ORANGE",
    "SKY",
    "SOFT",
    "check_chart",
    "load_altair",
    "save_chart",
    "styled",
    "unchecked",
]

CHART_KINDS = (".html", ".svg", ".png", ".json")
BLUE, ORANGE, SKY = "#0072b2", "#d55e00", "#56b4e9"
INK, SOFT, GRID = "#1d2125", "#565e66", "#e8eaec"  # colours of text and grid in pictures, which have a white background
COLOURS = (BLUE, "#e69f00", "#009e73", "#cc79a7", SKY, ORANGE, "#f0e442")  # Okabe and Ito, without black


def check_chart(path: Path) -> None:
    """Check that a chart can be saved at `path`; call this before computing the chart.

    Raises:
        OptionError: the suffix is not in `CHART_KINDS`, or the folder does not exist.
        MissingExtraError: altair or vl-convert is not installed.
    """
    if path.suffix not in CHART_KINDS:
        raise OptionError(f"{path}: a chart is saved as one of {', '.join(CHART_KINDS)}")
    if not path.parent.is_dir():
        raise OptionError(f"{path}: there is no folder {path.parent}; make it, or choose another path")
    load_altair()


def save_chart(chart: Any, path: Path) -> None:
    """Save an altair chart in the format that the suffix of `path` names; a failure leaves no partial file.

    Raises:
        StorageError: the file cannot be written.
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


def styled(chart: Any) -> Any:
    """Return a chart styled for a picture: white background, pale axes, no frame."""
    return (
        chart.configure(font="sans-serif", background="white")
        .configure_view(stroke=None)
        .configure_title(anchor="start", frame="group", fontSize=14, fontWeight=600, color=INK)
        .configure_axis(labelColor=INK, titleColor=SOFT, titleFontWeight="normal", gridColor=GRID, domainColor=GRID)
        .configure_legend(labelFontSize=11, labelColor=INK, titleColor=SOFT, titleFontWeight="normal")
        .configure_text(color=INK, fontSize=11)
    )


def load_altair() -> Any:
    """Import and return altair.

    Raises:
        MissingExtraError: altair or vl-convert is not installed.
    """
    try:
        import altair
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(f"charts need {error.name}; {install('report')}") from error
    return altair


@contextmanager
def unchecked() -> Iterator[None]:
    """Inside a ``with`` block, altair does not validate charts against its schema, since validation is slow.

    The tests validate all charts.
    """
    from altair.utils.schemapi import debug_mode

    with debug_mode(False):
        yield
