"""What `nopad audit` gives besides its verdict: a trace, a fix, a page, and JUnit XML for CI."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from nopad.cli.monitor import Bars
from nopad.cli.render import console
from nopad.errors import NopadError, OptionError
from nopad.files import storage_errors, write_text
from nopad.notation import from_json

__all__ = ["Extras", "FixOption", "HtmlOption", "JunitOption", "More", "PoisonedOption", "TraceOption"]

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
    """What the user asks for besides the verdict.

    Each attribute is the value of the option of `nopad audit` with the same name.
    """

    trace: bool
    poisoned: str
    fix: bool
    html: Path | None
    junit: Path | None

    def check(self, *, step: bool, foreign: bool) -> None:
        """Check the options before anything runs.

        Args:
            step: whether a training step is audited.
            foreign: whether the model is audited with a collator that is not nopad's.

        Raises:
            OptionError: options contradict each other; `poisoned` is none of "one", "each" and pairs SEQUENCE:TOKEN; or
                a file's folder does not exist.
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
        if self.html is not None and self.junit is not None and self.html.resolve() == self.junit.resolve():
            raise OptionError(f"--html and --junit are both {self.html}; give two files")

    def found(self, find: Callable[[Bars], Any], monitor: Bars) -> Any:
        """Return ``find(monitor)``, a fix, if the user asks for one; else None.

        `find` is a function that looks for a fix, and shows its progress on the monitor.
        """
        if not self.fix:
            return None
        monitor.stage("looking for a fix", None, "")
        return find(monitor)

    @contextmanager
    def written(self, suite: str) -> Iterator[None]:
        """In a ``with`` block that audits, first remove the files of earlier audits (``--html``, ``--junit``).

        If the block raises an exception and the user asks for JUnit XML, the JUnit file is still written. It then has
        one test case, called `suite`, with the exception as an error. The exception is raised again.

        Raises:
            StorageError: a file cannot be removed or written.
        """
        for path in (self.html, self.junit):
            if path is not None:
                with storage_errors("removing", path):
                    path.unlink(missing_ok=True)
        try:
            yield
        except Exception as error:
            if self.junit is not None:
                from nopad.auditing.junit import Failure, junit

                failure = Failure(suite, str(error), type(error).__name__)
                write_text(self.junit, junit(suite, (), f"{type(error).__name__}: {error}", [failure]))
            raise

    def traced(self, model: Any, monitor: Bars, **options: Any) -> Any:
        """Return the trace of a model; None if the user asks for no trace.

        If the model cannot be traced, the result is a text that says why. `options` are further arguments of
        `nopad.auditing.trace`.

        Raises:
            OptionError: `poisoned` names a sequence or token that does not exist.
        """
        if not self.trace:
            return None
        from nopad.auditing import trace

        monitor.stage("tracing", None, "")
        try:
            return trace(model, poisoned=_places(self.poisoned), **options)
        except NopadError as error:
            if str(error).startswith("poisoned"):
                raise
            return f"no trace: {error}"  # the verdict says the same of this model, in its own way


@dataclass(frozen=True)
class Extras:
    """The results of an audit besides its verdict.

    Attributes:
        more: what the user asked for.
        trace: the `nopad.auditing.Trace`; or a text that says why there is none; None: not asked for.
        fix: the `nopad.auditing.Fix`; None: not asked for.
    """

    more: More
    trace: Any = None
    fix: Any = None

    @property
    def _drawable(self) -> Any:
        return None if isinstance(self.trace, str) else self.trace

    def write(self, verdict: Any) -> None:
        """Write the files that the user asks for: the verdict as JUnit XML, and a page with verdict, trace and fix.

        Raises:
            StorageError: a file cannot be written.
        """
        if self.more.junit is not None:
            write_text(self.more.junit, verdict.to_junit())
        if self.more.html is not None:
            from nopad.report.audited import audit_page

            write_text(self.more.html, audit_page(verdict, self._drawable, self.fix))

    def print(self) -> None:
        """Print the trace, the fix, and the names of the files that were written."""
        screen = console()
        drawn = self.trace if isinstance(self.trace, str) else _drawn(self.trace, screen)
        for part in (drawn, self.fix and str(self.fix)):
            if part:
                print(f"\n{part}", file=screen.file)
        for path in (self.more.html, self.more.junit):
            if path is not None:
                screen.print(f"saved {path}", markup=False, soft_wrap=True)

    def to_json(self, verdict: Any) -> str:
        """Return the verdict as a JSON object; a trace and a fix are added as "trace" and "fix", if they were made."""
        parts = {"trace": self._drawable, "fix": self.fix}
        whole = from_json(verdict.to_json()) | {n: part.to_dict() for n, part in parts.items() if part is not None}
        return json.dumps(whole, indent=1 if self._drawable is None else None)


def _places(poisoned: str) -> Any:
    """Turn the value of ``--poisoned`` into the argument `poisoned` of `nopad.auditing.trace`.

    "one" becomes None, "each" stays, and pairs such as ``2:0,3:1`` become ``[(2, 0), (3, 1)]``.

    Raises:
        OptionError: the value is none of "one", "each" and pairs SEQUENCE:TOKEN, separated by commas.
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
