"""`PretrainingSource`: a source of ready-made ids that makes pre-training pairs from a source of texts.

A pair is ``[CLS] A [SEP] B [SEP]``. Documents are read into pools of about `PairOptions.pool_bytes` characters. A pool
becomes one block, and a random side B is drawn from the documents of the same pool. So memory holds two pools, never
the corpus. The pairs of a block depend only on the block, the tokenizer and the options. So a job that is resumed, or
that divides the blocks among processes, makes the same bytes. BERT's own code also draws random sides from one shard of
the corpus at a time. Shuffle the documents of a sorted corpus first, or each random side B comes from a document
similar to that of side A.

A pool ends when it has `pool_bytes` characters and at least 16 documents with text (`FEWEST`), or where a source of a
mixture ends. If the last pool of a source has fewer than 16 documents with text, or fewer characters than half of
`pool_bytes`, it is joined with the pool before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from nopad.corpus.inputs import InputFile
from nopad.corpus.pairs import NEXT, TYPES, PairOptions, Sentences, Vocabulary, pairs_of, sentences_in, too_long
from nopad.corpus.records import BadRecord, Carried, Kind, Record, Records
from nopad.corpus.source import Block, Source
from nopad.corpus.tokenizer import Tokenizer
from nopad.errors import RecordError, SourceError

__all__ = [
    "FEWEST",
    "PREFIX",
    "PretrainingSource",
    "TokenisedPool",
    "options_from_settings",
    "tokenised_pool",
]

FEWEST = 16  # fewest documents with text in a pool
PREFIX = "pretrain_"  # in front of the names of `PairOptions` in `PretrainingSource.settings`


@dataclass
class _Pool:
    """Documents that are read together; pairs are made of them, and of no other documents.

    Attributes:
        source: name of the documents' source in a mixture; "": there is no mixture.
        name: name of the first document's file.
        first: number of the first document in the input, from 0.
        documents: the texts; a bad document is a dict {"bad": reason} instead.
        places: file and line of each document, for messages.
        bytes: number of characters in all texts.
        filled: number of texts that are not blank.
        read: number of bytes by which this pool advances a progress bar.
    """

    source: str
    name: str
    first: int
    documents: list[str | dict[str, str]] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    bytes: int = 0
    filled: int = 0
    read: int = 0

    def add(self, document: str | dict[str, str], place: str) -> None:
        self.documents.append(document)
        self.places.append(place)
        if isinstance(document, str):
            self.bytes += len(document)
            self.filled += bool(document) and not document.isspace()

    def join(self, other: _Pool) -> None:
        self.documents += other.documents
        self.places += other.places
        self.bytes += other.bytes
        self.filled += other.filled
        self.read += other.read


class PretrainingSource(Source):
    """Pairs ``[CLS] A [SEP] B [SEP]`` made from the documents of another source; see `nopad.corpus.pairs`.

    Three columns are packed along with the ids: ``token_type_ids`` (int8, per token), ``next_sentence_label`` (int64,
    per pair) and one for masks. The column for masks is ``labels`` (int32, per token) if masks are static. Otherwise it
    is ``maskable`` (int8, per token), from which masks are drawn when batches are made. The `kind` of this source is
    "ids".

    Args:
        source: a source of texts; each record is a document.
        tokenizer: a tokenizer with ``[CLS]``, ``[SEP]`` and ``[MASK]``.
        options: how pairs are made; None: the defaults of `PairOptions`.

    Raises:
        OptionError: the vocabulary lacks ``[CLS]``, ``[SEP]`` or ``[MASK]``, has only special tokens, or lacks word
            parts that `options` require; or ``options.rate`` is invalid.
        SourceError: the `kind` of the source is "ids", or the source has columns to pack along.

    In the example, three documents give three pairs; side B of the third pair comes from another document.

    >>> from nopad import load_tokenizer
    >>> from nopad.corpus import IterableSource, PairOptions, PretrainingSource
    >>> texts = ["One is here. Two is here.", "Three it is. Four it is. Five!", "Six."]
    >>> pairs = PretrainingSource(IterableSource(texts), load_tokenizer(), PairOptions(max_length=16, seed=1))
    >>> [block] = pairs.blocks()
    >>> [run] = block.records()
    >>> [int(label) for label in run.values["next_sentence_label"]], run.counts["documents"]
    ([0, 0, 1], 3)
    """

    kind: Kind | None = "ids"
    divisible = False
    made_here = True

    def __init__(self, source: Source, tokenizer: Tokenizer, options: PairOptions | None = None) -> None:
        self.options = options or PairOptions()
        if source.kind == "ids":
            raise SourceError(
                "pairs for pre-training are made of sentences, and this input holds ready-made ids; give the texts"
            )
        if source.carried:
            raise SourceError(
                f"the column {source.carried[0].name!r} cannot be carried: a document becomes many pairs; leave it out"
            )
        self._source, self._tokenizer = source, tokenizer
        self._words = Vocabulary.of(tokenizer, self.options)
        masks = ("labels", "int32") if self.options.static else ("maskable", "int8")
        self.carried = (
            Carried(name=TYPES, per="token", type="int8"),
            Carried(name=masks[0], per="token", type=masks[1]),
            Carried(name=NEXT, per="sequence", type="int64"),
        )
        self.total_bytes, self.ignored, self.left_out = source.total_bytes, source.ignored, source.left_out
        self.folders: tuple[Path, ...] = source.folders
        self.names = source.names

    def blocks(self) -> Iterator[Block]:
        """Yield a block for each pool (documents that are read together).

        The last pool of a source is joined with the pool before it, if there is one, when it is small: fewer than 16
        documents with text, or fewer characters than half of `PairOptions.pool_bytes`.

        Raises:
            SourceError: a source has documents, but fewer than two that are not blank, so side B of a pair cannot come
                from another document; a record is ready-made ids; or reading fails.
            RecordError: a CSV, TSV or JSON file is broken, so that nothing after that place can be read.
        """
        before: _Pool | None = None
        for pool in self._pools():
            if before is not None and pool.source == before.source and self._small(pool):
                before.join(pool)
                continue
            if before is not None:
                yield self._block(before)
            before = pool
        if before is not None:
            yield self._block(before)

    def _small(self, pool: _Pool) -> bool:
        return pool.filled < FEWEST or pool.bytes < self.options.pool_bytes / 2

    def _pools(self) -> Iterator[_Pool]:
        """Yield the pools (documents that are read together), each with documents of a single source of a mixture.

        The last pool of a source has the documents that are left, so it may be too small. The caller then joins it with
        the pool before it.
        """
        pool, number = None, 0
        read = 0
        for block in self._source.blocks():
            read += block.progress
            for document, line in _documents(block):
                if pool is None or pool.source != block.source:
                    if pool is not None:
                        yield pool
                    pool = _Pool(block.source, block.name, number)
                pool.add(document, block.place(line))
                pool.read, read = pool.read + read, 0
                number += 1
                if pool.bytes >= self.options.pool_bytes and pool.filled >= FEWEST:
                    yield pool
                    pool = None
        if pool is not None:
            yield pool

    def _block(self, pool: _Pool) -> Block:
        if pool.filled < 2:
            of = f" of {pool.source}" if pool.source else ""
            each = zip(pool.documents, pool.places, strict=True)
            bad = next((f" ({at}: {one['bad']})" for one, at in each if isinstance(one, dict)), "")
            raise SourceError(
                f"{pool.places[0]}: {'1 document' if pool.filled else 'no document'}{of} with a text{bad}, and a "
                "random next sentence comes from another document; give at least two, or divide this one "
                '(text_unit="paragraph": empty lines between documents)'
            )
        decoder = partial(_decode, tokenizer=self._tokenizer, words=self._words, options=self.options, pool=pool.places)
        return Block(
            name=pool.name,
            data=orjson.dumps(pool.documents),
            decoder=decoder,
            first_line=pool.first + 1,
            path=pool.places[0],
            source=pool.source,
            places=tuple(pool.places),
            read=pool.read,
        )

    def inventory(self) -> list[tuple[str, int]]:
        """Return (name, bytes) of each file of the documents, in reading order."""
        return self._source.inventory()

    def files(self) -> list[InputFile] | None:
        """Return the files of the documents, in reading order; None if some do not come from files."""
        return self._source.files()

    def settings(self) -> dict[str, Any]:
        """Return the settings by which documents are read and pairs made, and the tokenizer's fingerprint, by name."""
        own = {f"{PREFIX}{name}": value for name, value in self.options.settings().items()}
        return {**self._source.settings(), **own, f"{PREFIX}tokenizer": self._tokenizer.fingerprint}


