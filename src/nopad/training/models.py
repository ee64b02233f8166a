"""Make the model of a run: first its configuration, then the model without weights, and in the end with weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import transformers

from nopad.admitting import packed
from nopad.corpus.network import hub_in_reach, not_had
from nopad.corpus.tokenizer import with_words
from nopad.errors import FormatError, InputError, MissingExtraError, NopadError, OptionError
from nopad.model.admission import positions_of
from nopad.model.safety import bare, facts_of
from nopad.tasks import Task
from nopad.training.folder import last_weights
from nopad.training.tables import Model
from nopad.training.typed import known
from nopad.wording import first_line

__all__ = [
    "check_positions",
    "classes_of_weights",
    "load_model",
    "load_tokenizer",
    "longest",
    "of_hub",
    "outline",
    "read_model_config",
]

_lib: Any = transformers
_ADAPTERS = "adapter_config.json"  # of peft
_SHOWN = 6  # most names that a message lists
_UNNAMED = "LABEL_"  # how transformers calls classes that nobody named


def of_hub(table: Model) -> AbstractContextManager[bool]:
    """Return ``hub_in_reach()`` if ``model.name`` or ``model.tokenizer`` is no folder here, else a `nullcontext`.

    In a ``with`` block that reads the model or the tokenizer several times, the hub is then asked only once.
    """
    names = [name for name in (table.name, table.tokenizer) if name is not None]
    return nullcontext(True) if all(Path(name).exists() for name in names) else hub_in_reach()


def load_tokenizer(table: Model) -> Any:
    """Return the tokenizer that ``model.tokenizer`` names or, if that is not given, the tokenizer of the model.

    Raises:
        FormatError: there is no tokenizer or no model, or the tokenizer cannot be read.
        OptionError: neither ``model.tokenizer`` nor ``model.name`` is given, ``model.init_from`` has adapters, and
            ``model.lora`` asks for new ones.
    """
    name = table.tokenizer or table.name or str(_weights(table))
    with _reading(name, "tokenizer"):
        made = _lib.AutoTokenizer.from_pretrained(name)
    return with_words(made, name)


def read_model_config(table: Model, task: type[Task] | Task | None) -> Any:
    """Return the configuration of the model that a table ``[model]`` names, with some fields changed.

    A task object changes the fields that `Task.model_options` returns, such as the names of classes. A `task` that is
    None or a class changes none. Then ``model.config`` replaces these and other fields.

    Raises:
        FormatError: there is no model, its configuration cannot be read, or transformers refuses one of the new values.
        OptionError: ``model.config`` names a field that the configuration does not have; or ``model.name`` is not
            given, ``model.init_from`` has adapters, and ``model.lora`` asks for new ones.
    """
    name = table.name or str(_weights(table))
    with _reading(name, "configuration"):
        config = _lib.AutoConfig.from_pretrained(name)
    for key in table.config:
        known(key, [one for one in config.to_dict() if not one.startswith("_")], f"model.config of {name}")
    named = task.model_options() if isinstance(task, Task) else {}
    with _reading(name, "configuration"):
        return _lib.AutoConfig.from_pretrained(name, **{**named, **table.config})


def classes_of_weights(table: Model) -> list[str]:
    """Return the class names stored with the weights from which training starts, in the order of the class numbers.

    The list is empty if the weights are random, or if no names are stored.

    Raises:
        FormatError: there are no weights where the table ``[model]`` says, or the configuration beside them cannot be
            read.
        OptionError: ``model.init_from`` has adapters, and ``model.lora`` asks for new ones.
    """
    if table.fresh:
        return []
    name = str(_weights(table))
    with _reading(name, "configuration"):
        found = getattr(_lib.AutoConfig.from_pretrained(name), "id2label", None) or {}
    names = [str(found[number]) for number in sorted(found)]
    return [] if all(one.startswith(_UNNAMED) for one in names) else names


def outline(table: Model, config: Any, auto: str | None) -> Any:
    """Return the model without weights, on the "meta" device, pack-safe.

    Args:
        table: the table ``[model]``.
        config: the model's configuration.
        auto: name of the Auto class whose head is wanted; None: the head that `config` names.

    Raises:
        OptionError: this kind of model has no such head; ``model.lora`` does not fit it, or is given besides saved
            adapters; or the model cannot use ``model.backend``.
        FormatError: the settings of saved adapters cannot be read, or ``model.init_from`` names no folder with weights.
        UnsupportedModelError: the model cannot keep sequences apart.
        MissingExtraError: adapters are asked for, and peft is not installed.
    """
    with _head(table, config, auto), torch.device("meta"):
        made = _kind(config, auto)(config)
    return packed(_adapted(made.to(getattr(torch, table.dtype)), table), backend=table.backend)


def longest(model: Any) -> int | None:
    """Return the most tokens that a sequence may have, by the model's number of positions; None: unlimited."""
    inner = bare(model)
    return positions_of(inner, facts_of(model))


