"""Choose which columns of a table to read, from its schema, before any data is read.

A wanted column that is missing, occurs twice, or has a type that cannot be read is refused here, not while reading. The
argument `place` of functions is the name of the table in messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import pyarrow as pa

from nopad.corpus.columns import is_name, is_untyped, listed_columns, no_column, type_of
from nopad.corpus.options import ReaderOptions
from nopad.corpus.records import Carried, Kind
from nopad.errors import SourceError
from nopad.sequences import COMPUTED, LABELS, MASK

__all__ = ["Selection", "is_list", "is_string", "label_column", "late_labels", "refuse_empty_labels", "select"]

# names of columns that nopad itself writes
OWN = ("seq_lengths", "seq_index", "seq_start", "seq_source")
ASSISTANT = "assistant_masks"  # name of the mask of the assistant's tokens in transformers and TRL
LEARNED = Carried(name=LABELS[0], per="token", type="int32")  # made from `ASSISTANT`
RESERVED = ("input_ids", *OWN, *COMPUTED)
FORMAT_KEY = b"nopad.format"  # in the metadata of every table that nopad writes


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which columns of a table are read, and how.

    Attributes:
        content: name of the column that holds text or ids.
        kind: "text" or "ids".
        mask: name of the column that marks padding; None: no column does.
        pad_id: the id that marks padding; None: no id does.
        learned: name of the column that is 1 at each token to learn, from which ``labels`` are made; None: there is
            none.
        carried: further columns that are packed along with the content.
        left_out: names of columns that are not read.
        known: names of the columns that later records may have: all columns of the table, except those that hold only
            null. ``attention_mask`` has a rule of its own: it is known if it is the mask, if the option `mask_field` is
            not "auto", or if the option `pad_id` is given. Otherwise its values might mark padding, and nobody would
            notice.
        new: names of columns that make a later record bad if it has them and they are not `known`; None: all columns
            do. The method `unforeseen` says when a record has a column: values that can be no labels do not count.
    """

    content: str
    kind: Kind
    mask: str | None = None
    pad_id: int | None = None
    learned: str | None = None
    carried: tuple[Carried, ...] = ()
    left_out: tuple[str, ...] = ()
    known: frozenset[str] = frozenset()
    new: tuple[str, ...] | None = ()

    def unforeseen(self, record: Mapping[str, Any]) -> str | None:
        """Return why a record is bad: it has a column that the first records lacked. None: it has no such column.

        The first records lacked a column if it was null in all of them; they lacked ``attention_mask`` also if it held
        no lists. A record has a column if its value is neither null nor a dict. It has ``attention_mask`` if the value
        is neither null nor one number or boolean, and a column of labels beside text if it is one. Only columns that
        are not among the `known` ones count. `new` says which of these make a record bad.
        """
        looked_at = record if self.new is None else [name for name in self.new if name in record]
        if not looked_at:  # fast, since every text is asked
            return None
        new = (name for name in looked_at if is_name(name) and name not in self.known)
        odd = next((name for name in new if self._is_missed(name, record[name])), None)
        if odd is None:
            return None
        way, none = ("mask_field=", "None") if odd == MASK else ("carry=", "[]")
        return f"has {odd!r}, which the first records have not; add it to all records, or leave it out with {way}{none}"

    def _is_missed(self, name: str, value: Any) -> bool:
        """Return whether a record's column `name`, which has this `value`, must not be left out silently."""
        if value is None:
            return False
        if name == MASK:
            return not _is_one_number(value)
        return not isinstance(value, Mapping) if self.new is None else _is_one_number(value)

    @property
    def columns(self) -> list[str]:
        """Names of all columns to read: the content, then the mask if there is one, then those to pack along.

        If ``labels`` are made from the column `learned`, the list has that column's name and not ``labels``.
        """
        read = [self.learned if self.learned and column.name == LABELS[0] else column.name for column in self.carried]
        return [self.content, *([self.mask] if self.mask else []), *read]


_PACKED = (
    "packed already: its rows are packs, and each would be taken for one sequence; give the source that it was packed "
    "from, or open it with nopad.open_packed"
)


