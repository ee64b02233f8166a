"""The spool of a running job: sequences as flat files, and a journal that says how far they can be trusted.

``OUT/.work/`` holds the tokens, lengths, record numbers, piece starts and carried columns of all sequences so far,
appended and then committed together: the data is fsynced first, one journal line after it. A reader trusts the last
whole journal line and cuts the files back to it, so a kill at any moment loses at most what came since the last commit.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nopad.corpus import CHAIN_START, Block, Carried, Counts, SequenceBatch, Source, chain
from nopad.errors import ResumeError
from nopad.files import fsync_folder, storage_errors
from nopad.store.shards import Columns
from nopad.store.spool_files import spool_files, text_array

__all__ = ["Progress", "Spool"]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a spool can be trusted: one line of its journal.

    Attributes:
        blocks: source blocks consumed.
        chain: digest of those blocks, hex; the fingerprint of the source once `complete`.
        last: name of the last block consumed.
        consumed_bytes: source bytes consumed.
        parts: what became of the records of each part of the source.
        complete: the whole source is in the spool.
    """

    blocks: int = 0
    chain: str = CHAIN_START.hex()
    last: str = ""
    consumed_bytes: int = 0
    parts: Mapping[str, Counts] = field(default_factory=dict)
    complete: bool = False

    @property
    def counts(self) -> Counts:
        """What became of all records."""
        return sum(self.parts.values(), Counts())

    def to_line(self) -> bytes:
        """Return one journal line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Progress:
        """Parse one journal line; ValueError when it is torn."""
        document = json.loads(line)
        return cls(**{**document, "parts": {name: Counts.from_dict(n) for name, n in document["parts"].items()}})


class Spool:
    """Appends sequences and commits them; opens where the last commit left off.

    Cost: a commit fsyncs its files, four and one or two for each carried column, so it happens at most every
    `commit_every_s` seconds and at the end.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep_tokens: bool = True,
        carried: Sequence[Carried] = (),
        commit_every_s: float = 2.0,
    ) -> None:
        """Open or create the spool in an existing `folder`; without `keep_tokens`, only lengths and places are kept."""
        self._folder = folder
        self._layout = spool_files(keep_tokens, carried)
        self._carried = carried if keep_tokens else ()
        self._journal = folder / "journal.jsonl"
        self._commit_every_s = commit_every_s
        self._files: dict[str, Any] = {}
        self._text_bytes: dict[str, int] = {}
        self.history = self._read_journal()
        self.progress = self.history[-1] if self.history else Progress()

    @staticmethod
    def begun(folder: Path) -> bool:
        """Whether anything was ever committed to a spool in `folder`."""
        return (folder / "journal.jsonl").exists()

    def remaining(self, source: Source, on_bytes: Callable[[int], None]) -> Iterator[Block]:
        """Yield the blocks that are not in the spool yet, after proving that the others have not changed.

        Raises:
            ResumeError: the source changed since the job started; the message names where.
        """
        digest, at, before, since = CHAIN_START, 0, "", ""
        have, trusted = self.progress.blocks, {p.blocks: p for p in self.history}  # both grow while this runs
        for block in source.blocks():
            if at >= have:
                yield block
                continue
            at += 1
            since = since or block.name
            digest = chain(digest, block)
            on_bytes(block.size)
            committed = trusted.get(at)
            if committed is not None:
                if committed.chain != digest.hex():
                    where = since if since == committed.last else f"between {since} and {committed.last}"
                    raise ResumeError(f"the source changed since this job started: {where}; {_WAY_OUT}")
                before, since = committed.last, ""
        if at < have:
            raise ResumeError(
                f"the source became shorter since this job started (after {before or 'its start'}); {_WAY_OUT}"
            )

    def append(self, batch: SequenceBatch, counts: Counts, blocks: list[Block]) -> None:
        """Add the sequences of `blocks`, all of one part; they count once committed: by itself now and then."""
        if not self._files:
            self._open()
        with storage_errors("spooling tokens to", self._folder):
            for name, file in self._layout.items() if batch.lengths.size else ():
                values = np.ascontiguousarray(file.values(batch), dtype=file.dtype)
                if file.per == "end" and values.size:
                    values = values + self._text_bytes[name]
                    self._text_bytes[name] = int(values[-1])
                self._files[name].write(values.data)
        digest, part = bytes.fromhex(self.progress.chain), blocks[0].part
        for block in blocks:
            digest = chain(digest, block)
        self.progress = replace(
            self.progress,
            blocks=self.progress.blocks + len(blocks),
            chain=digest.hex(),
            last=blocks[-1].name,
            consumed_bytes=self.progress.consumed_bytes + sum(block.size for block in blocks),
            parts={**self.progress.parts, part: self.progress.parts.get(part, Counts()) + counts},
        )
        if time.monotonic() - self._committed_at >= self._commit_every_s:
            self.commit()

    def finish(self) -> None:
        """Mark the source as complete; idempotent."""
        if not self.progress.complete:
            if not self._files:
                self._open()
            self.progress = replace(self.progress, complete=True)
            self.commit()
        self.close()

    def commit(self) -> None:
        """Make everything appended so far durable."""
        with storage_errors("spooling tokens to", self._folder):
            for file in self._files.values():
                file.flush()
                os.fsync(file.fileno())
            with open(self._journal, "ab") as journal:
                journal.write(self.progress.to_line())
                journal.flush()
                os.fsync(journal.fileno())
            fsync_folder(self._folder)
        self.history.append(self.progress)
        self._committed_at = time.monotonic()

    def close(self) -> None:
        """Close the files; what was not committed is lost."""
        for file in self._files.values():
            with suppress(OSError):  # on a full disk, writing out what is buffered fails once more
                file.close()
        self._files = {}

    def columns(self, *, split: bool) -> Columns:
        """Map the finished spool; `split` keeps the piece starts. About 8 bytes a sequence are in memory."""
        arrays = {name: self._map(name) for name in self._layout}
        begin = np.zeros(arrays["lengths"].size, dtype=np.int64)
        np.cumsum(arrays["lengths"][:-1], out=begin[1:])
        tokens = {"input_ids": arrays["tokens"]} if "tokens" in arrays else {}
        values = {}
        for at, column in enumerate(self._carried):
            array = arrays[f"column-{at}"]
            if column.per == "token":
                tokens[column.name] = array
            elif column.type == "string":
                values[column.name] = text_array(arrays[f"column-{at}-ends"], array)
            else:
                values[column.name] = pa.array(array)
        return Columns(
            lengths=arrays["lengths"],
            record=arrays["record"],
            start=arrays["start"] if split else None,
            begin=begin,
            tokens=tokens,
            values=values,
        )

    def _map(self, name: str) -> NDArray[Any]:
        path, size, dtype = self._path(name), self._size(name), self._layout[name].dtype
        if path.stat().st_size < size * np.dtype(dtype).itemsize:
            raise ResumeError(f"{path} is shorter than its journal says; {_WAY_OUT}")
        if not size:  # no text at all
            return np.empty(0, dtype=dtype)
        return np.memmap(path, dtype=dtype, mode="r", shape=(size,))

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.bin"

    def _size(self, name: str) -> int:
        """How many items of a file the journal vouches for."""
        counts, per = self.progress.counts, self._layout[name].per
        if per == "token":
            return counts.tokens
        if per == "sequence":
            return counts.sequences
        if not counts.sequences:
            return 0
        if per == "end":
            return counts.sequences + 1
        ends = self._path(f"{name}-ends")
        if ends.stat().st_size < 8 * (counts.sequences + 1):
            raise ResumeError(f"{ends} is shorter than its journal says; {_WAY_OUT}")
        return int(np.memmap(ends, dtype=np.int64, mode="r")[counts.sequences])

    def _read_journal(self) -> list[Progress]:
        """Return all whole journal lines; a torn last one is cut off."""
        history: list[Progress] = []
        if not self._journal.exists():
            return history
        good = 0
        with open(self._journal, "rb") as journal:
            for line in journal:
                try:
                    progress = Progress.from_line(line)
                except (ValueError, TypeError, KeyError):
                    break
                if not line.endswith(b"\n"):
                    break
                history.append(progress)
                good += len(line)
        os.truncate(self._journal, good)
        return history

    def _open(self) -> None:
        """Open the files for appending, cut back to what the journal vouches for."""
        with storage_errors("opening the spool in", self._folder):
            sizes = {name: self._size(name) for name in self._layout}
            for name, layout in self._layout.items():
                file = open(self._path(name), "ab", buffering=1 << 20)  # noqa: SIM115 - closed by `close`
                self._files[name] = file
                trusted = sizes[name] * np.dtype(layout.dtype).itemsize
                if os.fstat(file.fileno()).st_size < trusted:
                    raise ResumeError(f"{file.name} is shorter than its journal says; {_WAY_OUT}")
                os.truncate(file.fileno(), trusted)
                if layout.per == "end":
                    self._text_bytes[name] = sizes[name.removesuffix("-ends")]
                    if not trusted:
                        file.write(bytes(8))  # the first string begins at 0
        self._committed_at = time.monotonic()


_WAY_OUT = "delete the output folder to start over, or put the source back as it was"
