from __future__ import annotations

import errno
import fcntl
import gc
import json
import multiprocessing
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from nopad import PackedLoader
from nopad.errors import StorageError
from nopad.loading.sharing import HostArrays

FACTS = {"seed": 0, "data": "abc"}


def test_arrays_are_made_once_and_mapped(tmp_path):
    made = []

    def make():
        made.append(1)
        return {"order": np.arange(5, dtype=np.int32), "bounds": np.arange(3)}

    first, second, other = HostArrays(FACTS, tmp_path), HostArrays(FACTS, tmp_path), HostArrays({"seed": 1}, tmp_path)
    one, two = first.arrays("epoch-0", make), second.arrays("epoch-0", make)
    assert len(made) == 1
    assert {name: array.tolist() for name, array in two.items()} == {"order": [0, 1, 2, 3, 4], "bounds": [0, 1, 2]}
    one["order"][0] = 9
    assert two["order"][0] == 0
    other.arrays("epoch-0", make)
    assert len(made) == 2
    first.forget("epoch-0*")
    second.arrays("epoch-0", make)
    assert len(made) == 3
    assert two["order"].tolist() == [0, 1, 2, 3, 4]


def test_the_last_process_removes_the_folder(tmp_path):
    first, second = HostArrays(FACTS, tmp_path), HostArrays(FACTS, tmp_path)
    first.close()
    assert second.folder.is_dir()
    del second
    gc.collect()
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_what_a_killed_job_left_behind_is_removed_by_the_next(tmp_path, warm_python):
    program = (
        "import os, sys, numpy as np; from pathlib import Path; from nopad.loading.sharing import HostArrays\n"
        "shared = HostArrays({'job': 1}, Path(sys.argv[1]))\n"
        "shared.arrays('epoch-0', lambda: {'order': np.arange(9)}); os.kill(os.getpid(), 9)"
    )
    with warm_python.load("nopad.loading.sharing")("-c", program, tmp_path) as process:
        assert process.wait() == -9
    left = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert len(left) == 1
    HostArrays(FACTS, tmp_path)
    assert not left[0].exists()


def test_what_a_killed_job_left_behind_is_not_read(tmp_path, warm_python):
    program = (
        "import json, os, sys, numpy as np; from pathlib import Path; from nopad.loading.sharing import HostArrays\n"
        "shared = HostArrays(json.loads(sys.argv[2]), Path(sys.argv[1]))\n"
        "shared.arrays('epoch-0', lambda: {'order': np.zeros(9)}); os.kill(os.getpid(), 9)"
    )
    with warm_python.load("nopad.loading.sharing")("-c", program, tmp_path, json.dumps(FACTS)) as process:
        assert process.wait() == -9
    assert HostArrays(FACTS, tmp_path).arrays("epoch-0", lambda: {"order": np.arange(3)})["order"].tolist() == [0, 1, 2]


def test_arrays_of_which_one_was_removed_are_made_again(tmp_path):
    shared = HostArrays(FACTS, tmp_path)
    for _ in range(2):
        found = shared.arrays("epoch-0", lambda: {"order": np.arange(3), "bounds": np.arange(2)})
        assert sorted(found) == ["bounds", "order"]
        next(shared.folder.rglob("order.npy")).unlink()


@pytest.mark.parametrize("content", ["", "[", "\x00\x00"])
def test_arrays_whose_list_of_names_is_damaged_are_made_again(tmp_path, content):
    shared = HostArrays(FACTS, tmp_path)
    for _ in range(2):
        assert shared.arrays("epoch-0", lambda: {"order": np.arange(3)})["order"].tolist() == [0, 1, 2]
        next(shared.folder.rglob("names.json")).write_text(content)


