from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad.errors import LengthError, SourceError
from nopad.loading.sources import open_tokens
from nopad.loading.sources.arrays import memory_tokens
from nopad.sequences import Sequences


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int32, np.int64, np.uint64])
def test_a_mapped_folder_gives_every_column_in_its_own_type(tmp_path, make_records, write_arrays, holds, dtype):
    records = make_records(80, top=60_000 if dtype == np.uint16 else 2**31 - 1)
    source = open_tokens(write_arrays(tmp_path / "a", records, dtype))
    holds(source, records)
    found = source.gather([3, 1])
    assert found.tokens["input_ids"].dtype == dtype
    assert found.tokens["loss_mask"].dtype == bool
    assert found.values["weight"].dtype == np.float64


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.int64, np.uint64])
def test_integers_per_token_can_be_gathered_as_int64(tmp_path, make_records, write_arrays, dtype):
    records = make_records(90, high=300, top=np.iinfo(dtype).max + 1 if np.dtype(dtype).itemsize < 4 else 2**31)
    folder = write_arrays(tmp_path / "a", records, dtype)
    labels = np.load(folder / "labels.npy").astype(np.int16)
    np.save(folder / "labels.npy", labels)
    source = open_tokens(folder)
    numbers = np.random.default_rng(0).integers(0, 90, 70)
    stored, wide = source.gather(numbers), source.gather(numbers, wide=True)
    for name in ("input_ids", "labels"):
        assert wide.tokens[name].dtype == np.int64
        assert wide.tokens[name].tolist() == stored.tokens[name].tolist()
    assert wide.tokens["loss_mask"].dtype == bool
    assert wide.tokens["scores"].tolist() == stored.tokens["scores"].tolist()
    assert wide.seq_lengths.tolist() == stored.seq_lengths.tolist()


@pytest.mark.parametrize(("dtype", "bad"), [(np.int8, -1), (np.int64, 2**31), (np.uint32, 2**31), (np.uint64, 2**63)])
def test_what_int64_cannot_hold_or_is_no_id_is_not_gathered_as_int64(tmp_path, dtype, bad):
    source = open_tokens(save(tmp_path / "a", [0, 2, 3], np.array([1, 2, bad], dtype)))
    assert source.gather([0], wide=True).tokens["input_ids"].tolist() == [1, 2]
    with pytest.raises(SourceError, match="holds an id that is negative or above 2147483647"):
        source.gather([1], wide=True)
    if dtype == np.uint64:
        hashes = np.array([1, 2, bad], np.uint64)
        beside = open_tokens(save(tmp_path / "b", [0, 2, 3], np.array([1, 2, 3]), hashes=hashes))
        assert beside.gather([1]).tokens["hashes"].tolist() == [2**63]
        with pytest.raises(SourceError, match="hashes holds a number beyond 64-bit integers"):
            beside.gather([1], wide=True)


@given(st.lists(st.lists(st.integers(0, 65_535), max_size=300), min_size=1, max_size=9), st.data())
def test_memory_gives_any_choice(lists, data):
    kept = [ids for ids in lists if ids]
    ids = np.array([i for one in lists for i in one], np.uint16)
    made = Sequences(seq_lengths=np.array([len(one) for one in lists], np.int32), tokens={"input_ids": ids})
    if not kept:
        with pytest.raises(SourceError, match="holds no sequence with a token"):
            memory_tokens(made, empty="skip")
        return
    source = memory_tokens(made, empty="skip")
    assert source.skipped == len(lists) - len(kept)
    numbers = data.draw(st.lists(st.integers(0, len(kept) - 1), max_size=12))
    found = source.gather(numbers)
    assert found.tokens["input_ids"].tolist() == [i for number in numbers for i in kept[number]]
    assert found.seq_lengths.tolist() == [len(kept[number]) for number in numbers]


@pytest.mark.parametrize("tokens", [{"input_ids": np.array([1.0, float("nan")])}, {"ids": np.array([1, 2])}, {}])
def test_sequences_without_integer_ids(tokens):
    with pytest.raises(SourceError, match=r"memory: input_ids are (float64|missing); give integers"):
        open_tokens(Sequences(seq_lengths=np.array([2], np.int32), tokens=tokens))


def test_sequences_longer_than_their_columns(refuses):
    made = Sequences(seq_lengths=np.array([2, 2], np.int32), tokens={"input_ids": np.arange(3)})
    with refuses(
        SourceError,
        "memory: a sequence has a length below 0 or above 2147483647, or lies beyond the 3 values of input_ids; make "
        "it again",
    ):
        open_tokens(made).gather([0, 1])


