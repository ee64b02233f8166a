"""JSON Lines: one object per line, with text or a list of ready-made token ids in one of its fields.

If no field is named, the first object of each file decides. ``text`` is read if it is a string and ``input_ids`` is
not a list. Otherwise, ``input_ids`` is read if the object has it, else ``text``. The first thousand objects with
content decide the types of columns that are packed along. Empty lines are skipped: they count as lines, not as records.
Any other line becomes a `BadRecord` if it holds no object, or if the object's field has no text or ids. Lines are
parsed by orjson on one core, many times faster than any tokenizer works. Lines that orjson refuses, or whose integers
it may have rounded, are parsed by the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from nopad.corpus.columns import no_column
from nopad.corpus.inputs import BYTE_ORDER_MARK, InputFile, not_utf8
from nopad.corpus.objects import decode_dicts, schema_of
from nopad.corpus.options import ReaderOptions
from nopad.corpus.records import BadRecord, Kind, Record, Records, ids_record, shown, text_run
from nopad.corpus.selection import Selection, select
from nopad.corpus.source import BLOCK_BYTES, Block, Decoder, Source
from nopad.errors import SourceError
from nopad.notation import from_json

TYPICAL = 1000  # objects that show what types the fields have
_ROUNDED = 2.0**63  # and above, orjson gives a float for an integer


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """The field to read from each object: its `name`, and its `kind`, "text" or "ids"."""

    name: str
    kind: Kind


class JsonlFile(Source):
    """The source of one JSON Lines file; if `options` name no field, the first object decides which field is read.

    Its `kind`, the content of the field, is "text" or "ids". It is None only if `options` name no field and no line of
    the file is a JSON object.

    Args:
        file: the file.
        options: which field and columns are read; None: the defaults of `ReaderOptions`.
        block_bytes: about how many bytes are read at once, as one block of whole lines.

    Raises:
        SourceError: `options` name no field, and the first object has neither ``input_ids`` nor ``text``; `options`
            name a field, there are objects, and none has this field; a column to carry or the one that marks padding is
            missing, cannot be read or is used twice; a column to carry has a name that nopad writes itself; labels are
            all null, or stand beside ``assistant_masks``; the file is one of a packed dataset; or it cannot be read.
    """

    def __init__(self, file: InputFile, *, options: ReaderOptions | None = None, block_bytes: int = BLOCK_BYTES):
        options = options or ReaderOptions()
        self._file = file
        self._block_bytes = block_bytes
        self._field = _named_field(options) or detect_field(file)
        self.kind = self._field.kind if self._field else None
        self.total_bytes = file.size
        self._selection: Selection | None = None
        self._schema: pa.Schema | None = None  # of the columns that are read; None: only the content is
        typical = list(islice(_typical(file, self._field), TYPICAL)) if self._field else []
        if self._field and not typical:
            _check_somewhere(file, self._field.name)
            # A list without ids is a record too, and would lack the columns of other files
            self.columns_known = any(value.get(self._field.name) == [] for _, value in json_objects(file))
        if self._field and typical:
            line = typical[0][0]
            name, is_text = self._field.name, self._field.kind == "text"
            named = replace(options, text_field=name if is_text else None, ids_field=None if is_text else name)
            schema = schema_of([item for _, item in typical])
            self._selection = selection = select(schema, named, f"{file.path}, line {line}")
            self.carried, self.left_out, self.mask = selection.carried, selection.left_out, selection.mask
            if len(selection.columns) > 1 or selection.pad_id is not None:
                self._schema = pa.schema([schema.field(name) for name in selection.columns])

    def blocks(self) -> Iterator[Block]:
        """Yield blocks of whole lines."""
        return self.blocks_from((0, 1))

    def blocks_from(self, at: tuple[int, ...]) -> Iterator[Block]:
        """Yield the blocks from a line on.

        `at` is (offset of the line in bytes, in the decompressed content; its 1-based number).
        """
        field = self._field or Field(name="text", kind="text")
        decoder: Decoder = partial(decode_objects, field=field, selection=self._selection)
        if self._selection is not None and self._schema is not None:
            decoder = partial(decode_columns, schema=self._schema, selection=self._selection)
        name, path = self._file.name, str(self._file.path)
        for data, offset, line in self._file.line_blocks(self._block_bytes, *at):
            here = (offset, line)
            yield Block(name=name, data=data, decoder=decoder, first_line=line, path=path, by_line=True, at=here)

    def read_bytes(self) -> int:
        """Return how many stored bytes of the file the latest pass has read."""
        return self._file.meter.read

    def files(self) -> list[InputFile]:
        """Return a list that holds only this file."""
        return [self._file]


def _named_field(options: ReaderOptions) -> Field | None:
    if options.ids_field is not None:
        return Field(name=options.ids_field, kind="ids")
    return Field(name=options.text_field, kind="text") if options.text_field is not None else None


def detect_field(file: InputFile) -> Field | None:
    """Return the field to read, according to the first object of the file; None if no line holds an object.

    Raises:
        SourceError: the object has neither ``input_ids`` nor ``text``; the message lists its keys.
    """
    for line, value in json_objects(file):
        if isinstance(value.get("text"), str) and not isinstance(value.get("input_ids"), list):
            return Field(name="text", kind="text")
        if "input_ids" in value:
            return Field(name="input_ids", kind="ids")
        if "text" in value:
            return Field(name="text", kind="text")
        raise SourceError(
            f"{file.path}, line {line}: neither 'input_ids' nor 'text' in this object; {_keys(value)}; "
            "choose one with text_field= or ids_field="
        )
    return None


def _typical(file: InputFile, field: Field) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line, object) for each object that has content in `field`.

    Content is a string in a field of texts, and a list of integers that is not empty in a field of ids. The other
    fields of these objects decide the types of the columns that are packed along.
    """
    for line, value in json_objects(file):
        content = value.get(field.name)
        if field.kind == "text":
            found = isinstance(content, str)
        else:
            found = isinstance(content, list) and set(map(type, content)) == {int}
        if found:
            yield line, value


