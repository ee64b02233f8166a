"""Jobs over lengths alone: only an index can be made of them."""

from __future__ import annotations

import numpy as np
import pytest

from nopad.corpus import LengthsFile
from nopad.errors import LengthError, OptionError, OutputExistsError, RecordError, ResumeError


@pytest.fixture
def save(tmp_path):
    def run(lengths, name: str = "lengths.npy") -> LengthsFile:
        np.save(tmp_path / name, np.asarray(lengths))
        return LengthsFile(tmp_path / name)

    return run


def test_they_can_only_be_indexed(save, pack, tmp_path):
    source = save([1, 2])
    with pytest.raises(OptionError) as caught:
        pack(source, tmp_path / "out")
    assert str(caught.value) == f"{source.path} holds lengths, not tokens; pack it with index_only=True"
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
        f"the source changed since the job in {out} started; put it back as it was, or delete the folder to start over"
    )
    with pytest.raises(ResumeError, match=r"lengths\.npy changed its size"):
        pack(save([1, 2, 3, 4]), out, index_only=True)
    made = pack(save([1, 2, 3]), out, index_only=True)
    assert pack(save([1, 2, 3]), out, index_only=True) == made
    with pytest.raises(OutputExistsError, match="already holds a packed dataset of another source"):
        pack(save([3, 2, 1]), out, index_only=True)
