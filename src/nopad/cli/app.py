"""The `nopad` command: collects the commands, and turns errors into one readable line and an exit code."""

from __future__ import annotations

import os
import re
import sys
import threading
import traceback
import warnings
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import nopad
from nopad.cli import INTERRUPTED
from nopad.cli.audit import audit
from nopad.cli.config import CONFIG, read_config
from nopad.cli.demo import demo
from nopad.cli.helping import HelpedGroup
from nopad.cli.pack import pack
from nopad.cli.plan import plan
from nopad.cli.predict import predict
from nopad.cli.report import report
from nopad.cli.standard_input import remove_spooled
from nopad.cli.strict import make_strict, sturdy_streams
from nopad.cli.study import study
from nopad.cli.train import train
from nopad.cli.verify import verify
from nopad.cli.wording import verb_of, worded
from nopad.corpus.pipeline import THREADS
from nopad.errors import NopadError, StorageError

__all__ = ["app", "main"]

WRONG_USE = 2
BUG = 4
# click's UsageError, of whichever copy of click this typer uses
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="nopad",
    cls=HelpedGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Pack sequences for transformers with almost no padding, and prove how little padding is possible.",
    epilog=(
        "Exit codes: 0 fine; 1 a check failed; 2 wrong use or bad input; 3 the disk is full or a file cannot be read "
        "or written; 4 a bug in nopad; 130 interrupted. Any command takes --debug: show the traceback of an error."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for verb in (demo, plan, pack, verify, report, audit, train, predict):
    app.command()(verb)
app.add_typer(study, name="study")
make_strict(app, study)


def _version(show: bool) -> None:
    if show:
        print(f"nopad {nopad.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="NOPAD.toml",
            help="Values of options, a table for each command. Default: nopad.toml in this folder, if it is there.",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Pack sequences for transformers with almost no padding, and prove how little padding is possible."""
    if config is None and Path(CONFIG).is_file():
        config = Path(CONFIG)
    if config is None or context.resilient_parsing:
        return
    context.default_map = read_config(config, context.command)
    used: Any = context.default_map
    for name in (context.invoked_subcommand or "").split():
        used = used.get(name, {})
    if used:
        Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(
            f"nopad: {config} sets {', '.join(used)}", style="dim"
        )


def main(argv: list[str] | None = None) -> None:
    """Run the command line with the arguments `argv` (None: those of the process), and exit.

    Exit codes: 0 fine; 1 a check failed; 2 wrong use or bad input; 3 the disk is full or a file cannot be read or
    written; 4 a bug in nopad; 130 interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    sturdy_streams()
    verb = verb_of(arguments)
    warnings.showwarning = partial(_warned, verb)
    try:
        given = [a for a in arguments if a != "--debug"]
        code = _command().main(given, prog_name="nopad", standalone_mode=False) or 0
        if code == INTERRUPTED:  # typer turns a KeyboardInterrupt into this exit code
            raise KeyboardInterrupt
        sys.stdout.flush()
    except NopadError as error:
        code = _failed(worded(str(error), verb), error.exit_code, debug)
    except KeyboardInterrupt:
        code = _failed("interrupted", INTERRUPTED, debug)
    except BrokenPipeError:  # `nopad plan ... | head`
        code = _discard_stdout()
    except SystemExit as stop:  # typer turns a broken pipe into this
        code = _discard_stdout() if isinstance(stop.__context__, BrokenPipeError) else _ended(stop, debug)
    except _USAGE_ERROR as error:
        code = _failed(_usage(error), WRONG_USE, debug)
    except OSError as error:
        what = f"cannot read or write {error.filename or 'the output'}: {error.strerror or error}"
        code = _failed(what, StorageError.exit_code, debug)
        _discard_stdout()  # stdout may be what cannot be written to
    except UnicodeEncodeError as error:  # a file name that is not UTF-8, in a library that accepts only text
        shown = str(error.object).encode("utf-8", "backslashreplace").decode()
        code = _failed(f"{shown}: this name is not UTF-8; rename it", WRONG_USE, debug)
    except Exception as error:
        code = _failed(f"{type(error).__name__}: {error} (a bug in nopad; --debug shows where)", BUG, debug)
    if code == INTERRUPTED:
        _leave_threads(code)
    sys.exit(code)


@cache
def _command() -> Any:
    """Return the command `nopad` with all its verbs; the first call takes 0.1 s, later ones return the same object."""
    return typer.main.get_command(app)


def _ended(stop: SystemExit, debug: bool) -> int:
    """Print the message that there is no result, since foreign code ended the program; return the exit code, 2.

    With `debug`, the traceback is printed instead.
    """
    said = f"SystemExit: {stop.code}; there is no result, for code that is not nopad's ended the program"
    return _failed(said, WRONG_USE, debug)


def _leave_threads(code: int) -> None:
    """End the process at once, with exit code `code`, if a thread is still tokenising.

    Such a thread cannot be stopped, and may take seconds.
    """
    if any(thread.name.startswith(THREADS) for thread in threading.enumerate()):
        remove_spooled()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _warned(verb: str, message: Warning | str, category: type[Warning], filename: str, *_: Any, **__: Any) -> None:
    """Print a warning to stderr as one line that begins with the name of the package that gave the warning.

    Warnings of nopad, and of files outside of ``site-packages``, begin with "nopad". In them, the names of options are
    replaced by the flags of the command `verb`. This function replaces `warnings.showwarning`.
    """
    parts = Path(filename).parts
    installed = "site-packages" in parts[:-1]
    package = parts[parts.index("site-packages") + 1].removesuffix(".py") if installed else "nopad"
    text = worded(str(message), verb) if package == "nopad" else " ".join(str(message).split())
    screen = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)
    screen.print(f"[bold yellow]{package}:[/] {escape(text)}")


def _failed(message: str, code: int, debug: bool) -> int:
    """Print `message` as one line to stderr, unless it is empty; return `code`, the exit code.

    With `debug`, the traceback of the current error is printed instead.
    """
    if debug:
        traceback.print_exc()
    elif message:
        line = " ".join(message.splitlines())
        Console(stderr=True, soft_wrap=True, highlight=False, emoji=False).print(f"[bold red]nopad:[/] {escape(line)}")
    return code


def _usage(error: Any) -> str:
    """Return a message that says what is wrong with the arguments, and which --help to read.

    The result is "" if help was shown instead.
    """
    if not (message := error.format_message().rstrip(".").replace("Value error, ", "")):
        return ""
    message = re.sub(r"\. Did you mean (.*?)\??$| \(Possible options: (.*)\)", _meant, message)
    command = error.ctx.command_path if error.ctx else "nopad"
    return f"{message}; see `{command} --help`"


def _meant(found: re.Match[str]) -> str:
    return f" (did you mean {found[1] or found[2]}?)"


def _discard_stdout() -> int:
    """Redirect a stdout that can no longer be written to, so that Python's last flush does not fail.

    Returns exit code 0.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
