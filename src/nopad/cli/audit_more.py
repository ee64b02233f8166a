"""What `nopad audit` gives besides its verdict: a trace, a fix, a page, and JUnit XML for CI."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from nopad.cli.monitor import Bars
from nopad.cli.render import console
from nopad.errors import OptionError
from nopad.files import write_atomic

__all__ = ["FixOption", "HtmlOption", "JunitOption", "More", "PoisonedOption", "TraceOption"]

TraceOption = Annotated[
    bool,
    typer.Option("--trace", help="Draw which tokens a poisoned one reaches, layer by layer.", show_default=False),
]
PoisonedOption = Annotated[
    str,
    typer.Option(
        "--poisoned",
        metavar="WHICH",
        help="Tokens to trace: one; each, for one of every sequence; or SEQUENCE:TOKEN,... from 0.",
    ),
]
FixOption = Annotated[
    bool,
    typer.Option(
        "--fix",
        help="If the audit fails, try changes of collator, model or loss, and print those with which it passes.",
        show_default=False,
    ),
]
HtmlOption = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write the verdict, trace and fix as one offline page.")
]
JunitOption = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="Write the checks as JUnit XML, for CI.")
]
_PLACE = re.compile(r"(\d+):(\d+)")


@dataclass(frozen=True)
class More:
    """What is asked for besides the verdict; the attributes are the options of `nopad audit`."""

    trace: bool
    poisoned: str
    fix: bool
    html: Path | None
    junit: Path | None

    def check(self, *, step: bool, foreign: bool) -> None:
        """Refuse what cannot be given, before anything runs; `foreign`: a collator keeps sequences apart, not nopad.

        Raises:
            OptionError: options contradict each other, or a file's folder does not exist.
        """
        if step and self.trace:
            raise OptionError("--trace draws a model's layers, and --step audits a loss; give a MODEL to trace it")
        if self.poisoned != "one" and not self.trace:
            raise OptionError(f"--poisoned {self.poisoned} says what is traced; give --trace too")
        if self.fix and not (step or foreign):
            raise OptionError("--fix mends a foreign collator or step; give --collator or --step, or leave it out")
        _places(self.poisoned)
        for path in (self.html, self.junit):
            if path is not None and not path.parent.is_dir():
                raise OptionError(f"there is no folder {path.parent}; make it, or choose another")
        if self.html is not None and self.html == self.junit:
            raise OptionError(f"--html and --junit are both {self.html}; give two files")

    def found(self, find: Callable[[], Any], monitor: Bars) -> Any:
        """Return the fix that `find` finds, if one is asked for, else None."""
        if not self.fix:
            return None
        monitor.stage("looking for a fix", None, "")
        return find()

    def traced(self, model: Any, monitor: Bars, **options: Any) -> Any:
        """Return the trace of a model if one is asked for, or why there is none as a string; None: not asked for."""
        if not self.trace:
            return None
        from nopad.auditing import trace

        monitor.stage("tracing", None, "")
        try:
            return trace(model, poisoned=_places(self.poisoned), **options)
        except OptionError as error:
            if str(error).startswith("poisoned"):
                raise
            return f"no trace: {error}"  # the verdict says the same of this model, in its own way

    def say(self, verdict: Any, as_json: bool, passed: bool, trace: Any = None, fix: Any = None) -> None:
        """Write the files, and print verdict, trace and fix; the exit code is 1 if the audit did not pass."""
        if self.junit is not None:
            write_atomic(self.junit, verdict.to_junit().encode())
        drawable = None if isinstance(trace, str) else trace
        if self.html is not None:
            from nopad.report.audited import audit_page

            write_atomic(self.html, audit_page(verdict, drawable, fix).encode())
        if as_json:
            print(_json(verdict, drawable, fix))
        else:
            screen = console()
            screen.print(str(verdict), style=None, markup=False, soft_wrap=True)
            for part in (trace if isinstance(trace, str) else _drawn(drawable, screen), fix and str(fix)):
                if part:
                    print(f"\n{part}", file=screen.file)
            for path in (self.html, self.junit):
                if path is not None:
                    screen.print(f"saved {path}", markup=False, soft_wrap=True)
        if not passed:
            raise typer.Exit(1)


def _places(poisoned: str) -> Any:
    """Return the argument `poisoned` of `nopad.auditing.trace`.

    Raises:
        OptionError: it is none of "one", "each" and pairs SEQUENCE:TOKEN.
    """
    if poisoned in ("one", "each"):
        return None if poisoned == "one" else "each"
    pairs = [_PLACE.fullmatch(part.strip()) for part in poisoned.split(",")]
    if not all(pairs):
        raise OptionError(f"--poisoned is {poisoned!r}; give one, each, or SEQUENCE:TOKEN,... from 0, such as 2:0,3:1")
    return [(int(pair[1]), int(pair[2])) for pair in pairs if pair]


def _drawn(trace: Any, screen: Any) -> str:
    if trace is None:
        return ""
    colour = screen.color_system is not None and not screen.no_color
    try:
        return str(trace.draw(screen.width, colour))
    except OptionError:
        return f"{trace.summary()}\nthe terminal is too narrow to draw this trace; --html FILE draws it"


def _json(verdict: Any, trace: Any, fix: Any) -> str:
    whole = json.loads(verdict.to_json())
    if trace is not None:
        whole["trace"] = trace.to_dict()
    if fix is not None:
        whole["fix"] = fix.to_dict()
    return json.dumps(whole, indent=1) if trace is None else json.dumps(whole)
