from __future__ import annotations

import os

import numpy as np
import pytest

from nopad.corpus import CHAIN_START, chain
from nopad.errors import FormatError, LengthError, OptionError, OutputExistsError, RecordError, ResumeError
from nopad.store import LengthsFile


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


def test_it_is_mapped_and_counts_its_bytes(save):
    source = save(np.arange(1, 11, dtype=np.int16))
    assert isinstance(source.lengths, np.memmap)
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
    with pytest.raises(FormatError, match=r"^lengths hold no records; pack them with --index-only$"):
        next(iter(next(save([1]).blocks()).records()))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not an .npy file of numbers"),
        (b"not numpy", "not an .npy file of numbers"),
        (None, "No such file or directory"),
    ],
)
def test_what_is_no_array_file(tmp_path, content, why):
    path = tmp_path / "a.npy"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FormatError) as caught:
        LengthsFile(path)
    assert str(caught.value) == f"cannot read lengths from {path}: {why}; save them with numpy.save"


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


def test_they_can_only_be_indexed(save, pack, tmp_path):
    source = save([1, 2])
    with pytest.raises(OptionError) as caught:
        pack(source, tmp_path / "out")
    assert str(caught.value) == f"{source.path} holds lengths, not tokens; pack it with --index-only"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        ([1, 17], LengthError, "length 17 at index 1 is above the capacity of 16"),
        ([3, 0], LengthError, "length 0 at index 1"),
        ([1.5], LengthError, ""),
        ([], RecordError, "nothing to pack"),
    ],
)
def test_bad_lengths_leave_nothing_behind(save, pack, tmp_path, lengths, error, message):
    dtype = np.int64 if lengths != [1.5] else np.float64
    with pytest.raises(error, match=f"^{message}"):
        pack(save(np.array(lengths, dtype=dtype)), tmp_path / "out", index_only=True)
    assert not (tmp_path / "out").exists()


def test_changed_lengths_are_refused(save, pack, interrupt, tmp_path):
    out = tmp_path / "out"
    interrupt(save([1, 2, 3]), out, match="packs.arrow", index_only=True)
    with pytest.raises(ResumeError) as caught:
        pack(save([1, 2, 4]), out, index_only=True)
    assert str(caught.value) == (
        f"the source changed since the job in {out} started: the plan covers 1 sequences of length 3, the lengths have "
        "0 (in all 3 and 3); plan these lengths instead; put it back as it was, or delete the folder to start over"
    )
    with pytest.raises(ResumeError, match=r"lengths\.npy changed its size"):
        pack(save([1, 2, 3, 4]), out, index_only=True)
    made = pack(save([1, 2, 3]), out, index_only=True)
    assert pack(save([1, 2, 3]), out, index_only=True) == made
    with pytest.raises(OutputExistsError, match="already holds a packed dataset of another source"):
        pack(save([3, 2, 1]), out, index_only=True)
