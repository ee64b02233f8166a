"""The `nopad pack` command that makes a packed dataset again, derived from its manifest."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any

from nopad.corpus import CorpusOptions, ReaderOptions
from nopad.store import Manifest, PackOptions

__all__ = ["option_words", "pack_command"]

# `nopad pack` spells these options differently, or has none of this name.
_APART = ("special_tokens", "carry", "validation", "split")
_DEFAULTS: dict[str, Any] = {
    f.name: f.default
    for kind in (CorpusOptions, ReaderOptions, PackOptions)
    for f in fields(kind)
    if f.default is not MISSING
}


def pack_command(manifest: Manifest, out: str) -> str:
    """Return the command as one line for a shell, with every option that differs from its default and the folder `out`.

    INPUT stands for the source, and TOKENIZER for the tokenizer. Datasets store no paths, so that the same input gives
    the same bytes on any machine; the report shows the SHA-256 of the source and of the tokenizer instead.
    """
    inputs = [f"{part['name']}=INPUT" for part in manifest.sources] or ["INPUT"]
    words = ["nopad", "pack", *inputs, "-o", out]
    if manifest.tokenizer:
        words += ["--tokenizer", "TOKENIZER"]
    return shlex.join([*words, *_options(manifest)])


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Return the options of an algorithm, and a plan's conditions, as ``--option NAME=VALUE`` arguments."""
    return [
        word
        for name, value in options.items()
        for word in ("--option", f"{name}={value if isinstance(value, str) else json.dumps(value)}")
    ]


def _options(manifest: Manifest) -> Iterator[str]:
    options = manifest.options
    given = {name: getattr(manifest, name) for name in ("capacity", "seed", "depth", "order", "algorithm")}
    for name, value in {**given, **options}.items():
        if name in _APART or value == _DEFAULTS.get(name):
            continue
        if name in _DEFAULTS or name in given:
            yield from (f"--{name.replace('_', '-')}", "none" if value is None else str(value))
        else:
            yield from option_words({name: value})
    if options.get("validation"):
        yield from ("--validation", str(options["validation"]))
    carry = options.get("carry", "auto")
    for name in [] if carry == "auto" else carry or ["none"]:
        yield from ("--carry", name)
    if not options["special_tokens"]:
        yield "--no-special-tokens"
    if manifest.kind == "index":
        yield "--index-only"
