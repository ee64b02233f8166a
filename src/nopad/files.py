"""Write files so that a process killed at any moment leaves the old content or the new, never a mixture.

Every write goes to a temporary file in the same folder. The file is forced to disk (fsync), and then renamed to the
target. Then the folder is forced to disk, too. This module also has locks, checksums, and errors that name a file.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from nopad.errors import CorruptError, FormatError, OptionError, StorageError

__all__ = [
    "PARTIAL_SUFFIX",
    "damage_errors",
    "fsync_path",
    "is_model_folder",
    "local_path",
    "locked",
    "once_each",
    "preparing",
    "replacing",
    "sha256_file",
    "storage_errors",
    "write_atomic",
    "write_text",
]

PARTIAL_SUFFIX = ".partial"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")  # one slash, since Path turns "//" into "/"


def local_path(given: str | os.PathLike[str]) -> Path:
    """Check a path that results will be written to, and return it as a `Path`.

    Raises:
        OptionError: the path is a URL such as ``s3://...`` (results are written to local folders only), and there is no
            folder called ``s3:``; or the path cannot be written in UTF-8, which Parquet readers require, or has a
            character NUL, which no file's name has.

    A name with a colon is not a URL unless a slash follows the colon:

    >>> local_path("run-12:30")
    PosixPath('run-12:30')
    """
    text = os.fspath(given)
    if _URL.match(text) and not os.path.exists(text.partition("/")[0]):
        url = re.sub(":/+", "://", text, count=1)
        raise OptionError(
            f"{url}: results are written to a folder of this machine; write there, and copy it afterwards"
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        shown = text.encode("utf-8", "backslashreplace").decode()
        raise OptionError(f"{shown}: this name is not UTF-8; choose another") from None
    if "\0" in text:
        raise OptionError(f"{text!r}: this name has a character NUL; choose another")
    return Path(text)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the lock file `path` inside a ``with`` block; the file is created or emptied.

    Until the block ends, every other process or thread on this machine waits if it asks for the same lock. If the
    process ends, the operating system releases the lock. An error in the block is raised as it is.

    Raises:
        StorageError: the lock file cannot be written or locked.
    """
    with ExitStack() as stack:
        with storage_errors("locking", path):
            file = stack.enter_context(open(path, "wb"))
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:  # not by closing alone: a process that was forked meanwhile has the file open, too
            fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def storage_errors(doing: str, path: Path) -> Iterator[None]:
    """Turn an OSError in a ``with`` block into a `StorageError` that says what failed, on which path, and why.

    `doing` is the action in words, such as "writing".

    Raises:
        StorageError: the block raised an OSError. If no space is left, or a quota or the limit on a file's size is
            reached, the message also says what to do.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            reason = os.strerror(error.errno)  # pyarrow's own text is longer
            raise StorageError(
                f"no space left while {doing} {path} ({reason}); free some space and run the same command again"
            ) from error
        raise StorageError(f"failed while {doing} {path}: {error.strerror or error}") from error


@contextmanager
def damage_errors(path: Path, *raised: type[Exception]) -> Iterator[None]:
    """Turn errors of a ``with`` block, which reads the file `path`, into errors of nopad that name this file.

    `raised` are the exceptions that reading a damaged file may raise, besides OSError. Other exceptions are raised as
    they are.

    Raises:
        CorruptError: the file is missing or damaged.
        StorageError: the file cannot be read for another reason: permissions, too many open files, the device.
    """
    kinds: tuple[type[Exception], ...] = (OSError, *raised)
    try:
        yield
    except kinds as error:
        if isinstance(error, OSError) and error.errno not in _OF_THE_FILE:
            with storage_errors("reading", path):
                raise
        raise CorruptError(f"{path} is missing or damaged ({error}); see `nopad verify`") from error


_OF_THE_FILE = (None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL)


@contextmanager
def preparing(path: Path) -> Iterator[Path]:
    """Give a ``with`` block a temporary path beside `path` to write to; the caller renames the temporary file later.

    If the block raises any exception, the temporary file is removed.

    Raises:
        StorageError: the block raised an OSError, such as that the disk is full.
    """
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    with storage_errors("writing", path):
        try:
            yield partial
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a ``with`` block a temporary path to write to; after the block, fsync the file and rename it to `path`.

    If the block raises an exception, or a write fails before the renaming, the temporary file is removed, and `path` is
    unchanged.

    Raises:
        StorageError: the block raised an OSError, the file could not be renamed, or it or its folder could not be
            forced to disk.
    """
    with preparing(path) as partial:
        yield partial
        fsync_path(partial)
        os.replace(partial, path)
    with storage_errors("writing", path):
        fsync_path(path.parent)


def write_atomic(path: Path, content: bytes) -> None:
    """Write `content` to the file `path`; a file that exists there is replaced.

    If this fails before the temporary file is renamed, the old content stays.

    Raises:
        StorageError: the disk is full, or the write failed.
    """
    with replacing(path) as partial:
        partial.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write `text` to the file `path` in UTF-8, as `write_atomic` does.

    Lone surrogates, which UTF-8 cannot hold, are written as Python escapes them. So a page can be written even if a
    file name or an exception's message in it contains one.

    Raises:
        StorageError: the disk is full, or the write failed.
    """
    write_atomic(path, text.encode(errors="backslashreplace"))


def fsync_path(path: Path) -> None:
    """Wait until the content of a file is on disk. For a folder, wait until the names of its files are on disk.

    Raises:
        OSError: `path` cannot be opened, or fsync failed.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hex.

    Raises:
        StorageError: the file cannot be read.
    """
    with storage_errors("reading", path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the ``(key, value)`` pairs of a JSON object as a dict; for the `object_pairs_hook` of `json.loads`.

    Raises:
        ValueError: a key occurs more than once, so that one of its values would be lost.
    """
    made = dict(pairs)
    if len(made) < len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice!r} comes twice")
    return made


def is_model_folder(spec: str | Path) -> bool:
    """Return whether `spec` is a folder of this machine with a model; False: it can only be a name on the hub.

    Raises:
        FormatError: `spec` exists on this machine or begins with ".", "/" or "~", and is not a folder with a
            ``config.json``.
    """
    path = Path(spec)
    here = path.exists() or str(spec).startswith((".", "/", "~"))
    if str(spec).startswith("~") and not path.exists():
        raise FormatError(f"{spec} does not exist; only a shell replaces the ~ by a home folder, so write the path out")
    if here and not (path / "config.json").is_file():
        raise FormatError(f"{spec} is no folder with a model: it has no config.json")
    return here
