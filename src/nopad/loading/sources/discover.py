"""`open_tokens`: open a path or an object as a source of tokens."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nopad.corpus.discover import open_source
from nopad.corpus.finding import BESIDE, MANIFEST
from nopad.corpus.hub import HUB
from nopad.corpus.inputs import reading
from nopad.corpus.options import ReaderOptions
from nopad.corpus.remote import is_url
from nopad.corpus.source import Source
from nopad.errors import OptionError, SourceError
from nopad.loading.sources.arrays import ArrayTokens, folder_tokens, memory_tokens
from nopad.loading.sources.arrow import dataset_tokens, file_tokens
from nopad.loading.sources.corpora import corpus_tokens
from nopad.loading.sources.indexed import IndexTokens, Reading
from nopad.loading.sources.megatron import UNIT, MegatronTokens, megatron_prefix
from nopad.loading.sources.packed import packed_tokens
from nopad.loading.sources.pictured import has_pictures, pictured_tokens
from nopad.loading.sources.source import EMPTY, TokenSource
from nopad.notation import from_json
from nopad.options import shown
from nopad.sequences import Sequences
from nopad.store.reader import PackedDataset

__all__ = ["open_tokens"]

_ARROW = (".arrow", ".feather")


def open_tokens(
    inputs: Any,
    options: ReaderOptions | None = None,
    *,
    empty: str = "refuse",
    unit: str = "sequences",
    source: Any = None,
    spool: str | os.PathLike[str] | None = None,
) -> TokenSource:
    """Open stored tokens as a source from which sequences are gathered by number.

    Args:
        inputs: a folder with ``ids.npy`` and ``offsets.npy``; a Megatron pair, given as ``NAME``, ``NAME.bin`` or
            ``NAME.idx``; a `datasets.Dataset`, the folder of a saved one, or Arrow files; a packed dataset of nopad or
            its folder; other ready-made ids that `nopad.open_source` reads (Parquet, JSON Lines, lists of ids, lists of
            dicts), or a source that it returned; `nopad.sequences.Sequences` in memory; an open `TokenSource`, which is
            returned as it is; or sequences with images: a list of dicts or a `datasets.Dataset` with ``pixel_values``
            or ``pixel_values_videos``, as for `PackedBatch.from_features`.
        options: which columns of tables and records are read; None: the defaults of `ReaderOptions`, and for an
            index-only dataset the options with which it was made.
        empty: what to do with sequences that have no token: "refuse" raises LengthError; "skip" leaves them out
            (`TokenSource.skipped` counts them). "skip" is not allowed for an open `TokenSource`, a packed dataset, or
            sequences with images.
        unit: for a Megatron pair, what counts as one sequence: each of its "sequences", or each of its "documents".
        source: for an index-only packed dataset, what it was made from: a path, a dataset, records, a dict of several
            of these by name, or what `nopad.open_source` opened with the same options. If the dataset was made of
            lengths: anything that this function opens. The source is read as it was when it was packed. Reader options
            are `options`, or else those with which the dataset was made. The source's tokens are copied in these cases:
            padding was cut off, or bad records were left out, when it was packed; the reader options have a `pad_id`;
            the source is a dict; or it is a folder of arrays, and the reader options set `ids_field` or `mask_field`.
            Datasets and records in memory are then copied to memory, and files as `spool` says. In all other cases, the
            source is opened as if it were `inputs`.
        spool: the folder for copies of files that cannot be read by number (Parquet, JSON Lines, a packed dataset).
            None: ``$XDG_CACHE_HOME/nopad/tokens``, or memory for up to 4 million tokens. If a folder is given, Arrow
            files are copied too, which removes their padding. Lists stay in memory.

    Raises:
        SourceError: the input is missing, damaged, or of a kind that cannot be read.
        FormatError, CorruptError: a Megatron pair, a packed dataset or another file has a wrong format or is damaged.
        PlanMismatchError: an index-only dataset was made from other data than `source`: the number of records, a length
            or the tokens of a sequence differ. Here, the tokens of some sequences are compared; those of the others are
            compared when they are gathered.
        StorageError: a copy of the tokens cannot be written, or a packed dataset cannot be read.
        RecordError: a record is bad.
        LengthError: a sequence has no token, and `empty` is "refuse".
        OptionError: an option has an invalid value, or does not apply to this input.
        MissingExtraError: a dataset on the hub, or a URL, needs a package that is not installed.

    >>> from nopad.loading.sources import open_tokens
    >>> tokens = open_tokens([[7, 8, 9], [5], [1, 2]])
    >>> tokens.seq_lengths.tolist(), tokens.gather([2, 0]).tokens["input_ids"].tolist()  # sequence 2, then sequence 0
    ([3, 1, 2], [1, 2, 7, 8, 9])
    """
    EMPTY.check("empty", empty)
    UNIT.check("unit", unit)
    unused: dict[str, Any] = {"options": options, "source": source, "spool": spool}
    unused["unit"] = None if unit == UNIT.default else unit
    unused["empty"] = None if empty == EMPTY.default else empty
    if isinstance(inputs, TokenSource):
        _refuse("an open source", unused)
        return inputs
    return _opened(inputs, options or ReaderOptions(), empty, unused)


def _opened(inputs: Any, options: ReaderOptions, empty: str, unused: dict[str, Any]) -> TokenSource:
    """Return a source for `inputs`, which are not a `TokenSource` yet.

    `options` and `empty` are used for the kinds of input to which they apply. `unused` has the arguments of
    `open_tokens` by name, except `inputs`; the value None stands for the default.

    Raises:
        OptionError: an argument in `unused` is not None, and does not apply to this kind of input.
        SourceError, LengthError and other errors: as for `open_tokens`.
    """
    spool = unused["spool"]
    inputs = inputs.path if isinstance(inputs, PackedDataset) else inputs
    if isinstance(inputs, str | os.PathLike):
        return _at_path(inputs, options, empty, unused)
    if isinstance(inputs, Sequences):
        _refuse("sequences in memory", unused, "empty")
        return _exact(memory_tokens(inputs, empty=empty))
    if has_pictures(inputs):
        _refuse("records with images", unused, "empty")
        return pictured_tokens(inputs, empty=empty)
    if hasattr(inputs, "with_format"):
        _refuse("a dataset", unused, "empty", "options")
        return dataset_tokens(inputs, options, empty=empty)
    if isinstance(inputs, Source):
        _refuse("an open source", unused, "empty", "spool")
        return corpus_tokens(inputs, type(inputs).__name__, empty=empty, spool=spool)
    if isinstance(inputs, Mapping):
        names = ", ".join(map(str, list(inputs)[:4])) or "nothing"
        raise SourceError(
            f"a {type(inputs).__name__} with {names} is no list of sequences: "
            "of columns, give datasets.Dataset.from_dict(...); of several sources, nopad.loading.Mixture(...), or one"
        )
    _refuse("records", unused, "empty", "options", "spool")
    return corpus_tokens(open_source(inputs, options), "records", empty=empty, spool=spool)


def _at_path(given: str | os.PathLike[str], options: ReaderOptions, empty: str, unused: dict[str, Any]) -> TokenSource:
    text, spool = os.fspath(given), unused["spool"]
    if not isinstance(text, str) or not text or "\0" in text or is_url(text) or text.startswith(HUB):
        _refuse("files of records", unused, "empty", "options", "spool")
        return corpus_tokens(open_source(given, options), str(text), empty=empty, spool=spool)
    path = Path(given)
    prefix = megatron_prefix(path)
    if prefix is not None:
        _refuse("a Megatron pair", unused, "empty", "unit")
        return MegatronTokens(prefix, unit=unused["unit"] or UNIT.default, empty=empty)
    if (path / MANIFEST).is_file():
        if unused["source"] is None:
            _refuse("a packed dataset", unused, "spool")
            return packed_tokens(path, spool=spool)
        _refuse("an index-only dataset", unused, "options", "source", "spool")
        return _indexed(path, unused)
    if (path / "offsets.npy").is_file():
        _refuse("a folder of arrays", unused, "empty")
        return _exact(folder_tokens(path, empty=empty))
    with reading(path):
        os.stat(path)
    arrow = _arrow_files(path)
    if arrow and spool is None:
        _refuse("an Arrow file", unused, "empty", "options")
        return file_tokens(arrow, options, empty=empty)
    _refuse("files of records", unused, "empty", "options", "spool")
    return corpus_tokens(open_source(given, options), text, empty=empty, spool=spool)


def _indexed(path: Path, unused: dict[str, Any]) -> IndexTokens:
    """Open the index-only dataset at `path`, together with its source, which is read as it was when it was packed.

    `unused` has the arguments of `open_tokens` by name, such as `source`, `options` and `spool`; the value None stands
    for the default.
    """
    source, spool = unused["source"], unused["spool"]
    how = Reading(path, unused["options"])
    how.check(source)
    if isinstance(source, TokenSource):
        return IndexTokens(how, source)
    if not how.must_copy(source):
        return IndexTokens(how, _opened(source, how.options, "skip", unused | {"source": None, "empty": None}))
    opened = source if isinstance(source, Source) else open_source(source, how.options)
    how.check(opened)
    name = str(source) if isinstance(source, str | os.PathLike) else "its source"
    return IndexTokens(how, corpus_tokens(opened, name, empty="skip", spool=spool, options=how.records))


def _exact(made: ArrayTokens) -> ArrayTokens:
    """Mark a source as made of the user's own arrays, and return it; its floats then keep their dtype in batches."""
    made.exact = True
    return made


def _arrow_files(path: Path) -> list[Path]:
    """Return the Arrow files of a saved dataset, or `path` itself if it is an Arrow file; [] for anything else.

    The list of files of a saved dataset is read from its ``state.json``; if that is damaged, the result is [] too.
    """
    if path.suffix in _ARROW and path.is_file():
        return [path]
    state = path / BESIDE[0]
    if not state.is_file():
        return []
    with reading(state):
        content = state.read_bytes()
    try:
        return [path / str(part["filename"]) for part in from_json(content)["_data_files"]]
    except (ValueError, KeyError, TypeError):
        return []


def _refuse(what: str, given: Mapping[str, Any], *used: str) -> None:
    """Refuse options that this kind of input would ignore; `what` is the kind's name in the message.

    Raises:
        OptionError: an option in `given` has a value that is not None, and is not named in `used`.
    """
    for name, value in given.items():
        if value is not None and name not in used:
            raise OptionError(f"{name} is {shown(value)}, and is not for {what}; leave it out")
