"""Hints at ``--force`` for an output folder that holds something already, and at what an interrupted one has left."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nopad.errors import OutputExistsError, ResumeError, StorageError
from nopad.store.starting_over import LOCK, NEW, check_made, is_held

__all__ = ["way_out"]


@contextmanager
def way_out(out: Path, names: re.Pattern[str]) -> Iterator[None]:
    """In a ``with`` block, add a hint at ``--force`` to errors about the folder `out`, if ``--force`` may replace it.

    ``--force`` may replace a folder that holds a job or output of nopad, and no other files. `names` matches the names
    of the files that nopad writes there: `DATASET` or `PREDICTIONS` of `nopad.store.starting_over`.

    If the block succeeds, warn about the files that an interrupted call with ``--force`` left in `out`: only such a
    call goes on with them. Nothing is said while another call with ``--force`` is running there: the files are its own.
    """
    try:
        yield
    except (OutputExistsError, ResumeError) as error:
        try:
            check_made(out, names)
        except OutputExistsError:
            raise error from None
        raise type(error)(f"{error}, or start over with --force") from error
    with suppress(StorageError):  # the block succeeded, even if the lock cannot be looked at
        if not is_held(out / LOCK) and (out / NEW).is_dir():
            warnings.warn(
                f"{out / NEW} holds the files of an unfinished call with --force; run it again, or delete this folder",
                stacklevel=3,
            )