def check_positions(table: Model, shape: Any) -> None:
    """Refuse a checkpoint with fewer learned positions than the model that is to begin with the checkpoint's weights.

    An example is the checkpoint of a first phase of pre-training whose model was made for shorter sequences.

    `shape` is the model without weights, from `outline`. Nothing is checked if ``model.init_from`` or ``model.name`` is
    not given, or if the model learns no positions.

    Raises:
        OptionError: the checkpoint has fewer positions; or ``model.init_from`` has adapters, and ``model.lora`` asks
            for new ones.
        FormatError: there is no checkpoint, or its configuration cannot be read.
    """
    mine = _table_of_positions(bare(shape))
    if table.init_from is None or table.name is None or mine is None:
        return
    name = str(_weights(table))
    with _reading(name, "configuration"):
        theirs = getattr(_lib.AutoConfig.from_pretrained(name), "max_position_embeddings", None)
    if theirs is not None and theirs < mine:
        raise OptionError(
            f"model.init_from {name} has {theirs} positions, and the model here has {mine}; they are learned, so the "
            f"checkpoint has none beyond {theirs}. Give the first phase a model with {mine} positions, which its "
            f"sequences need not fill (task.max_length), or set model.config.max_position_embeddings = {theirs} here"
        )


def _table_of_positions(model: Any) -> int | None:
    """Return the number of learned position embeddings of a model; None: it has none."""
    most = getattr(model.config, "max_position_embeddings", None)
    shapes = [value.shape for name, value in model.named_parameters() if "position" in name or ".wpe." in name]
    return most if any(len(shape) == 2 and shape[0] >= (most or 0) for shape in shapes) else None


def load_model(table: Model, config: Any, auto: str | None) -> tuple[Any, list[str]]:
    """Return the pack-safe model with weights, and the names of weights that no checkpoint or saved adapter has.

    `table` is the table ``[model]``, `config` the model's configuration, and `auto` the name of the Auto class whose
    head is wanted; None: the head that `config` names. With ``model.fresh``, all weights are random, and the list of
    names is empty.

    Raises:
        FormatError: there are no weights, or they cannot be read.
        OptionError: the checkpoint is of another type of model, its weights have other shapes, or none of them belongs
            to this model; saved adapters or ``model.lora`` do not fit the model, or both are given; or there is no
            `auto`, and `config` names no class of transformers.
        MissingExtraError: adapters are asked for, and peft is not installed.
        UnsupportedModelError: nopad refuses this model; the message gives the reason.
    """
    if table.fresh:
        model = _kind(config, auto)(config).to(getattr(torch, table.dtype))
        return packed(_adapted(model, table), backend=table.backend), []
    name = str(_weights(table))
    if table.init_from and table.name and _adapters(table) is None:
        _check_kind(name, config)
    options = {"config": config, "dtype": getattr(torch, table.dtype), "output_loading_info": True}
    with _reading(name, "weights"):
        loader = getattr(_lib, auto) if auto else _architecture(config)
        model, found = loader.from_pretrained(name, **options)
    odd = [*found.get("mismatched_keys", ())]
    if odd:
        raise OptionError(f"{name} holds weights of another model: {', '.join(map(str, odd[:_SHOWN]))} differ in shape")
    new = sorted(found.get("missing_keys", ()))
    if len(new) >= len(model.state_dict()):
        raise OptionError(
            f"{name} holds none of the weights of {type(model).__name__}; give a checkpoint of this model"
        )
    made, path = _adapted(model, table), _adapters(table)
    if path is not None:
        saved = _load_adapters(made, path)
        new = [one for one in new if not saved & set(one.split("."))]
    return packed(made, backend=table.backend), new


