"""``nopad audit --step FILE.py``: audit a training step whose parts a Python file defines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nopad.cli.audit_more import More
from nopad.cli.foreign import module_of, running, users_code
from nopad.cli.monitor import Bars
from nopad.errors import MissingExtraError, OptionError, install

__all__ = ["audited", "parts_of"]

PARTS = ("collate", "loss", "alone")
_TAKES = {"collate": "examples", "loss": "model, batch, step", "alone": "model, inputs"}


def audited(
    path: str, more: More, monitor: Bars, *, ranks: int, accumulation: int | None, per: str, seed: int
) -> tuple[Any, Any]:
    """Audit the training step that the Python file `path` defines; return (`StepVerdict`, `Fix`).

    The `Fix` is None unless `more` asks for one; `monitor` shows the progress of the search for it. `ranks`,
    `accumulation`, `per` and `seed` are passed to `nopad.audit_step`; `seed` also seeds torch before the file runs.

    Raises:
        OptionError: the file does not exist or cannot be run; the parts that it defines are incomplete, do not go
            together, or fail when called; or `nopad.audit_step` refuses a part or an option.
        BatchError, LengthError: `nopad.audit_step` cannot use the examples.
        MissingExtraError: torch or transformers is not installed.
    """
    try:
        import torch
        import transformers as library
    except ImportError as error:
        raise MissingExtraError(f"running models needs {error.name}; {install('torch')}") from error
    from nopad.auditing import audit_step, find_step_fix

    transformers: Any = library
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(seed)
    with users_code(Path(path).parent):
        given = parts_of(path)
        how: dict[str, Any] = {"ranks": ranks, "accumulation": accumulation, "per": per, "seed": seed}
        verdict = audit_step(**given, **how)
        return verdict, more.found(lambda told: find_step_fix(**given, **how, monitor=told), monitor)


def parts_of(path: str) -> dict[str, Any]:
    """Run a Python file; return the parts that it defines, as keyword arguments of `nopad.audit_step`.

    The file defines either ``trainer()``, which returns a Trainer, or ``model()`` and ``examples()``. Beside
    ``model()`` and ``examples()``, it may define ``collate(examples)`` and ``loss(model, batch, step)``. In either
    case, it may define ``alone(model, inputs)``.

    The result has the Trainer as "trainer", or the model and the examples as "model" and "sequences". It also has
    the functions "collate", "loss" and "alone", as far as the file defines them. Errors of nopad that the file raises
    pass unchanged.

    Raises:
        OptionError: there is no such file, or it is no Python file; it cannot be run; it defines neither ``trainer()``
            nor ``model()`` and ``examples()``, or a part that does not go with ``trainer()``; a part is not a function;
            or ``trainer()``, ``model()`` or ``examples()`` raises an exception or returns None.
    """
    if not Path(path).is_file():
        what = "is a folder" if Path(path).is_dir() else "no such file"
        raise OptionError(
            f"--step {path}: {what}; give a Python file that defines trainer(), or model() and examples()"
        )
    module = module_of(path)
    if module is None:
        raise OptionError(
            f"--step {path} is no Python file (.py); give one that defines trainer(), or model() and examples()"
        )
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
    with running(f"{path}: {name}()", path):
        found = function()
    if found is None:
        raise OptionError(f"{path}: {name}() returned nothing; return the {name}")
    return found
