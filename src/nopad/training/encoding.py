"""Encode any number of records into files, so that only some of the examples are in memory at a time.

Records are encoded some thousand at a time. Ids and columns are appended to ``.npy`` files (``ids.npy``,
``offsets.npy`` and one ``NAME.npy`` per column, as `nopad.loading.sources` reads them), which are memory-mapped once
they are complete. If the same task and tokenizer have encoded the same records before, the existing files are used.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nopad.errors import FormatError, LengthError, RecordError, StorageError
from nopad.files import fsync_path, locked, sha256_file, storage_errors, write_atomic
from nopad.notation import from_json
from nopad.random import MASK, key
from nopad.seal import sealed, unsealed
from nopad.sequences import Sequences
from nopad.tasks import Examples, Task
from nopad.tasks.examples import counted, encoded_after, parts_of, placed, readable

__all__ = ["AT_ONCE", "Part", "Stored", "encoded"]

AT_ONCE = 4096  # records that are encoded at a time
_FACTS = "examples.json"
_VERSION = 3
_HEADER = 128  # bytes


class Stored(Protocol):
    """Records that can be read by iterating, any number of times, with a fingerprint that identifies them."""

    def __iter__(self) -> Iterator[Mapping[str, Any]]: ...

    def fingerprint(self) -> str:
        """Return a text that identifies these records."""
        ...


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a set of records: those held out for evaluation, or all others.

    Each record is held out with probability `share`, from 0 to below 1; its number and `seed` decide. If `held_out` is
    True, this part has the records held out, else it has all others.

    >>> [number for number in range(12) if Part(share=0.3, seed=1, held_out=True).has(number)]
    [0, 1, 2, 3, 7, 9, 11]

    Of these few records, a larger share than 0.3 happens to be held out; of 100,000 records, the share is 0.301.
    """

    share: float = 0.0
    seed: int = 0
    held_out: bool = False

    def has(self, number: int) -> bool:
        """Return whether the record with this number is in this part."""
        return (key(self.seed, _STREAM, number) < self.share * (MASK + 1)) is self.held_out


_STREAM = 0x6E6F706164  # separates the random choices of this file from others made with the same seed


def encoded(
    task: Task,
    records: Stored,
    folder: Path,
    settings: Mapping[str, Any],
    *,
    part: Part = Part(),
    at_once: int = AT_ONCE,
) -> Examples:
    """Return the examples of a task, with columns memory-mapped from files in `folder`.

    One process of a host encodes; other processes that ask for the same examples wait for it.

    Args:
        task: the task that encodes the records.
        records: the records, as `task.read` gives them.
        folder: folder for the files; created if it does not exist.
        settings: what the encoding depends on besides the records, by name, such as the task's name and options, and
            the tokenizer's fingerprint.
        part: which of the records are encoded.
        at_once: number of records that are encoded at a time.

    Raises:
        RecordError: the task cannot encode a record; the message gives its number among all records, from 0. Or later
            records give other columns, or another number of sequences that stay together, than those before.
        LengthError: a sequence is too long and `over_long` is "error"; a sequence has no token; or `part` has no record
            that becomes a sequence.
        OptionError: the tokenizer or the task lacks what `Task.encode` needs.
        SourceError: the records cannot be read.
        FormatError: the records are damaged; or, in later records, a column has another shape or kind of dtype than in
            the first records, or a value that the first records' dtype cannot hold.
        StorageError: the disk is full, or a file cannot be written.
    """
    facts = {"version": _VERSION, "records": records.fingerprint(), "part": asdict(part), **settings}
    same = json.dumps(facts, sort_keys=True, default=str)
    place = folder / hashlib.sha256(same.encode()).hexdigest()[:24]
    with storage_errors("making", folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / f"{place.name}.lock"):
        try:
            return _read(place)
        except FormatError:
            shutil.rmtree(place, ignore_errors=True)
        with storage_errors("writing", place):
            place.mkdir()
        with placed(records):
            facts = _write(task, records, part, place, at_once)
        with storage_errors("writing", place):
            fsync_path(place)
        facts["columns"] = {name: sha256_file(place / f"{name}.npy") for name in facts["columns"]}
        content = json.dumps(sealed({"examples": facts})).encode()
        write_atomic(place / _FACTS, content)  # last: a folder with this file is complete
        return _read(place)