def test_a_folder_that_is_a_symbolic_link_is_called_one(tmp_path):
    """It was said to belong to somebody else."""
    (tmp_path / "there").mkdir()
    (tmp_path / "here").symlink_to(tmp_path / "there")
    with pytest.raises(StorageError, match="here is a symbolic link, which could lead anywhere; give another host_dir"):
        HostArrays(FACTS, tmp_path / "here")


def test_a_folder_of_somebody_else_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    with pytest.raises(StorageError, match="belongs to somebody else; give another host_dir"):
        HostArrays(FACTS, tmp_path)


def test_without_its_folder_each_process_has_its_own(tmp_path):
    shared = HostArrays(FACTS, tmp_path / "here")
    shutil.rmtree(tmp_path / "here")
    assert shared.arrays("epoch-0", lambda: {"order": np.arange(2)})["order"].tolist() == [0, 1]
    shared.forget("epoch-0*")
    shared.close()


def test_a_process_that_is_forked_while_arrays_are_made_does_not_keep_the_lock(tmp_path):
    shared, children = HostArrays(FACTS, tmp_path), []
    context = multiprocessing.get_context("fork")
    end = context.Event()

    def make():
        children.append(context.Process(target=end.wait, args=(60,)))
        children[0].start()
        return {"order": np.arange(2)}

    shared.arrays("epoch-0", make)
    try:
        with open(shared.folder / "lock", "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        end.set()
        children[0].join(60)


def test_a_forked_process_leaves_the_folder_to_its_parent(tmp_path):
    shared = HostArrays(FACTS, tmp_path)
    process = multiprocessing.get_context("fork").Process(target=shared.close)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert shared.folder.is_dir()
    other = HostArrays({"seed": 1}, tmp_path)
    assert shared.folder.is_dir()
    del shared, other


def test_a_make_that_fails_leaves_nothing_half_made(tmp_path):
    shared = HostArrays(FACTS, tmp_path)

    def broken():
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError):
        shared.arrays("epoch-0", broken)
    assert shared.arrays("epoch-0", lambda: {"order": np.arange(2)})["order"].tolist() == [0, 1]


def take(rank: int, folder: str) -> list:
    """The batches of four epochs."""
    data = [np.full(length, number) for number, length in enumerate([5, 3, 8, 1, 7, 2, 6, 4] * 25)]
    loader = PackedLoader(
        data, 8, rows=2, rank=rank, world_size=4, last="fill", balance="sorted", host_dir=folder or None
    )
    return [[batch.input_ids.tolist() for batch in loader] for _ in range(4)]


def test_ranks_that_share_get_what_they_would_have_got_alone(tmp_path, warm_python):
    program = (
        "import json, sys; from tests.loading.test_sharing import take; rank, folder = sys.argv[1:];"
        "print(json.dumps(take(int(rank), folder)))"
    )
    warm_python.load("torch", "tests.loading.test_sharing")
    processes = [warm_python("-c", program, rank, tmp_path) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        outputs = list(pool.map(lambda process: process.communicate(timeout=120), processes))
    assert [process.returncode for process in processes] == [0, 0], outputs[0][1]
    for rank, (out, _) in enumerate(outputs):
        assert take(rank, "") == json.loads(out)
    assert [path.name for path in Path(tmp_path).iterdir()] == ["lock"]


def test_an_error_of_who_makes_the_arrays_is_not_one_of_their_files(tmp_path):
    given = HostArrays(FACTS, tmp_path)

    def fails():
        raise OSError(5, "the user's disk")

    with pytest.raises(OSError, match="the user's disk") as caught:
        given.arrays("epoch-0", fails)
    assert not isinstance(caught.value.__cause__, OSError)
    made = given.arrays("epoch-0", lambda: {"order": np.arange(2)})
    assert made["order"].tolist() == [0, 1]


def test_a_full_disk_names_the_arrays(tmp_path, monkeypatch):
    given = HostArrays(FACTS, tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(StorageError, match=r"no space left while writing .*epoch-0 \("):
        given.arrays("epoch-0", lambda: {"order": np.arange(2)})