def select(schema: pa.Schema, options: ReaderOptions, place: str) -> Selection:
    """Return which columns of a table with this schema are read; `place` names the table in messages.

    Raises:
        SourceError: a wanted column is missing, occurs twice, is used in two roles, has a name that nopad writes or
            computes, or has a type that cannot be read; or the table is a packed dataset. There are two more causes if
            `options.carry` is "auto". A column of labels that would be packed along holds only null, or only values for
            which Arrow has no type. Or there are labels beside ``assistant_masks``, from which labels would be made.

    >>> ids = pa.list_(pa.int64())
    >>> schema = pa.schema({"input_ids": ids, "attention_mask": ids, "label": pa.int64()})
    >>> chosen = select(schema, ReaderOptions(), "a.parquet")
    >>> chosen.content, chosen.mask, chosen.carried
    ('input_ids', 'attention_mask', (Carried(name='label', per='sequence', type='int64'),))
    """
    if FORMAT_KEY in (schema.metadata or {}):
        raise SourceError(f"{place}: {_PACKED}")
    content, kind = _content(schema, options, place)
    mask = learned = None
    if kind == "ids" and options.pad_id is None and options.mask_field is not None:
        mask = _mask(schema, options.mask_field, place)
    others = [name for name in schema.names if name not in (content, mask)]
    _check_distinct(content, mask, [] if options.carry == "auto" else options.carry, place)
    asked = [] if options.carry == "auto" else [_asked(schema, name, kind, content, place) for name in options.carry]
    lengths = [field.type for field in schema if field.name == "seq_lengths"]
    # rewritten by a tool that dropped the metadata, or packed by another program
    if kind == "ids" and any(map(is_list, lengths)):
        raise SourceError(f"{place}: {_PACKED}")
    if options.carry == "auto":
        refuse_empty_labels(schema, others, kind == "ids" or options.find_labels, place)
    if options.carry == "auto" and kind == "ids":
        learned = _learned(schema, place) if options.find_labels else None
        carried = [c for name in others if (c := _found(schema, name, place)) and name not in RESERVED]
        carried = [LEARNED if c.name == learned else c for c in carried]
    elif options.carry == "auto" and options.find_labels:
        carried = [_asked(schema, name, kind, content, place) for name in label_column(schema)]
    else:
        carried = asked
    names = {column.name for column in carried}
    by_mask = options.pad_id is None and options.mask_field == "auto"
    known = {field.name for field in schema if is_untyped(field) or not pa.types.is_null(field.type)} - {MASK}
    if mask == MASK or not by_mask:
        known.add(MASK)
    watched: tuple[str, ...] | None = (MASK,) if by_mask and kind == "ids" else ()
    if options.carry == "auto":
        watched = None if kind == "ids" else late_labels(schema) if options.find_labels else ()
    return Selection(
        content=content,
        kind=kind,
        mask=mask,
        pad_id=options.pad_id if kind == "ids" else None,
        carried=tuple(carried),
        learned=learned,
        left_out=tuple(name for name in others if name not in names and name != learned),
        known=frozenset(known),
        new=watched,
    )


def _learned(schema: pa.Schema, place: str) -> str | None:
    """Return "assistant_masks" if there is a column of this name, which marks the tokens to learn; else None.

    Raises:
        SourceError: the column does not hold lists of numbers or booleans, occurs twice, or there is a column of
            labels too. `place` names the table in the message.
    """
    if ASSISTANT not in schema.names:
        return None
    if both := [name for name in LABELS if name in schema.names]:
        raise SourceError(
            f"{place}: {ASSISTANT!r} becomes the labels, and there is a column {both[0]!r} too; remove one of them, or "
            "name the columns to carry with carry="
        )
    _check_once(schema, ASSISTANT, place)
    kind = schema.field(ASSISTANT).type
    if not _holds_marks(kind):
        found = type_of(schema.field(ASSISTANT))
        raise SourceError(f"{place}: {ASSISTANT!r} is {found}, not lists of 0 and 1; convert it, or remove it")
    return ASSISTANT


