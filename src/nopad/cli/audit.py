"""``nopad audit``: check that a model computes the same for a sequence in a pack as for the sequence alone.

The command can also audit a training step that a Python file defines.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import operator
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import typer

from nopad.cli.audit_more import Extras, FixOption, HtmlOption, JunitOption, More, PoisonedOption, TraceOption
from nopad.cli.audit_options import (
    Accumulation,
    AsJson,
    Attention,
    Backend,
    Capacity,
    Collator,
    Derive,
    Gradients,
    Layers,
    ModelName,
    Per,
    RanksOption,
    StepFile,
    TokenSeed,
)
from nopad.cli.derive import derived
from nopad.cli.foreign import running, users_code
from nopad.cli.monitor import Bars
from nopad.cli.options import Overwrite
from nopad.cli.render import console
from nopad.cli.step import audited
from nopad.corpus.network import hub_in_reach, not_had
from nopad.errors import FormatError, MissingExtraError, OptionError, install
from nopad.files import is_model_folder
from nopad.wording import first_line

__all__ = ["audit"]

COLLATORS = ("nopad", "flattening", "trl")
LARGE = 200_000_000  # parameters


def audit(
    model: ModelName = None,
    step: StepFile = None,
    ranks: RanksOption = 2,
    accumulation: Accumulation = None,
    per: Per = "token",
    backend: Backend = "auto",
    collator: Collator = "nopad",
    attention: Attention = None,
    capacity: Capacity = None,
    layers: Layers = None,
    gradients: Gradients = True,
    seed: TokenSeed = 0,
    trace: TraceOption = False,
    poisoned: PoisonedOption = "one",
    fix: FixOption = False,
    html: HtmlOption = None,
    junit: JunitOption = None,
    derive: Derive = False,
    as_json: AsJson = False,
    force: Overwrite = False,
) -> None:
    """Check that a model on packs keeps sequences apart, or name the layer at which they see each other.

    Exit code 0 when every check passes, 1 when a check or the model itself fails. Needs the extra torch: in a clone,
    pip install -e '.[torch]'.

    Examples:
      nopad audit path/to/model

      nopad audit path/to/model --collator flattening --json

      nopad audit path/to/model --collator my_package.data:collate --trace --fix

      nopad audit path/to/model --html audit.html --junit audit.xml

      nopad audit --derive path/to/model

      nopad audit --step my_training.py --ranks 2 --accumulation 4
    """
    more = More(trace, poisoned, fix, html, junit)
    more.check(step=step is not None, foreign=collator != "nopad")
    of_model: dict[str, Any] = {"--backend": backend != "auto", "--collator": collator != "nopad"}
    of_model |= {"--attention": attention, "--capacity": capacity, "--layers": layers, "--no-gradients": not gradients}
    if step is not None:
        _refuse(
            {"MODEL": model, **of_model, "--derive": derive},
            "does not go with --step, whose file defines what is audited",
        )
        _step(step, more, as_json, ranks=ranks, accumulation=accumulation, per=per, seed=seed)
        return
    _refuse({"--ranks": ranks != 2, "--accumulation": accumulation, "--per": per != "token"}, "is of --step FILE.py")
    if derive:
        asked = {"--seed": seed, "--trace": trace, "--fix": fix, "--html": html, "--junit": junit}
        _refuse({**of_model, **asked}, "does not go with --derive, which chooses by itself what to try")
        _derive(model, as_json)
        return
    if model is None:
        raise OptionError("give a MODEL, a folder or a name on the hub, or --step FILE.py for a training step")
    if collator not in COLLATORS and ":" not in collator:
        raise OptionError(
            f"unknown collator {collator!r}; there are {', '.join(COLLATORS)}, or your own as module:name"
        )
    options: dict[str, Any] = {"capacity": capacity, "layers": layers, "gradients": gradients, "seed": seed}
    with Bars() as monitor, more.written(f"{model}, {collator}"), users_code("."):
        verdict, extras = _audited(model, attention, collator, backend, options, more, monitor)
    _say(verdict, as_json, verdict.isolated, extras)


def _step(file: str, more: More, as_json: bool, **options: Any) -> None:
    """Audit the training step that the Python file `file` defines, and print the verdict.

    `more` says what is asked for besides the verdict, such as a fix. `options` are `ranks`, `accumulation`, `per` and
    `seed`, as `nopad.audit_step` takes them.

    Raises:
        typer.Exit: the step did not pass; the exit code is 1.
    """
    with Bars() as monitor, more.written(f"a step of {file}"):
        monitor.stage("auditing", None, "")
        found, mended = audited(file, more, monitor, **options)
    _say(found, as_json, found.passed, Extras(more, fix=mended))


def _derive(model: str | None, as_json: bool) -> None:
    """Find out how the sequences of `model` can be kept apart, and print the result: the work of ``--derive``.

    Raises:
        typer.Exit: the model is not admitted; the exit code is 1.
    """
    with Bars() as monitor:
        monitor.stage("deriving and proving", None, "")
        finding = derived(model)
    _say(finding, as_json, finding.proof.admitted)


def _audited(
    name: str,
    attention: str | None,
    collator: str,
    backend: str,
    options: dict[str, Any],
    more: More,
    monitor: Bars,
) -> tuple[Any, Extras]:
    """Load the model `name` and audit it; return its `Verdict`, and the `Extras` that `more` asks for.

    `options` are further arguments of `nopad.audit`, by name. The trace is made before the audit, which takes longer:
    so a token of ``--poisoned`` that does not exist is refused early.
    """
    monitor.stage("loading the model", None, "")
    with _uncollected():
        loaded = load_model(name, attention)
        from nopad.auditing import audit as run
        from nopad.auditing import find_fix
    _few_threads(loaded)
    collate = _collator(collator, loaded)
    of_trace = {key: value for key, value in options.items() if key != "gradients" and value is not None}
    path = more.traced(loaded, monitor, collator=collate, backend=backend, **of_trace)
    monitor.stage("auditing", None, "")
    verdict = run(loaded, collator=collate, backend=backend, **options)
    mended = more.found(lambda told: find_fix(loaded, collator=collate, **options, monitor=told), monitor)
    return verdict, Extras(more, path, mended)


def _refuse(given: dict[str, Any], why: str) -> None:
    """Refuse options that do not go with another one.

    Args:
        given: the values of these options, by name; a false value: not given.
        why: why such an option is refused; in the message, it follows the name of the option.

    Raises:
        OptionError: one of the options was given.
    """
    odd = [name for name, value in given.items() if value]
    if odd:
        raise OptionError(f"{odd[0]} {why}; leave it out")


def _say(verdict: Any, as_json: bool, passed: bool, extras: Extras | None = None) -> None:
    """Write the files that `extras` asks for, and print the verdict with its trace and fix, as text or JSON.

    Raises:
        StorageError: a file cannot be written.
        typer.Exit: `passed` is False; the exit code is 1.
    """
    if extras is not None:
        extras.write(verdict)
    if as_json:
        print(verdict.to_json() if extras is None else extras.to_json(verdict))
    else:
        console().print(str(verdict), style=None, markup=False, soft_wrap=True)
        if extras is not None:
            extras.print()
    if not passed:
        raise typer.Exit(1)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Turn garbage collection off in a ``with`` block that imports libraries.

    Nearly all objects that imports create stay in use, so there is little to collect; this saves a fifth of the time.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _few_threads(model: Any) -> None:
    """Let torch use only one thread if the model has under 200 million parameters.

    With so small a model, several threads would mostly wait for each other.
    """
    import torch

    if model.num_parameters() < LARGE:
        torch.set_num_threads(1)


def _collator(name: str, model: Any) -> Any:
    """Return the collator that `name` stands for; None for "nopad": the model gets nopad's own batches.

    Other names are "flattening" (of transformers), "trl", and ``module:name`` for a collator of the user's.

    Raises:
        MissingExtraError: the collator "trl" is named, and TRL is not installed.
        OptionError: a collator ``module:name`` cannot be imported or called.
    """
    if name == "nopad":
        return None
    if name == "flattening":
        import transformers

        flattening: Any = transformers.DataCollatorWithFlattening
        return flattening(return_tensors="pt")
    if name == "trl":
        try:
            padding_free = importlib.import_module("trl.trainer.sft_trainer").DataCollatorForLanguageModeling
        except ImportError as error:
            raise MissingExtraError(f"--collator trl needs {error.name}: pip install trl") from error
        pad = getattr(model.config.get_text_config(), "pad_token_id", None) or 0
        return _AsTrained(padding_free(pad_token_id=pad, padding_free=True), model)
    return _imported(name)


class _AsTrained:
    """A collator that adds ``use_cache=False`` to the batches of another collator, as TRL's trainer does.

    With a cache, causal models ignore where sequences begin in a batch of TRL's collator. Nothing is added if the
    model's forward has no such parameter.
    """

    def __init__(self, collate: Any, model: Any) -> None:
        self.collate = collate
        self.__name__ = f"{type(collate).__name__} and use_cache=False, as its trainer does"
        takes = inspect.signature(type(model).forward).parameters
        self.added = {"use_cache": False} if "use_cache" in takes else {}

    def __call__(self, features: Any) -> dict[str, Any]:
        return {**self.collate(features), **self.added}


def _imported(name: str) -> Any:
    """Import the object that a text ``module:name`` stands for; return it or, if it is a class, an instance of it.

    Module and name may have dots. Errors of nopad that the import or the class raises pass unchanged.

    Raises:
        OptionError: `name` has another form, the import or the class raises another exception, or the result is not
            callable.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise OptionError(f"--collator {name} names no function; give module:name, such as my_package.data:collate")
    with running(f"--collator {name}: it"):
        try:
            found = operator.attrgetter(attribute)(importlib.import_module(module))
            found = found() if isinstance(found, type) else found
        except (ImportError, AttributeError, TypeError) as error:
            raise OptionError(
                f"--collator {name}: {error}; give module:name of a function from features to a batch"
            ) from error
    if not callable(found):
        raise OptionError(f"--collator {name} is {type(found).__name__}, which cannot be called")
    return found


