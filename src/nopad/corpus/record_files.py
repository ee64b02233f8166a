"""`RecordFile`: a source of records (dicts), from CSV, TSV or JSON arrays; with an `Encoder`, from any records.

An `Encoder` makes text or ids of each record. A JSON Lines file is read in blocks of whole lines. For all other inputs,
a block is a run of records, which are decoded as they are; written as JSON, they are its data, from which fingerprints
are made. The first thousand records decide the types of the columns that are packed along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa

from nopad.corpus.encoders import Encoder
from nopad.corpus.inputs import InputFile
from nopad.corpus.jsonl import TYPICAL, json_lines, json_objects, no_object
from nopad.corpus.objects import decode_dicts, schema_of
from nopad.corpus.options import WAYS, ReaderOptions
from nopad.corpus.records import BadRecord, Origin, Records
from nopad.corpus.runs import Bad, Run, as_json
from nopad.corpus.selection import Selection, label_column, late_labels, refuse_empty_labels, select
from nopad.corpus.source import BLOCK_BYTES, Block, Source
from nopad.errors import OptionError, SourceError
from nopad.notation import from_json
from nopad.options import shown
from nopad.sequences import LABELS

__all__ = ["RecordFile"]


class RecordFile(Source):
    """A source of the records of one file or other input; each record is a dict.

    The first thousand records are read when this object is made, to see their columns. If these lack a column that the
    encoder needs, more are read, unless `table` is True. Of an iterator, only the first run is read for this, even if
    it has fewer records.

    Args:
        name: name of the input in fingerprints; for a file, its `InputFile.name`.
        runs: a function that returns an iterator over all runs (`Run`: groups of records), from the first one.
        options: which columns are read; with an `encoder`, only `carry` and `find_labels` have an effect.
        encoder: turns each record into text or ids; None: records have a column of text or ids.
        file: the input file; None: the input is not a file.
        lines: whether the file has one JSON object per line (JSON Lines).
        once: whether the runs can be read only once, as those of an iterator.
        table: whether all records have the same columns, as those of a table or a text file.
        block_bytes: about how many bytes a block of lines has.

    Raises:
        SourceError: a column that is needed is in none of the records that were looked at; there is no encoder, and no
            record can be read; the type of a column cannot be packed; the column of labels is null in the first
            thousand records; the columns are refused for another reason (`nopad.corpus.selection.select`); or the input
            cannot be read.
        RecordError: the input is broken within the records that are read here, so that nothing after that point can be
            read.
        FormatError: the input is a broken SQuAD file.
        OptionError: an option is given that has no effect together with the encoder, a column to carry is one that the
            encoder makes, or the encoder's tokenizer cannot encode the first records (`Encoder.check`).
    """

    def __init__(
        self,
        name: str,
        runs: Callable[[], Iterator[Run]],
        options: ReaderOptions,
        encoder: Encoder | None = None,
        *,
        file: InputFile | None = None,
        lines: bool = False,
        once: bool = False,
        table: bool = False,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self._name, self._runs, self._file, self._lines = name, _Once(runs(), name) if once else runs, file, lines
        self._path = str(file.path) if file is not None else name
        self._encoder, self._block_bytes = encoder, block_bytes
        self._options = options
        self.total_bytes = file.size if file is not None else None
        if isinstance(self._runs, _Once):
            typical = _all(self._runs.ahead())
        else:
            typical = (record for _, record in json_objects(file)) if lines and file is not None else _all(runs())
        first = list(islice(typical, TYPICAL))
        if encoder is not None and first:
            _check_columns(encoder, first, iter(()) if table else typical, self._path)
            encoder.check(first)
        elif encoder is None and not first:
            raise _no_record(runs(), self._path)
        found = schema_of(first)
        schema, chosen, late = _chosen(found, options, encoder, self._path)
        self.selection = select(schema, chosen, self._path)
        if encoder is not None:
            self.selection = replace(self.selection, new=late)
        self._schema = pa.schema([schema.field(column) for column in self.selection.columns])
        self.kind, self.carried = self.selection.kind, self.selection.carried
        used = {*self.selection.columns, *(encoder.reads if encoder else ())}
        self.left_out = tuple(name for name in found.names if name not in used)
        self.divisible = encoder is None or encoder.divisible
        self.made_here = encoder is not None
        self._ways = WAYS if encoder is None else encoder.ways

    def blocks(self) -> Iterator[Block]:
        """Yield blocks: of whole lines if the file is JSON Lines, else of one run of records each."""
        decoder = partial(_decode, encoder=self._encoder, schema=self._schema, chosen=self.selection)
        block = partial(Block, name=self._name, path=self._path, ways=self._ways)
        if self._lines and self._file is not None:
            for data, _, line in self._file.line_blocks(self._block_bytes):
                yield block(data=data, decoder=decoder, first_line=line)
            return
        at = 1
        for run in self._runs():
            each = [*run.each()]
            places = tuple(
                one.place if isinstance(one, Bad) else self._place(number) for number, one in enumerate(each, at)
            )
            decoded = partial(decoder, given=each)
            yield block(data=as_json(each), decoder=decoded, first_line=at, places=places)
            at += run.count

    def _place(self, number: int) -> str:
        """Return where record `number` (counted from 1) is, for messages, such as ``a.csv, record 7``.

        For records in memory, the number in the returned text counts from 0, as in the messages of tasks.
        """
        return f"the dataset, record {number - 1}" if self._name == "memory" else f"{self._path}, record {number}"

    def read_bytes(self) -> int | None:
        """Return how many stored bytes of the file the latest pass has read; None if the input is not a file."""
        return self._file.meter.read if self._file is not None else None

    def files(self) -> list[InputFile] | None:
        """Return a list with the file; None if the input is not a file."""
        return None if self._file is None else [self._file]

    def settings(self) -> dict[str, Any]:
        """Return the options and the encoder's settings, by name, as JSON values."""
        return {**self._options.settings(), **(self._encoder.settings() if self._encoder else {})}


