"""Turn exceptions in a user's code into `ModelFailedError`, which an audit reports as a failed check or a finding."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nopad.errors import FOREIGN, BatchError, UnsupportedModelError

__all__ = ["ModelFailedError", "inside_model"]

MOST = 200  # characters kept of the exception's message


class ModelFailedError(Exception):
    """An exception in code that an audit runs: the user's model, collator, loss or trainer, or a refusal by nopad.

    The audits report this error and do not raise it.

    Attributes:
        kind: name of the exception's class.
        reason: the exception's message in one line, cut to 200 characters, and the file and line that raised it. If
            `refused`, it is the whole message without the place.
        refused: whether nopad refused the batch or the model, which is not a wrong result.
    """

    def __init__(self, doing: str, error: BaseException) -> None:
        whole = " ".join(str(error).split()) or "no message"
        said = whole if len(whole) <= MOST else f"{whole[:MOST]}..."
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
        self.kind, self.reason = type(error).__name__, said + where
        self.refused = isinstance(error, BatchError | UnsupportedModelError)
        if self.refused:
            self.reason = whole  # nopad's own message in full, since it says what to do
        super().__init__(f"{doing}: {self.kind}: {self.reason}")


@contextmanager
def inside_model(doing: str) -> Iterator[None]:
    """In a ``with`` block, turn any `Exception`, and `SystemExit`, into a `ModelFailedError`.

    The error's message begins with `doing`, which says what was being done. A `ModelFailedError` passes unchanged.
    """
    try:
        yield
    except ModelFailedError:
        raise
    except FOREIGN as error:  # a user's model may raise anything
        raise ModelFailedError(doing, error) from error