def label_column(schema: pa.Schema) -> list[str]:
    """Return a list with the name of the column that has one label per text; an empty list if there is none.

    Of "labels", "label" and "label_ids" (`LABELS`), it is the first name that exactly one column has, if this column
    holds numbers or booleans.

    >>> label_column(pa.schema({"text": pa.string(), "label": pa.int64()}))
    ['label']
    """
    found = [name for name in LABELS if schema.names.count(name) == 1][:1]
    return [name for name in found if _is_number(_values_type(schema.field(name).type))]


def late_labels(schema: pa.Schema) -> tuple[str, ...]:
    """Return the names of columns of labels that `label_column` would prefer if the table had them.

    Without this, labels that only later records have would be missing without a message.

    >>> late_labels(pa.schema({"text": pa.string(), "label": pa.int64()}))
    ('labels',)
    """
    return tuple(takewhile(lambda name: name not in schema.names, LABELS))


def refuse_empty_labels(schema: pa.Schema, names: Sequence[str], wanted: bool, place: str) -> None:
    """Refuse a column of labels of Arrow's null type, since labels would then be missing without a message.

    A column has this type if all its values are null, or if Arrow has no type for its values. `names` are names of
    columns. The column of labels is the first of "labels", "label" and "label_ids" that is among them; no other is
    checked. Nothing is refused if `wanted` is False. `place` names the table in messages.

    Raises:
        SourceError: there is such a column.
    """
    null = {field.name: field for field in schema if pa.types.is_null(field.type)}
    empty = [name for name in LABELS if name in names][:1] if wanted else []
    empty = [name for name in empty if name in null]
    if empty:
        found = type_of(null[empty[0]])
        how = "null in every record that was looked at; fill it" if found == "null" else f"{found}; convert it"
        raise SourceError(f"{place}: the column {empty[0]!r} is {how}, or leave it out with carry=[]")


def _check_distinct(content: str, mask: str | None, carried: Sequence[str], place: str) -> None:
    """Refuse a column that would be used twice.

    `content` is the column of text or ids, `mask` the one that marks padding, and `carried` those that are packed
    along. `place` names the table in messages.

    Raises:
        SourceError: the mask is also the content or a carried column, or a column is named twice in `carried`.
    """
    if mask == content:
        raise SourceError(f"{place}: the column {mask!r} cannot be its own mask; name another one with mask_field=")
    for at, name in enumerate(carried):
        if name == mask:
            raise SourceError(
                f"{place}: the column {name!r} marks padding, which is cut off, so only ones would be carried; "
                "leave it out of carry="
            )
        if name in carried[:at]:
            raise SourceError(f"{place}: the column {name!r} is to be carried twice; name each once in carry=")


def _content(schema: pa.Schema, options: ReaderOptions, place: str) -> tuple[str, Kind]:
    """Return the name of the column with the content, and what it holds ("text" or "ids"), after checking its type.

    Raises:
        SourceError: no column is named and there is neither ``input_ids`` nor ``text``; or the column is missing,
            occurs twice, or has a type that does not fit.
    """
    name = options.ids_field or options.text_field
    if name is None:
        name = next((n for n in ("input_ids", "text") if n in schema.names), None)
        if name is None:
            texts = [field.name for field in schema if is_string(field.type)]
            also = ", or both texts of a pair with text_pair=" if len(texts) == 2 else ""
            raise SourceError(
                f"{place}: neither a column 'input_ids' nor 'text'; it has {listed_columns(schema.names)}; "
                f"choose one with text_field= or ids_field={also}"
            )
    _check_once(schema, name, place)
    kind: Kind = "text" if name == options.text_field or (name == "text" and not options.ids_field) else "ids"
    found = schema.field(name).type
    fits = is_string(found) if kind == "text" else is_list(found) and pa.types.is_integer(found.value_type)
    if not fits:
        wanted = "strings" if kind == "text" else "lists of integers"
        raise SourceError(
            f"{place}: the column {name!r} is {type_of(schema.field(name))}, not {wanted}; choose another column, or "
            "convert it"
        )
    return name, kind