def test_long_sequences_beyond_what_is_touched_ahead(tmp_path, make_records, write_arrays, holds):
    records = make_records(70, low=1, high=9000)
    holds(open_tokens(write_arrays(tmp_path / "a", records, np.uint16)), records)


def save(folder, offsets, ids=(1, 2, 3, 4, 5, 6), **columns):
    folder.mkdir()
    for name, values in {"offsets": offsets, "ids": ids, **columns}.items():
        np.save(folder / f"{name}.npy", np.array(values))
    return folder


def test_offsets_that_fall(tmp_path, refuses):
    folder = save(tmp_path / "a", [0, 4, 2, 6])
    with refuses(SourceError, f"{folder}: the offsets fall from 4 to 2 at sequence 1"):
        open_tokens(folder)


def test_offsets_that_fall_over_the_edge_of_a_block(tmp_path, refuses):
    offsets = np.arange((1 << 20) + 4)
    offsets[1 << 20] += 2
    folder = save(tmp_path / "a", offsets, np.zeros(offsets[-1], np.uint8))
    at = 1 << 20
    with refuses(SourceError, f"{folder}: the offsets fall from {at + 2} to {at + 1} at sequence {at}"):
        open_tokens(folder)


def test_offsets_that_do_not_end_at_the_ids(tmp_path):
    with pytest.raises(SourceError, match=r"goes from \[0\] to \[9\], and must go from 0 to the 6 values"):
        open_tokens(save(tmp_path / "a", [0, 4, 9]))


def test_ids_that_are_no_integers(tmp_path):
    with pytest.raises(SourceError, match=r"no array of integers ids\.npy"):
        open_tokens(save(tmp_path / "a", [0, 2], [1.0, float("nan")]))


@pytest.mark.parametrize(("dtype", "bad"), [(np.int8, -1), (np.int32, -1), (np.int64, 2**31), (np.uint32, 2**31)])
def test_ids_out_of_range_are_never_gathered(tmp_path, refuses, dtype, bad):
    folder = save(tmp_path / "a", [0, 2, 6], np.array([1, 2, 3, bad, 5, 6], dtype))
    source = open_tokens(folder)
    assert source.gather([0]).tokens["input_ids"].tolist() == [1, 2]
    message = f"{folder}: holds an id that is negative or above 2147483647; ids are integers from 0 to that"
    with refuses(SourceError, message):
        source.gather([0, 1])


def test_a_column_that_is_neither_per_token_nor_per_sequence(tmp_path):
    with pytest.raises(SourceError, match=r"labels\.npy has 4 values; one per token would be 6, one per sequence 2"):
        open_tokens(save(tmp_path / "a", [0, 2, 6], labels=[1, 2, 3, 4]))


def test_a_column_that_could_be_either(tmp_path):
    folder = save(tmp_path / "a", [0, 3, 6, 6, 6, 6, 6], label=[1] * 6)
    with pytest.raises(SourceError, match=r"one per token, or one per sequence\?"):
        open_tokens(folder, empty="skip")
    clear = save(tmp_path / "b", range(7), label=range(6))
    assert open_tokens(clear).gather([4]).tokens["label"].tolist() == [4]


def test_empty_sequences_are_refused_by_number_or_skipped_and_counted(tmp_path, refuses):
    folder = save(tmp_path / "a", [0, 2, 2, 6, 6], weight=[0.5, 1.5, 2.5, 3.5])
    with refuses(
        LengthError,
        f'{folder}: sequence 1 has no token, as 2 of 4; leave them out, or skip them with empty="skip"',
    ):
        open_tokens(folder)
    source = open_tokens(folder, empty="skip")
    assert (len(source), source.skipped, source.seq_lengths.tolist()) == (2, 2, [2, 4])
    found = source.gather([1, 0])
    assert found.tokens["input_ids"].tolist() == [3, 4, 5, 6, 1, 2]
    assert found.values["weight"].tolist() == [2.5, 0.5]


def test_another_byte_order_is_refused(tmp_path):
    with pytest.raises(SourceError, match="byte order of another kind of machine"):
        open_tokens(save(tmp_path / "a", [0, 6], np.arange(6, dtype=">i4")))


def test_no_sequence_at_all(tmp_path):
    with pytest.raises(SourceError, match="holds no sequence with a token; give at least one"):
        open_tokens(save(tmp_path / "a", [0], np.array([], np.int32)))


def test_a_truncated_array(tmp_path, make_records, write_arrays):
    folder = write_arrays(tmp_path / "a", make_records(9))
    data = (folder / "ids.npy").read_bytes()
    (folder / "ids.npy").write_bytes(data[:-3])
    with pytest.raises(SourceError, match=r"ids\.npy: cut short"):
        open_tokens(folder)