def _no_record(runs: Iterator[Run], place: str) -> SourceError:
    """Return the error for an input without a good record; the message names the first bad record, if there is one.

    `place` names the input.
    """
    bad = next((one for run in runs for one in run.each() if isinstance(one, Bad)), None)
    if bad is None:
        return SourceError(f"{place}: there is no record in it; leave it out")
    return SourceError(f"{place}: none of its records can be read, and the first cannot because of this: {bad.error()}")


def _check_columns(
    encoder: Encoder, first: Sequence[Mapping[str, Any]], rest: Iterator[Mapping[str, Any]], place: str
) -> None:
    """Check that each column that the encoder needs is in at least one record.

    `first` are the first records. `rest` are further records, which are read only as far as needed. `place` names the
    input.

    Raises:
        SourceError: a column that the encoder needs is in none of these records.
    """
    columns = dict.fromkeys(key for record in first for key in record)
    reason = encoder.missing(columns)
    while reason and (record := next(rest, None)) is not None:
        if any(key not in columns for key in record):
            columns |= dict.fromkeys(record)
            reason = encoder.missing(columns)
    if reason:
        raise SourceError(f"{place}: {reason}")


def _chosen(
    found: pa.Schema, options: ReaderOptions, encoder: Encoder | None, place: str
) -> tuple[pa.Schema, ReaderOptions, tuple[str, ...]]:
    """Return ``(schema, options, late)``: the schema of what is packed, and the options that choose its columns.

    `found` is the schema of the records, and `place` names the input in messages. Without an encoder, `found` and the
    given `options` are returned as they are. With one, the schema has the columns that the encoder makes, and those of
    the records that are packed along. `late` has the names of columns of labels that make a later record bad
    (`Selection.new`); it is () without an encoder, or if no labels are looked for.

    Raises:
        OptionError: an option is given that has no effect beside the encoder, or a column to carry is one that the
            encoder makes.
        SourceError: the column of labels that would be packed along is null in all records that were looked at.
    """
    if encoder is None:
        return found, options, ()
    for name in ("text_field", "ids_field", "mask_field", "pad_id"):
        value = getattr(options, name)
        if value not in (None, "auto"):
            raise OptionError(f"{name} is {shown(value)}, and the records are read otherwise; leave it out")
    asked: Sequence[str] = () if options.carry == "auto" else options.carry
    late: tuple[str, ...] = ()
    if options.carry == "auto" and options.find_labels and not set(LABELS) & set(encoder.columns):
        refuse_empty_labels(found, found.names, True, place)
        asked, late = label_column(found), late_labels(found)
    made = [pa.field(name, kind) for name, kind in encoder.columns.items()]
    if clash := [name for name in asked if name in encoder.columns]:
        raise OptionError(f"the column {clash[0]!r} is made of each record, and cannot be carried too; leave it out")
    carried = [found.field(name) for name in asked if name in found.names]
    text = encoder.content == "text"
    how = replace(
        options,
        text_field=encoder.content if text else None,
        ids_field=None if text else encoder.content,
        carry=(*[name for name in encoder.columns if name != encoder.content], *asked),
        mask_field=None,
    )
    return pa.schema([*made, *carried]), how, late


