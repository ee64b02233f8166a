"""Read what a checkpoint holds, and check that it belongs to the model that resumes from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig
from transformers.trainer_callback import TrainerState

from nopad.errors import FormatError, OptionError
from nopad.notation import from_json

__all__ = ["STATE_FILE", "check_same_model", "saved_state", "steps_of", "trainer_state"]

STATE_FILE = "nopad_loader.json"
_CONFIG, _TRAINER_STATE = "config.json", "trainer_state.json"

# Fields that say nothing about a model's weights; the Trainer sets special tokens to those of the tokenizer
_PASSING = frozenset({"_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "architectures"})
_PASSING |= {"bos_token_id", "eos_token_id", "pad_token_id"}


def check_same_model(folder: Path, model: Any) -> None:
    """Refuse a checkpoint whose configuration differs from the model's in a field that both have.

    Dropout, the ids of bos, eos and pad, dtype, and fields that say nothing about the weights may differ. Nested
    configurations, such as ``text_config``, are compared in the same way. A checkpoint without a configuration, such as
    one of PEFT's adapters, is not checked.

    Raises:
        OptionError: a field of the configuration differs; the message names it.
        FormatError: the configuration cannot be read, or is damaged.
    """
    from nopad.model.safety import bare

    if not (folder / _CONFIG).is_file():
        return
    config = bare(model).config
    odd = _differences(_object(folder / _CONFIG), from_json(config.to_json_string(use_diff=False)), config)
    if odd:
        raise OptionError(f"{folder} is a checkpoint of another model: {'; '.join(odd[:5])}")


def _differences(saved: dict[str, Any], mine: dict[str, Any], config: Any, within: str = "") -> list[str]:
    """Return a text for each field that both configurations have, and in which they differ; sorted by names.

    Fields that `check_same_model` allows to differ are left out. `mine` are the fields of `config`. `within` is the
    beginning of the names of nested fields, such as "text_config.".
    """
    found = []
    for name in sorted(saved.keys() & mine.keys() - _PASSING):
        there, here, nested = saved[name], mine[name], getattr(config, name, None)
        if isinstance(nested, PreTrainedConfig) and isinstance(there, dict):  # a saved one lacks fields of its class
            found += _differences(there, here, nested, f"{within}{name}.")
        elif there != here and "drop" not in name:  # dropout may change between runs
            found.append(f"{within}{name} is {there!r} there and {here!r} here")
    return found


def saved_state(folder: Path) -> Any:
    """Return the loader's state from a checkpoint. It is not checked; `PackedLoader.load_state_dict` checks it.

    Raises:
        FormatError: the checkpoint has no loader state, or one that cannot be read.
    """
    if not (folder / STATE_FILE).is_file():
        raise FormatError(
            f"{folder} has no {STATE_FILE}, so it was not saved in training with a PackedLoader, which could not go on "
            "where that stopped; give a checkpoint that has one, or begin anew"
        )
    return _read(folder / STATE_FILE)


def trainer_state(folder: Path) -> TrainerState:
    """Return the Trainer's own state in a checkpoint.

    Raises:
        FormatError: the checkpoint has no such state, or one that cannot be read or is damaged.
    """
    path = folder / _TRAINER_STATE
    if not path.is_file():
        raise FormatError(f"{folder} has no {_TRAINER_STATE}, so it is no whole checkpoint; give another one")
    try:
        found = TrainerState(**_object(path))
    except TypeError as error:  # a field that it does not have
        raise FormatError(f"{path} is not what transformers' Trainer writes: {error}") from error
    for name in ("global_step", "max_steps"):
        if type(steps := getattr(found, name)) is not int:
            raise FormatError(f"{path} has {steps!r} as {name}, which is a number of steps")
    return found


def steps_of(folder: Path) -> int:
    """Return the number of optimiser steps taken before a checkpoint was saved.

    Raises:
        FormatError: the checkpoint has no state of the Trainer, or one that cannot be read or is damaged.
    """
    return int(trainer_state(folder).global_step)


def _read(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        FormatError: the file cannot be read, or is no JSON.
    """
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(
            f"{path} is no JSON, or cannot be read, so the checkpoint is damaged ({error}); give another one"
        ) from error


def _object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        FormatError: the file cannot be read, is no JSON, or holds a JSON value that is no object.
    """
    found = _read(path)
    if not isinstance(found, dict):
        raise FormatError(f"{path} holds no JSON object, so the checkpoint is damaged; give another one")
    return found
