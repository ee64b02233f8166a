from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad.corpus import BadRecord, Records
from nopad.corpus.options import ReaderOptions
from nopad.corpus.rows import decode_rows
from nopad.corpus.selection import select

ROWS = st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=12)
PADDING = st.tuples(st.integers(0, 3), st.integers(0, 3))


def decode(batch: pa.RecordBatch, first: int = 1, **reading) -> list[tuple]:
    """Every row: (row, ids or text, carried values), or (row, reason)."""
    out: list[tuple] = []
    for found in decode_rows(batch, first, selection=select(batch.schema, ReaderOptions(**reading), "t")):
        if isinstance(found, BadRecord):
            out.append((found.line, found.reason))
            continue
        assert isinstance(found, Records)
        ids = found.ids
        ends = np.cumsum(ids.seq_lengths) if ids is not None else np.zeros(found.lines.size, int)
        for at, line in enumerate(found.lines.tolist()):
            values = {name: column[at].as_py() for name, column in found.values.items()}
            if found.texts is not None:
                out.append((line, found.texts[at], values))
                continue
            piece = slice(ends[at] - ids.seq_lengths[at], ends[at])
            values |= {name: column[piece].tolist() for name, column in ids.tokens.items()}
            out.append((line, values.pop("input_ids"), values))
    return out


def table(**columns) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


@given(ROWS, st.data())
def test_good_rows_come_out_as_they_went_in(rows, data):
    labels = [[-i for i in ids] for ids in rows]
    kind = data.draw(st.sampled_from([pa.list_(pa.int64()), pa.large_list(pa.uint8())]))
    batch = table(
        input_ids=pa.array(rows, type=kind),
        labels=pa.array(labels, type=pa.list_(pa.int16())),
        n=list(range(len(rows))),
    )
    begin = data.draw(st.integers(0, len(rows)))
    found = decode(batch.slice(begin), begin + 1) if rows else []
    assert found == [(at + 1, rows[at], {"labels": labels[at], "n": at}) for at in range(begin, len(rows))]


@given(st.lists(st.tuples(st.lists(st.integers(1, 9), max_size=5), PADDING), min_size=1, max_size=10))
def test_padding_is_cut_off_by_a_mask(rows):
    padded = [[0] * left + ids + [0] * right for ids, (left, right) in rows]
    mask = [[0] * left + [1] * len(ids) + [0] * right for ids, (left, right) in rows]
    labels = [[7] * left + [i * 2 for i in ids] + [7] * right for ids, (left, right) in rows]
    wanted = [(at, ids, {"labels": [i * 2 for i in ids]}) for at, (ids, _) in enumerate(rows, 1)]
    kinds = {"type": pa.list_(pa.int64())}
    batch = table(
        input_ids=pa.array(padded, **kinds), attention_mask=pa.array(mask, **kinds), labels=pa.array(labels, **kinds)
    )
    assert decode(batch) == wanted
    removed = sum(left + right for _, (left, right) in rows)
    found = list(decode_rows(batch, 1, selection=select(batch.schema, ReaderOptions(), "t")))
    assert sum(int(run.padding.sum()) for run in found) == removed


@given(st.lists(st.tuples(st.lists(st.integers(1, 9), max_size=5), PADDING), min_size=1, max_size=10))
def test_padding_is_cut_off_by_its_id(rows):
    padded = [[0] * left + ids + [0] * right for ids, (left, right) in rows]
    batch = table(input_ids=pa.array(padded, type=pa.list_(pa.int32())))
    assert [ids for _, ids, _ in decode(batch, pad_id=0)] == [ids for ids, _ in rows]
    assert [ids for _, ids, _ in decode(batch)] == padded


def test_padding_ids_inside_stay():
    batch = table(input_ids=[[0, 5, 0, 6, 0, 0]])
    assert decode(batch, pad_id=0) == [(1, [5, 0, 6], {})]


def test_fixed_size_lists():
    array = pa.FixedSizeListArray.from_arrays(pa.array([1, 2, 3, 4, 5, 6], pa.int32()), 2)
    assert decode(pa.RecordBatch.from_arrays([array.slice(1)], ["input_ids"]), 2) == [(2, [3, 4], {}), (3, [5, 6], {})]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"input_ids": [[1], None, [3]]}, "'input_ids' is null"),
        ({"input_ids": [[1], [2, None, None], [3]]}, "input_ids[1] is null"),
        ({"input_ids": [[1], [5, -3, -4], [3]]}, "input_ids[1] is -3; ids are integers from 0 to 2147483647"),
        ({"input_ids": [[1], [2**31], [3]]}, "input_ids[0] is 2147483648; ids are integers from 0 to 2147483647"),
        (
            {"input_ids": [[1], [2], [3]], "labels": [[1], [2, 2], [3]]},
            "'labels' has 2 values beside 1 in 'input_ids' (if it is no column of tokens, leave it out of carry=)",
        ),
        ({"input_ids": [[1], [2], [3]], "labels": [[1], None, [3]]}, "'labels' is null"),
        ({"input_ids": [[1], [2], [3]], "labels": [[1], [None], [3]]}, "labels[0] is null"),
        ({"input_ids": [[1], [2], [3]], "label": [1, None, 3]}, "'label' is null"),
        ({"input_ids": [[1], [2], [3]], "name": ["a", None, "c"]}, "'name' is null"),
        (
            {"input_ids": [[1], [2, 2, 2], [3]], "attention_mask": [[1], [1, 0, 1], [1]]},
            "attention_mask has a hole: 0 at 1, and 1 after it; padding is at the ends",
        ),
        (
            {"input_ids": [[1], [2, 2], [3]], "attention_mask": [[1], [1, 2], [1]]},
            "attention_mask[1] is 2; a mask holds 0 and 1",
        ),
        (
            {"input_ids": [[1], [2, 2], [3]], "attention_mask": [[1], [1], [1]]},
            "'attention_mask' has 1 values beside 2 in 'input_ids'",
        ),
        ({"text": ["a", None, "c"]}, "'text' is null"),
    ],
)
def test_bad_rows_are_told_apart(columns, reason):
    found = decode(table(**columns), 11)
    assert [row[0] for row in found] == [11, 12, 13]
    assert found[1] == (12, reason)
    for at in (0, 2):
        content = columns.get("input_ids", columns.get("text"))[at]
        assert found[at][1] == content


def test_text_with_what_rides_along():
    batch = table(text=["a", "b"], label=[1, 2])
    assert decode(batch, carry=("label",)) == [(1, "a", {"label": 1}), (2, "b", {"label": 2})]


def test_nothing():
    assert decode(table(input_ids=pa.array([], type=pa.list_(pa.int32())))) == []
    assert decode(
        table(
            input_ids=pa.array([[], []], type=pa.list_(pa.int32())),
            attention_mask=pa.array([[], []], type=pa.list_(pa.int32())),
        )
    ) == [
        (1, [], {}),
        (2, [], {}),
    ]


@pytest.mark.parametrize("null", [[True, False, False], [False, True, False], [False, False, True], [True, True, True]])
def test_values_under_a_null_are_nobodys(null):
    values = pa.array([-5 if null[row] else row for row in (0, 0, 1, 1, 2, 2)], pa.int32())
    array = pa.ListArray.from_arrays(pa.array([0, 2, 4, 6], pa.int32()), values, mask=pa.array(null))
    found = decode(pa.RecordBatch.from_arrays([array], ["input_ids"]))
    assert found == [(row + 1, "'input_ids' is null") if null[row] else (row + 1, [row] * 2, {}) for row in range(3)]
