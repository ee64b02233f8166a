"""Open the inputs of a command line as a source, in the same way for all commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from nopad.corpus import CorpusOptions, LengthsFile, ReaderOptions, Source, open_source
from nopad.corpus.encoders import Encoder
from nopad.corpus.mixture import NAME
from nopad.errors import OptionError

__all__ = ["open_inputs", "refuse_policies"]

_DEFAULTS = {f.name: f.default for f in fields(CorpusOptions) if f.default is not MISSING}


def open_inputs(
    inputs: Sequence[str],
    reader: ReaderOptions,
    policies: Mapping[str, Any] | None = None,
    encoder: Encoder | None = None,
) -> Source:
    """Open the user's inputs: one ``.npy`` file of lengths, a corpus, or several named inputs.

    Args:
        inputs: the inputs as given on the command line.
        reader: which fields and columns are read from a corpus, and how.
        policies: options of `CorpusOptions`, by name; with a file of lengths, each must have its default.
        encoder: what makes text or ids of each record; None: records have a field of text or ids.

    Raises:
        OptionError: a file of lengths is given with another input or with corpus options, or some inputs have names
            and others have none.
    """
    if len(inputs) == 1 and inputs[0].endswith(".npy"):
        refuse_policies(inputs[0], reader, policies or {})
        return LengthsFile(inputs[0])
    for path in inputs:
        if path.endswith(".npy"):
            raise OptionError(f"{path} holds lengths; give one lengths file, and nothing beside it")
    named: dict[str, list[str]] = {}
    for given in inputs:
        name, equals, path = given.partition("=")
        if equals and NAME.fullmatch(name) and not Path(given).exists():
            named.setdefault(name, []).append(path)
    if not named:
        return open_source(inputs, reader, encoder=encoder)
    if sum(map(len, named.values())) < len(inputs):
        plain = next(given for given in inputs if given.partition("=")[0] not in named)
        raise OptionError(f"{plain} has no name, and others have; write NAME={plain}, or name none")
    return open_source(named, reader, encoder=encoder)


def refuse_policies(file: str, reader: ReaderOptions, policies: Mapping[str, Any]) -> None:
    """Check that no corpus options are given with `file`, which holds lengths: they would have no effect.

    Raises:
        OptionError: an option differs from its default.
    """
    usual = {**ReaderOptions().settings(), "suffixes": [], "text_labels": reader.text_labels, **_DEFAULTS}
    for name, value in {**reader.settings(), **policies}.items():
        if value != usual[name]:
            option = "--no-special-tokens" if name == "special_tokens" else "--" + name.replace("_", "-")
            raise OptionError(f"{option} is for corpora: {file} holds lengths, not records; change the lengths in it")
