"""``nopad audit --step FILE.py``: audit a training step whose parts a Python file defines."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nopad.cli.audit_more import More
from nopad.cli.monitor import Bars
from nopad.errors import MissingExtraError, NopadError, OptionError, install

__all__ = ["audited", "parts_of"]

PARTS = ("collate", "loss", "alone")
_TAKES = {"collate": "examples", "loss": "model, batch, step", "alone": "model, inputs"}


def audited(
    path: str, more: More, monitor: Bars, *, ranks: int, accumulation: int | None, per: str, seed: int
) -> tuple[Any, Any]:
    """Audit the training step that the Python file `path` defines (see `parts_of`); return (`StepVerdict`, `Fix`).

    There is a `Fix` if `more` asks for one; else it is None. `monitor` shows what is done. The other arguments are
    those of `nopad.audit_step`; `seed` also seeds torch before the file runs.

    Raises:
        OptionError: there is no such file, it cannot be run, or it defines neither ``trainer()`` nor ``model()`` and
            ``examples()``.
        MissingExtraError: torch or transformers is not installed.
    """
    try:
        import torch
        import transformers as library
    except ImportError as error:
        raise MissingExtraError(f"running models needs {error.name}: {install('torch')}") from error
    from nopad.auditing import audit_step, find_step_fix

    transformers: Any = library
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(seed)
    with _importable(path):
        given = parts_of(path)
        how: dict[str, Any] = {"ranks": ranks, "accumulation": accumulation, "per": per, "seed": seed}
        verdict = audit_step(**given, **how)
        return verdict, more.found(lambda: find_step_fix(**given, **how), monitor)


def parts_of(path: str) -> dict[str, Any]:
    """Run a Python file; return the parts that it defines, as keyword arguments of `nopad.audit_step`.

    The file defines either ``trainer()``, which returns a Trainer, or ``model()`` and ``examples()``. Together with the
    latter two, it may define ``collate(examples)`` and ``loss(model, batch, step)``; in both cases, it may define
    ``alone(model, inputs)``.

    Raises:
        OptionError: the file cannot be run; it defines neither ``trainer()`` nor ``model()`` and ``examples()``, or a
            part that does not go with ``trainer()``; or a part is not a function.
    """
    file = Path(path)
    spec = importlib.util.spec_from_file_location("nopad_audited_step", file) if file.is_file() else None
    if spec is None or spec.loader is None:
        raise OptionError(
            f"--step {path} is no Python file; give one that defines model() and examples(), or trainer()"
        )
    module = importlib.util.module_from_spec(spec)
    with _inside(path, "it"):
        spec.loader.exec_module(module)
    found: dict[str, Any] = {name: getattr(module, name, None) for name in ("model", "examples", "trainer", *PARTS)}
    for name, value in found.items():
        if value is not None and not callable(value):
            raise OptionError(
                f"{path}: {name} is {type(value).__name__}; define it as a function, def {name}({_TAKES.get(name, '')})"
            )
    more = [name for name in PARTS if found[name] is not None]
    if found["trainer"] is not None:
        odd = [name for name in ("model", "examples", *more) if found[name] is not None and name != "alone"]
        if odd:
            raise OptionError(f"{path} defines trainer() and {odd[0]}(); the trainer has its own: leave {odd[0]} out")
        return {"trainer": _called(path, "trainer", found["trainer"])} | {n: found[n] for n in more}
    missing = [name for name in ("model", "examples") if found[name] is None]
    if missing:
        raise OptionError(
            f"{path} defines no {missing[0]}(); a step needs model(), which returns the model as it is trained, and "
            "examples(), which returns a list of dicts with input_ids and labels; or trainer(), a Trainer"
        )
    made = {name: _called(path, name, found[name]) for name in ("model", "examples")}
    return {"model": made["model"], "sequences": made["examples"]} | {name: found[name] for name in more}


def _called(path: str, name: str, function: Callable[[], Any]) -> Any:
    with _inside(path, f"{name}()"):
        found = function()
    if found is None:
        raise OptionError(f"{path}: {name}() returned nothing; return the {name}")
    return found


@contextmanager
def _inside(path: str, what: str) -> Iterator[None]:
    """Turn an exception in a user's file into an `OptionError` of one line that says where it was raised.

    `what` names the part of the file that runs, such as "model()".
    """
    try:
        yield
    except NopadError:
        raise
    except Exception as error:
        lines = [
            frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(Path(path))
        ]
        line = f", line {lines[-1]}" if lines else ""
        raise OptionError(f"{path}: {what} raised {type(error).__name__}: {error}{line}") from error


@contextmanager
def _importable(path: str) -> Iterator[None]:
    """In a ``with`` block, let the file, and its functions when they run, import modules from the file's folder."""
    folder = str(Path(path).resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
