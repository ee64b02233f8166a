"""Write the command ``nopad plan`` or ``nopad pack`` that makes a plan or a packed dataset again.

The command has only the options that differ from their defaults.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, Literal

from nopad.corpus import CorpusOptions, PairOptions, ReaderOptions
from nopad.corpus.pretraining import options_from_settings
from nopad.notation import from_json
from nopad.planning import Plan
from nopad.planning.registry import complete_options
from nopad.store import Manifest

__all__ = ["pack_command", "plan_command", "tokenizer_of"]

_DEFAULTS: dict[str, Any] = {
    f.name: f.default for kind in (CorpusOptions, ReaderOptions) for f in fields(kind) if f.default is not MISSING
}
_WITH_CORPUS = ("over_long", "empty", "seed")  # options of pairs that have a flag of their own
PLACE = "TOKENIZER"


def pack_command(manifest: Manifest, out: str) -> str:
    """Return the shell command, on one line, that packs the dataset of this manifest again, into the folder `out`.

    The command has every option that differs from its default. INPUT stands for the source, and TOKENIZER for the
    tokenizer, because a dataset does not store where these were. The report shows the SHA-256 of the source and of the
    tokenizer instead.
    """
    options = manifest.options
    values = {
        **_of_corpus(options, manifest.capacity),
        **{name: getattr(manifest, name) for name in ("capacity", "seed", "depth", "order", "algorithm")},
        "option": _asked(manifest.algorithm, options),
        "shard_tokens": options.get("shard_tokens"),
        "validation": options.get("validation"),
        "tokenizer": PLACE if tokenizer_of(manifest.tokenizer, options) else None,
        "index_only": manifest.kind == "index",
        "out": out,
    }
    return _line("pack", [part["name"] for part in manifest.sources], values)


def plan_command(made: Plan, given: str, out: str | None) -> str:
    """Return the command that makes the plan `made` again, as one line for a shell.

    `given` is the name of the input in this command, and `out` the file to write the plan to (None: the command writes
    no file). A plan that `nopad plan` made from a corpus stores in its `facts` the options by which the corpus was
    read. For such a plan, the command also has these options; TOKENIZER stands for the tokenizer.
    """
    corpus = made.facts.get("corpus", {})
    values = {
        **_of_corpus(corpus, made.capacity),
        "capacity": made.capacity,
        "algorithm": [made.algorithm],
        "depth": ["none" if made.depth is None else made.depth],
        "option": _asked(made.algorithm, made.options),
        "seed": corpus.get("seed"),
        "validation": corpus.get("validation"),
        "tokenizer": PLACE if tokenizer_of(corpus.get("tokenizer"), corpus) else None,
        "output": out,
    }
    return _line("plan", corpus.get("sources", []), values, given)


def tokenizer_of(stated: Mapping[str, Any] | None, options: Mapping[str, Any]) -> str | None:
    """Return the SHA-256, in hex, of the tokenizer that made the ids; None if the data were ready-made ids.

    `stated` is the entry ``tokenizer`` of a manifest, or of a plan's facts about its corpus. `options` are the options
    by which the data were read. Chats and pairs are tokenised as they are read: then `stated` is None, and `options`
    have the SHA-256.
    """
    made = (stated or {}).get("sha256") or options.get("pretrain_tokenizer")
    found: str | None = made or (options.get("encoder") or {}).get("tokenizer")
    return found


def _asked(algorithm: str, options: Mapping[str, Any]) -> list[str]:
    """Return those options of `algorithm`, and conditions on packs, whose values differ from their defaults.

    Each is returned as a text NAME=VALUE. `options` are all stored options of a plan or dataset; those of other kinds
    are left out.
    """
    own, conditions = complete_options(algorithm, {})
    usual = {**own, **conditions}
    return _pairs({name: value for name, value in options.items() if name in usual and value != usual[name]})


def _pairs(options: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_text(value)}" for name, value in options.items()]


def _text(value: Any) -> str:
    """Return a value as text for the command line: as JSON, but most strings without quotes.

    A string such as "7", "true" or "None" keeps its quotes, since without them it would be read as another type.
    """
    if not isinstance(value, str) or value in ("None", "True", "False"):
        return json.dumps(value)
    try:
        from_json(value)
    except ValueError:  # as `parse_pairs` reads it
        return value
    return json.dumps(value)


def _of_corpus(options: Mapping[str, Any], capacity: int) -> dict[str, Any]:
    """Return the options by which a corpus was read, as a dict by parameter of the command.

    Options that have their default value are missing, or are an empty list. `options` are the settings of
    `ReaderOptions`, `CorpusOptions`, an encoder, and pre-training pairs, as a manifest or a plan's facts store them.
    The defaults of pre-training pairs depend on `capacity`, the capacity of the packs.
    """
    found = {name: value for name, value in options.items() if name in _DEFAULTS and value != _DEFAULTS[name]}
    if "mask_field" in found and found["mask_field"] is None:
        found["mask_field"] = "none"
    if "carry" in found:
        found["carry"] = found["carry"] or ["none"]
    found["suffix"] = found.pop("suffixes", [])
    field = found.pop("text_field", None)
    encoder = options.get("encoder") or {"name": ""}
    found["text_field"] = encoder["fields"] if encoder["name"] == "fields" else [] if field is None else [field]
    if encoder["name"] == "pairs":
        found["text_pair"] = encoder["fields"]
    if encoder["name"] == "chats":
        found |= {"chat": True, "chat_option": _pairs(encoder["options"])}
    pairs = options_from_settings(options)
    if pairs is not None:
        usual = PairOptions(max_length=capacity).settings()
        more = {name: value for name, value in pairs.settings().items() if name not in _WITH_CORPUS}
        given = {name: value for name, value in more.items() if value != usual[name]}
        found |= {"pretrain": "bert", "pretrain_option": _pairs(given)}
    return found


def _line(verb: Literal["plan", "pack"], sources: list[str], values: Mapping[str, Any], given: str = "INPUT") -> str:
    """Return the command ``nopad VERB`` as one line for a shell.

    The input is `given`; with named `sources`, it is ``NAME=given`` for each name. `values` has the values of options,
    by the names of the command's parameters. A value is left out if it is None, an empty list or the default, or if the
    command has no such option.
    """
    words = ["nopad", verb, *([f"{name}={given}" for name in sources] or [given])]
    for parameter in _parameters(verb):
        value = values.get(parameter.name)
        if value is not None and value != parameter.default and value != []:
            words += _words(parameter, value)
    return shlex.join(words)


@cache
def _parameters(verb: str) -> tuple[Any, ...]:
    """Return the options of ``nopad plan`` or ``nopad pack`` as objects of click."""
    import typer

    from nopad.cli.pack import pack
    from nopad.cli.plan import plan

    app = typer.Typer(add_completion=False)
    app.command()(pack if verb == "pack" else plan)
    return tuple(one for one in typer.main.get_command(app).params if one.param_type_name == "option")


def _words(parameter: Any, value: Any) -> Iterator[str]:
    flag = next(name for name in parameter.opts if name.startswith("--"))
    if parameter.is_flag:
        yield flag if value else parameter.secondary_opts[0]
    elif parameter.multiple:
        for one in value if isinstance(value, list | tuple) else [value]:
            yield from (flag, str(one))
    else:
        yield flag
        yield from map(str, value if parameter.nargs > 1 else [value])
