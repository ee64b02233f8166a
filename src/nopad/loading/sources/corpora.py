"""Ready-made ids that `nopad.corpus` reads (Parquet, JSON Lines, lists, dicts) as a `TokenSource`.

Records are decoded and validated once, as for packing: ids must be integers, the per-token lists of a record must be
equally long, and tokens whose ``attention_mask`` is 0 are removed. The result is copied
(`nopad.loading.sources.spool`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from nopad.corpus.options import CorpusOptions
from nopad.corpus.pipeline import sequences
from nopad.corpus.records import MAX_ID
from nopad.corpus.source import Source
from nopad.errors import SourceError
from nopad.loading.sources.arrays import ArrayTokens
from nopad.loading.sources.spool import spooled
from nopad.sequences import Sequences

__all__ = ["corpus_tokens", "whole_records"]

_OWN = ("seq_index", "seq_start")


def corpus_tokens(
    source: Source,
    name: str,
    *,
    empty: str = "refuse",
    spool: str | os.PathLike[str] | None = None,
    options: CorpusOptions | None = None,
) -> ArrayTokens:
    """Return the records of a source of ready-made ids, one sequence each; columns of strings are left out.

    The tokens are copied (`nopad.loading.sources.spool.spooled`). The copy is in memory if the source has no files, or
    if `spool` is None and there are at most 4 million tokens. Otherwise it consists of files in the folder `spool`
    (None: ``$XDG_CACHE_HOME/nopad/tokens``). `name` is the source's name in messages. `empty` says what to do with
    records that have no token: "refuse" or "skip". `options` say which records are bad, and what to do with these: if
    they are skipped, they become sequences without a token. None: bad records are refused.

    Raises:
        SourceError: `source` holds text or makes several sequences of a record, a file is damaged or changes while it
            is read, or no record has a token.
        RecordError: a record is bad; the message names it.
        LengthError: a record has no token, and `empty` is "refuse".
        StorageError: the copy of the tokens cannot be written.
    """
    if source.kind == "text":
        raise SourceError(
            f"{name}: holds text, and no ids; tokenise it first, or name the column of ids with ids_field; a "
            "PackedLoader also takes tokenizer=, with which it reads text as a stream"
        )
    options = options or whole_records()
    strings = tuple(column.name for column in source.carried if column.type == "string")
    files = source.files()
    identity: dict[str, Any] | None = None
    if files:
        paths = [str(file.path) if file.remote else os.path.realpath(file.path) for file in files]
        stamps = [[path, file.size, file.stamp] for path, file in zip(paths, files, strict=True)]
        identity = {"files": stamps, "settings": source.settings()}
        if options != whole_records():
            identity["bad"] = [options.on_bad_record, options.vocab_size]

    def parts() -> Iterator[Sequences]:
        first = 0
        for group in sequences(source.blocks(), None, options):
            yield _with_empty(group.batch, first, group.counts.records, strings, name)
            first += group.counts.records

    return spooled(parts, identity, name, spool, empty=empty, left_out=(*source.left_out, *strings))


def whole_records(**bad: Any) -> CorpusOptions:
    """Return options by which no record is cut, or refused for its length.

    `bad` may have ``on_bad_record`` and ``vocab_size``, which say which records are bad and what happens to them
    (`CorpusOptions`).
    """
    return CorpusOptions(capacity=MAX_ID, **bad)


def _with_empty(found: Sequences, first: int, records: int, left_out: tuple[str, ...], name: str) -> Sequences:
    """Return the sequences of `found`, and an empty sequence for each record without one, in the order of the records.

    `found` are the sequences of `records` consecutive records, the first of which has the number `first`. Sequence i of
    the result is record ``first + i``. The per-sequence columns ``seq_index`` and ``seq_start``, and those in
    `left_out`, are dropped. `name` is the source in the message.

    Raises:
        SourceError: an encoder has made several sequences of a record.
    """
    at = found.values["seq_index"] - first
    if (np.diff(at) == 0).any():
        record = found.values["seq_index"][:-1][np.diff(at) == 0][0]
        raise SourceError(
            f"{name}: several sequences are made of record {record}, and these have no numbers; pack it with "
            "nopad.pack_corpus, and open the packed dataset"
        )
    lengths = np.zeros(records, np.int32)
    lengths[at] = found.seq_lengths
    values = {}
    for field, column in found.values.items():
        if field not in (*_OWN, *left_out):
            array = column if isinstance(column, np.ndarray) else column.to_numpy(zero_copy_only=False)
            values[field] = np.zeros(records, array.dtype)
            values[field][at] = array
    return Sequences(seq_lengths=lengths, tokens=found.tokens, values=values)
