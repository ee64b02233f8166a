"""Requests that wait for a runner's worker, their sequences in a batch, and callers that wait for room in the queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nopad.errors import RequestError
from nopad.sequences import Sequences
from nopad.serving.answer import Answer
from nopad.tasks.core import Prepared

__all__ = ["Part", "Place", "Waiting", "error_of", "fail"]


@dataclass(eq=False)
class Waiting:
    """A request that was submitted, with its future and its results so far.

    Attributes:
        prepared: the request, as sequences.
        future: the future of its answer.
        asked_ns: time at which the request was submitted, in nanoseconds.
        numbers: the numbers of its sequences in the packer.
        results: one result per sequence; None: it has not run yet.
        missing: number of sequences without a result.
        started: whether one of its sequences has left the queue to run.
        over: whether it has failed, was cancelled or has expired, so that further results are ignored.
    """

    prepared: Prepared
    future: Answer
    asked_ns: int
    numbers: range = range(0)
    results: list[Any] = field(default_factory=list)
    missing: int = 0
    started: bool = False
    over: bool = False

    @property
    def tokens(self) -> int:
        """Number of tokens in all its sequences."""
        return sum(self.prepared.lengths)


class Part(NamedTuple):
    """One sequence of a request, placed in a batch.

    Attributes:
        row: the row of the batch in which the sequence begins.
        request: the request.
        at: the sequence's number in the request, from 0.
    """

    row: int
    request: Waiting
    at: int

    @property
    def sequence(self) -> Sequences:
        """The sequence, as `Sequences` that hold only this one."""
        return self.request.prepared.sequences.part(self.at, self.at + 1)


@dataclass(frozen=True, eq=False)
class Place:
    """A caller's place in the line of those that wait for room.

    Attributes:
        turn: is notified when there may be room.
        tokens: how many tokens the caller's request has.
        thread: the caller's thread (`threading.get_ident`).
    """

    turn: threading.Condition
    tokens: int
    thread: int


def fail(left: Iterable[Waiting], make: Callable[[], Exception]) -> None:
    """Call `make` for each of these requests that is not done, and set the error that it returns as the answer.

    Each request gets an error of its own, since whoever raises an error adds to its traceback.
    """
    for one in left:
        if not one.future.done() and (one.future.running() or one.future.set_running_or_notify_cancel()):
            one.future.set_exception(make())


def error_of(request: Waiting) -> RequestError | None:
    """Return the error of a request's first failed sequence, or None if none failed.

    If the request has several sequences, the message has the number of the failed one.
    """
    for at, result in enumerate(request.results):
        if isinstance(result, RequestError):
            if len(request.results) == 1:
                return result
            error = RequestError(f"sequence {at} of {len(request.results)}: {result}")
            error.__cause__ = result.__cause__
            return error
    return None
