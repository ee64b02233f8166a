"""Checks that a checkpoint belongs to the model that resumes from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nopad.errors import OptionError

__all__ = ["check_same_model"]

# Fields that say nothing about a model's weights; the Trainer sets special tokens to those of the tokenizer
_PASSING = frozenset({"_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "architectures"})
_PASSING |= {"bos_token_id", "eos_token_id", "pad_token_id"}


def check_same_model(folder: Path, model: Any) -> None:
    """Refuse a checkpoint whose configuration differs from the model's in a field that both have.

    Dropout, the ids of bos, eos and pad, dtype, and fields that say nothing about the weights may differ. A checkpoint
    without a configuration, such as one of PEFT's adapters, is not checked.

    Raises:
        OptionError: a field of the configuration differs; the message names it.
    """
    from nopad.model.safety import bare

    path = folder / "config.json"
    if not path.is_file():
        return
    saved = json.loads(path.read_text(encoding="utf-8"))
    mine = json.loads(bare(model).config.to_json_string(use_diff=False))
    odd = [
        f"{name} is {saved[name]!r} there and {mine[name]!r} here"
        for name in sorted(saved.keys() & mine.keys() - _PASSING)
        if saved[name] != mine[name] and "drop" not in name  # dropout may change between runs
    ]
    if odd:
        raise OptionError(f"{folder} is a checkpoint of another model: {'; '.join(odd[:5])}")
