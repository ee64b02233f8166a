"""Arrays that one rank of a host makes and all its ranks map, so that memory does not grow with the number of ranks.

The ranks of a job find the same folder because its name is a digest of facts that are the same on all of them, such as
a fingerprint of the data. The first process that needs an array makes it, under a lock; the others wait, and map its
file into memory. Files are never changed, only removed, which does not affect processes that have mapped them. The last
process that uses a folder removes it; folders that a killed job left behind are removed, unread, when the next job
begins. If another program removes files meanwhile (such as a cleaner of temporary files), arrays are made again; once
the folder is gone, each process has its own arrays.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import nopad
from nopad.errors import OptionError, StorageError
from nopad.files import locked, storage_errors
from nopad.loading.feeds import Feed
from nopad.loading.ranks import Ranks
from nopad.notation import from_json
from nopad.options import shown

__all__ = ["HostArrays", "shared"]

Arrays = Mapping[str, NDArray[Any]]
_SHARED_FROM = 1 << 20  # number of sequences from which on the ranks of a host share arrays
_USERS = "users"  # locked by every process that uses the folder
_NAMES = "names.json"  # the names of the arrays in a folder


class HostArrays:
    """Arrays that one process of this host makes, and that all its processes with the same facts map from files.

    Args:
        facts: a dict of what must be the same in all processes that share arrays, such as a fingerprint of the data.
            All values can be written as JSON. The folder is named by a digest of these facts and nopad's version.
        root: where that folder is made; None: in this user's folder below the system's folder for temporary files.

    Attributes:
        folder: the folder of the arrays' files.

    Raises:
        StorageError: the folder cannot be made, or `root` is a symbolic link or belongs to somebody else.
    """

    def __init__(self, facts: Mapping[str, Any], root: Path | None = None) -> None:
        """Make the folder for these facts, or join the processes that use it already.

        Folders of shared arrays below `root` that no process uses any more are removed; other folders stay.

        Raises:
            StorageError: the folder cannot be made, or `root` is a symbolic link or belongs to somebody else.
        """
        same = {**facts, "nopad": nopad.__version__}
        key = hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:32]
        root = root or Path(tempfile.gettempdir()) / f"nopad-{os.getuid()}"
        self.folder = root / key
        with storage_errors("writing", root):
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if root.is_symlink():
                raise StorageError(f"{root} is a symbolic link, which could lead anywhere; give another host_dir")
            if root.stat().st_uid != os.getuid():
                raise StorageError(f"{root} belongs to somebody else; give another host_dir")
            with locked(root / "lock"):
                _remove_left_behind(root)
                self.folder.mkdir(mode=0o700, exist_ok=True)
                users = os.open(self.folder / _USERS, os.O_RDWR | os.O_CREAT, 0o600)
                fcntl.flock(users, fcntl.LOCK_SH)
        self._close = weakref.finalize(self, _leave, root, self.folder, users, os.getpid())

    def arrays(self, name: str, make: Callable[[], Arrays]) -> dict[str, NDArray[Any]]:
        """Return a dict with the arrays stored under `name`, mapped from files.

        If no process has stored them yet, or their files were removed, `make` is called. It returns the arrays in a
        dict, and these are stored. If the whole folder is gone, the result of `make` is returned without being stored.
        Writing to the returned arrays does not change them in other processes.

        Raises:
            StorageError: the disk is full, or a read or write failed.
        """
        place = self.folder / name
        if not self.folder.is_dir():
            return dict(make())
        with locked(self.folder / "lock"):
            with storage_errors("reading", place):
                whole = _whole(place)
            if not whole:
                self._write(name, make())
            with storage_errors("reading", place):
                return {path.stem: np.asarray(np.load(path, mmap_mode="c")) for path in sorted(place.glob("*.npy"))}

    def _write(self, name: str, made: Arrays) -> None:
        place, partial = self.folder / name, self.folder / f"{name}.partial"
        with storage_errors("writing", place):
            shutil.rmtree(place, ignore_errors=True)
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            for key, array in made.items():
                np.save(partial / f"{key}.npy", array)
            (partial / _NAMES).write_text(json.dumps(sorted(made)))
            partial.rename(place)

    def forget(self, pattern: str) -> None:
        """Remove the files of all arrays stored under names that match a glob pattern, such as "epoch-*".

        Processes that have mapped these files can still read them.

        Raises:
            StorageError: the lock file of the folder cannot be written.
        """
        if not self.folder.is_dir():
            return
        with locked(self.folder / "lock"):
            for place in self.folder.glob(pattern):
                shutil.rmtree(place, ignore_errors=True)

    def close(self) -> None:
        """Stop using the folder; the last process that stops using it removes it."""
        self._close()


def _whole(place: Path) -> bool:
    """Return whether all arrays that were stored in the folder `place` are still in it."""
    try:
        names = from_json((place / _NAMES).read_text())
    except (FileNotFoundError, ValueError):  # ValueError: not whole itself
        return False
    return all((place / f"{name}.npy").is_file() for name in names)


def _free(users: int) -> bool:
    """Try to lock the open file `users` (a file descriptor) for this process alone, and return whether that succeeded.

    It fails if another process has locked the file. The lock is held until the file is closed.
    """
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_left_behind(root: Path) -> None:
    """Remove the folders of shared arrays below `root` that no process uses any more; other folders stay."""
    for folder in root.iterdir():
        if not (folder / _USERS).is_file():
            continue
        users = os.open(folder / _USERS, os.O_RDWR)
        try:
            if _free(users):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(users)


def _leave(root: Path, folder: Path, users: int, owner: int) -> None:
    try:
        if os.getpid() == owner:  # a forked process shares the lock, and must not end it
            with locked(root / "lock"):
                if _free(users):
                    shutil.rmtree(folder, ignore_errors=True)
    except StorageError:
        pass  # somebody has removed it already
    finally:
        os.close(users)


def shared(ranks: Ranks, feed: Feed, host_dir: str | os.PathLike[str] | None) -> HostArrays | None:
    """Return the arrays that the ranks of this host share; None: each rank makes arrays of its own.

    If `host_dir` is given, arrays are always shared, in this folder. Otherwise they are shared in a temporary folder if
    a node has two or more ranks and the data have 2**20 sequences or more.

    Raises:
        OptionError: `host_dir` is not a path.
        StorageError: the folder cannot be made, or `host_dir` is a symbolic link or belongs to somebody else.
    """
    if host_dir is not None and not isinstance(host_dir, str | os.PathLike):
        raise OptionError(f"host_dir is {shown(host_dir)}; it is the path of a folder")
    if host_dir is None and (ranks.node_size == 1 or feed.sequences < _SHARED_FROM):
        return None
    return HostArrays(feed.facts(), None if host_dir is None else Path(host_dir))