def options_from_settings(settings: Mapping[str, Any]) -> PairOptions | None:
    """Return the `PairOptions` in the settings of a `PretrainingSource`; None if the settings are of another source."""
    found = {name.removeprefix(PREFIX): value for name, value in settings.items() if name.startswith(PREFIX)}
    found.pop("tokenizer", None)
    return PairOptions(**found) if found else None


def _documents(block: Block) -> Iterator[tuple[str | dict[str, str], int]]:
    """Yield ``(document, line)`` for each document of a block of texts.

    A document is its text, or {"bad": reason} if it cannot be decoded; `line` is its 1-based line or row in the file.

    Raises:
        SourceError: the block holds ready-made ids.
    """
    for one in block.records():
        if isinstance(one, BadRecord):
            yield {"bad": one.reason}, one.line
            continue
        texts = [one.text] if isinstance(one, Record) else one.texts
        lines = [one.line] if isinstance(one, Record) else one.lines.tolist()
        if texts is None or texts[0] is None:
            raise SourceError(f"{block.place(lines[0])}: ready-made ids, and pairs are made of texts; give the texts")
        for text, line in zip(texts, lines, strict=True):
            yield str(text), line


def _decode(
    data: bytes, first_line: int, *, tokenizer: Tokenizer, words: Vocabulary, options: PairOptions, pool: list[str]
) -> Iterator[Records | BadRecord]:
    """Yield the bad documents of a pool (one block) as bad records, then all pairs of the others as one `Records`.

    `data` and `first_line` are those of the block. `pool` has the place of each document, for messages; `words` has
    the token ids that are needed to make pairs.

    Raises:
        RecordError: a sentence is too long or a document is empty, and `options` make that an error; or no pairs can be
            made of the documents (`nopad.corpus.pairs.pairs_of`).
        FormatError: the tokenizer cannot encode a document.
    """
    import pyarrow as pa

    found = tokenised_pool(data, first_line, tokenizer, options)
    for line, reason in found.bad.items():
        yield BadRecord(line=line, reason=reason)
    _check(found, pool, first_line, options)
    where = f"{pool[0]} and the {len(pool) - 1:,} documents behind it"
    made = pairs_of(found.sentences, found.lines.size, found.numbers, words, options, where)
    values = {name: pa.array(column) for name, column in made.sequences.values.items()}
    ids = replace(made.sequences, values={})
    yield Records(lines=found.lines[made.document], ids=ids, values=values, counts=made.counts)


