"""`OnlinePacker`: packs requests into batches as they arrive, without threads and without a clock of its own.

The caller adds requests, and asks when a batch may leave, each time with the current time; so the same calls give the
same batches. Times are integers in nanoseconds of any clock (`time.monotonic_ns`). A time earlier than the latest one
so far is replaced by the latest. So setting the clock back reorders nothing, but no time passes until it has caught up.

Each request is in exactly one batch, unless it is cancelled or its deadline comes first. No request starves: each batch
takes the request that has waited longest. So a request behind p others is in one of the next p + 1 batches, whatever
the priorities and deadlines of the others are. With `Batching.keep_order`, requests leave in order of arrival.

With 100 waiting requests, choosing a batch takes 0.3 to 0.6 us per request in it (`benchmarks/online_packing.py`). A
flat batch has no padding at all. Where the device needs a fixed shape, "look_ahead" leaves the least padding. Source:
Graphcore's PopRT packs live requests by "end_to_end", "first_fit" and "next_fit".
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from nopad.errors import LengthError, OptionError, QueueFullError
from nopad.options import shown
from nopad.serving.batching import REASONS, Batching, Reason

__all__ = ["Decision", "OnlineBatch", "OnlinePacker", "PackerStatistics"]

PRIORITIES = 1000  # from -PRIORITIES to PRIORITIES
LAST_NS = 2**61  # the latest time
_COLUMNS = 6
_PLACES = 256  # requests that the table has room for at first


@dataclass(frozen=True, eq=False)
class OnlineBatch:
    """A batch: requests that leave together, in order of arrival.

    Attributes:
        reason: why the batch leaves now. "full": a waiting request does not fit, no request would, or none can come
            before a batch leaves (`stuck` of `OnlinePacker.poll`); "count": `max_sequences` is reached; "timeout": a
            request has waited `wait_s`; "deadline": a request must leave now to meet its deadline; "idle": the device
            is idle; "drain": no more requests will come.
        numbers: the requests' numbers, as `OnlinePacker.add` returned them; int64 ``[n]``.
        lengths: number of tokens in each request; int64 ``[n]``.
        rows: the row in which each request begins; int64 ``[n]``, all 0 in a flat batch.
        starts: the slot of its row at which each request begins; int64 ``[n]``. With "end_to_end", a request that
            reaches the end of its row continues at the beginning of the next.

    >>> from nopad.serving import Batching, OnlinePacker
    >>> packer = OnlinePacker(Batching(capacity=8, rows=2))
    >>> _ = packer.add(5, now_ns=0)
    >>> batch = packer.poll(now_ns=1).batch
    >>> batch.reason, batch.numbers.tolist(), batch.tokens
    ('idle', [0], 5)
    """

    reason: Reason
    numbers: NDArray[np.int64]
    lengths: NDArray[np.int64]
    rows: NDArray[np.int64]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of requests."""
        return self.numbers.size

    @property
    def tokens(self) -> int:
        """Number of tokens in all requests of the batch."""
        return int(self.lengths.sum())


@dataclass(frozen=True, eq=False)
class Decision:
    """The result of `OnlinePacker.poll`.

    Attributes:
        batch: the batch that leaves now; None: no batch leaves.
        expired: numbers of the requests that were removed because their deadline has come; int64 ``[n]``.
        wake_ns: time at which to call `poll` again even if no request is added before, in nanoseconds; None: only a new
            request or another state of the device changes anything.

    With `accumulate`, the request waits for others until `wait_s`, 1 ms, has passed:

    >>> from nopad.serving import Batching, OnlinePacker
    >>> packer = OnlinePacker(Batching(capacity=8, rows=2, accumulate=True, wait_s=0.001))
    >>> _ = packer.add(5, now_ns=0)
    >>> decision = packer.poll(now_ns=10)
    >>> decision.batch, decision.wake_ns
    (None, 1000000)
    """

    batch: OnlineBatch | None
    expired: NDArray[np.int64]
    wake_ns: int | None


