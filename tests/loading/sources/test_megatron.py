from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad.errors import FormatError, LengthError, SourceError
from nopad.loading.sources import open_tokens

FIVE = [[7, 8, 9], [5], [1, 2], [4, 4, 4, 4], [6]]


def ids(source, numbers):
    return source.gather(numbers).tokens["input_ids"]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.int32, np.int64, np.uint16])
def test_every_type_of_integer(tmp_path, write_megatron, holds, dtype):
    prefix = write_megatron(tmp_path / "data", FIVE, dtype)
    source = open_tokens(prefix)
    holds(source, [{"input_ids": one} for one in FIVE])
    assert ids(source, [3, 0]).dtype == dtype


@pytest.mark.parametrize("suffix", ["", ".bin", ".idx"])
def test_a_pair_is_named_by_its_prefix_or_by_either_file(tmp_path, write_megatron, suffix):
    prefix = write_megatron(tmp_path / "my.data_v1.2", FIVE)
    assert ids(open_tokens(f"{prefix}{suffix}"), [2, 0]).tolist() == [1, 2, 7, 8, 9]


@given(st.lists(st.lists(st.lists(st.integers(0, 65_535), max_size=6), max_size=4), min_size=1, max_size=6), st.data())
def test_documents_are_runs_of_sequences(tmp_path_factory, write_megatron, documents, data):
    sequences = [one for document in documents for one in document]
    joined = [[i for one in document for i in one] for document in documents]
    bounds = np.cumsum([0, *map(len, documents)]).tolist()
    prefix = write_megatron(tmp_path_factory.mktemp("m") / "data", sequences, documents=bounds)
    kept = [one for one in joined if one]
    if not kept:
        with pytest.raises(SourceError, match="holds no sequence"):
            open_tokens(prefix, unit="documents", empty="skip")
        return
    source = open_tokens(prefix, unit="documents", empty="skip")
    numbers = data.draw(st.lists(st.integers(0, len(kept) - 1), max_size=8))
    assert source.seq_lengths.tolist() == list(map(len, kept))
    assert ids(source, numbers).tolist() == [i for number in numbers for i in kept[number]]


def test_sequences_may_lie_in_any_order(tmp_path, write_megatron, holds, refuses):
    prefix = write_megatron(tmp_path / "data", FIVE, pointers=[0, 2 * 10, 2 * 3, 2 * 5, 2 * 9], documents=[0, 2, 5])
    # [7, 8, 9, 5, 1, 2, 4, 4, 4, 4, 6] in the .bin
    expected = [[7, 8, 9], [6], [5, 1], [2, 4, 4, 4], [4]]
    holds(open_tokens(prefix), [{"input_ids": one} for one in expected])
    with refuses(
        FormatError,
        f"{prefix}.idx: sequence 1 does not follow the one before it in the .bin, and both are of one document; count "
        'sequences instead, with unit="sequences"',
    ):
        open_tokens(prefix, unit="documents")
    apart = write_megatron(tmp_path / "b", FIVE, pointers=[22 - 6, 2, 4, 8, 0], documents=[0, 1, 2, 4, 5])
    assert open_tokens(apart, unit="documents").seq_lengths.tolist() == [3, 1, 6, 1]


def test_modes_are_a_column(tmp_path, write_megatron):
    source = open_tokens(write_megatron(tmp_path / "data", FIVE, modes=[0, 1, 0, 1, 1]))
    assert source.gather([4, 2]).values["mode"].tolist() == [1, 0]