def _kind(config: Any, auto: str | None) -> Any:
    """Return the function or class that makes a model with random weights from a configuration."""
    return getattr(_lib, auto).from_config if auto else _architecture(config)


def _architecture(config: Any) -> Any:
    """Return the class of transformers that a configuration names; raise `OptionError` if it names none."""
    names = list(config.architectures or ())
    found = [getattr(_lib, name) for name in names if hasattr(_lib, name)]
    if not found:
        raise OptionError(
            f"the model's configuration names no class of transformers ({', '.join(names) or 'nothing'}), so nobody "
            "knows its head; give a task"
        )
    return found[0]


def _check_kind(name: str, config: Any) -> None:
    with _reading(name, "configuration"):
        theirs = _lib.AutoConfig.from_pretrained(name)
    if theirs.model_type != config.model_type:
        raise OptionError(
            f"model.init_from {name} is a checkpoint of another model: model_type is {theirs.model_type!r} there and "
            f"{config.model_type!r} here"
        )


def _weights(table: Model) -> Path | str:
    """Return the folder, or the name on the hub, from which the model's weights are read.

    If ``model.init_from`` is not given, or has adapters only, this is ``model.name``. Otherwise, it is the folder
    ``model.init_from``, or the last checkpoint in it.

    Raises:
        FormatError: there are no weights; or there are adapters only, and ``model.name`` is not given.
        OptionError: there are saved adapters, and ``model.lora`` asks for new ones.
    """
    path = _initial(table)
    if path is None or (table.name is not None and _adapters(table) is not None):
        return str(table.name)
    if _adapters(table) is not None:
        raise FormatError(
            f"model.init_from: {path} holds adapters and no model; give the model that they are of as model.name"
        )
    return path


def _initial(table: Model) -> Path | None:
    """Return the folder that ``model.init_from`` names, or the last checkpoint in it; None if it is not given.

    The folder itself is returned if it has a model or adapters. A checkpoint without the state of the optimiser is
    enough, since only weights are read.

    Raises:
        FormatError: the folder does not exist, or has neither a model nor a complete checkpoint.
    """
    if table.init_from is None:
        return None
    path = Path(table.init_from)
    if not path.exists():
        raise FormatError(f"model.init_from: there is no folder {path}; give a checkpoint, or the folder of a run")
    if (path / "config.json").is_file() or (path / _ADAPTERS).is_file():
        return path
    found = last_weights(path)
    if found is None:
        raise FormatError(f"model.init_from: {path} has neither a model nor a complete checkpoint")
    return found


def _adapters(table: Model) -> Path | None:
    """Return the folder of adapters that training begins with; None: there are none.

    Raises:
        OptionError: ``model.lora`` asks for new adapters as well.
        FormatError: the folder ``model.init_from`` does not exist, or has neither a model nor a complete checkpoint.
    """
    path = _initial(table)
    if path is None or (path / "config.json").is_file() or not (path / _ADAPTERS).is_file():
        return None
    if table.lora:
        raise OptionError(f"model.lora makes new adapters, and model.init_from {path} gives some; leave one out")
    return path


