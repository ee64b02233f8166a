"""Add a hint at ``--force`` to errors about an output folder that holds something already."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nopad.errors import OutputExistsError, ResumeError
from nopad.store.starting_over import check_made

__all__ = ["way_out"]


@contextmanager
def way_out(out: Path, names: re.Pattern[str]) -> Iterator[None]:
    """In a ``with`` block, add a hint at ``--force`` to errors about the folder `out`, if ``--force`` may replace it.

    ``--force`` may replace a folder that holds a job or output of nopad, and no other files. `names` matches the names
    of the files that nopad writes there: `DATASET` or `PREDICTIONS` of `nopad.store.starting_over`.
    """
    try:
        yield
    except (OutputExistsError, ResumeError) as error:
        try:
            check_made(out, names)
        except OutputExistsError:
            raise error from None
        raise type(error)(f"{error}, or start over with --force") from error
