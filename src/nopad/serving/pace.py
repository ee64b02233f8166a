"""`Pace`: how long a batch takes, estimated from recent batches as a fixed time plus a time per token."""

from __future__ import annotations

__all__ = ["Pace"]

_KEPT = 0.8  # weight that an earlier batch keeps when another one is added
_ALIKE = 1e-6  # relative variance below which all batches count as equally large


class Pace:
    """The time that batches take, by their number of tokens; each batch counts more than those before it.

    A time per token alone would be wrong for small batches, which take a mostly fixed time. So a fixed time and a time
    per token are fitted, by weighted least squares. If all batches so far have the same size, a larger batch is
    estimated to take as long as one of them, and a smaller one less, in proportion.

    The batches below take 5 ms and 2 us per token. So 500 tokens are estimated to take 6 ms:

    >>> pace = Pace()
    >>> pace.estimate(100)
    0.0
    >>> for tokens in (10, 1000, 10, 1000):
    ...     pace.add(tokens, 5_000_000 + 2_000 * tokens)
    >>> round(pace.estimate(500))
    6000000
    """

    def __init__(self) -> None:
        """Start without any batch."""
        self._sums = [0.0] * 5  # of 1, tokens, time, tokens x tokens, tokens x time, each weighted

    def add(self, tokens: int, spent_ns: int) -> None:
        """Note a batch: its number of tokens, 1 or more, and the time that it took in nanoseconds."""
        new = (1, tokens, spent_ns, tokens * tokens, tokens * spent_ns)
        self._sums = [_KEPT * one + other for one, other in zip(self._sums, new, strict=True)]

    @property
    def ns_per_token(self) -> float | None:
        """Time of recent batches / their tokens, in nanoseconds; None: no batch has run."""
        _, tokens, time, *_ = self._sums
        return time / tokens if tokens else None

    def estimate(self, tokens: int) -> float:
        """Return how long a batch of this many tokens takes, in nanoseconds; 0 before the first batch."""
        weight, x, y, xx, xy = self._sums
        if not weight:
            return 0.0
        variance = weight * xx - x * x
        if variance <= _ALIKE * x * x:
            return y / weight * min(1.0, tokens * weight / x)
        slope = max((weight * xy - x * y) / variance, 0.0)
        fixed = (y - slope * x) / weight
        return fixed + slope * tokens if fixed >= 0 else xy / xx * tokens