def _check_somewhere(file: InputFile, field: str) -> None:
    """Check that at least one object of the file has `field`, unless the file has no objects.

    Raises:
        SourceError: there are objects, and none has the field; the message names the keys of the first one.
    """
    first: dict[str, Any] | None = None
    for _, value in json_objects(file):
        if field in value:
            return
        first = value if first is None else first
    if first is not None:
        raise SourceError(f"{file.path}: {no_column(field, first)}")


def json_objects(file: InputFile) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (1-based line number, object) for each line that holds a JSON object; all other lines are skipped."""
    for line, raw in enumerate(file.lines(), 1):
        value = _parse(raw, line)
        if isinstance(value, dict):
            yield line, value


def decode_columns(
    data: bytes, first_line: int, *, schema: pa.Schema, selection: Selection
) -> Iterator[Records | BadRecord]:
    """Yield the records of the lines in `data`, with the columns that are packed along; empty lines are skipped.

    Padding is removed from ids. Adjacent good records become one `Records`; any other line becomes a `BadRecord`.
    `first_line` is the 1-based number of the first line. `selection` says which columns are read, and `schema` has
    their types.
    """
    items: list[dict[str, Any]] = []
    lines: list[int] = []
    for line, value in json_lines(data, first_line):
        if isinstance(value, dict):
            items.append(value)
            lines.append(line)
            continue
        yield from decode_dicts(items, lines, schema, selection)
        items, lines = [], []
        yield no_object(value, line)
    yield from decode_dicts(items, lines, schema, selection)


def decode_objects(
    data: bytes, first_line: int, *, field: Field, selection: Selection | None = None
) -> Iterator[Records | Record | BadRecord]:
    """Yield the records of the lines in `data`, read from one field alone; empty lines are skipped.

    The texts of adjacent lines become one `Records`; but if one of them has a lone surrogate, it becomes a `BadRecord`,
    and each of the others a `Record`. A list of ids becomes a `Record`. Any other line becomes a `BadRecord`.
    `first_line` is the 1-based number of the first line, and `field` the field that is read.

    `selection`, if given, says which columns the first records of the file had. An object that has a new column becomes
    a `BadRecord` if the column would have been read (`Selection.unforeseen`).
    """
    texts: list[str] = []
    lines: list[int] = []
    for line, value in json_lines(data, first_line):
        odd = selection.unforeseen(value) if selection is not None and isinstance(value, dict) else None
        if odd is None and field.kind == "text" and type(value) is dict and type(value.get(field.name)) is str:
            texts.append(value[field.name])
            lines.append(line)
            continue
        yield from text_run(texts, np.array(lines, dtype=np.int64), repr(field.name)) if texts else ()
        texts, lines = [], []
        yield _record(value, line, field) if odd is None else BadRecord(line=line, reason=odd)
    yield from text_run(texts, np.array(lines, dtype=np.int64), repr(field.name)) if texts else ()


def _record(value: Any, line: int, field: Field) -> Record | BadRecord:
    if not isinstance(value, dict):
        return no_object(value, line)
    if field.name not in value:
        return BadRecord(line=line, reason=f"no {field.name!r} in this object; {_keys(value)}")
    content = value[field.name]
    if field.kind == "ids":
        if isinstance(content, list):
            return ids_record(content, line, field.name)
        return BadRecord(line=line, reason=f"{field.name!r} is {described(content)}, not a list of ids")
    return BadRecord(line=line, reason=f"{field.name!r} is {described(content)}, not a string")


def json_lines(data: bytes, first_line: int) -> Iterator[tuple[int, Any]]:
    """Yield (line number, JSON value) of each line that is not empty; for a broken line, the value is a `BadRecord`.

    `first_line` is the number of the first line of `data`.
    """
    for line, raw in enumerate(data.split(b"\n"), first_line):
        if raw and raw != b"\r":
            yield line, _parse(raw, line)


def no_object(value: Any, line: int) -> BadRecord:
    """Return the `BadRecord` of a line that holds no JSON object.

    `value` is what `json_lines` yields for the line: another JSON value, or the `BadRecord` of a broken line, which is
    returned as it is.
    """
    if isinstance(value, BadRecord):
        return value
    return BadRecord(line=line, reason=f"not a JSON object but {described(value)}")


def _parse(raw: bytes, line: int) -> Any:
    """Return the JSON value of one line, or a BadRecord if the line is broken."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return _parse_slowly(raw, line)
    return _parse_slowly(raw, line) if _may_be_rounded(value) else value


