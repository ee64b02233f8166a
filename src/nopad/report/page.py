"""Write the report as one self-contained HTML page that works offline: template, chart specifications, and Vega."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nopad.errors import OptionError
from nopad.files import local_path, write_text
from nopad.report.charts import charts_of, slots_chart
from nopad.report.drawing import load_altair, save_chart, styled, unchecked
from nopad.report.settings import Settings
from nopad.report.slide import save_slide
from nopad.report.subject import Subject
from nopad.report.ways import formulas, money, savings, ways_of
from nopad.report.wording import alike, big, median_of, percent, quantity, times
from nopad.wording import counted

__all__ = ["write_pictures", "write_report"]

HERE = Path(__file__).resolve().parent
SAID = (alike, big, counted, median_of, money, percent, quantity, savings, times, ways_of)  # functions of the template


def write_report(subjects: Sequence[Subject], path: Path, settings: Settings | None = None) -> None:
    """Write a page about all subjects, or a picture of one subject; a failure leaves no partial file.

    The suffix of `path` decides: ``.png`` is a picture for a slide, anything else a page. `settings` has the title, and
    the rates from which steps, hours, money and energy are computed; None: `Settings()`, which shows none of these
    four.

    Raises:
        MissingExtraError: altair or vl-convert is not installed.
        OptionError: there is no subject, or more than one for a picture; `path` is a URL, or cannot be written in
            UTF-8; or `settings.of_tokens` is below the number of tokens of a subject.
        StorageError: the file cannot be written.
    """
    load_altair()
    settings, path = settings or Settings(), local_path(path)
    if not subjects:
        raise OptionError("nothing to report on; give a histogram, a plan, or a packed dataset")
    if path.suffix == ".png":
        if len(subjects) > 1:
            raise OptionError(
                f"{path} would be a picture of {len(subjects)} subjects; a picture shows one, a page several"
            )
        save_slide(subjects[0], path, settings)
        return
    specs = {}
    with unchecked():
        for number, subject in enumerate(subjects):
            for name, chart in charts_of(subject).items():
                specs[f"{name}-{number}"] = _flexible(chart)
    page = _template().render(
        subjects=subjects,
        settings=settings,
        title=settings.title or "Packing report: " + ", ".join(subject.name for subject in subjects),
        formulas=formulas(settings),
        names=set(specs),
        specs=_safe(json.dumps(specs, separators=(",", ":"))),
        style=(HERE / "page.css").read_text(encoding="utf-8"),
        script=_script(),
    )
    write_text(path, page)


def write_pictures(subjects: Sequence[Subject], folder: Path, settings: Settings | None = None) -> list[Path]:
    """Save a slide and all charts of each subject as PNG files in `folder`; return the files' paths.

    A slide has 1920 x 1080 pixels; charts have twice the resolution of a screen. `settings` has the rates from which
    steps, hours, money and energy are computed; None: `Settings()`, which shows none of these four.

    Raises:
        MissingExtraError: altair or vl-convert is not installed.
        OptionError: `folder` is a URL, or cannot be written in UTF-8; or `settings.of_tokens` is below the number of
            tokens of a subject.
        StorageError: a file cannot be written.
    """
    settings, folder = settings or Settings(), local_path(folder)
    files: list[Path] = []
    for subject, stem in zip(subjects, _stems(subjects), strict=True):
        files.append(folder / f"{stem}-slide.png")
        save_slide(subject, files[-1], settings)
        for name, chart in {"slots": slots_chart(subject, settings), **charts_of(subject)}.items():
            files.append(folder / f"{stem}-{name}.png")
            save_chart(styled(chart.properties(width=640, padding=12)), files[-1])
    return files


def _stems(subjects: Sequence[Subject]) -> list[str]:
    """Return the text with which the file names of each subject's pictures begin: the subject's name.

    Each "/" in a name becomes "-". If an earlier subject has the same text, a number is added, as in "wiki-2".
    """
    stems: list[str] = []
    for subject in subjects:
        name = subject.name.replace("/", "-")
        numbered = (f"{name}-{number}" for number in itertools.count(2))
        stems.append(next(stem for stem in itertools.chain([name], numbered) if stem not in stems))
    return stems


@functools.cache
def _script() -> str:
    """Return the page's JavaScript with Vega in it. Bundling takes a second, and is done once per process."""
    import vl_convert

    script: str = vl_convert.javascript_bundle((HERE / "page.js").read_text(encoding="utf-8"))
    return script.replace("</script", "<\\/script")


@functools.cache
def _template() -> Any:
    """Return the page's template, which is read and compiled once per process."""
    import jinja2

    loader = jinja2.FileSystemLoader(HERE)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.globals.update({function.__name__: function for function in SAID})
    return environment.get_template("page.html.j2")


def _flexible(chart: Any) -> dict[str, Any]:
    """Return a chart as a Vega-Lite specification, with a width that adapts to the page."""
    spec: dict[str, Any] = chart.to_dict(validate=False)
    spec.pop("config", None)
    spec.pop("$schema", None)
    return {**spec, "width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}


def _safe(text: str) -> str:
    """Return JSON text with each ``<`` escaped, so that no ``</script>`` in it can end the HTML element around it."""
    return text.replace("<", "\\u003c")
