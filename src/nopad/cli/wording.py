"""Translate option names in messages from Python's form to the flags or configuration fields of a verb.

A verb is a command such as ``pack``. An option in a message becomes:

* its flag, if the verb has one (``--over-long truncate``)
* for `nopad train`, a field of its configuration (``task.over_long = "truncate"``)
* for `nopad predict`, in some cases ``--set prompt=...``
* `nopad pack` with its flag, if the verb has no name for it and `nopad pack` has (``nopad pack --empty skip``)

Arguments inside the parentheses of a Python call stay unchanged, and so do all other options.
"""

from __future__ import annotations

import re
from functools import cache

__all__ = ["FIELDS", "FLAGS", "OPTIONS", "SETTABLE", "verb_of", "worded"]

# Options of `nopad pack` that say what is read, and how; messages of the library name them, with or without a value.
_READING = (
    "carry",
    "chat",
    "empty",
    "ids_field",
    "mask_field",
    "on_bad_record",
    "over_long",
    "pad_id",
    "pretrain",
    "special_tokens",
    "text_field",
    "text_pair",
    "text_unit",
    "tokenizer",
    "vocab_size",
)
_PACK = (*_READING, "algorithm", "even", "index_only", "shard_tokens")

# The options that are flags, by verb
FLAGS = {
    "demo": ("tokenizer",),
    "plan": (*_READING, "algorithm", "even"),
    "pack": _PACK,
    "verify": ("source", "tokenizer"),
    "audit": ("accumulation", "backend", "ranks"),
    "predict": (
        "capacity",
        "empty",
        "labels",
        "max_length",
        "on_bad_record",
        "over_long",
        "pair",
        "rows",
        "text",
        "text_unit",
    ),
    "study distributions": ("over_long", "text_unit", "tokenizer"),
    "study glue": ("tokenizer",),
    "study pretraining": ("text_field", "text_unit", "tokenizer"),
}

_COLUMNS = ("anchor", "context", "label", "positive", "question", "spans", "tags", "words")
_TASK = ("end_of_turn", "labels_as", "last_only", "negative", "prompt", "rewriting", "roles", "template", *_COLUMNS)
SETTABLE = {"predict": _TASK}  # by `--set NAME=VALUE`

# Where the configuration of `nopad train` has them
FIELDS = {
    **{name: f"task.{name}" for name in (*_TASK, "labels", "max_length", "over_long", "pair", "text")},
    **{
        name: f"packing.{name}"
        for name in (
            "accumulation",
            "algorithm",
            "align",
            "capacity",
            "last",
            "rows",
            "sequences",
            "token_cap",
            "tokens",
        )
    },
    **{name: f"packing.options.{name}" for name in ("even", "granularity", "max_squares", "pack_multiple")},
    **{name: f"model.{name}" for name in ("backend", "tokenizer")},
    **{name: f"data.{name}" for name in ("empty", "on_bad_record", "text_unit")},
    **{name: f"trainer.{name}" for name in ("bf16", "gradient_checkpointing", "max_steps")},
    "gradient_accumulation_steps": "packing.accumulation",
    "num_labels": "model.config.num_labels",
}

# Every name that is translated for some verb
OPTIONS = tuple(sorted({*_PACK, *_TASK, *FIELDS, *(name for names in FLAGS.values() for name in names)}))

_CODE = r"\w\((?:[^()]|\([^()]*\))*\)"
_WORD = r"""(?:"[^"\n]*"|'[^'\n]*')"""
_VALUE = rf"{_WORD}(?:(?:, | or ){_WORD})*|True|False|None|\[\]|\{{[^{{}}\n]*\}}|-?\d+(?:\.\d+)?(?!\w)"
_NAMED = re.compile(rf"{_CODE}|(?<![\w.-])({'|'.join(OPTIONS)})=({_VALUE})?(?!\w|[={{\[(]|\.\.)")
_KEY = re.compile(r'"([^"]*)": ')


def verb_of(arguments: list[str]) -> str:
    """Return the verb (the command) in a command line, such as "pack" or "study glue"; "" if it has none.

    Arguments that begin with a dash do not count, and neither does the file of ``--config``. The verb is the first of
    the others; if this is "study", the second one belongs to the verb too.

    >>> verb_of(["--debug", "study", "glue", "folder"]), verb_of(["--config", "my.toml", "pack", "texts"])
    ('study glue', 'pack')
    """
    before = ["", *arguments]
    words = [one for one, last in zip(arguments, before, strict=False) if one[:1] != "-" and last != "--config"]
    return " ".join(words[: 2 if words[:1] == ["study"] else 1])


def worded(message: str, verb: str) -> str:
    """Return a message with its Python options named as in a command: by flags, by fields of `train`, or by ``--set``.

    `verb` is the command. An option that it lacks, and `nopad pack` has, becomes `nopad pack` with its flag.

    >>> said = 'choose over_long="truncate" or "drop", or another tokenizer='
    >>> worded(said, "pack")
    'choose --over-long truncate or drop, or another --tokenizer'
    >>> worded(said, "train")
    'choose task.over_long = "truncate" or "drop", or another model.tokenizer'
    >>> worded('skip them with empty="skip"', "audit")
    'skip them with nopad pack --empty skip'
    """
    return _NAMED.sub(lambda found: _shown(found, verb), message)


@cache
def _named(name: str, verb: str) -> str | None:
    """Return how a verb (a command) names an option: "--FLAG", "FIELD =", "--set NAME=" or "nopad pack --FLAG".

    None: the verb has no name for the option, and `nopad pack` has none either.
    """
    flag = f"--{name.replace('_', '-')}"
    if verb == "train" and name in FIELDS:
        return f"{FIELDS[name]} ="
    if name in FLAGS.get(verb, ()):
        return flag
    if name in SETTABLE.get(verb, ()):
        return f"--set {name}="
    return f"nopad pack {flag}" if name in _PACK and verb != "pack" else None


def _shown(found: re.Match[str], verb: str) -> str:
    name, value = found[1], found[2]
    called = _named(name, verb) if name else None
    if called is None:
        return found[0]
    if called.endswith(" ="):
        return _field(called.removesuffix(" ="), value)
    if called.endswith("="):
        return called + ("..." if value is None else value if value[0] == "{" else _plain(value) or '""')
    if value in (None, "True"):
        return called
    if value == "False":
        before, flag = called.rsplit("--", 1)
        return f"{before}--no-{flag}"
    return f"{called} {'none' if value in ('None', '[]') else _plain(value)}"


def _field(field: str, value: str | None) -> str:
    """Return a field of the configuration of `nopad train` with its value, as TOML, such as ``task.max_length = 512``.

    `value` is a Python literal as text, or several strings, such as ``"truncate" or "drop"``. If `value` is None, the
    result is only the name of the field. If it is the text "None", the result is "no" and the name, as in ``no
    task.max_length``.
    """
    if value is None:
        return field
    if value == "None":
        return f"no {field}"
    made = {"True": "true", "False": "false"}.get(value, value.replace("'", '"'))
    return f"{field} = {_KEY.sub(lambda key: f'{key[1]} = ', made) if made[0] == '{' else made}"


def _plain(value: str) -> str:
    return value.replace('"', "").replace("'", "")
