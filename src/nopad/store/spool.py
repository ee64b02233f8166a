"""The spool of a running job: sequences in flat files, and a journal that says how many of their bytes are valid.

The files are in ``.work/`` in the output folder. They hold, for all sequences so far: the tokens, the lengths, the
record numbers, the starts (index of a sequence's first token in its record), and the columns packed along. For an
index, a hash of each sequence replaces the tokens and columns. New values are appended, then committed together: the
data is fsynced first, then one journal line is written. The line has a checksum of the bytes added to each file since
the previous line. Opening a spool reads its files again (2 GB/s) and accepts the journal's lines before the first one
with a wrong checksum. Files and journal are truncated where the accepted lines end, and the job makes all later
sequences again. So a kill at any moment loses at most the sequences after the last commit. If bytes of an earlier
commit were changed or removed, the sequences from that commit on are made again, and the wrong bytes are never packed.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nopad.corpus import CHAIN_START, Block, Carried, Counts, Source, chain
from nopad.errors import ResumeError
from nopad.files import fsync_path, storage_errors
from nopad.seal import sealed_line, sealed_lines
from nopad.sequences import Sequences
from nopad.store.index import HASH
from nopad.store.spool_files import spool_files, text_array

__all__ = ["Progress", "Spool"]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a spool has come. Each line of its journal holds the progress at a commit.

    Attributes:
        blocks: number of source blocks consumed.
        chain: digest of the consumed blocks (`nopad.corpus.chain`), hex; the fingerprint of the source once `complete`.
        last: name of the last block consumed.
        consumed_bytes: total size of the blocks consumed, in bytes.
        sources: counts of the records of each source of a mixture, by name. If there is no mixture, all records are
            counted under the name "".
        files: for each file by name, its number of bytes at the last commit, and the SHA-256 of the bytes that this
            commit added.
        complete: whether the whole source is in the spool.
    """

    blocks: int = 0
    chain: str = CHAIN_START.hex()
    last: str = ""
    consumed_bytes: int = 0
    sources: Mapping[str, Counts] = field(default_factory=dict)
    files: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    complete: bool = False

    @property
    def counts(self) -> Counts:
        """Counts of the records of all sources together."""
        return sum(self.sources.values(), Counts())

    def to_line(self) -> bytes:
        """Return the progress as one journal line."""
        return sealed_line(asdict(self))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Progress:
        """Return the progress that a journal line states; `document` is the line's JSON object.

        Raises:
            ValueError, TypeError, KeyError: the object does not describe a progress.
        """
        for name in ("sources", "files"):
            if not isinstance(document[name], dict):
                raise ValueError(f"{name} of this progress is {document[name]!r}; expected an object")
        sources = {name: Counts.from_dict(counts) for name, counts in document["sources"].items()}
        files = {name: (size, digest) for name, (size, digest) in document["files"].items()}
        return cls(**{**document, "sources": sources, "files": files})


