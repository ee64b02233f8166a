"""The `nopad` command: gathers the verbs and turns errors into one readable line and an exit code."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.markup import escape

import nopad
from nopad.cli.demo import demo
from nopad.cli.pack import pack
from nopad.cli.plan import plan
from nopad.cli.verify import verify
from nopad.errors import NopadError

__all__ = ["app", "main"]

BUG = 4
INTERRUPTED = 130

app = typer.Typer(
    name="nopad",
    help="Pack sequences for transformers with provably almost no padding.",
    epilog=(
        "Exit codes: 0 fine; 1 a check failed; 2 wrong use or bad input; 3 the disk is full or a file cannot be read "
        "or written; 4 a bug in nopad; 130 interrupted. Any command takes --debug: show the traceback of an error."
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)
for verb in (demo, plan, pack, verify):
    app.command()(verb)


def _version(show: bool) -> None:
    if show:
        print(f"nopad {nopad.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Pack sequences for transformers with provably almost no padding."""


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit.

    Exit codes: 0 fine; 1 a check failed; 2 wrong use or bad input; 3 the disk is full or a file cannot be read or
    written; 4 a bug in nopad; 130 interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        app([argument for argument in arguments if argument != "--debug"], prog_name="nopad")
    except NopadError as error:
        _fail(str(error), error.exit_code, error if debug else None)
    except KeyboardInterrupt as error:
        _fail("interrupted", INTERRUPTED, error if debug else None)
    except BrokenPipeError:
        sys.exit(0)  # `nopad plan ... | head`
    except Exception as error:
        _fail(f"{type(error).__name__}: {error} (a bug in nopad; --debug shows where)", BUG, error if debug else None)


def _fail(message: str, code: int, show: BaseException | None) -> None:
    """Print one line to stderr, or a traceback, and exit."""
    if show is not None:
        raise show
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"[bold red]nopad:[/] {escape(message)}")
    sys.exit(code)