class TokenisedPool(NamedTuple):
    """The documents of a pool (one block of a `PretrainingSource`), tokenised.

    Attributes:
        sentences: sentences of the D documents that are not bad, as token ids.
        lines: 1-based number in the source of each of these D documents; int64 ``[D]``.
        bad: why each other document is bad, by its 1-based number in the source.
    """

    sentences: Sentences
    lines: NDArray[np.int64]
    bad: dict[int, str]

    @property
    def numbers(self) -> NDArray[np.uint64]:
        """Number in the source, from 0, of each of the D documents that are not bad; uint64 ``[D]``."""
        return (self.lines - 1).astype(np.uint64)


def tokenised_pool(data: bytes, first_line: int, tokenizer: Tokenizer, options: PairOptions) -> TokenisedPool:
    """Tokenise the documents of one block of a `PretrainingSource`, and return them.

    `data` and `first_line` are those of the block; `options` say how texts are divided into sentences.

    Raises:
        FormatError: the tokenizer cannot encode a document.
    """
    documents = list(enumerate(orjson.loads(data), first_line))
    good = [(line, document) for line, document in documents if isinstance(document, str)]
    given = sentences_in([document for _, document in good], tokenizer, options.sentences)
    bad = {line: document["bad"] for line, document in documents if not isinstance(document, str)}
    return TokenisedPool(given, np.array([line for line, _ in good], np.int64), bad)


def _check(found: TokenisedPool, pool: list[str], first_line: int, options: PairOptions) -> None:
    """Refuse an empty document or a sentence that is too long for a pair, if `options` make that an error.

    `found` has the tokenised documents of a block. `pool` has the place of each document of the block, for messages;
    `first_line` is the 1-based number of the first document.

    Raises:
        RecordError: there is such a document or sentence; the message names the document's place.
    """
    given, places = found.sentences, [pool[line - first_line] for line in found.lines.tolist()]
    sizes = np.bincount(given.document, minlength=len(places))
    if options.empty == "error" and not sizes.all():
        raise RecordError(
            f"{places[int(sizes.argmin())]}: an empty document, without a single token; remove it, or choose "
            'empty="skip"'
        )
    at = too_long(given, options) if options.over_long == "error" else None
    if at is not None:
        most = options.max_length - 4
        raise RecordError(
            f"{places[int(given.document[at])]}: a sentence of {given.lengths[at]} tokens, and of the "
            f'{options.max_length} of a pair it may have {most}; choose over_long="truncate", "split" or "drop" '
            "(of sentences), or a larger max_length"
        )