def _may_be_rounded(value: Any) -> bool:
    """Return whether a number in a JSON value may be an integer beyond 64 bits, which orjson rounds to a float.

    Two different integers, such as the numbers of two records, could become the same float.
    """
    left = [value]
    while left:
        one = left.pop()
        inner = one.values() if type(one) is dict else one if type(one) is list else (one,)
        types = set(map(type, inner))
        if float in types and any(type(number) is float and abs(number) >= _ROUNDED for number in inner):
            return True
        if types & {dict, list}:
            left += [part for part in inner if type(part) in (dict, list)]
    return False


def _parse_slowly(raw: bytes, line: int) -> Any:
    """Return the JSON value of one line, parsed by the standard library, or a BadRecord if the line is broken.

    The standard library also reads what orjson refuses (such as NaN), and integers beyond 64 bits.
    """
    try:
        text = raw.decode()
        return from_json(text.removeprefix(BYTE_ORDER_MARK) if line == 1 else text)
    except UnicodeDecodeError as error:
        reason = not_utf8(raw, error, "line")
    except json.JSONDecodeError as error:
        reason = f"broken JSON: {error.msg.removesuffix(' at')} at column {error.colno}"
    except ValueError as error:  # an integer of thousands of digits, or nested too deeply
        reason = f"broken JSON: {str(error).split(';')[0]}"
    return BadRecord(line=line, reason=reason)


def described(value: object) -> str:
    """Return words that say what a JSON value is, for a message, such as ``a list`` or ``the string "x"``.

    Numbers, true, false and null are written as in JSON.
    """
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return f"the string {shown(value)}" if isinstance(value, str) else shown(value)


def _keys(value: dict[str, Any], limit: int = 8) -> str:
    """Return a text for a message that lists the first `limit` keys of an object, and how many more there are."""
    names = ", ".join(shown(key) for key in list(value)[:limit])
    more = f" and {len(value) - limit} more" if len(value) > limit else ""
    return f"its keys are {names}{more}" if value else "it has no keys"