def test_empty_sequences(tmp_path, write_megatron):
    prefix = write_megatron(tmp_path / "data", [[1], [], [2, 3]])
    with pytest.raises(LengthError, match="sequence 1 has no token, as 1 of 3"):
        open_tokens(prefix)
    source = open_tokens(prefix, empty="skip")
    assert (ids(source, [1]).tolist(), source.skipped) == ([2, 3], 1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"magic": b"TNTIDX\x00\x00\x00"},
            r"no Megatron index: it begins with b'TNTIDX\\x00\\x00\\x00', not b'MMIDIDX",
        ),
        ({"version": 2}, "version 2 of Megatron's index; version 1 is read"),
        ({"code": 0}, "its code 0 for the type of the ids is unknown"),
        ({"code": 9}, "its code 9 for the type of the ids is unknown"),
        ({"code": 7}, "its code 7 for the type of the ids is floating-point numbers, which are no ids"),
        ({"code": 4}, "has 22 bytes, and the 5 sequences of data.idx take 44; these two were not written together"),
        ({"count": 6}, "has 142 bytes, and 6 sequences with 6 document bounds take 154"),
        ({"count": 2**60}, "states 1,152,921,504,606,846,976 sequences and 6 document bounds in 142 bytes"),
        ({"document_count": 2**63}, "states 5 sequences and 9,223,372,036,854,775,808 document bounds in 142 bytes"),
        ({"lengths": [3, 1, 2, 4, 2]}, "has 22 bytes, and the 5 sequences of data.idx take 24"),
        ({"lengths": [3, 1, 2, 6, -1]}, "sequence 3 has 6 tokens at byte 12 of a .bin of 22 bytes"),
        ({"lengths": [3, 1, 2, -1, 6], "pointers": [0, 6, 8, 12, 0]}, "sequence 3 has -1 tokens at byte 12"),
        ({"pointers": [0, 6, 8, 12, -2]}, "sequence 4 has 1 tokens at byte -2"),
        ({"pointers": [0, 6, 8, 12, 22]}, "sequence 4 has 1 tokens at byte 22"),
        ({"pointers": [0, 6, 8, 12, 19]}, "sequence 4 has 1 tokens at byte 19"),
        ({"pointers": [0, 6, 8, 2**63 - 2, 20]}, "sequence 3 has 4 tokens at byte 9223372036854775806 of a .bin of 22"),
        ({"pointers": [2**63 - 6, 6, 8, 12, 20]}, "sequence 0 has 3 tokens at byte 9223372036854775802 of a .bin of"),
    ],
)
def test_an_index_that_is_wrong(tmp_path, write_megatron, wrong, message):
    with pytest.raises(FormatError, match=message):
        open_tokens(write_megatron(tmp_path / "data", FIVE, **wrong))


@pytest.mark.parametrize("bounds", [[0, 3], [1, 5], [0, 4, 2, 5], [], [0, 2**63 - 1, -(2**63), -1, 5]])
def test_document_bounds_that_are_wrong(tmp_path, write_megatron, bounds):
    prefix = write_megatron(tmp_path / "data", FIVE, documents=bounds)
    assert len(open_tokens(prefix)) == 5
    with pytest.raises(FormatError, match="bounds of documents must go from 0 to 5, the number of sequences"):
        open_tokens(prefix, unit="documents")


@pytest.mark.parametrize("size", [0, 5, 33, 34, 100, 141])
def test_a_truncated_index(tmp_path, write_megatron, size):
    prefix = write_megatron(tmp_path / "data", FIVE)
    os.truncate(f"{prefix}.idx", size)
    with pytest.raises(FormatError, match=r"data\.idx: (no Megatron index|has|states)"):
        open_tokens(prefix)


@pytest.mark.parametrize("size", [0, 10, 21])
def test_a_truncated_bin(tmp_path, write_megatron, size):
    prefix = write_megatron(tmp_path / "data", FIVE)
    os.truncate(f"{prefix}.bin", size)
    with pytest.raises(FormatError, match=rf"data\.bin: has {size} bytes, and the 5 sequences of data\.idx take 22"):
        open_tokens(prefix)


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_half_a_pair(tmp_path, write_megatron, suffix):
    prefix = write_megatron(tmp_path / "data", FIVE)
    os.unlink(f"{prefix}{suffix}")
    with pytest.raises(SourceError, match=rf"data\{suffix}: no such file or folder"):
        open_tokens(f"{prefix}.bin")
