"""Tables as sources: the base class, and Parquet and Arrow files.

A table source yields record batches; `nopad.corpus.selection` chooses their columns, and `nopad.corpus.rows` decodes
them. A block is one batch or a part of a batch, cut at the same rows in every pass, and validated before it is used
(`nopad.corpus.batches`). Reading is as fast as Arrow decodes. Batches of an Arrow file are copied once, and each must
fit in memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
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
from nopad.wording import first_line

__all__ = [
    "ArrowFile",
    "ParquetFile",
    "TableSource",
    "arrow_batches",
    "arrow_schema",
    "check_ended",
    "library_errors",
    "opened_arrow",
    "parquet_batches",
    "parquet_footer",
]

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
ARROW_FILE = b"ARROW1"


class TableSource(Source):
    """Base class of sources of record batches with one schema; a subclass must define `batches`.

    Args:
        name: name of the table in fingerprints.
        path: path of the table, for messages.
        schema: schema of the table.
        options: which columns are read.

    Raises:
        SourceError: a wanted column is missing, occurs twice, or has a type that cannot be read; or
            `nopad.corpus.selection.select` refuses the columns for another reason.
    """

    def __init__(self, name: str, path: str, schema: pa.Schema, options: ReaderOptions) -> None:
        """Choose the columns to read."""
        self._name = name
        self._path = path
        self._options = options
        self.selection: Selection = select(schema, options, path)
        self._total_rows = 0  # 0: not known
        self._columns = pa.schema([schema.field(name) for name in self.selection.columns])
        self.kind = self.selection.kind
        self.carried = self.selection.carried
        self.left_out = self.selection.left_out
        self.mask = self.selection.mask

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows as record batches that have at least the selected columns; the same batches at every call."""

    def pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the parts into which a validated batch is cut, by default only the batch itself.

        Sources with large batches override this.
        """
        yield batch

    def settings(self) -> dict[str, Any]:
        """Return the `ReaderOptions` by name as JSON values."""
        return self._options.settings()

    def blocks(self) -> Iterator[Block]:
        """Yield one block for each part into which `pieces` cuts a batch; by default, this is the whole batch."""
        decoder = partial(decode_rows, selection=self.selection)
        row, before = 1, 0
        for batch in self.batches():
            begin, here = row, self.read_bytes()
            for data in self.pieces(checked(batch, self._columns, self._path, row)):
                read = None
                if here is not None:  # each row of the batch counts the same
                    read = _part(here - before, row - begin, data.num_rows, batch.num_rows)
                elif self._total_rows:
                    read = _part(self.total_bytes or 0, row - 1, data.num_rows, self._total_rows)
                yield Block(name=self._name, data=data, decoder=decoder, first_line=row, path=self._path, read=read)
                row += data.num_rows
            before = here or 0

    def _of_rows(self, rows: int, stored: int) -> None:
        """Set `total_bytes` to `stored`, the bytes that the table takes, and store `rows`, its number of rows.

        From these numbers, `blocks` computes how far each block advances a progress bar (`Block.read`). Rows are
        assumed to be of equal size.
        """
        self._total_rows, self.total_bytes = rows, stored


def _part(size: int, first: int, rows: int, of: int) -> int:
    """Return how many bytes a part of a table (or batch) takes: `rows` rows, the first of which has the index `first`.

    The whole table has `of` rows and takes `size` bytes. Rows are assumed to be of equal size. The results for adjacent
    parts that make up the whole table add up to `size`.
    """
    return size * (first + rows) // of - size * first // of


class ParquetFile(TableSource):
    """One Parquet file as a source; `block_bytes` is about how many bytes a block has.

    Raises:
        SourceError: the footer is damaged or cannot be read, the file changed since it was found, or the columns are
            refused (`nopad.corpus.selection.select`).
    """

    def __init__(self, file: InputFile, options: ReaderOptions, *, block_bytes: int = BLOCK_BYTES) -> None:
        """Read the footer, and choose the columns to read."""
        self._file = file
        self._block_bytes = block_bytes
        self._metadata, schema = parquet_footer(file)
        super().__init__(file.name, str(file.path), schema, options)
        self._of_rows(self._metadata.num_rows, file.size)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield batches of about `block_bytes` bytes, and at most 65,536 rows, from each row group."""
        return parquet_batches(self._file, self._metadata, self._block_bytes, self.selection.columns)

    def files(self) -> list[InputFile]:
        """Return a list that holds only this file."""
        return [self._file]


class ArrowFile(TableSource):
    """One Arrow (Feather) file as a source, or one file that holds an Arrow stream, as `datasets` saves it.

    `block_bytes` is about how many bytes a block has.

    Raises:
        SourceError: the schema is damaged or cannot be read, the file changed since it was found, or the columns are
            refused (`nopad.corpus.selection.select`).
    """

    def __init__(self, file: InputFile, options: ReaderOptions, *, block_bytes: int = BLOCK_BYTES) -> None:
        """Read the schema of the file, and choose the columns to read."""
        self._file = file
        self._block_bytes = block_bytes
        self.total_bytes = file.size
        schema = arrow_schema(file)
        super().__init__(file.name, str(file.path), schema, options)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of the file, as they are stored."""
        return arrow_batches(self._file)

    def pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield slices of `batch`, each of about `block_bytes` bytes and of at most 65,536 rows."""
        return cut(batch, self._block_bytes)

    def read_bytes(self) -> int:
        """Return how many stored bytes of the file the latest pass has read."""
        return self._file.meter.read

    def files(self) -> list[InputFile]:
        """Return a list that holds only this file."""
        return [self._file]