@dataclass(frozen=True, kw_only=True)
class PackerStatistics:
    """Totals of a packer since it was made.

    Attributes:
        arrived, packed, cancelled, expired: numbers of requests; each that arrived was packed, was cancelled, has
            expired, or still waits.
        refused: number of calls of `add` and `add_all` refused because the queue was full; their requests are not in
            `arrived`.
        waiting, waiting_tokens: number of requests that wait now, and number of their tokens.
        flushes: number of batches for each reason (`OnlineBatch.reason`).
        tokens: number of tokens in all batches.
        slots: number of slots in all batches; for flat batches, tokens plus separators.

    >>> from nopad.serving import Batching, OnlinePacker
    >>> packer = OnlinePacker(Batching(capacity=8, rows=2))
    >>> _ = packer.add(5, now_ns=0)
    >>> packer.statistics.arrived, packer.statistics.waiting_tokens
    (1, 5)
    """

    arrived: int
    packed: int
    cancelled: int
    expired: int
    refused: int
    waiting: int
    waiting_tokens: int
    flushes: dict[Reason, int]
    tokens: int
    slots: int

    @property
    def batches(self) -> int:
        """Number of batches that have left."""
        return sum(self.flushes.values())

    @property
    def efficiency(self) -> float:
        """Tokens / slots; 1.0 before the first batch."""
        return self.tokens / self.slots if self.slots else 1.0


