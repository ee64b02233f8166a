"""Tables as sources: the seam, and files of them, Parquet and Arrow.

A table source gives record batches of a few thousand rows; what is in them is the business of `selection` and `rows`.
A block is one batch, cut at the same rows every time. Reading costs what Arrow's decoder costs; nothing is copied
twice.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nopad.corpus.inputs import InputFile, reading
from nopad.corpus.rows import decode_rows
from nopad.corpus.selection import Reading, Selection, select
from nopad.corpus.source import BLOCK_BYTES, Block, Source
from nopad.errors import SourceError

__all__ = ["ArrowFile", "ParquetFile", "TableSource"]

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
BATCH_ROWS = 1 << 16  # at most; fewer where rows are long


class TableSource(Source):
    """A source of record batches of one schema.

    Raises:
        SourceError: a column that is wanted is missing, or of a type that cannot be read.
    """

    def __init__(self, name: str, path: str, schema: pa.Schema, how: Reading) -> None:
        """Choose the columns."""
        self._name = name
        self._path = path
        self._how = how
        self.selection: Selection = select(schema, how, path)
        self.kind = self.selection.kind
        self.carried = self.selection.carried
        self.left_out = self.selection.left_out
        self.mask = self.selection.mask

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, at least the selected columns, cut at the same places at every call."""

    def settings(self) -> dict[str, Any]:
        """Which columns are read, and how."""
        return self._how.settings()

    def blocks(self) -> Iterator[Block]:
        """One block a batch."""
        decoder = partial(decode_rows, selection=self.selection)
        row = 1
        for batch in self.batches():
            data = batch.select(self.selection.columns)
            yield Block(name=self._name, data=data, decoder=decoder, first_line=row, path=self._path)
            row += batch.num_rows


class ParquetFile(TableSource):
    """One Parquet file. Its footer is read when it is opened; a file cut short is found there."""

    def __init__(self, file: InputFile, how: Reading, *, block_bytes: int = BLOCK_BYTES) -> None:
        """Read the footer."""
        self._file = file
        self._block_bytes = block_bytes
        with _tables(file, "Parquet"), file.random() as opened:
            self._metadata = pq.read_metadata(opened)
            schema = self._metadata.schema.to_arrow_schema()
        super().__init__(file.name, str(file.path), schema, how)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Row groups, cut into batches of about `block_bytes`."""
        with _tables(self._file, "Parquet"), self._file.random() as opened:
            parquet = pq.ParquetFile(opened)
            for group in range(self._metadata.num_row_groups):
                described = self._metadata.row_group(group)
                rows = _rows(self._block_bytes, described.total_byte_size, described.num_rows)
                yield from parquet.iter_batches(rows, row_groups=[group], columns=self.selection.columns)

    def inventory(self) -> list[tuple[str, int]]:
        """This file's name and size."""
        return [(self._file.name, self._file.size)]


class ArrowFile(TableSource):
    """One Arrow (Feather) file, or a stream as `datasets` saves it."""

    def __init__(self, file: InputFile, how: Reading, *, block_bytes: int = BLOCK_BYTES) -> None:
        """Read the schema."""
        self._file = file
        self._block_bytes = block_bytes
        with _tables(file, "Arrow"), file.random() as opened:
            schema = _opened(opened).schema
        super().__init__(file.name, str(file.path), schema, how)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The file's own batches, cut into pieces of about `block_bytes`."""
        with _tables(self._file, "Arrow"), self._file.random() as opened:
            found = _opened(opened)
            numbered = isinstance(found, pa.RecordBatchFileReader)
            if not numbered:
                self._check_end(opened)
            batches = map(found.get_batch, range(found.num_record_batches)) if numbered else found
            for batch in batches:
                batch = batch.select(self.selection.columns)
                rows = _rows(self._block_bytes, batch.nbytes, batch.num_rows)
                yield from (batch.slice(at, rows) for at in range(0, batch.num_rows, rows))

    def _check_end(self, opened: Any) -> None:
        """A stream that was cut between two batches reads as a whole one: only its end mark tells."""
        at = opened.tell()
        opened.seek(max(opened.size() - len(END_OF_STREAM), 0))
        end = opened.read(len(END_OF_STREAM))
        opened.seek(at)
        if end != END_OF_STREAM:
            raise SourceError(
                f"{self._path}: an Arrow stream without its end mark, so it was cut short, or is still being written; "
                "make it again, or leave it out"
            )

    def inventory(self) -> list[tuple[str, int]]:
        """This file's name and size."""
        return [(self._file.name, self._file.size)]


@contextmanager
def _tables(file: InputFile, kind: str) -> Iterator[None]:
    """Turn Arrow's errors into a SourceError that names the file."""
    with reading(file.path):
        try:
            yield
        except (pa.ArrowInvalid, pa.ArrowSerializationError, pa.ArrowNotImplementedError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise SourceError(
                f"{file.path}: not a whole {kind} file ({reason}); make it again, or leave it out"
            ) from error


def _opened(file: Any) -> Any:
    """Open an Arrow file, or else an Arrow stream."""
    try:
        return pa.ipc.open_file(file)
    except pa.ArrowInvalid:
        file.seek(0)
        return pa.ipc.open_stream(file)


def _rows(block_bytes: int, size: int, rows: int) -> int:
    """Return how many rows make about `block_bytes`."""
    return min(max(block_bytes * rows // max(size, 1), 1), BATCH_ROWS)
