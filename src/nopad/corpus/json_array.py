"""Read a JSON file with one array of objects as runs (groups) of records, without holding all objects in memory.

The standard library parses objects one by one from a window of the text, at 50 MB/s. Memory: a few MiB, or more if one
object needs more. A file that holds one object per line is read by `nopad.corpus.runs.jsonl_runs` instead.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

from nopad.corpus.inputs import BYTE_ORDER_MARK, InputFile, not_utf8
from nopad.corpus.jsonl import described
from nopad.corpus.runs import ROWS, Bad, Run
from nopad.errors import RecordError

__all__ = ["array_runs", "is_array"]

_BYTES = 1 << 20
_LARGEST = 1 << 26  # characters of one object
_VALUE = re.compile(r'[{\["0-9tfnNI-]')  # first character of a JSON value
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")


def is_array(file: InputFile) -> bool:
    """Return whether a file holds a JSON array: whether its first character is ``[``.

    A byte order mark and white space at the beginning do not count.
    """
    first = b""
    for chunk in file.chunks(1 << 16):
        first += chunk
        if rest := first.removeprefix(b"\xef\xbb\xbf").strip():
            return rest.startswith(b"[")
    return False


def array_runs(file: InputFile) -> Iterator[Run]:
    """Yield the objects of a JSON array in runs (`Run`: consecutive records).

    A value that is not an object is a `Bad` record of its run.

    Raises:
        RecordError: the file is not a JSON array, is broken or cut short, or has an object that is too long. An object
            of up to 67 million characters (2^26) is always read, and one of more than three times as many never.
            Nothing after such an error can be read. The error is raised when the last run is decoded. Its message names
            the line, or the offset of bytes that are not UTF-8.
        SourceError: the file cannot be read, or changed since it was found.
    """
    part: list[dict[str, Any] | Bad] = []
    try:
        for item in _items(file):
            part.append(item)
            if len(part) == ROWS:
                yield Run(len(part), part.__iter__)
                part = []
    except RecordError as error:
        yield Run(len(part) + 1, partial(_then, part, error))
        return
    if part:
        yield Run(len(part), part.__iter__)


def _then(items: list[dict[str, Any] | Bad], error: RecordError) -> Iterator[dict[str, Any] | Bad]:
    yield from items
    raise error


class _Window:
    """The part of a file's text that is being parsed.

    Attributes:
        text: the characters of the part.
        line: number of the line at which the part begins.
    """

    def __init__(self, file: InputFile) -> None:
        self.file = file
        self.text, self.line = "", 1
        self._chunks = _decoded(file)

    def grow(self, at: int) -> bool:
        """Drop the text before index `at`, then read more text behind the rest; return whether any was read.

        Text is read until there is at least twice as much as was kept, or the file ends. The character that was at
        index `at` is now at index 0.
        """
        self.line += self.text.count("\n", 0, at)
        parts, wanted = [self.text[at:]], max(len(self.text) - at, 1)
        while wanted > 0 and (chunk := next(self._chunks, "")):
            parts.append(chunk)
            wanted -= len(chunk)
        self.text = "".join(parts)
        return len(parts) > 1

    def bad(self, at: int, reason: str) -> Bad:
        """Return a `Bad` record for the value that begins at index `at` of the text; `reason` says why it is bad."""
        return Bad(f"{self.file.path}, line {self.line + self.text.count(chr(10), 0, at)}", reason)

    def error(self, at: int, reason: str) -> RecordError:
        """Return the error for a file that cannot be read beyond index `at` of the text; `reason` says why."""
        return self.bad(at, reason).error()

    def after_space(self, at: int) -> int:
        """Return the index of the next character that is not white space, reading more text if needed.

        At the end of the file, the text is empty, and the index is 0.
        """
        while True:
            match = _SPACE.match(self.text, at)
            at = match.end() if match else at
            if at < len(self.text):
                return at
            if not self.grow(at):
                return 0
            at = 0


def _decoded(file: InputFile) -> Iterator[str]:
    decoder, done = codecs.getincrementaldecoder("utf-8")(), 0
    for data in chain(file.chunks(_BYTES), [b""]):
        try:
            if text := decoder.decode(data, final=not data):
                yield text
        except UnicodeDecodeError as error:
            raw = error.object  # the first bytes may be of the chunk before: a character cut in two
            part = f"part from byte {done + len(data) - len(raw)} on"
            raise RecordError(f"{file.path}: {not_utf8(raw, error, part)}") from error
        done += len(data)


def _value(window: _Window, at: int) -> tuple[Any, int, int]:
    """Read the JSON value that begins at index `at` of the window's text; return ``(value, begin, end)``.

    `begin` and `end` are the indices in the text between which the value lies. `begin` is `at`, or 0 if the window had
    to read on to find the value's end, since it then drops the text before the value.

    Raises:
        RecordError: the value is broken, cut short, nested too deeply, or too long.
    """
    while True:
        try:
            item, end = _DECODER.raw_decode(window.text, at)
            if isinstance(item, dict) or end < len(window.text):
                return item, at, end
            more, end, at = window.grow(at), end - at, 0  # a number may continue in text that is not read yet
            if not more:
                return item, at, end
        except RecursionError:
            raise window.error(at, "broken JSON: nested too deeply") from None
        except ValueError as error:
            place = getattr(error, "pos", at) - at
            large = len(window.text) - at > _LARGEST
            more, at = window.grow(at), 0
            reason = str(error).split(":")[0].split(";")[0]
            if large and more:
                most = f"a value of more than {_LARGEST:,} characters, the most that is read"
                raise window.error(at, f"{most}, or broken JSON: {reason}") from None
            if not more:
                raise window.error(place, f"broken JSON: {reason}") from None


def _items(file: InputFile) -> Iterator[dict[str, Any] | Bad]:
    window = _Window(file)
    window.grow(0)
    window.text = window.text.removeprefix(BYTE_ORDER_MARK)
    at = window.after_space(0)
    if window.text[at : at + 1] != "[":
        raise window.error(at, "this is no JSON array")
    at, wants = window.after_space(at + 1), "a value or ]"
    while window.text[at : at + 1] != "]":
        if not _VALUE.match(window.text, at) or wants == ", or ]":
            found = window.text[at : at + 20]
            raise window.error(at, f"broken JSON: expected {wants}, found {found!r}" if found else "cut short: no ]")
        item, at, end = _value(window, at)
        yield item if isinstance(item, dict) else window.bad(at, f"not a JSON object but {described(item)}")
        at, wants = window.after_space(end), ", or ]"
        if window.text[at : at + 1] == ",":
            at, wants = window.after_space(at + 1), "a value"
            if window.text[at : at + 1] == "]":
                raise window.error(at, "broken JSON: a comma before ]")
        elif window.text[at : at + 1] == "{":
            raise window.error(at, "broken JSON: no comma between two objects")
    at = window.after_space(at + 1)
    if window.text[at : at + 1]:
        raise window.error(at, f"more after the array: {window.text[at : at + 20]!r}")
