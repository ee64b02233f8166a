from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

from nopad.errors import SourceError
from nopad.loading.sources import open_tokens


@pytest.fixture
def folder(tmp_path, make_records, write_arrays, only):
    return write_arrays(tmp_path / "a", only(make_records(3000), "input_ids", "label"))


def changes(path):
    """What may happen to a file, by name."""

    def shorten():
        os.truncate(path, path.stat().st_size // 2)

    def write():
        with open(path, "r+b") as file:
            file.seek(-2, os.SEEK_END)
            file.write(b"\1\1")
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 1_000_000))  # also where the clock has not ticked since

    def append():
        with open(path, "ab") as file:
            file.write(b"\1\1")

    return {"shorten": shorten, "write": write, "append": append}


MESSAGES = {
    "shorten": "changed since it was opened, from",
    "write": "written again or replaced since it was opened; open it again when nothing writes to it",
    "append": "changed since it was opened, from",
}


@pytest.mark.parametrize("name", ["ids.npy", "offsets.npy", "label.npy"])
@pytest.mark.parametrize("change", MESSAGES)
def test_a_file_that_changes_while_it_is_open(folder, change, name):
    source = open_tokens(folder)
    worker = pickle.dumps(source)
    source.gather([0, 2999])
    changes(folder / name)[change]()
    for doing in (lambda: source.gather([2999]), source.check_unchanged, lambda: pickle.loads(worker).gather([2999])):
        with pytest.raises(SourceError, match=rf"{name}: {MESSAGES[change]}"):
            doing()


def test_a_file_that_changes_during_a_gathering(folder, monkeypatch):
    source = open_tokens(folder)
    real = type(source).located

    def located(self, numbers):
        found = real(self, numbers)
        changes(folder / "ids.npy")["write"]()
        return found

    monkeypatch.setattr(type(source), "located", located)
    with pytest.raises(SourceError, match="written again or replaced"):
        source.gather([5])


def test_a_removed_file_is_read_on_but_noticed_between_epochs(folder):
    source = open_tokens(folder)
    worker, before = pickle.dumps(source), source.gather([7]).tokens["input_ids"].tolist()
    source.check_unchanged()
    (folder / "ids.npy").unlink()
    assert source.gather([7]).tokens["input_ids"].tolist() == before
    for doing in (source.check_unchanged, lambda: pickle.loads(worker).gather([7])):
        with pytest.raises(SourceError, match=r"ids\.npy: no such file or folder"):
            doing()


def test_a_file_put_in_its_place_is_noticed_between_epochs(folder):
    source = open_tokens(folder)
    worker, before = pickle.dumps(source), source.gather([7]).tokens["input_ids"].tolist()
    ids, path = np.load(folder / "ids.npy"), folder / "ids.npy"
    stamp = path.stat()
    np.save(folder / "new.npy", ids[::-1])
    os.utime(folder / "new.npy", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # size and time are the same
    os.replace(folder / "new.npy", path)
    assert source.gather([7]).tokens["input_ids"].tolist() == before
    for doing in (source.check_unchanged, lambda: pickle.loads(worker).gather([7])):
        with pytest.raises(SourceError, match=r"ids\.npy: written again or replaced"):
            doing()


def test_a_pickled_source_is_small(tmp_path, write_arrays):
    records = [{"input_ids": [1, 2]}] * 50_000
    source = open_tokens(write_arrays(tmp_path / "a", records))
    source.gather([1])
    assert len(pickle.dumps(source)) < 4000
