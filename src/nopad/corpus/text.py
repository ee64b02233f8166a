"""Plain text files in UTF-8: one document per file, line or paragraph.

A byte order mark at the start of a file is not content.

With one document per line, a document is the line without its line end (LF or CRLF). An empty line is then an empty
document, which is skipped or refused as `CorpusOptions.empty` says. A paragraph is a run of lines between empty lines
or lines of white space, so it is never empty. With one document per file, a file is read as a whole and tokenised on
one core, which is slow for large files; a file of more than 8 MiB is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nopad.corpus.inputs import BYTE_ORDER_MARK, InputFile, not_utf8
from nopad.corpus.options import TextUnit
from nopad.corpus.records import DOCUMENT_BYTES, TOO_LONG, BadRecord, Kind, Record
from nopad.corpus.source import BLOCK_BYTES, Block, Source
from nopad.errors import SourceError

_WHOLE_PARAGRAPHS = re.compile(rb".*\n[ \t\r]*\n", re.DOTALL)


class TextFile(Source):
    """A text file as a source of documents; its `kind` is "text".

    Args:
        file: the file.
        unit: what a document is: the whole "file", a "line" or a "paragraph".
        block_bytes: about how many bytes a block of lines or paragraphs has.

    Raises:
        SourceError: `unit` is "file", and the file is too large to be tokenised at once (more than 8 MiB,
            `DOCUMENT_BYTES`). For a compressed file, this is found while reading.
    """

    kind: Kind | None = "text"

    def __init__(self, file: InputFile, *, unit: TextUnit = "file", block_bytes: int = BLOCK_BYTES):
        self._file = file
        self._unit = self.text_unit = unit
        self._block_bytes = block_bytes
        self.total_bytes = file.size
        if unit == "file" and not file.compression:
            self._check_size(file.size)

    def blocks(self) -> Iterator[Block]:
        """Yield the file as a single block if it is one document, else blocks of whole lines or paragraphs."""
        return self.blocks_from((0,) if self._unit == "file" else (0, 1))

    def blocks_from(self, at: tuple[int, ...]) -> Iterator[Block]:
        """Yield the blocks from a given line on.

        `at` is ``(offset, number)``: the line's offset in bytes in the decompressed content, and its 1-based number. A
        file that is one document has a single block, which is yielded whatever `at` is.
        """
        file, path = self._file, str(self._file.path)
        if self._unit == "file":
            data = file.whole(DOCUMENT_BYTES)
            self._check_size(len(data))
            yield Block(name=file.name, data=data, decoder=decode_document, path=path, whole=True, at=(0,))
            return
        blocks, decoder = file.line_blocks(self._block_bytes, *at), decode_lines
        if self._unit == "paragraph":
            blocks, decoder = _whole_paragraphs(blocks), decode_paragraphs
        for data, offset, line in blocks:
            yield Block(name=file.name, data=data, decoder=decoder, first_line=line, path=path, at=(offset, line))

    def _check_size(self, size: int) -> None:
        if size > DOCUMENT_BYTES:
            shown = f"{size:,} bytes" if not self._file.compression else f"more than {DOCUMENT_BYTES:,} bytes"
            raise SourceError(
                f"{self._file.path}: one document of {shown}{TOO_LONG}, or take each line or paragraph for one with "
                'text_unit="line" or "paragraph"'
            )

    def read_bytes(self) -> int:
        """Return how many stored bytes of the file the latest pass has read."""
        return self._file.meter.read

    def inventory(self) -> list[tuple[str, int]]:
        """Return one ``(name, bytes)`` pair: this file's name, and its stored size."""
        return [(self._file.name, self._file.size)]


def _whole_paragraphs(blocks: Iterator[tuple[bytes, int, int]]) -> Iterator[tuple[bytes, int, int]]:
    """Cut blocks of whole lines anew, at blank lines only, so that no paragraph is in two blocks.

    A block is (data, offset in bytes, number of the first line). The given and the yielded blocks hold the same bytes
    in the same order.
    """
    rest, begin, first = b"", 0, 1
    for data, offset, line in blocks:
        if not rest:
            begin, first = offset, line
        rest += data
        found = _WHOLE_PARAGRAPHS.match(rest)
        if found:
            yield found[0], begin, first
            begin, first, rest = begin + found.end(), first + found[0].count(b"\n"), rest[found.end() :]
    if rest:
        yield rest, begin, first


def decode_document(data: bytes, line: int) -> Iterator[Record | BadRecord]:
    """Yield all of `data` as one record, or as one bad record if it is not UTF-8; its line number is `line`."""
    yield _decode(data, line, "file")


def decode_lines(data: bytes, first_line: int) -> Iterator[Record | BadRecord]:
    """Yield one record per line of `data`; a line that is not UTF-8 is a bad record.

    What follows the last line end is a line only if it is not empty. `first_line` is the number of the first line.
    """
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for line, raw in enumerate(lines, first_line):
        yield _decode(raw.removesuffix(b"\r"), line, "line")


def decode_paragraphs(data: bytes, first_line: int) -> Iterator[Record | BadRecord]:
    """Yield one record per run of lines of `data` that are not blank; a run that is not UTF-8 is a bad record.

    The line number of a record is that of its first line. `first_line` is the number of the first line of `data`.
    """
    paragraph: list[bytes] = []
    for line, raw in enumerate([*data.split(b"\n"), b""], first_line):
        raw = raw.removesuffix(b"\r")
        if raw.strip():
            paragraph.append(raw)
        elif paragraph:
            yield _decode(b"\n".join(paragraph), line - len(paragraph), "paragraph")
            paragraph = []


def _decode(raw: bytes, line: int, unit: str) -> Record | BadRecord:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        return BadRecord(line=line, reason=not_utf8(raw, error, unit))
    return Record(line=line, text=text.removeprefix(BYTE_ORDER_MARK) if line == 1 else text)
