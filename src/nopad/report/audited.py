"""Make one offline HTML page from the result of `nopad audit`: verdict, trace, fix and checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["audit_page"]

HERE = Path(__file__).resolve().parent


def audit_page(verdict: Any, trace: Any = None, fix: Any = None) -> str:
    """Return the page about an audit as HTML.

    `verdict` is what `nopad.audit` or `nopad.audit_step` returns, `trace` a `nopad.auditing.Trace` and `fix` a
    `nopad.auditing.Fix`. If `trace` or `fix` is None, the page has no part about it.
    """
    import jinja2

    loader = jinja2.FileSystemLoader(HERE)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
    template = environment.get_template("audit.html.j2")
    passed = verdict.outcome in ("isolated", "equal")
    return template.render(
        verdict=verdict,
        passed=passed,
        step=hasattr(verdict, "findings"),
        findings=getattr(verdict, "findings", ()),
        modules=getattr(verdict, "modules", ()),
        first=verdict.first_difference,
        reason=getattr(verdict, "reason", ""),
        trace=trace,
        picture="" if trace is None else trace.to_svg(),
        fix=fix,
        number=_number,
        style=(HERE / "page.css").read_text(encoding="utf-8") + (HERE / "audit.css").read_text(encoding="utf-8"),
    )


def _number(value: float, digits: int = 1) -> str:
    return f"{value:.{digits}e}" if value else "0"
