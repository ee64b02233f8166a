"""One self-contained page: the filled template, the specifications of all charts, and Vega. It works offline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nopad.errors import OptionError
from nopad.files import write_atomic
from nopad.report.charts import charts_of
from nopad.report.drawing import load_altair, save_chart
from nopad.report.subject import Subject

__all__ = ["THROUGHPUT", "write_pictures", "write_report"]

THROUGHPUT = 100_000.0  # slots per second and accelerator, unless the user says otherwise
HERE = Path(__file__).resolve().parent


def write_report(subjects: Sequence[Subject], path: Path, *, throughput: float = THROUGHPUT) -> None:
    """Write the page about all subjects to `path`; a failure leaves no partial file.

    `throughput` is the number of slots per second and accelerator from which the hours saved are computed.

    Raises:
        MissingExtraError: altair or vl-convert is not installed.
        OptionError: there is no subject, or the throughput is not above 0.
        StorageError: the page cannot be written.
    """
    load_altair()
    if not subjects:
        raise OptionError("nothing to report on; give a histogram, a plan, or a packed dataset")
    if not throughput > 0:
        raise OptionError(f"throughput must be above 0 slots per second, got {throughput}")
    import jinja2
    import vl_convert

    specs = {}
    for number, subject in enumerate(subjects):
        for name, chart in charts_of(subject).items():
            specs[f"{name}-{number}"] = _flexible(chart)
    loader = jinja2.FileSystemLoader(HERE)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    script = vl_convert.javascript_bundle((HERE / "page.js").read_text(encoding="utf-8"))
    page = environment.get_template("page.html.j2").render(
        subjects=subjects,
        throughput=throughput,
        specs=_safe(json.dumps(specs, separators=(",", ":"))),
        style=(HERE / "page.css").read_text(encoding="utf-8"),
        script=script.replace("</script", "<\\/script"),
    )
    write_atomic(path, page.encode())


def write_pictures(subjects: Sequence[Subject], folder: Path) -> list[Path]:
    """Save every chart of every subject as PNG in `folder`, at twice the screen resolution; return the files' paths.

    Raises:
        MissingExtraError: altair or vl-convert is not installed.
        StorageError: a file cannot be written.
    """
    files = []
    for subject in subjects:
        for name, chart in charts_of(subject).items():
            files.append(folder / f"{subject.name.replace('/', '-')}-{name}.png")
            save_chart(chart.properties(width=640, background="white"), files[-1])
    return files


def _flexible(chart: Any) -> dict[str, Any]:
    """Return a chart's specification that adapts to the width of the page."""
    spec: dict[str, Any] = chart.to_dict()
    spec.pop("config", None)
    spec.pop("$schema", None)
    return {**spec, "width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}


def _safe(text: str) -> str:
    """Escape JSON so that a name such as </script> cannot end its HTML element."""
    return text.replace("<", "\\u003c")
