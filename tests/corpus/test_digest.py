from __future__ import annotations

import pyarrow as pa
import pytest

from nopad.corpus.digest import content_bytes, content_digest

KINDS = [
    (pa.list_(pa.int32()), [[1, 2], [], [3], None]),
    (pa.large_list(pa.int8()), [[1, 2], [], [3], [4, None]]),
    (pa.list_(pa.float32(), 2), [[1, 2], [3, 4], [5, 6], [7, 8]]),
    (pa.string(), ["a", "", "é", None]),
    (pa.large_string(), ["a", "b", "c", "d"]),
    (pa.int64(), [1, 2, 3, None]),
    (pa.bool_(), [True, False, None, True]),
    (pa.float64(), [0.5, 1.5, 2.5, 3.5]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "b", "c"]),
    (pa.list_(pa.bool_()), [[True], [], [False], [True, True]]),
]


def one(kind, values, name="x"):
    return pa.RecordBatch.from_arrays([pa.array(values, type=kind)], [name])


@pytest.mark.parametrize(
    ("kind", "values"), KINDS, ids=lambda value: str(value) if isinstance(value, pa.DataType) else ""
)
def test_a_digest_is_of_the_content(kind, values):
    batch = one(kind, values)
    inside = one(kind, [values[1], *values, values[0]]).slice(1, len(values))
    assert content_digest(batch) == content_digest(inside)
    assert content_bytes(batch) == content_bytes(inside) > 0
    others = [
        one(kind, values[:-1]),
        one(kind, values[::-1]),
        one(kind, values, "y"),
        one(kind, [*values[1:], values[0]]),
    ]
    assert len({content_digest(batch), *map(content_digest, others)}) == 5


def test_a_digest_depends_on_where_lists_end():
    digests = {
        content_digest(one(pa.list_(pa.int8()), rows)) for rows in ([[1, 2], [3]], [[1], [2, 3]], [[1, 2, 3], []])
    }
    assert len(digests) == 3


def test_sizes():
    assert content_bytes(one(pa.list_(pa.int16()), [[1, 2], [3]])) == 2 * 4 + 3 * 2
    assert content_bytes(one(pa.string(), ["abc", ""])) == 2 * 4 + 3
    assert content_bytes(one(pa.string(), [])) == 0


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.list_(pa.int8())])
def test_what_a_null_hides_is_no_content(kind):
    plain = one(kind, ["b", None, "c"] if not pa.types.is_list(kind) else [[1], None, [3]])
    (array,) = plain.columns
    if pa.types.is_string_view(kind):
        hidden = pa.array(["b", "hidden", "c"], pa.string())
        hidden = pa.Array.from_buffers(pa.string(), 3, [array.buffers()[0], *hidden.buffers()[1:]]).cast(kind)
    elif pa.types.is_list(kind):
        offsets = pa.array([0, 1, 3, 4], pa.int32())
        hidden = pa.ListArray.from_arrays(
            offsets, pa.array([1, 7, 8, 3], pa.int8()), mask=pa.array([False, True, False])
        )
    else:
        hidden = pa.array(["b", "hidden", "c"], kind)
        hidden = pa.Array.from_buffers(kind, 3, [array.buffers()[0], *hidden.buffers()[1:]])
    assert hidden.equals(array)
    batch = pa.RecordBatch.from_arrays([hidden], ["x"])
    assert content_digest(batch) == content_digest(plain)
    assert content_bytes(batch) == content_bytes(plain)
    assert content_digest(batch.slice(1)) == content_digest(plain.slice(1))
