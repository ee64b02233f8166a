"""`Batching`: the limits of a batch, the policy that fills it, and how long requests wait for others to join them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from nopad.errors import OptionError
from nopad.options import BOOLEAN, MAX_LENGTH, Option, check_choice, shown

__all__ = ["POLICIES", "REASONS", "Batching", "Policy", "Reason"]

Policy = Literal["end_to_end", "first_fit", "next_fit", "best_fit", "look_ahead"]
Reason = Literal["full", "count", "timeout", "idle", "deadline", "drain"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
REASONS: tuple[Reason, ...] = get_args(Reason)

LONGEST_S = 1e9  # seconds; sums of such times in nanoseconds fit into 64 bits
_NS = 1_000_000_000
_INTEGERS = {
    "capacity": Option(default=None, high=MAX_LENGTH, help="slots of a row, or tokens of a flat batch"),
    "rows": Option(default=None, none=True, high=2**20, help="rows of a batch"),
    "max_sequences": Option(default=None, none=True, high=MAX_LENGTH, help="most requests in a batch"),
    "separator": Option(default=0, low=0, high=MAX_LENGTH, help="empty slots between two requests"),
    "window": Option(default=128, high=2**20, help="waiting requests to choose from"),
    "max_waiting_tokens": Option(default=1 << 20, high=2**60, help="most tokens that wait"),
    "accumulate": Option(default=False, choices=BOOLEAN, help="wait although the device is idle"),
    "keep_order": Option(default=None, none=True, choices=(*BOOLEAN, None), help="batches in order of arrival"),
}


@dataclass(frozen=True, kw_only=True)
class Batching:
    """The limits of a batch, and the policy by which waiting requests are chosen for it.

    With `rows`, a batch is a fixed grid of rows with `capacity` slots each. Without it, a batch is flat: one stream of
    at most `capacity` tokens, without padding; a request with more tokens than that is a batch of its own.

    Attributes:
        capacity: number of slots in a row; without `rows`, number of tokens in a flat batch.
        rows: number of rows in a batch; None: batches are flat.
        policy: how requests are placed in rows. "end_to_end": rows are filled to their ends, and a request may continue
            in the next row; "first_fit": the first row with room; "next_fit": the current row or the next one;
            "best_fit": the fullest row with room; "look_ahead": all waiting requests (see `window`) are packed, the
            longest first, and the fullest rows leave. In flat batches, the first four are the same, and "look_ahead"
            goes by priority, deadline and arrival, not by length.
        max_sequences: maximum number of requests in a batch, over all rows; None: unlimited.
        separator: number of empty slots between two requests in a row; there are none before the first or after the
            last.
        wait_s: a batch leaves when the request that has waited longest has waited this many seconds, full or not; None:
            there is no such limit.
        accumulate: True: an idle device is no reason for a batch to leave. It leaves when it is full, after `wait_s`,
            to meet a deadline, or because no more requests will come; needs `wait_s`. False: a batch also leaves as
            soon as the device is idle.
        keep_order: True: requests leave in order of arrival; the first one that does not fit ends the batch. False:
            later requests that fit may overtake it. The request that has waited longest is still always in the next
            batch. No batch leaves while another waiting request would fit into it, except with "next_fit", which tries
            only the requests in `window`, and only its current row and the next one. None: False for "look_ahead", True
            for the other policies.
        window: number of waiting requests among which "look_ahead" chooses, and which "next_fit" tries; more, if these
            have too few tokens for two batches. With "look_ahead", requests beyond them fill the slots that are left.
            While fewer requests than this wait, and not enough for two batches (by tokens or `max_sequences`),
            "look_ahead" lets a batch into which one more token fits wait for more requests. The batch leaves earlier if
            there is another reason, such as an idle device. With `keep_order`, `window` has no effect.
        age_step_s: waiting for this many seconds counts as much as one level of priority.
        max_waiting_tokens: maximum number of tokens that wait. `OnlinePacker` refuses requests beyond it; for a
            `PackRunner`, `when_full` says whether they are refused or wait for room.

    Raises:
        OptionError: a value is invalid, or two of them contradict each other.

    This policy keeps the order of arrival, since `keep_order` is not given:

    >>> Batching(capacity=256, rows=16, policy="first_fit", max_sequences=40).keep_order
    True
    """

    capacity: int
    rows: int | None = None
    policy: Policy = "look_ahead"
    max_sequences: int | None = None
    separator: int = 0
    wait_s: float | None = None
    accumulate: bool = False
    keep_order: bool | None = None
    window: int = 128
    age_step_s: float = 1.0
    max_waiting_tokens: int = 1 << 20

    def __post_init__(self) -> None:
        """Check the values, and replace a `keep_order` of None by the default of the policy."""
        check_choice("policy", self.policy, Policy)
        for name, option in _INTEGERS.items():
            object.__setattr__(self, name, option.check(name, getattr(self, name)))
        if self.wait_s is not None:
            check_seconds("wait_s", self.wait_s, least=0.0, none=True)
        check_seconds("age_step_s", self.age_step_s, least=1e-6)
        if self.keep_order is None:
            object.__setattr__(self, "keep_order", self.policy != "look_ahead")
        if self.accumulate and self.wait_s is None:
            raise OptionError("accumulate=True needs wait_s, or a batch that is never full would never leave")
        if self.rows is not None and self.rows * self.capacity > MAX_LENGTH:
            raise OptionError(f"rows x capacity is at most {MAX_LENGTH:,}, got {self.rows * self.capacity:,}")

    @property
    def slots(self) -> int:
        """Number of slots of a batch: rows x capacity; for a flat batch, its capacity."""
        return self.capacity * (self.rows or 1)

    @property
    def longest(self) -> int:
        """Maximum number of tokens in a request: `max_waiting_tokens` or the capacity of a row, whichever is less.

        Without `rows`, 2^31 - 1 takes the place of the capacity.
        """
        return min(self.max_waiting_tokens, self.capacity if self.rows else MAX_LENGTH)

    def limits(self) -> NDArray[np.int64]:
        """Return the settings as an array for the compiled loops, in the order defined in `_placing_kernels`."""
        from nopad.serving._packing_kernels import NEVER

        flat = self.rows is None
        greedy = self.policy != "look_ahead"
        return np.array(
            [
                POLICIES.index("end_to_end" if flat and greedy else self.policy),
                self.rows or 1,
                self.capacity,
                flat,
                self.max_sequences or MAX_LENGTH,
                self.separator,
                bool(self.keep_order),
                self.window,
                NEVER if self.wait_s is None else in_ns(self.wait_s),
                self.accumulate,
                in_ns(self.age_step_s),
            ],
            dtype=np.int64,
        )


def in_ns(seconds: float) -> int:
    """Return a number of seconds in nanoseconds, rounded to an integer."""
    return round(seconds * _NS)


def check_seconds(name: str, value: Any, least: float, none: bool = False) -> None:
    """Check that `value`, given for the option `name`, is a number of seconds from `least` to 10^9.

    If `none`, the error message says that None is allowed; this function itself refuses None.

    Raises:
        OptionError: `value` is not such a number.
    """
    if type(value) not in (int, float) or not least <= value <= LONGEST_S:
        also = ", or None" if none else ""
        raise OptionError(f"{name} must be from {least:g} to {LONGEST_S:g} seconds{also}, got {shown(value)}")
