from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad.corpus.policy import assemble, cut, outcome

LENGTHS = st.lists(st.integers(0, 30), max_size=20).map(lambda values: np.array(values, dtype=np.int64))


@pytest.mark.parametrize(
    ("over_long", "row", "start", "length"),
    [
        ("truncate", [0, 1, 3, 4], [0, 0, 0, 0], [4, 4, 1, 4]),
        ("drop", [0, 3], [0, 0], [4, 1]),
        ("split", [0, 1, 1, 3, 4, 4], [0, 0, 4, 0, 0, 4], [4, 4, 1, 1, 4, 4]),
    ],
)
def test_cut_by_hand(over_long, row, start, length):
    pieces = cut(np.array([4, 5, 0, 1, 8]), 4, over_long)
    assert [array.tolist() for array in pieces] == [row, start, length]
    assert {array.dtype for array in pieces} == {np.dtype(np.int64)}


@given(LENGTHS, st.integers(1, 12))
def test_split_covers_every_token_once(lengths, room):
    row, start, length = cut(lengths, room, "split")
    assert (length >= 1).all()
    assert (length <= room).all()
    covered = [(r, s + i) for r, s, n in zip(row, start, length, strict=True) for i in range(n)]
    assert covered == [(r, i) for r, n in enumerate(lengths) for i in range(n)]
    assert all(n == room for r, s, n in zip(row, start, length, strict=True) if s + room <= lengths[r])


@given(LENGTHS, st.integers(1, 12), st.sampled_from(["truncate", "drop", "split"]))
def test_counts_account_for_every_token(lengths, room, over_long):
    pieces = cut(lengths, room, over_long)
    counts = outcome(lengths, np.arange(lengths.size), pieces)
    assert counts["truncated_tokens"] + counts["dropped_tokens"] + pieces.length.sum() == lengths.sum()
    assert counts["empty_skipped"] == (lengths == 0).sum()
    assert counts[{"truncate": "truncated", "drop": "dropped"}.get(over_long, over_long)] == (lengths > room).sum()
    assert sum(v for k, v in counts.items() if not k.endswith("tokens")) == ((lengths > room) | (lengths == 0)).sum()
    assert all(type(value) is int for value in counts.values())


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=20), st.integers(1, 12))
def test_each_record_of_several_sequences_is_packed_or_left_out(given, room):
    """Each sequence that was left out counted as a record, although others of the record were packed."""
    lengths, record = np.array([n for n, _ in given], np.int64), np.cumsum([new for _, new in given], dtype=np.int64)
    for over_long in ("truncate", "drop", "split"):
        pieces = cut(lengths, room, over_long)
        counts, kept = outcome(lengths, record, pieces), set(record[pieces.row].tolist())
        assert len(kept) + counts["dropped"] + counts["empty_skipped"] == np.unique(record).size
        whole = {n for n in kept if ((lengths[record == n] <= room) & (lengths[record == n] > 0)).all()}
        harmed = {n for n in kept if (lengths[record == n] == 0).any()} if over_long == "split" else kept - whole
        assert counts["truncated"] == len(harmed)
        assert counts["truncated_tokens"] + counts["dropped_tokens"] + pieces.length.sum() == lengths.sum()


@given(
    LENGTHS, st.integers(1, 12), st.integers(0, 2), st.integers(0, 2), st.sampled_from(["truncate", "drop", "split"])
)
def test_assemble_is_the_obvious_loop(lengths, room, n_prefix, n_suffix, over_long):
    tokens = np.arange(lengths.sum(), dtype=np.int32)
    prefix, suffix = np.full(n_prefix, -1, np.int32), np.full(n_suffix, -2, np.int32)
    pieces = cut(lengths, room, over_long)
    records = np.split(tokens, np.cumsum(lengths)[:-1]) if lengths.size else []
    expected = [
        token
        for row, start, length in zip(*pieces, strict=True)
        for token in (*prefix, *records[row][start : start + length], *suffix)
    ]
    out = assemble(tokens, lengths, pieces, prefix, suffix)
    assert out.dtype == np.int32
    assert out.tolist() == expected
