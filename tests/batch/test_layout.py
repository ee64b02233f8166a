from __future__ import annotations

import importlib
import pickle
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import nopad
from nopad import Rows
from nopad.batch.layout import Layout
from nopad.errors import LengthError, OptionError

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=30)


def in_rows(lengths, width):
    """Next-fit: how many sequences each row holds."""
    per_row, free = [0], width
    for length in lengths:
        if length > free:
            per_row.append(0)
            free = width
        per_row[-1] += 1
        free -= length
    return per_row


@pytest.mark.parametrize("lengths", [[2, 0], [2, -1], [2.0, 1.0], [[2, 1]]])
@pytest.mark.parametrize("form", [nopad.Flat(), Rows(4), Rows(4, end_to_end=True)])
def test_forms_check_lengths(form, lengths):
    """Best-fit decreasing divided by 0, or did not end."""
    with pytest.raises(LengthError, match=r"each needs at least 1|must be integers in one dimension"):
        form.layout(np.array(lengths))


def test_rows_of_negative_numbers_of_sequences_are_named():
    with pytest.raises(OptionError, match="there are 2 lengths; row 1 holds -1: give each at least 0"):
        Layout.rows(np.array([1, 1]), np.array([3, -1]), 8)


def check(layout, lengths):
    """Every token is somewhere, once, and its numbers are right."""
    ids, positions = layout.sequence_ids.reshape(-1), layout.position_ids.reshape(-1)
    stream = [(n + 1, place) for n, length in enumerate(lengths) for place in range(length)]
    assert list(zip(ids[layout.index].tolist(), positions[layout.index].tolist(), strict=True)) == stream
    assert np.count_nonzero(ids) == layout.tokens == sum(lengths)
    assert not positions[ids == 0].any()
    assert layout.cu_seqlens.tolist() == np.cumsum([0, *lengths]).tolist()
    assert (layout.cu_seqlens.dtype, layout.sequence_ids.dtype, layout.position_ids.dtype) == (
        "int32",
        "int32",
        "int64",
    )
    assert layout.max_seqlen == max(lengths)
    assert (np.diff(layout.index) > 0).all()
    values = np.arange(layout.tokens)
    assert layout.scatter(values, -1).reshape(-1)[layout.index].tolist() == values.tolist()


@given(LENGTHS)
def test_flat(lengths):
    layout = Layout.flat(np.array(lengths))
    check(layout, lengths)
    assert layout.shape == (1, sum(lengths))
    assert layout.depth == len(lengths)