class Spool:
    """Appends sequences and commits them; an existing spool continues after its last commit.

    A commit is slow: it fsyncs the journal, four files, and one or two more files per column that is packed along. So
    `append` commits only if the last commit was at least `commit_every_s` seconds ago.

    Attributes:
        progress: what was appended so far, including what is not committed yet.
        history: the `Progress` of each valid commit so far, oldest first.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep_tokens: bool = True,
        carried: Sequence[Carried] = (),
        commit_every_s: float = 2.0,
    ) -> None:
        """Open the spool in `folder`, which must exist; the spool's files may be missing.

        Missing files are created when something is first written.

        Args:
            folder: the folder of the files.
            keep_tokens: whether tokens and the columns in `carried` are stored; if not, a hash of each sequence is
                stored instead.
            carried: the columns that are packed along with the tokens.
            commit_every_s: minimum number of seconds between two commits by `append`.

        Raises:
            StorageError: the spool cannot be read.
        """
        self._folder = folder
        self._layout = spool_files(keep_tokens, carried)
        self._carried = carried if keep_tokens else ()
        self._journal = folder / "journal.jsonl"
        self._commit_every_s = commit_every_s
        self._files: dict[str, Any] = {}
        self._bytes: dict[str, int] = {}
        self._hashes: dict[str, Any] = {}  # hashes of the bytes written to each file since the last commit
        with storage_errors("reading the spool in", folder):
            self.history = self._trusted()
        self.progress = self.history[-1] if self.history else Progress()

    @staticmethod
    def begun(folder: Path) -> bool:
        """Return whether `folder` holds the journal of a spool, which the first commit creates."""
        return (folder / "journal.jsonl").exists()

    def remaining(self, source: Source, on_bytes: Callable[[int], None]) -> Iterator[Block]:
        """Yield the source's blocks that are not in the spool yet, after checking that earlier blocks are unchanged.

        `on_bytes` is called with the `Block.progress` of each earlier block that was read for this check.

        Raises:
            ResumeError: the source changed or became shorter since the job started; the message says where.
        """
        digest, at, before, since = CHAIN_START, 0, "", ""
        # Copied, since the caller commits while iterating
        have, trusted = self.progress.blocks, {p.blocks: p for p in self.history}
        for block in source.blocks():
            if at >= have:
                yield block
                continue
            at += 1
            since = since or block.name
            digest = chain(digest, block)
            on_bytes(block.progress)
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

    def append(self, batch: Sequences, counts: Counts, blocks: list[Block]) -> None:
        """Append `batch`, which holds the sequences of `blocks`, and add `counts`, the counts of their records.

        There must be at least one block, and all must belong to the same source of a mixture. If the last commit (or
        the opening of the files) was at least `commit_every_s` seconds ago, all sequences so far are committed. A
        killed job loses only the sequences after its last commit.

        Raises:
            StorageError: the disk is full, or a write failed.
        """
        if not self._files:
            self._open()
        with storage_errors("spooling tokens to", self._folder):
            for name, file in self._layout.items() if len(batch) else ():
                values = np.ascontiguousarray(file.values(batch), dtype=file.dtype)
                if file.per == "end" and values.size:
                    # The size of the text so far, since ends are written before their text
                    values = values + self._bytes[name.removesuffix("-ends")]
                self._write(name, values)
        digest, source = bytes.fromhex(self.progress.chain), blocks[0].source
        for block in blocks:
            digest = chain(digest, block)
        self.progress = replace(
            self.progress,
            blocks=self.progress.blocks + len(blocks),
            chain=digest.hex(),
            last=blocks[-1].name,
            consumed_bytes=self.progress.consumed_bytes + sum(block.size for block in blocks),
            sources={**self.progress.sources, source: self.progress.sources.get(source, Counts()) + counts},
        )
        if time.monotonic() - self._committed_at >= self._commit_every_s:
            self.commit()

    def _write(self, name: str, values: NDArray[Any]) -> None:
        self._files[name].write(values.data)
        self._hashes[name].update(values.data)
        self._bytes[name] += values.nbytes

    def finish(self) -> None:
        """Commit the remaining sequences, mark the source as complete, and close the files; a second call does nothing.

        Raises:
            StorageError: the disk is full, or a write failed.
        """
        if not self.progress.complete:
            if not self._files:
                self._open()
            self.progress = replace(self.progress, complete=True)
            self.commit()
        self.close()

    def commit(self) -> None:
        """Write all values that were appended so far to disk (fsync), then add a journal line.

        Raises:
            StorageError: the disk is full, or a write failed.
        """
        files = {name: (self._bytes[name], self._hashes[name].hexdigest()) for name in self._files}
        self.progress = replace(self.progress, files=files)
        with storage_errors("spooling tokens to", self._folder):
            for file in self._files.values():
                file.flush()
                os.fsync(file.fileno())
            with open(self._journal, "ab") as journal:
                journal.write(self.progress.to_line())
                journal.flush()
                os.fsync(journal.fileno())
            fsync_path(self._folder)
        self.history.append(self.progress)
        self._begin_segment()

    def close(self) -> None:
        """Close the files; sequences that were not committed are lost."""
        for file in self._files.values():
            with suppress(OSError):  # on a full disk, writing out what is buffered fails once more
                file.close()
        self._files = {}

    def sequences(self, *, split: bool) -> Sequences:
        """Return the sequences of the finished spool; columns are memory-mapped.

        Only two things are in memory: the offset at which each sequence begins (8 bytes per sequence), and per-sequence
        columns of booleans. `split` says whether several sequences were made of some record; if so, the column
        ``seq_start`` is included.

        Raises:
            StorageError: a file cannot be read.
        """
        arrays = {name: self._map(name) for name in self._layout}
        begin = np.zeros(arrays["lengths"].size, dtype=np.int64)
        np.cumsum(arrays["lengths"][:-1], out=begin[1:])
        tokens = {"input_ids": arrays["tokens"]} if "tokens" in arrays else {}
        values = {"seq_index": arrays["record"], **({"seq_start": arrays["start"]} if split else {})}
        values |= {HASH: arrays["hash"]} if "hash" in arrays else {}
        for at, column in enumerate(self._carried):
            array = arrays[f"column-{at}"]
            if column.per == "token":
                tokens[column.name] = array
            elif column.type == "string":
                values[column.name] = text_array(arrays[f"column-{at}-ends"], array)
            else:
                values[column.name] = pa.array(array)
        return Sequences(seq_lengths=arrays["lengths"], tokens=tokens, values=values, begin=begin if tokens else None)

    def _map(self, name: str) -> NDArray[Any]:
        dtype = np.dtype(self._layout[name].dtype)
        size = self.progress.files[name][0] // dtype.itemsize
        if not size:  # an empty file, such as that of a column without any text, cannot be mapped
            return np.empty(0, dtype=dtype)
        with storage_errors("reading", self._path(name)):
            return np.memmap(self._path(name), dtype=dtype, mode="r", shape=(size,))

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.bin"

    def _trusted(self) -> list[Progress]:
        """Return the progress at each commit before the first damaged one; remove the other commits from the journal.

        A commit is damaged if its line in the journal is damaged, or if the files do not hold exactly the bytes that it
        added.
        """
        history: list[Progress] = []
        good = 0
        with ExitStack() as stack:
            paths = {name: self._path(name) for name in self._layout}
            files = {name: stack.enter_context(open(path, "rb")) for name, path in paths.items() if path.exists()}
            for document, end in sealed_lines(self._journal):
                try:
                    progress = Progress.from_document(document) if document else None
                except (ValueError, TypeError, KeyError):
                    progress = None
                if progress is None or not self._bears_out(files, history[-1:], progress):
                    break
                history.append(progress)
                good = end
        if self._journal.exists():
            os.truncate(self._journal, good)
        return history

    def _bears_out(self, files: Mapping[str, Any], before: Sequence[Progress], progress: Progress) -> bool:
        """Return whether the files hold exactly the bytes that a commit added.

        `progress` is the state at the commit, with the checksums of the bytes it added. `before` holds only the
        previous commit; it is empty for the first one. Each call reads `files` on from where the previous call ended.
        """
        if progress.files.keys() != files.keys() or files.keys() != self._layout.keys():
            return False
        for name, (end, digest) in progress.files.items():
            left = end - (before[0].files[name][0] if before else 0)
            found = hashlib.sha256()
            while left > 0 and (data := files[name].read(min(left, 1 << 22))):
                found.update(data)
                left -= len(data)
            if left or found.hexdigest() != digest:
                return False
        return True

    def _open(self) -> None:
        """Open the files for appending, truncated to what the journal has committed.

        If a file of the ends of strings is empty, a leading 0 is written to it.
        """
        with storage_errors("opening the spool in", self._folder):
            self._bytes = {name: self.progress.files.get(name, (0, ""))[0] for name in self._layout}
            for name in self._layout:
                file = open(self._path(name), "ab", buffering=1 << 20)  # noqa: SIM115 - closed by `close`
                self._files[name] = file
                os.truncate(file.fileno(), self._bytes[name])
            self._begin_segment()
            for name, layout in self._layout.items():
                if layout.per == "end" and not self._bytes[name]:
                    self._write(name, np.zeros(1, dtype=np.int64))  # the first string begins at 0

    def _begin_segment(self) -> None:
        """Start a new hash for each file, over the bytes written until the next commit, and store the present time.

        `append` compares this time with `commit_every_s`.
        """
        self._hashes = {name: hashlib.sha256() for name in self._layout}
        self._committed_at = time.monotonic()


_WAY_OUT = "delete the output folder to start over, or put the source back as it was"