def _write(task: Task, records: Stored, of: Part, place: Path, at_once: int) -> dict[str, Any]:
    """Encode the records in the part `of` into files in `place`, and return facts about them, for ``examples.json``.

    These are the number of records, the number of sequences that stay together (``group``), the counts of records cut
    or left out, the names of the columns per token, and the names of all arrays. `at_once` records are encoded at a
    time.

    Raises:
        RecordError, LengthError, OptionError, SourceError, FormatError, StorageError: as for `encoded`.
    """
    counts, bad = Counter[str](), dict[str, int]()
    group, seen, ends, before = 1, 0, 0, 0
    tokens: list[str] = []
    known: set[str] | None = None
    with ExitStack() as stack:
        columns: dict[str, _Column] = {}

        def add(name: str, values: NDArray[Any]) -> None:
            if name not in columns:
                columns[name] = stack.enter_context(_Column(place / f"{name}.npy", values))
            columns[name].add(values)

        add("offsets", np.zeros(1, np.int64))
        chosen = (pair for pair in readable(records, bad) if of.has(pair[0]))
        for part in parts_of(chosen, at_once, task.fewest):
            numbers = np.array([number for number, _ in part])
            made = encoded_after(task, [record for _, record in part], numbers, before)
            before += len(made)
            counts.update(made.counts)
            if len(made):
                if ends and made.group != group:
                    raise RecordError(
                        f"record {numbers[0]} becomes {made.group} sequences that stay together, and records before it "
                        f"{group}; give all records as many, such as equally many hard negatives"
                    )
                sequences = made.sequences.gathered()
                names = {*sequences.tokens, *sequences.values}
                if known not in (None, names):  # values would come to belong to other sequences
                    raise RecordError(
                        f"the task {task.name} makes the columns {', '.join(sorted(names))} of records from "
                        f"{numbers[0]} on, and {', '.join(sorted(known))} of those before; make the same of each record"
                    )
                known = names
                tokens, group = sorted(sequences.tokens), made.group
                for name in tokens:
                    add("ids" if name == "input_ids" else name, sequences.tokens[name])
                for name, values in sequences.values.items():
                    add(name, np.asarray(values))
                add("offsets", ends + np.cumsum(sequences.seq_lengths, dtype=np.int64))
                ends += made.tokens
                add(_RECORD, numbers[made.record])
            seen += len(part)
        counts.update(bad)
        if not ends:
            said = f"nothing is left of {seen:,} records{counted(counts)}; look at over_long, or give other records"
            none = "there is no record, so nothing to train on"
            if of.held_out:
                none = f"no record was drawn at a share of {of.share}; hold out more, or give others as data.eval"
            raise LengthError(said if seen or bad else none)
    return {"records": seen, "group": group, "counts": dict(counts), "tokens": tokens, "columns": list(columns)}


_RECORD = "nopad_record"


class _Column:
    """A ``.npy`` file that grows; its header is written when it is closed."""

    def __init__(self, path: Path, like: NDArray[Any]) -> None:
        self.path, self.dtype, self.more, self.size = path, like.dtype, like.shape[1:], 0
        with storage_errors("writing", path):
            self._file = open(path, "wb")  # noqa: SIM115 - closed by __exit__
            self._file.seek(_HEADER)

    def __enter__(self) -> _Column:
        return self

    def add(self, values: NDArray[Any]) -> None:
        """Append values to the file, converted to the dtype of the values with which the column was made.

        Raises:
            FormatError: the values have another kind of dtype or another shape, or the conversion would change a value.
            StorageError: the disk is full, or the write failed.
        """
        fits = values.shape[1:] == self.more and values.dtype.kind == self.dtype.kind
        kept = np.ascontiguousarray(values, self.dtype) if fits else values
        if not fits or (values.dtype != self.dtype and not ((kept == values) | (values != values)).all()):
            raise FormatError(
                f"{self.path.stem} is {values.dtype} {values.shape[1:]} in one part of the records and {self.dtype} "
                f"{self.more} in another; a task gives every record the same columns"
            )
        with storage_errors("writing", self.path):
            self._file.write(kept.data)
        self.size += len(values)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        about = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.size, *self.more)}
        text = repr(about).encode()
        head = b"\x93NUMPY\x01\x00" + (_HEADER - 10).to_bytes(2, "little")
        with storage_errors("writing", self.path), self._file:
            self._file.seek(0)
            self._file.write(head + text.ljust(_HEADER - 11) + b"\n")


def _read(place: Path) -> Examples:
    """Return the examples whose arrays `_write` stored in the folder `place`, memory-mapped.

    Raises:
        FormatError: a file is missing or damaged.
    """
    try:
        facts = unsealed(from_json((place / _FACTS).read_text(encoding="utf-8")))["examples"]
        if any(sha256_file(place / f"{name}.npy") != said for name, said in facts["columns"].items()):
            raise FormatError(f"{place} is damaged")
        arrays = {name: np.load(place / f"{name}.npy", mmap_mode="r").view(np.ndarray) for name in facts["columns"]}
        offsets, record = arrays.pop("offsets"), arrays.pop(_RECORD)
        tokens = {name: arrays.pop("ids" if name == "input_ids" else name) for name in facts["tokens"]}
        lengths = np.diff(offsets).astype(np.int32)
        return Examples(
            sequences=Sequences(seq_lengths=lengths, tokens=tokens, values=arrays),
            record=record,
            records=facts["records"],
            group=facts["group"],
            counts=facts["counts"],
        )
    except (OSError, StorageError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{place} is not there, or damaged") from error