def load_model(spec: str, attention: str | None = None) -> Any:
    """Return a transformers model in its own dtype, with the head that its configuration names.

    If the configuration names no class of transformers, the model has no head. `spec` is a folder or a name on the hub.
    `attention` is passed as transformers' `attn_implementation`; None: transformers chooses.

    Raises:
        MissingExtraError: torch or transformers is not installed.
        FormatError: there is no model at `spec`, transformers cannot read it, or the hub cannot be reached.
    """
    try:
        import transformers as library
    except ImportError as error:
        raise MissingExtraError(f"running models needs {error.name}; {install('torch')}") from error
    transformers: Any = library
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    here = is_model_folder(spec)
    options: dict[str, Any] = {"attn_implementation": attention} if attention else {}
    with nullcontext(True) if here else hub_in_reach() as online:
        try:
            config = transformers.AutoConfig.from_pretrained(spec)
            named = [getattr(transformers, name, None) for name in config.architectures or ()]
            kind = next((found for found in named if found is not None), transformers.AutoModel)
            return kind.from_pretrained(spec, dtype="auto", **options)
        except Exception as error:  # a damaged file or a missing package may raise anything
            if here:
                raise FormatError(f"{spec}: transformers cannot read this model ({first_line(error)})") from error
            raise not_had(spec, error, online) from error