def _decode(
    data: bytes,
    first: int,
    *,
    encoder: Encoder | None,
    schema: pa.Schema,
    chosen: Selection,
    given: Sequence[Any] | None = None,
) -> Iterator[Records | BadRecord]:
    """Yield the records of a block, in order: runs of good records as `Records`, and bad ones between them.

    `data` has one JSON object per line if `given` is None. Otherwise `given` are the records, and `data` is a JSON
    array, in which ``[reason]`` stands for a bad record. `first` is the number of the block's first line or record.
    `encoder` makes records of each object; None: each object is one record. `chosen` says which columns are read, and
    `schema` has their types.
    """
    items: list[Mapping[str, Any]] = []
    at: list[int] = []
    for line, value in json_lines(data, first) if given is None else enumerate(from_json(data), first):
        if isinstance(value, dict):
            # JSON has no dates, tuples or functions, and the template sees what the user gave
            items.append(value if given is None else given[line - first])
            at.append(line)
            continue
        yield from _made(items, at, encoder, schema, chosen)
        items, at = [], []
        yield BadRecord(line=line, reason=value[0]) if given is not None else no_object(value, line)
    yield from _made(items, at, encoder, schema, chosen)


def _made(
    items: Sequence[Mapping[str, Any]],
    at: Sequence[int],
    encoder: Encoder | None,
    schema: pa.Schema,
    chosen: Selection,
) -> Iterator[Records | BadRecord]:
    """Yield the records that are made of dicts, in order: runs of good records as `Records`, and bad ones between them.

    `items` are the dicts, and `at` their line or record numbers. `encoder` makes records of each dict; None: each dict
    is one record. `chosen` says which columns are read, and `schema` has their types.

    Raises:
        ValueError: the encoder did not make one entry of each record.
    """
    if encoder is None:
        yield from decode_dicts(items, at, schema, chosen)
        return
    odd = [chosen.unforeseen(item) for item in items]
    good = [item for item, reason in zip(items, odd, strict=True) if reason is None]
    encoded, counts = encoder.encode(good) if good else ([], {})
    if len(encoded) != len(good):
        name = type(encoder).__name__
        raise ValueError(f"{name}.encode made {len(encoded)} entries of {len(good)} records; make one of each")
    rest = iter(encoded)
    found = [next(rest) if reason is None else reason for reason in odd]
    carried = [name for name in schema.names if name not in encoder.columns]
    good = []
    lines: list[int] = []
    runs: list[Records | BadRecord] = []
    for item, line, one in zip(items, at, found, strict=True):
        if not isinstance(one, str):
            beside = {name: item[name] for name in carried if name in item}
            good += [made | beside for made in one]
            lines += [line] * len(one)
            continue
        runs += [*decode_dicts(good, lines, schema, chosen), BadRecord(line=line, reason=one)]
        good, lines = [], []
    runs += decode_dicts(good, lines, schema, chosen)
    bad = {run.line for run in runs if isinstance(run, BadRecord)}
    made = zip(items, at, found, strict=True)
    gone = [item for item, line, one in made if line in bad and not isinstance(one, str)]
    if gone and any(counts.values()):  # bad records do not count
        lost = encoder.encode(gone)[1]
        counts = {name: number - lost.get(name, 0) for name, number in counts.items()}
    last = 0
    for run in runs:
        if isinstance(run, Records):
            origin = _origin(run)
            split = {} if origin is None else {"split": int(np.count_nonzero(np.bincount(origin.record) > 1))}
            yield replace(run, counts={**counts, **split}, origin=origin)
            counts = {}
        elif run.line != last:  # several bad sequences of one record are one bad record
            yield run
            last = run.line


def _origin(run: Records) -> Origin | None:
    """Return the `Origin` of the sequences in a run: the record from which each sequence was made.

    Sequences of one record have the same line in the run. The result is None if no two sequences are of the same
    record, or if the run is text.
    """
    first = np.diff(run.lines, prepend=-1) != 0
    if run.ids is None or first.all():
        return None
    record = np.cumsum(first) - 1
    return Origin(record=record, of=int(record[-1]) + 1)


class _Once:
    """A function without arguments that returns an iterator over all runs of an input; it can be called only once.

    Before that call, `ahead` can be used to look at the first run.

    Raises:
        SourceError: the function is called a second time.
    """

    def __init__(self, runs: Iterator[Run], name: str) -> None:
        self._rest, self._name, self._read = runs, name, False
        self._first = list(islice(runs, 1))

    def ahead(self) -> Iterator[Run]:
        """Return an iterator over the first run alone."""
        return iter(self._first)

    def __call__(self) -> Iterator[Run]:
        """Return an iterator over all runs, including the first one that `ahead` returns.

        Raises:
            SourceError: this is the second call.
        """
        if self._read:
            raise SourceError(
                f"{self._name}: an iterator can be read once; give a list, or a function that returns one"
            )
        self._read = True
        return chain(self._first, self._rest)


def _all(runs: Iterator[Run]) -> Iterator[dict[str, Any]]:
    """Return an iterator over all records of the runs, without the bad ones."""
    return (one for run in runs for one in run.each() if not isinstance(one, Bad))