def _mask(schema: pa.Schema, field: str, place: str) -> str | None:
    """Return the name of the column that marks padding; `field` is `ReaderOptions.mask_field`.

    For "auto", the name is "attention_mask". The result is None if there is no such column, or if the column marks no
    padding: it holds only null, or one number or boolean per record.

    Raises:
        SourceError: the column occurs twice, or holds anything else than lists of numbers or booleans; or `field` is
            not "auto", and no column has this name.
    """
    name = MASK if field == "auto" else field
    if field == "auto" and name not in schema.names:
        return None
    _check_once(schema, name, place)
    found = schema.field(name)
    one = _values_type(found.type)
    if field == "auto" and (_is_number(one) or (pa.types.is_null(one) and not is_untyped(found))):
        return None
    if not _holds_marks(found.type):
        raise SourceError(
            f"{place}: the mask column {name!r} is {type_of(found)}, not lists of 0 and 1; convert it, or "
            "use no mask with mask_field=None"
        )
    return name


def _asked(schema: pa.Schema, name: str, kind: Kind, content: str, place: str) -> Carried:
    """Return a `Carried` that describes the column `name`, which must be packed along with the content.

    `kind` says whether the content is "text" or "ids"; `content` is its column. `place` names the table in messages.

    Raises:
        SourceError: the column is missing, occurs twice, is the content, has a name that nopad writes or computes, or
            has a type that does not fit.
    """
    _check_once(schema, name, place)
    if name == content or name in RESERVED:
        raise SourceError(f"{place}: {_not_carried(name)}; rename it")
    found = _carried(schema, name, kind)
    if found is None:
        beside = "" if kind == "ids" else ", and lists are beside text, whose tokens are not yet known"
        raise SourceError(
            f"{place}: the column {name!r} is {type_of(schema.field(name))}, which cannot be carried{beside}; "
            "numbers, booleans and strings can be, and beside ready-made ids lists of numbers of the same lengths"
        )
    return found


def _found(schema: pa.Schema, name: str, place: str) -> Carried | None:
    """Return a `Carried` for a column that the user did not name; None if a column of this type cannot be packed along.

    `place` names the table in messages. The content is ready-made ids.

    Raises:
        SourceError: the column occurs twice, or could be packed along but has a name that nopad writes or computes,
            other than ``attention_mask``.
    """
    if schema.names.count(name) > 1:
        _check_once(schema, name, place)
    found = _carried(schema, name, "ids")
    if found is not None and name in (*OWN, *COMPUTED) and name != MASK:  # a mask that is not used is left out
        raise SourceError(f"{place}: {_not_carried(name)}; rename it, or name the columns to carry with carry=")
    return found


def _not_carried(name: str) -> str:
    does = "computes" if name in COMPUTED else "writes"
    return f"the column {name!r} cannot be carried: nopad {does} one of that name"


def _carried(schema: pa.Schema, name: str, kind: Kind) -> Carried | None:
    """Return a `Carried` for a column that is packed along with content of this `kind` ("text" or "ids").

    It says whether the column has one value per token (lists of numbers or booleans, only beside "ids") or per sequence
    (numbers, booleans or strings). The result is None if a column of this type cannot be packed along.
    """
    found = _values_type(schema.field(name).type)
    if is_list(found):
        inside = found.value_type
        return Carried(name=name, per="token", type=str(inside)) if kind == "ids" and _is_number(inside) else None
    if _is_number(found) or is_string(found):
        return Carried(name=name, per="sequence", type="string" if is_string(found) else str(found))
    return None


def _is_one_number(value: Any) -> bool:
    """Return whether a value is one number or boolean, also as an array or tensor without dimensions."""
    if isinstance(value, pa.Scalar):
        return _is_number(value.type) and value.is_valid
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    return isinstance(value, int | float)


def _check_once(schema: pa.Schema, name: str, place: str) -> None:
    times = schema.names.count(name)
    if not times:
        raise SourceError(f"{place}: {no_column(name, schema.names)}")
    if times > 1:
        raise SourceError(
            f"{place}: {times} columns {name!r}; it has {listed_columns(schema.names)}; rename all but one of them, or "
            "name the columns to carry with carry="
        )


def is_list(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is a list, large list or fixed-size list."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_string(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is a string, large string or string view."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _holds_marks(kind: pa.DataType) -> bool:
    """Return whether a column of this Arrow type can be a mask: whether it has lists of numbers or booleans."""
    return is_list(kind) and _is_number(kind.value_type)


def _values_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values of a dictionary type; any other type is returned as it is."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))