def parquet_footer(file: InputFile) -> tuple[Any, pa.Schema]:
    """Return the metadata and the schema of a Parquet file.

    Raises:
        SourceError: the file has no sound Parquet footer, cannot be read, or changed since it was found.
    """
    with file.random() as opened, library_errors(file, "Parquet"):
        metadata = pq.read_metadata(opened)
        return metadata, metadata.schema.to_arrow_schema()


def parquet_batches(
    file: InputFile, metadata: Any, block_bytes: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield batches of about `block_bytes` bytes, and at most 65,536 rows, from each row group of a Parquet file.

    The batches are the same at every call. `metadata` is the file's metadata from `parquet_footer`. `columns` are the
    names of the columns to read; None: all columns are read.

    Raises:
        SourceError: the file is damaged, cannot be read, or changed since it was found.
    """
    with file.random() as opened, library_errors(file, "Parquet"):
        parquet = pq.ParquetFile(opened, page_checksum_verification=True)
        if not parquet.metadata.equals(metadata):
            raise SourceError(f"{file.path}: replaced while the job was running; run again when nothing writes")
        for group in range(metadata.num_row_groups):
            described = metadata.row_group(group)
            rows = rows_of(block_bytes, described.total_byte_size, described.num_rows)
            read = 0
            for batch in parquet.iter_batches(rows, row_groups=[group], columns=columns):
                read += batch.num_rows
                file.prove(opened)
                yield batch
            if read != described.num_rows:
                raise pa.ArrowInvalid(f"row group {group} holds {read:,} of its {described.num_rows:,} rows")


def arrow_schema(file: InputFile) -> pa.Schema:
    """Return the schema of an Arrow file or stream.

    Raises:
        SourceError: the file is not an Arrow file or stream, cannot be read, or changed since it was found.
    """
    with file.random() as opened, library_errors(file, "Arrow"):
        return opened_arrow(opened).schema


def arrow_batches(file: InputFile) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of an Arrow file or stream, as they are stored.

    Raises:
        SourceError: the file is damaged or cut short, cannot be read, or changed since it was found.
    """
    with file.random() as opened, library_errors(file, "Arrow"):
        found = opened_arrow(opened, file.path)
        numbered = isinstance(found, pa.RecordBatchFileReader)
        for number, batch in enumerate(map(found.get_batch, range(found.num_record_batches)) if numbered else found, 1):
            file.prove(opened)
            file.meter.read = file.size * number // found.num_record_batches if numbered else opened.tell()
            yield batch


@contextmanager
def library_errors(file: InputFile, kind: str) -> Iterator[None]:
    """In a ``with`` block, turn any error that a damaged file causes in Arrow into a SourceError that names the file.

    Errors of nopad and of the disk pass unchanged. `kind` is what messages call the format, such as "Parquet".
    """
    try:
        yield
    except NopadError:
        raise
    except OSError as error:
        if error.errno is not None:  # an error of the disk, not of the file's content
            raise
        raise _damaged(file, kind, error) from error
    except Exception as error:  # damaged bytes can raise any error in a library
        raise _damaged(file, kind, error) from error


def _damaged(file: InputFile, kind: str, error: Exception) -> SourceError:
    reason = first_line(error).rstrip(".")
    return SourceError(f"{file.path}: not a whole {kind} file ({reason}); make it again, or leave it out")


def opened_arrow(file: Any, path: Path | str | None = None) -> Any:
    """Return pyarrow's reader of an open Arrow file or stream.

    If `path` is given, a stream without its end mark is refused, since a stream that was cut short between two batches
    would otherwise seem complete. The reader reads all columns: if it read only some, Arrow would not notice a short
    read, and would read leftover memory as values. Errors of pyarrow are raised as they are.

    Raises:
        SourceError: `path` is given, and the stream has no end mark; the message names `path`.
    """
    start = file.read(len(ARROW_FILE))
    file.seek(0)
    if start == ARROW_FILE:
        return pa.ipc.open_file(file)
    if path is not None:
        check_ended(file, path)
    return pa.ipc.open_stream(file)


def check_ended(file: Any, path: Path | str) -> None:
    """Refuse an open Arrow stream without its end mark; the message names `path`.

    Raises:
        SourceError: the stream has no end mark.
    """
    file.seek(max(file.size() - len(END_OF_STREAM), 0))
    end = file.read(len(END_OF_STREAM))
    file.seek(0)
    if end != END_OF_STREAM:
        raise SourceError(
            f"{path}: an Arrow stream without its end mark, so it was cut short, or is still being written; "
            "make it again, or leave it out"
        )
