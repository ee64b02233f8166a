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
from nopad.wording import counted

__all__ = ["called", "open_inputs", "passed_over", "refuse_policies"]

SHOWN = 4  # suffixes of files that were not read
_DEFAULTS = {f.name: f.default for f in fields(CorpusOptions) if f.default is not MISSING}


def called(inputs: Sequence[str]) -> str:
    """Return what a message calls the inputs: the input itself if it is the only one, else a text like "3 inputs"."""
    return inputs[0] if len(inputs) == 1 else f"{len(inputs)} inputs"


def open_inputs(
    inputs: Sequence[str],
    reader: ReaderOptions,
    policies: Mapping[str, Any] | None = None,
    encoder: Encoder | None = None,
) -> Source:
    """Open the user's inputs as a source: ``.npy`` files of lengths, a corpus, or several named inputs.

    Args:
        inputs: the inputs as given on the command line.
        reader: which fields and columns are read from a corpus, and how.
        policies: options of `CorpusOptions`, by name; if the inputs are files of lengths, each must have its default.
        encoder: turns each record into text or ids; None: one field of each record holds its text or ids.

    Raises:
        OptionError: files of lengths are given with another input, with names or with corpus options; some inputs have
            names and others have none; or `open_source` refuses `reader` or `encoder`.
        SourceError, FormatError, RecordError: an input is missing, is damaged, or has a form that nopad does not read.
        MissingExtraError: an input needs a package that is not installed.
    """
    if lengths := [path for path in inputs if path.endswith(".npy")]:
        if other := [path for path in inputs if path not in lengths]:
            raise OptionError(
                f"{lengths[0]} holds lengths, and {other[0]} does not; give only files of lengths, or none"
            )
        if apart := [path for path in lengths if "=" in path and not Path(path).exists()]:
            raise OptionError(f"{apart[0]}: lengths are not counted apart; give the file without a name")
        refuse_policies(lengths[0], reader, policies or {})
        return LengthsFile(inputs)
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


def passed_over(names: Sequence[str]) -> str:
    """Return a text that says how many files in folders were not read, and of which kinds; "" if `names` is empty.

    `names` are the names of these files. A kind is a suffix, or a name without suffix. A name may end with a reason in
    parentheses, and is then shown whole. At most four kinds and names are shown.

    >>> passed_over(["a/y.pdf", "z.pdf", "Makefile"])
    '3 files passed over, of other kinds: .pdf, Makefile'
    >>> passed_over(["cache-1.arrow (no part of the saved dataset)"])
    '1 file passed over: cache-1.arrow (no part of the saved dataset)'
    """
    if not names:
        return ""
    reasoned = [name for name in names if name.endswith(")")]
    plain = [name for name in names if name not in reasoned]
    kinds = list(dict.fromkeys([*(Path(name).suffix or Path(name).name for name in plain), *reasoned]))
    shown = f"{', '.join(kinds[:SHOWN])}{', ...' if kinds[SHOWN:] else ''}"
    return f"{counted(len(names), 'file')} passed over{', of other kinds' if plain else ''}: {shown}"


def refuse_policies(file: str, reader: ReaderOptions, policies: Mapping[str, Any]) -> None:
    """Refuse corpus options that are given with `file`, which holds lengths: they would have no effect.

    Raises:
        OptionError: an option of `reader`, other than `find_labels`, or of `policies` differs from its default.
    """
    usual = {**ReaderOptions().settings(), "suffixes": [], "find_labels": reader.find_labels, **_DEFAULTS}
    for name, value in {**reader.settings(), **policies}.items():
        if value != usual[name]:
            option = "--no-special-tokens" if name == "special_tokens" else "--" + name.replace("_", "-")
            raise OptionError(f"{option} is for corpora: {file} holds lengths, not records; change the lengths in it")
