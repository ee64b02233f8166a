"""Tables as sources: the seam, and files of them, Parquet and Arrow.

A table source gives record batches of a few thousand rows; what is in them is the business of `selection` and `rows`.
A block is one batch, cut at the same rows every time, and proven before anything looks into it (`batches`). Reading
costs what Arrow's decoder costs, and one copy of an Arrow file, whose batches must each fit in memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nopad.corpus.batches import checked, cut, rows_of
from nopad.corpus.inputs import InputFile
from nopad.corpus.options import ReaderOptions
from nopad.corpus.rows import decode_rows
from nopad.corpus.selection import Selection, select
from nopad.corpus.source import BLOCK_BYTES, Block, Source
from nopad.errors import NopadError, SourceError

__all__ = ["ArrowFile", "ParquetFile", "TableSource"]

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
ARROW_FILE = b"ARROW1"


class TableSource(Source):
    """A source of record batches of one schema.

    Raises:
        SourceError: a column that is wanted is missing, or of a type that cannot be read.
    """

    def __init__(self, name: str, path: str, schema: pa.Schema, options: ReaderOptions) -> None:
        """Choose the columns."""
        self._name = name
        self._path = path
        self._options = options
        self.selection: Selection = select(schema, options, path)
        self._columns = pa.schema([schema.field(name) for name in self.selection.columns])
        self.kind = self.selection.kind
        self.carried = self.selection.carried
        self.left_out = self.selection.left_out
        self.mask = self.selection.mask

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, at least the selected columns, cut at the same places at every call."""

    def pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Cut a proven batch further, where batches may be large."""
        yield batch

    def settings(self) -> dict[str, Any]:
        """Which columns are read, and options."""
        return self._options.settings()

    def blocks(self) -> Iterator[Block]:
        """One block per batch."""
        decoder = partial(decode_rows, selection=self.selection)
        row = 1
        for batch in self.batches():
            for data in self.pieces(checked(batch, self._columns, self._path, row)):
                yield Block(name=self._name, data=data, decoder=decoder, first_line=row, path=self._path)
                row += data.num_rows


class ParquetFile(TableSource):
    """One Parquet file. Its footer is read when it is opened; a file cut short is found there."""

    def __init__(self, file: InputFile, options: ReaderOptions, *, block_bytes: int = BLOCK_BYTES) -> None:
        """Read the footer."""
        self._file = file
        self._block_bytes = block_bytes
        with file.random() as opened, _library_errors(file, "Parquet"):
            self._metadata = pq.read_metadata(opened)
            schema = self._metadata.schema.to_arrow_schema()
        super().__init__(file.name, str(file.path), schema, options)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Row groups, cut into batches of about `block_bytes`."""
        with self._file.random() as opened, _library_errors(self._file, "Parquet"):
            parquet = pq.ParquetFile(opened, page_checksum_verification=True)
            if not parquet.metadata.equals(self._metadata):
                raise SourceError(f"{self._path}: replaced while the job was running; run again when nothing writes")
            for group in range(self._metadata.num_row_groups):
                described = self._metadata.row_group(group)
                rows = rows_of(self._block_bytes, described.total_byte_size, described.num_rows)
                read = 0
                for batch in parquet.iter_batches(rows, row_groups=[group], columns=self.selection.columns):
                    read += batch.num_rows
                    self._file.prove(opened)
                    yield batch
                if read != described.num_rows:
                    raise pa.ArrowInvalid(f"row group {group} holds {read:,} of its {described.num_rows:,} rows")

    def inventory(self) -> list[tuple[str, int]]:
        """This file's name and size."""
        return [(self._file.name, self._file.size)]


class ArrowFile(TableSource):
    """One Arrow (Feather) file, or a stream as `datasets` saves it."""

    def __init__(self, file: InputFile, options: ReaderOptions, *, block_bytes: int = BLOCK_BYTES) -> None:
        """Read the schema."""
        self._file = file
        self._block_bytes = block_bytes
        with file.random() as opened, _library_errors(file, "Arrow"):
            schema = _opened(opened).schema
        super().__init__(file.name, str(file.path), schema, options)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The file's own batches."""
        with self._file.random() as opened, _library_errors(self._file, "Arrow"):
            found = _opened(opened)
            numbered = isinstance(found, pa.RecordBatchFileReader)
            if not numbered:
                self._check_end(opened)
            for batch in map(found.get_batch, range(found.num_record_batches)) if numbered else found:
                self._file.prove(opened)
                yield batch

    def pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Pieces of about `block_bytes`."""
        return cut(batch, self._block_bytes)

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
def _library_errors(file: InputFile, kind: str) -> Iterator[None]:
    """Turn what Arrow makes of a damaged file into a SourceError that names it."""
    try:
        yield
    except NopadError:
        raise
    except OSError as error:
        if error.errno is not None:  # of the disk, not of what is on it
            raise
        raise _damaged(file, kind, error) from error
    except Exception as error:  # damaged bytes reach every corner of a library
        raise _damaged(file, kind, error) from error


def _damaged(file: InputFile, kind: str, error: Exception) -> SourceError:
    reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    return SourceError(f"{file.path}: not a whole {kind} file ({reason}); make it again, or leave it out")


def _opened(file: Any) -> Any:
    """Open an Arrow file, or else an Arrow stream.

    All columns are read: told which ones to read, Arrow takes what a short read left in memory for their values.
    """
    start = file.read(len(ARROW_FILE))
    file.seek(0)
    return (pa.ipc.open_file if start == ARROW_FILE else pa.ipc.open_stream)(file)
