"""The state of a rank that loads from a stream, as JSON: a few integers, and the sequences that wait for a later step.

A column is stored as base64, integers in the narrowest type that holds them: ids take at most 2.7 bytes each if all are
below 65,536, else 5.3. The sequences are those of packs that are ready, at most `buffer` more in the packer, and up to
`shuffle_buffer` more that wait for a random turn.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.corpus.options import Counts
from nopad.errors import FormatError
from nopad.loading.state import check_format, whole
from nopad.loading.streams.deal import Deal, Left
from nopad.loading.streams.packing import Packing
from nopad.loading.streams.place import Held, StreamPlace
from nopad.loading.streams.reading import Cursor
from nopad.loading.streams.shuffling import NOTHING, Buffer
from nopad.sequences import Sequences

__all__ = ["read_state", "written"]

_FORMAT, _VERSION = "nopad.loader.stream", 2
_TYPES = {"b1", *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)), "f2", "f4", "f8", "f16"}  # of columns
_INTEGERS = (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64)  # narrow ones first
_NUMBERS = (
    "arrived",
    "accumulation",
    "per_rank",
    "batches",
    "steps_seen",
    "sequences_here",
    "tokens_here",
    "units_here",
    "left_sequences",
    "left_tokens",
)
_NAMES = {"same", "world_size", "rank", "cursor", "waiting", "drawn", "held", "ready", "counts", *_NUMBERS}


def written(place: StreamPlace, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a rank, a dict that can be written as JSON.

    `place` says how far the rank has come. `facts` are settings by name; a run that resumes from the state must have
    the same.
    """
    deal = place.cursor.deal
    cursor = {one.name: getattr(place.cursor, one.name) for one in fields(Cursor)}
    return {
        "format": _FORMAT,
        "format_version": _VERSION,
        "same": dict(facts),
        "world_size": deal.world_size,
        "rank": deal.rank,
        "cursor": {
            **cursor,
            "at": list(place.cursor.at),
            "deal": {
                "count": deal.count,
                "before": [{**asdict(one), "reached": [*one.reached]} for one in deal.before],
            },
        },
        "waiting": _columns(place.buffer.sequences()),
        "drawn": place.buffer.drawn,
        "held": _held(place.held.compact()),
        "ready": [list(pack) for pack in place.ready],
        "counts": place.counts.to_dict(),
        **{name: getattr(place, name) for name in _NUMBERS},
    }


def _held(held: Held) -> dict[str, Any]:
    return {"numbers": held.numbers.tolist(), **_columns(held.sequences or NOTHING)}


def _columns(found: Sequences) -> dict[str, Any]:
    return {
        "lengths": found.seq_lengths.tolist(),
        "tokens": {name: _packed(column) for name, column in found.tokens.items()},
        "values": {name: _packed(column) for name, column in found.values.items()},
    }


def _packed(column: NDArray[Any]) -> dict[str, str]:
    """Return a column as the dict that stands for it in a state.

    ``data`` has its bytes as base64, ``stored`` their dtype, and ``type`` the column's own dtype. Integers are stored
    in the narrowest dtype that holds them.
    """
    stored = column
    if column.dtype.kind in "iu" and column.size:
        low, high = int(column.min()), int(column.max())
        stored = column.astype(
            next(kind for kind in _INTEGERS if np.iinfo(kind).min <= low <= high <= np.iinfo(kind).max)
        )
    data = base64.b64encode(stored.astype(stored.dtype.newbyteorder("<")).tobytes()).decode()
    return {"type": column.dtype.str.lstrip("<>=|"), "stored": stored.dtype.str.lstrip("<>=|"), "data": data}


def read_state(state: Any, packing: Packing) -> tuple[StreamPlace, dict[str, Any]]:
    """Return ``(place, facts)`` from the state of a rank, a dict that `written` returned.

    The place says how far the rank had come, and the facts are settings by name. `packing` says how the resumed run
    packs.

    Raises:
        FormatError: `state` is not a state of a loader over a stream, is of another format version, or has impossible
            values, for example sequences that do not fit `packing`.
    """
    check_format(state, _FORMAT, _VERSION, _NAMES, "a nopad.PackedLoader over a stream")
    try:
        place = StreamPlace(
            cursor=_cursor(state["cursor"], _count(state, "world_size"), _count(state, "rank")),
            buffer=Buffer.of(_read_columns(state["waiting"]), _count(state, "drawn")),
            held=_read_held(state["held"]),
            ready=tuple(tuple(whole(number) for number in pack) for pack in state["ready"]),
            counts=Counts.from_dict(state["counts"]),
            **{name: _count(state, name) for name in _NUMBERS},
        )
        _check(place, packing)
        return place, dict(state["same"])
    except FormatError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise FormatError(f"this state is damaged: {error}") from error


