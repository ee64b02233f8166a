"""Run Python code of the user's for a command: a collator, or a file that defines a training step.

Such code may print, raise anything, or end the program, as scripts do. None of this may pass for the command's own
answer: what it prints goes to stderr, and whatever ends it early becomes an `OptionError`, unless it is an error of
nopad already.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType

from nopad.errors import FOREIGN, NopadError, OptionError

__all__ = ["module_of", "running", "users_code"]

_NAME = "nopad_audited_step"  # of the module


@contextmanager
def users_code(folder: str | Path) -> Iterator[None]:
    """In a ``with`` block, let a user's code import modules from `folder`, and send what it prints to stderr.

    So stdout has only the output of the command itself.
    """
    place = str(Path(folder).resolve())
    sys.path.insert(0, place)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.path.remove(place)


@contextmanager
def running(what: str, file: str = "") -> Iterator[None]:
    """In a ``with`` block, turn exceptions of a user's code, also `SystemExit`, into an `OptionError`.

    `what` names the code in the message, such as "step.py: model()". `file` is the path of the code: if the exception
    passed through this file, the message has the number of the line; "": the message has no number. Errors of nopad
    pass unchanged.
    """
    try:
        yield
    except NopadError:
        raise
    except FOREIGN as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if file and Path(frame.filename).resolve() == Path(file).resolve()]
        line = f", line {lines[-1]}" if lines else ""
        raise OptionError(f"{what} raised {type(error).__name__}: {error}{line}") from error


def module_of(path: str) -> ModuleType | None:
    """Run the Python file `path` as a module, and return the module; None if `path` is no Python file.

    The module stays in ``sys.modules``, since dataclasses and pickle look it up there.

    Raises:
        OptionError: the file raises an exception that is not an error of nopad, or ends the program.
    """
    file = Path(path)
    spec = importlib.util.spec_from_file_location(_NAME, file) if file.is_file() else None
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = module
    with running(f"{path}: it", path):
        spec.loader.exec_module(module)
    return module