@given(LENGTHS, st.integers(9, 20))
def test_rows(lengths, width):
    per_row = in_rows(lengths, width)
    layout = Layout.rows(np.array(lengths), np.array(per_row), width)
    check(layout, lengths)
    assert layout.shape == (len(per_row), width)
    assert layout.depth == max(per_row)
    begins = layout.index[layout.cu_seqlens[:-1]]
    ends = layout.index[layout.cu_seqlens[1:] - 1]
    assert (begins // width == ends // width).all()


@given(LENGTHS, st.integers(1, 20), st.integers(0, 3))
def test_end_to_end(lengths, width, more):
    least = -(-sum(lengths) // width)
    layout = Layout.end_to_end(np.array(lengths), width, least + more)
    check(layout, lengths)
    assert layout.shape == (least + more, width)
    assert layout.index.tolist() == list(range(sum(lengths)))


def test_rows_may_be_empty():
    layout = Layout.rows(np.array([2, 1]), np.array([0, 2, 0]), 4)
    assert layout.sequence_ids.tolist() == [[0] * 4, [1, 1, 2, 0], [0] * 4]


@given(st.data(), LENGTHS, st.integers(9, 20))
def test_rows_in_another_order(data, lengths, width):
    order = data.draw(st.permutations(range(len(lengths))))
    streamed = [lengths[number] for number in order]
    layout = Layout.rows(np.array(lengths), np.array(in_rows(streamed, width)), width, np.array(order))
    ids, positions = layout.sequence_ids.reshape(-1), layout.position_ids.reshape(-1)
    stream = [(number + 1, place) for number in order for place in range(lengths[number])]
    assert list(zip(ids[layout.index].tolist(), positions[layout.index].tolist(), strict=True)) == stream
    assert layout.seq_lengths.tolist() == lengths
    assert layout.stream_lengths.tolist() == streamed
    assert np.diff(layout.cu_seqlens).tolist() == streamed


def test_what_follows_from_the_rest_is_not_sent():
    layout = Layout.rows(np.array([300, 100, 200]), np.array([2, 1]), 512, np.array([2, 0, 1]))
    before = len(pickle.dumps(layout))
    wanted = layout.position_ids, layout.sequence_ids, layout.index
    assert len(pickle.dumps(layout)) == before < 1500
    again = pickle.loads(pickle.dumps(layout))
    for found, value in zip((again.position_ids, again.sequence_ids, again.index), wanted, strict=True):
        assert np.array_equal(found, value)


def test_refusals():
    with pytest.raises(LengthError, match="sequence 1 has 0 tokens; each needs at least 1"):
        Layout.flat(np.array([3, 0]))
    with pytest.raises(LengthError, match="seq_lengths must be integers in one dimension, got float64"):
        Layout.flat(np.array([1.5]))
    with pytest.raises(LengthError, match="row 0 holds 5 tokens, and 4 is the capacity"):
        Layout.rows(np.array([3, 2]), np.array([2]), 4)
    with pytest.raises(OptionError, match="the rows hold 1 sequences, and there are 2 lengths"):
        Layout.rows(np.array([3, 2]), np.array([1]), 4)
    with pytest.raises(LengthError, match="5 tokens need 2 rows of 4, and 1 are given"):
        Layout.end_to_end(np.array([3, 2]), 4, 1)


@pytest.mark.parametrize("layout", ["flat", "rows", "ordered", "aligned", "end_to_end"])
def test_compiled_loops_change_nothing(monkeypatch, layout):
    """A process that has loaded them uses them; another one does not wait for them."""
    lengths = np.random.default_rng(0).integers(1, 30, size=50)

    def made():
        if layout == "flat":
            return Layout.flat(lengths)
        if layout == "end_to_end":
            return Layout.end_to_end(lengths, 32)
        order = np.random.default_rng(1).permutation(50) if layout == "ordered" else None
        per_row = np.random.default_rng(2).permutation([0] * 25 + [2] * 25)
        return Layout.rows(lengths, per_row, 72, order, align=4 if layout == "aligned" else 1)

    from nopad import _kernels  # noqa: F401

    def seen():
        layout = made()
        scattered = (layout.scatter(np.arange(layout.tokens), fill).tolist() for fill in (0, -100))
        return layout.starts.tolist(), layout.position_ids.tolist(), *scattered

    compiled = seen()
    monkeypatch.delitem(sys.modules, "nopad._kernels")
    assert seen() == compiled


@pytest.mark.parametrize("per_row", [[2, 2], [4], [3, -1, 1]])
def test_rows_take_each_sequence_once_or_are_refused(monkeypatch, per_row):
    from nopad import _kernels  # noqa: F401

    for _ in range(2):
        with pytest.raises(OptionError, match=r"the rows hold \d sequences, and there are 3 lengths"):
            Layout.rows(np.array([3, 1, 2]), np.array(per_row), 8)
        monkeypatch.delitem(sys.modules, "nopad._kernels", raising=False)


def test_aligned_rows_leave_padding_behind_each_sequence():
    layout = Layout.rows(np.array([3, 4, 1, 2]), np.array([2, 2]), 8, align=4)
    assert layout.sequence_ids.tolist() == [[1, 1, 1, 0, 2, 2, 2, 2], [3, 0, 0, 0, 4, 4, 0, 0]]
    assert layout.position_ids.tolist() == [[0, 1, 2, 0, 0, 1, 2, 3], [0, 0, 0, 0, 0, 1, 0, 0]]
    assert layout.cu_seqlens.tolist() == [0, 3, 7, 8, 10]
    assert layout.cu_seqlens_padded.tolist() == [0, 4, 8, 12, 16]
    assert layout.scatter(np.arange(1, 11), 0).tolist() == [[1, 2, 3, 0, 4, 5, 6, 7], [8, 0, 0, 0, 9, 10, 0, 0]]
    with pytest.raises(LengthError, match="row 0 holds 12 tokens in multiples of 4, and 8 is the capacity"):
        Layout.rows(np.array([5, 4]), np.array([2]), 8, align=4)
    with pytest.raises(OptionError, match="the capacity 10 is no multiple of align, which is 4"):
        Rows(10, align=4)
    with pytest.raises(OptionError, match="have no gaps"):
        Rows(8, align=4, end_to_end=True)


@pytest.mark.parametrize("count", [20, 400])
def test_aligned_rows_are_packed_for_their_slots(count):
    lengths = np.random.default_rng(0).integers(1, 20, size=count)
    layout = Rows(32, align=8).layout(lengths.astype(np.int32))
    assert (layout.starts % 8 == 0).all()
    taken = np.bincount(layout.starts // 32, weights=-(-lengths // 8) * 8)
    assert taken.max() <= 32
    assert layout.shape[0] == nopad.plan(lengths, 32, algorithm="bfd", align=8).packs


def test_batches_beyond_32_bits_are_refused():
    most = 2**31 - 1
    assert Layout.flat(np.array([most])).cu_seqlens.tolist() == [0, most]
    with pytest.raises(LengthError, match="has 4,294,967,294 slots, and at most 2,147,483,647"):
        Layout.flat(np.array([most] * 2))
    with pytest.raises(LengthError, match="has 2,147,483,648 slots"):
        Layout.rows(np.array([1, 1]), np.array([1, 1]), 2**30)


@pytest.mark.parametrize("loaded", [False, True])
def test_a_length_that_is_beyond_32_bits_once_it_is_aligned(loaded, monkeypatch):
    if loaded:
        importlib.import_module("nopad._kernels")
    else:
        monkeypatch.delitem(sys.modules, "nopad._kernels", raising=False)
    with pytest.raises(LengthError):
        Layout.rows(np.array([2**31 - 1]), np.array([1]), 4, align=4)


def test_lengths_beyond_32_bits_are_refused():
    with pytest.raises(LengthError, match=r"1 has 4,294,967,299 tokens; a sequence may have at most 2,147,483,647"):
        nopad.Flat().layout(np.array([5, 2**32 + 3]))


@pytest.mark.parametrize("order", [[0, 0, 1], [0, 1], [1, 2, 3], [True, False, True]])
def test_an_order_has_each_sequence_once(order):
    with pytest.raises((LengthError, OptionError), match="order must"):
        Layout.rows(np.array([1, 1, 2]), np.array([2, 1]), 4, np.array(order))


@given(lengths=LENGTHS, multiple=st.integers(1, 70))
def test_flat_batches_of_a_multiple(lengths, multiple):
    """Padding lies behind the last token, and belongs to no sequence."""
    sequences = [list(range(1, length + 1)) for length in lengths]
    plain = nopad.PackedBatch.from_sequences(sequences)
    batch = nopad.PackedBatch.from_sequences(sequences, nopad.Flat(pad_to_multiple_of=multiple), pad_id=99)
    tokens = sum(lengths)
    missing = -tokens % multiple
    assert batch.input_ids.shape == (1, tokens + missing)
    assert batch.input_ids[0, tokens:].tolist() == [99] * missing
    assert not batch.sequence_ids[0, tokens:].any()
    assert [one.tolist() for one in batch.unpack_tokens(batch.input_ids)] == sequences
    for name in ("input_ids", "position_ids"):
        assert torch.equal(batch[name][:, :tokens], plain[name])
    assert np.array_equal(batch.cu_seqlens, plain.cu_seqlens)


@pytest.mark.parametrize("multiple", [0, -8, 1.5, True, None, "8", 2**31])
def test_multiples_that_are_none(multiple):
    with pytest.raises(OptionError, match="pad_to_multiple_of must be an integer from 1"):
        nopad.Flat(pad_to_multiple_of=multiple)
