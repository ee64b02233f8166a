"""Messages name options as Python does; on the command line they are flags. This is the one place that translates."""

from __future__ import annotations

import re

__all__ = ["OPTIONS", "as_flags"]

# The options that messages of the library name, as `name=`, with or without a value.
OPTIONS = (
    "carry",
    "empty",
    "ids_field",
    "index_only",
    "mask_field",
    "on_bad_record",
    "over_long",
    "pad_id",
    "shard_tokens",
    "special_tokens",
    "text_field",
    "text_unit",
    "tokenizer",
)
_WORD = r"""(?:"\w+"|'\w+')"""
_NAMED = re.compile(rf"\b({'|'.join(OPTIONS)})=({_WORD}(?:(?:, | or ){_WORD})*|True|False|None|\[\])?(?![\w=])")


def as_flags(message: str) -> str:
    """Return a message in which options of Python are the flags of the command line.

    >>> as_flags('choose over_long="truncate" or "drop", special_tokens=False, or another tokenizer=')
    'choose --over-long truncate or drop, --no-special-tokens, or another --tokenizer'
    >>> as_flags("choose over_long='truncate'")
    'choose --over-long truncate'
    """
    return _NAMED.sub(_flag, message)


def _flag(found: re.Match[str]) -> str:
    name, value = found[1].replace("_", "-"), found[2]
    if value in (None, "True"):
        return f"--{name}"
    if value == "False":
        return f"--no-{name}"
    return f"--{name} {'none' if value in ('None', '[]') else value.replace(chr(34), '').replace(chr(39), '')}"