def _load_adapters(model: Any, path: Path) -> set[str]:
    """Load saved adapters' weights into a model with adapters; return the names in peft's ``modules_to_save``.

    These are modules that are trained and saved as a whole, such as a head.

    Raises:
        OptionError: the adapters belong to another model.
        FormatError: the adapters cannot be read.
    """
    try:
        found = model.load_adapter(str(path), "default", is_trainable=True)
    except RuntimeError as error:  # of other shapes
        raise OptionError(f"model.init_from: {path} holds adapters of another model: {first_line(error)}") from error
    except Exception as error:
        raise FormatError(
            f"model.init_from: {path} holds adapters that peft cannot read ({first_line(error)})"
        ) from error
    if odd := [*found.missing_keys, *found.unexpected_keys]:
        raise OptionError(
            f"model.init_from: {path} holds adapters of another model: {', '.join(odd[:_SHOWN])} are on one side only"
        )
    return set(model.peft_config["default"].modules_to_save or ())


def _adapted(model: Any, table: Model) -> Any:
    """Return the model with new adapters; with neither ``model.lora`` nor saved adapters, return it unchanged.

    The new adapters have the settings of ``model.lora`` or of the saved adapters. `_load_adapters` loads the weights of
    saved adapters later.

    Raises:
        OptionError: ``model.lora`` is given besides saved adapters, or peft refuses its options.
        FormatError: the settings of saved adapters cannot be read.
        MissingExtraError: peft is not installed.
    """
    path = _adapters(table)
    if not table.lora and path is None:
        return model
    try:
        import peft
    except ImportError as error:
        raise MissingExtraError(f"adapters need {error.name}: pip install peft") from error
    if path is not None:
        with _reading(str(path), "adapters"):
            how = peft.PeftConfig.from_pretrained(str(path))
            how.inference_mode = False
            return peft.get_peft_model(model, how)
    for key in table.lora:
        known(key, [one.name for one in fields(peft.LoraConfig)], "model.lora")
    kinds = {"ForSequenceClassification": "SEQ_CLS", "ForTokenClassification": "TOKEN_CLS", "ForCausalLM": "CAUSAL_LM"}
    kinds["ForQuestionAnswering"] = "QUESTION_ANS"
    kind = next((value for end, value in kinds.items() if type(model).__name__.endswith(end)), None)
    try:
        return peft.get_peft_model(model, peft.LoraConfig(**{"task_type": kind, **table.lora}))
    except (ValueError, TypeError) as error:
        raise OptionError(f"model.lora: {first_line(error)}") from error


@contextmanager
def _head(table: Model, config: Any, auto: str | None) -> Iterator[None]:
    """In a ``with`` block that makes a model, turn errors of transformers into an `OptionError` about the head.

    The message says that this type of model has no head of the class `auto`, or of that named in `config`.
    """
    try:
        yield
    except NopadError:
        raise
    except Exception as error:
        raise OptionError(
            f"{table.name or table.init_from} ({config.model_type}) cannot be made with the head of "
            f"{auto or config.architectures}: {first_line(error)}"
        ) from error


@contextmanager
def _reading(name: str, what: str) -> Iterator[None]:
    """In a ``with`` block, turn errors of transformers or peft into a `FormatError` of one line.

    `name` is the folder, or the name on the hub, that is read; `what` says in the message what is read from it.

    Raises:
        FormatError: the block raised such an error; or, before the block, `name` is a path at which there is nothing.
    """
    if name.startswith((".", "/", "~")) and not Path(name).exists():
        raise FormatError(f"{name}: there is no such folder; give a folder with a model, or a name on the hub")
    here = Path(name).exists()
    with nullcontext(True) if here else hub_in_reach() as online:
        try:
            yield
        except InputError:
            raise
        except Exception as error:  # a damaged file, a missing package, a hub that does not answer: anything
            if here:
                raise FormatError(f"{name}: transformers cannot read its {what} ({first_line(error)})") from error
            raise not_had(name, error, online, what) from error