def _check(place: StreamPlace, packing: Packing) -> None:
    """Refuse a place whose numbers contradict one another or the settings `packing`.

    Raises:
        FormatError: the numbers do not fit together, or a pack is above the capacity.
    """
    held, numbers = place.held, [number for pack in place.ready for number in pack]
    deal = place.cursor.deal
    fits = deal.rank < deal.world_size and deal.count < deal.world_size
    fits &= all(len(one.reached) == one.world_size > one.count for one in deal.before)
    fits &= place.batches < place.accumulation and place.per_rank > 0
    fits &= bool((np.diff(held.numbers, prepend=-1, append=place.arrived) > 0).all())
    fits &= len(set(numbers)) == len(numbers) and set(numbers) <= set(held.numbers.tolist())
    fits &= place.cursor.first <= place.cursor.record and all(place.ready)
    fits &= packing.capacity is None or int(place.buffer.sequences().seq_lengths.max(initial=0)) <= packing.capacity
    if not fits:
        raise FormatError("this state is damaged: its numbers do not fit together")
    if held.sequences is not None:
        waiting = place.waiting
        packing.packer().restore(place.arrived, held.numbers[waiting], held.sequences.seq_lengths[waiting])
        if packing.capacity is not None:
            lengths = dict(zip(held.numbers.tolist(), held.sequences.seq_lengths.tolist(), strict=True))
            if any(sum(lengths[number] for number in pack) > packing.capacity for pack in place.ready):
                raise FormatError("this state is damaged: a pack is above the capacity")


def _cursor(given: Mapping[str, Any], world_size: int, rank: int) -> Cursor:
    before = tuple(
        Left(
            world_size=_count(one, "world_size"),
            count=_count(one, "count"),
            reached=tuple(whole(number) for number in one["reached"]),
        )
        for one in given["deal"]["before"]
    )
    if not isinstance(given["mark"], str) or type(given["ended"]) is not bool:
        raise FormatError("this state is damaged: 'mark' is a string, and 'ended' True or False")
    return Cursor(
        **{name: _count(given, name) for name in ("passes", "began", "first", "record")},
        at=tuple(whole(number) for number in given["at"]),
        mark=given["mark"],
        length=None if given["length"] is None else _count(given, "length"),
        ended=given["ended"],
        deal=Deal(world_size=world_size, rank=rank, count=_count(given["deal"], "count"), before=before),
    )


def _read_held(given: Mapping[str, Any]) -> Held:
    found = _read_columns(given)
    numbers = np.array([whole(number) for number in given["numbers"]], dtype=np.int64)
    if numbers.size != len(found):
        raise FormatError("this state is damaged: there is not one length per sequence that it holds")
    return Held(found, numbers, np.ones(numbers.size, dtype=np.bool_)) if numbers.size else Held.none()


def _read_columns(given: Mapping[str, Any]) -> Sequences:
    lengths = np.array([whole(length) for length in given["lengths"]], dtype=np.int32)
    if (lengths < 1).any():
        raise FormatError("this state is damaged: a sequence that it holds has no token")
    if not lengths.size:
        return NOTHING
    total = int(lengths.sum(dtype=np.int64))
    tokens = {str(name): _unpacked(column, name, total) for name, column in given["tokens"].items()}
    values = {str(name): _unpacked(column, name, lengths.size) for name, column in given["values"].items()}
    if "input_ids" not in tokens:
        raise FormatError("this state is damaged: it holds sequences without input_ids")
    return Sequences(seq_lengths=lengths, tokens=tokens, values=values)


def _unpacked(column: Mapping[str, str], name: str, size: int) -> NDArray[Any]:
    # NumPy's dtype reads other texts too, and fails at some in ways of its own, such as a SyntaxError.
    if not all(str(column[key]) in _TYPES for key in ("stored", "type")):
        raise FormatError(f"this state is damaged: its column {name!r} has a type that no column has")
    stored, wanted = np.dtype(column["stored"]).newbyteorder("<"), np.dtype(column["type"])
    data = base64.b64decode(column["data"], validate=True)
    if len(data) != size * stored.itemsize:
        raise FormatError(f"this state is damaged: its column {name!r} has {len(data)} bytes for {size} values")
    values = np.frombuffer(data, dtype=stored)
    found = values.astype(wanted)
    if (stored.kind == "f") != (wanted.kind == "f") or not ((found == values) | (values != values)).all():
        raise FormatError(f"this state is damaged: its column {name!r} is {wanted}, and is stored as other values")
    return found


def _count(given: Mapping[str, Any], name: str) -> int:
    return whole(given[name], name)
