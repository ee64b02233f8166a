from __future__ import annotations

import os

import numpy as np
import pytest

from nopad.corpus import CHAIN_START, LengthsFile, chain
from nopad.errors import FormatError, OptionError


@pytest.fixture
def save(tmp_path):
    def run(lengths, name: str = "lengths.npy") -> LengthsFile:
        np.save(tmp_path / name, np.asarray(lengths))
        return LengthsFile(tmp_path / name)

    return run


def fingerprint(source: LengthsFile) -> bytes:
    digest = CHAIN_START
    for block in source.blocks():
        digest = chain(digest, block)
    return digest


@pytest.mark.parametrize("dtype", ["<i2", ">i2"])
def test_it_is_read_and_counts_its_bytes(save, dtype):
    source = save(np.arange(1, 11).astype(dtype))
    assert not isinstance(source.lengths, np.memmap)  # a mapped file that is cut short kills the process
    assert source.lengths.tolist() == list(range(1, 11))
    assert next(source.blocks()).data == np.arange(1, 11).astype(dtype).tobytes()
    assert source.total_bytes == 20 == sum(len(block.data) for block in source.blocks())
    assert source.inventory() == [("lengths.npy", os.path.getsize(source.path))]


def test_large_files_come_in_blocks(save):
    source = save(np.ones((1 << 20) + 5, dtype=np.uint8))
    assert [len(block.data) for block in source.blocks()] == [1 << 20, 5]


def test_the_fingerprint_is_of_content_name_and_type(save):
    prints = [
        fingerprint(save([1, 2])),
        fingerprint(save([1, 3])),
        fingerprint(save([1, 2], "other.npy")),
        fingerprint(save(np.array([1, 2], dtype=np.int32))),
    ]
    assert len(set(prints)) == 4
    assert fingerprint(save([1, 2])) == prints[0]


def test_there_are_no_records(save):
    with pytest.raises(FormatError, match=r"^lengths hold no records; pack them with index_only=True$"):
        next(iter(next(save([1]).blocks()).records()))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not an .npy file of numbers (EOF: reading magic string, expected 8 bytes got 0); save it"),
        (b"not numpy", "not an .npy file of numbers (the magic string is not correct; "),
        (None, "no such file or folder; check the path, or put it back"),
    ],
)
def test_what_is_no_array_file(tmp_path, content, why):
    path = tmp_path / "a.npy"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FormatError) as caught:
        LengthsFile(path)
    assert str(caught.value).startswith(f"cannot read lengths from {path}: {why}")


def test_no_file_at_all():
    with pytest.raises(OptionError, match="no file of lengths; give at least one"):
        LengthsFile([])


def test_no_pickle_is_ever_loaded(save):
    with pytest.raises(FormatError, match=r"not an \.npy file of numbers"):
        save(np.array([print], dtype=object))


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_shape(save, tmp_path, shape):
    with pytest.raises(FormatError) as caught:
        save(np.ones(shape, dtype=int))
    assert str(caught.value) == (
        f"{tmp_path / 'lengths.npy'} holds an array of shape {shape}; lengths are one-dimensional"
    )