class OnlinePacker:
    """Packs requests as they arrive into batches, which leave when `poll` finds that one is due.

    Requests are numbered from 0 in order of arrival. The device that runs the batches is the caller's: `poll` is told
    whether it is idle.

    Args:
        batching: the limits of a batch, and the policy.

    The first three requests fill a batch of two rows; request 3, with 4 tokens, does not fit into it. This request
    makes up the next batch, which leaves only when the device is idle:

    >>> packer = OnlinePacker(Batching(capacity=8, rows=2, policy="first_fit"))
    >>> [packer.add(length, now_ns=0) for length in (5, 6, 3, 4)]
    [0, 1, 2, 3]
    >>> batch = packer.poll(now_ns=1).batch
    >>> batch.reason, batch.numbers.tolist(), batch.rows.tolist(), batch.starts.tolist()
    ('full', [0, 1, 2], [0, 1, 0], [0, 0, 5])
    >>> packer.poll(now_ns=2, idle=False).batch is None
    True
    >>> packer.poll(now_ns=3).batch.reason
    'idle'
    """

    def __init__(self, batching: Batching) -> None:
        """Create a packer in which nothing waits."""
        self.batching = batching
        from nopad.serving import _packing_kernels as kernels  # here, since importing Numba takes long

        self._kernels: Any = kernels
        self._limits = batching.limits()
        self._state = np.zeros(8, dtype=np.int64)
        self._state[[kernels.NEXT_DUE, kernels.NEXT_DEADLINE]] = kernels.NEVER
        self._table = np.zeros((_PLACES, _COLUMNS), dtype=np.int64, order="F")  # columns are scanned
        # Ctrl-C may interrupt any call but `poll`, which only the worker makes. So each step that adds or moves
        # requests is valid at once, by one call or assignment, and the next `_settle` corrects the totals beside it.
        self._new = array("q")  # requests that are not in the table yet, as rows of the table one after another
        self._settled = 0  # requests that came into the table, ever
        self._tokens = 0  # in all requests that wait, in the table or not yet
        self._now = 0
        self._counts = dict.fromkeys(("packed", "cancelled", "expired", "refused", "tokens", "slots"), 0)
        self._flushes: dict[Reason, int] = dict.fromkeys(REASONS, 0)

    def __len__(self) -> int:
        """Return the number of requests that wait."""
        head, tail, *_, gaps, _ = self._state.tolist()  # in Python, which is faster than calling `waiting_of`
        return int(tail - head - gaps + len(self._new) // _COLUMNS)

    @property
    def arrived(self) -> int:
        """Number of requests that have arrived, which is the number that the next one gets."""
        return self._settled + len(self._new) // _COLUMNS

    @property
    def waiting_tokens(self) -> int:
        """Number of tokens in all requests that wait."""
        return self._tokens

    @property
    def statistics(self) -> PackerStatistics:
        """The packer's totals so far, as a copy."""
        return PackerStatistics(
            **self._counts,
            arrived=self.arrived,
            waiting=len(self),
            waiting_tokens=self.waiting_tokens,
            flushes=dict(self._flushes),
        )

    def ahead(self, lengths: Sequence[int], deadline_ns: int) -> tuple[int, int]:
        """Return how many batches run until a new request has run completely, and how many tokens these batches have.

        `lengths` are the lengths of the new request's sequences, and `deadline_ns` is its deadline. The new request is
        taken to be due at once. Each batch begins with the request that has waited longest. Then come those with the
        deadline `deadline_ns` or an earlier one, the new request, and all others. With `keep_order`, and with other
        policies than "look_ahead", all waiting requests come before the new one. How lengths fill rows is estimated,
        and what arrives later is not known.

        Raises:
            LengthError: a length is < 1, not an integer, or above `Batching.longest`; or there is no length.
            OptionError: `deadline_ns` is not an integer from 0 to 2^61.

        Requests 0 and 1 leave room for 3 tokens each. So a request of 4 tokens must wait until both have left:

        >>> from nopad.serving import Batching, OnlinePacker
        >>> packer = OnlinePacker(Batching(capacity=8))
        >>> _ = [packer.add(5, now_ns=0, deadline_ns=deadline) for deadline in (None, 30)]
        >>> packer.ahead([3], 20), packer.ahead([4], 20), packer.ahead([3], 40)
        ((1, 8), (3, 14), (1, 8))
        """
        deadline = _integer(deadline_ns, "deadline_ns", OptionError, 0, LAST_NS)
        mine = np.array([self._length(length) for length in lengths], dtype=np.int64)
        if not mine.size:
            raise LengthError("a request has at least one sequence")
        self._settle()
        batches, tokens = self._kernels.ahead(self._state, self._table, self._limits, deadline, mine)
        return int(batches), int(tokens)

    def add(
        self, length: int, now_ns: int, *, deadline_ns: int | None = None, lead_ns: int = 0, priority: int = 0
    ) -> int:
        """Add a request to those that wait; return its number.

        Args:
            length: number of tokens in the request.
            now_ns: the current time, in nanoseconds.
            deadline_ns: time from which the result is of no use, in nanoseconds; a request that still waits then is
                removed. None: no deadline.
            lead_ns: how many nanoseconds before its deadline the request must leave. From that time on, each `poll`
                returns a batch, full or not, until the request has left.
            priority: an integer from -1,000 to 1,000; requests of a higher priority leave first, and each `age_step_s`
                of waiting counts as much as one level. Only for "look_ahead" without `keep_order`; other policies take
                0 only.

        Raises:
            LengthError: `length` is < 1, not an integer, or above `Batching.longest`.
            OptionError: another argument is not an integer or is out of range, or the policy has no priorities.
            QueueFullError: more than `max_waiting_tokens` tokens would wait; the request was not added.
        """
        length = self._length(length)
        how = self._checked(now_ns, deadline_ns, lead_ns, priority)
        if self._tokens + length > self.batching.max_waiting_tokens:
            self._refuse(length)
        number = self.arrived
        self._new.extend((number, length, *how))
        self._tokens += length
        return number

    def _checked(self, now_ns: int, deadline_ns: int | None, lead_ns: int, priority: int) -> tuple[int, int, int, int]:
        """Check arguments of `add`; return the columns after a request's length: arrived, due, deadline, priority.

        Raises:
            OptionError: an argument is not an integer or is out of range, or the policy has no priorities.
        """
        now = self._at(now_ns)
        due = deadline = self._kernels.NEVER
        lead = 0 if type(lead_ns) is int and lead_ns == 0 else _integer(lead_ns, "lead_ns", OptionError, 0, LAST_NS)
        if deadline_ns is not None:
            deadline = _integer(deadline_ns, "deadline_ns", OptionError, 0, LAST_NS)
            due = max(deadline - lead, 0)
        if type(priority) is not int or priority:
            self._check_priority(priority)
        return now, due, deadline, priority

    def room(self, tokens: int) -> bool:
        """Return whether `tokens` more tokens may wait.

        Raises:
            OptionError: `tokens` is not an integer.
        """
        if type(tokens) is not int:
            tokens = _integer(tokens, "tokens", OptionError)
        return self._tokens + tokens <= self.batching.max_waiting_tokens

    def add_all(
        self,
        lengths: Sequence[int],
        now_ns: int,
        *,
        deadline_ns: int | None = None,
        lead_ns: int = 0,
        priority: int = 0,
    ) -> range:
        """Add several requests at once, all or none of them; return their numbers.

        All arguments but `lengths` are as in `add`; they apply to each request.

        Raises:
            LengthError: a length is < 1, not an integer, or above `Batching.longest`; or all together are above
                `max_waiting_tokens`.
            OptionError: another argument is not an integer or is out of range, or the policy has no priorities.
            QueueFullError: more than `max_waiting_tokens` tokens would wait.
        """
        lengths = [self._length(length) for length in lengths]
        tokens = sum(lengths)
        if tokens > self.batching.max_waiting_tokens:
            raise LengthError(
                f"a request has {tokens:,} tokens in all, and at most {self.batching.max_waiting_tokens:,} may wait; "
                "give it in parts, or raise max_waiting_tokens"
            )
        if not self.room(tokens):
            self._refuse(tokens)
        how, first = self._checked(now_ns, deadline_ns, lead_ns, priority), self.arrived
        rows = array("q")
        for number, length in enumerate(lengths, first):
            rows.extend((number, length, *how))
        self._new.extend(rows)
        self._tokens += tokens
        return range(first, first + len(lengths))

    def _length(self, length: int) -> int:
        """Return `length` as a Python integer.

        Raises:
            LengthError: it is < 1, not an integer, or above `Batching.longest`.
        """
        if type(length) is not int:
            length = _integer(length, "length", LengthError)
        if not 0 < length <= self.batching.longest:
            raise LengthError(f"a request has from 1 to {self.batching.longest:,} tokens, got {shown(length)}")
        return length

    def _refuse(self, tokens: int) -> NoReturn:
        self._counts["refused"] += 1
        raise QueueFullError(
            f"{self.waiting_tokens:,} tokens wait already, and with {tokens:,} more it would be over the limit of "
            f"{self.batching.max_waiting_tokens:,}; try again later, or raise max_waiting_tokens"
        )

    def _check_priority(self, priority: int) -> None:
        if type(priority) is not int or abs(priority) > PRIORITIES:
            raise OptionError(f"priority must be an integer from -{PRIORITIES} to {PRIORITIES}, got {shown(priority)}")
        if self.batching.policy != "look_ahead" or self.batching.keep_order:
            raise OptionError("only the policy 'look_ahead' without keep_order has priorities")

    def cancel(self, number: int) -> bool:
        """Remove the request with this number from those that wait; return whether it was waiting.

        Raises:
            OptionError: `number` is not an integer.
        """
        number = _integer(number, "number", OptionError)
        self._settle()
        found = bool(self._kernels.cancel(self._state, self._table, number))
        self._tokens = int(self._state[self._kernels.TOKENS])
        self._counts["cancelled"] += found
        return found

    def poll(self, now_ns: int, *, idle: bool = True, draining: bool = False, stuck: bool = False) -> Decision:
        """Return a `Decision`: the batch that leaves now, if any, the expired requests, and when to call this again.

        The requests of the batch, and those whose deadline has come, no longer wait afterwards.

        Args:
            now_ns: the current time, in nanoseconds.
            idle: whether the device has nothing to run; if so, a batch may leave before it is full.
            draining: whether no more requests will come, so that there is no point in waiting for a fuller batch.
            stuck: whether no request can come before a batch has left, since the queue has no room for the next one. If
                the device is idle, a batch then leaves even with `accumulate`, for the reason "full".

        Raises:
            OptionError: `now_ns` is not an integer from 0 to 2^61.
        """
        now = self._at(now_ns)
        self._settle()
        state = self._state
        expired = self._expire(now) if state[self._kernels.NEXT_DEADLINE] <= now else np.empty(0, dtype=np.int64)
        waiting = len(self)
        if not waiting:
            return Decision(None, expired, None)
        most = min(waiting, self.batching.slots, self.batching.max_sequences or waiting)
        made = np.empty((4, most), dtype=np.int64)
        known = int(idle), int(draining), int(stuck)
        why, n, tokens = self._kernels.decide(state, self._table, self._limits, now, *known, made)
        batch = self._leave(REASONS[why - 1], made[:, :n].copy(), tokens) if why else None
        return Decision(batch, expired, self._wake())

    def _at(self, now_ns: int) -> int:
        """Return the latest time so far: `now_ns`, or an earlier call's time if that is later.

        Raises:
            OptionError: `now_ns` is not an integer from 0 to 2^61.
        """
        if type(now_ns) is not int or not 0 <= now_ns <= LAST_NS:
            now_ns = _integer(now_ns, "now_ns", OptionError, 0, LAST_NS)
        if now_ns > self._now:
            self._now = now_ns
        return self._now

    def _settle(self) -> None:
        """Move the requests that have just arrived into the table."""
        if not self._new:
            return
        new, state, table = np.array(self._new).reshape(-1, _COLUMNS), self._state, self._table  # no view: it may grow
        head, tail = state[:2].tolist()
        if tail + len(new) > len(table):
            waiting, least = table[head:tail], 2 * (tail - head + len(new))
            table = np.zeros((2 * least if least > len(table) else len(table), _COLUMNS), dtype=np.int64, order="F")
            table[: len(waiting)] = waiting
            state = state.copy()
            state[:2] = 0, len(waiting)
        self._kernels.arrive(state, table, new)  # if this is interrupted now, the next call finds that they are there
        counted = int(state[self._kernels.NEXT]), int(state[self._kernels.TOKENS])
        self._state, self._table, self._new, (self._settled, self._tokens) = state, table, array("q"), counted

    def _expire(self, now: int) -> NDArray[np.int64]:
        """Remove the requests whose deadline has come; return their numbers."""
        numbers = np.empty(len(self), dtype=np.int64)
        expired = numbers[: self._kernels.expire(self._state, self._table, now, numbers)].copy()
        self._counts["expired"] += expired.size
        self._tokens = int(self._state[self._kernels.TOKENS])
        return expired

    def _leave(self, reason: Reason, made: NDArray[np.int64], tokens: int) -> OnlineBatch:
        """Count a batch and return it; `made` holds its arrays, int64 ``[4, n]``, as the compiled loop wrote them."""
        batch, limits = OnlineBatch(reason, *made), self.batching
        self._tokens = int(self._state[self._kernels.TOKENS])
        self._flushes[reason] += 1
        self._counts["packed"] += len(batch)
        self._counts["tokens"] += tokens
        self._counts["slots"] += limits.slots if limits.rows else tokens + limits.separator * (len(batch) - 1)
        return batch

    def _wake(self) -> int | None:
        """Return the time at which `poll` is to be called again, in nanoseconds; None: there is no such time.

        It is the earliest time at which a request has waited `wait_s`, must leave to meet its deadline, or expires. The
        time may be too early, if that request has left: then `poll` may find nothing to do, and gives a new time.
        """
        head, tail, _, due, deadline, *_ = self._state.tolist()
        if head == tail:
            return None
        timeout = int(self._table[head, self._kernels.ARRIVED]) + int(self._limits[self._kernels.WAIT])
        wake: int = min(timeout, due, deadline)
        return None if wake >= self._kernels.NEVER else wake


def _integer(value: Any, name: str, error: type[Exception], low: int = -(2**62), high: int = 2**62) -> int:
    """Return `value`, a Python or NumPy integer, as a Python integer; raise `error` for other values.

    `error` is also raised for an integer that is not from `low` to `high`; the message names `name`.
    """
    number = value.item() if isinstance(value, np.integer) else value
    if type(number) is not int or not low <= number <= high:
        raise error(f"{name} must be an integer from {low} to {high}, got {shown(value)}")
    return number
