"""`Pace`: how long a batch takes, estimated from recent batches as a fixed time plus a time per token."""

from __future__ import annotations

__all__ = ["Pace"]

_KEPT = 0.8  # weight that an earlier batch keeps when another one is added
_ALIKE = 1e-2  # relative variance below which batches count as equally large: noise would decide the time per token


class Pace:
    """The time that batches take, by their number of tokens; each batch counts more than those before it.

    A time per token alone would be wrong for small batches, which take a mostly fixed time. So a fixed time and a time
    per token are fitted, by weighted least squares. While batches have about the same size, the two keep the ratio that
    they had before. If all batches so far have about the same size, a larger batch is estimated to take as long as one
    of them. A smaller one is estimated to take less, in proportion to its tokens.

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
        self._line: tuple[float, float] | None = None  # a fixed time and a time per token, last fitted

    def add(self, tokens: int, spent_ns: int) -> None:
        """Note a batch: its number of tokens, 1 or more, and the time that it took in nanoseconds."""
        new = (1, tokens, spent_ns, tokens * tokens, tokens * spent_ns)
        self._sums = [_KEPT * one + other for one, other in zip(self._sums, new, strict=True)]
        self._line = self._fitted() or self._line

    @property
    def ns_per_token(self) -> float | None:
        """Time of recent batches / their tokens, in nanoseconds; None: no batch has run."""
        _, tokens, time, *_ = self._sums
        return time / tokens if tokens else None

    def estimate(self, tokens: float) -> float:
        """Return how long a batch of this many tokens takes, in nanoseconds; 0 before the first batch."""
        weight, x, y, *_ = self._sums
        if not weight:
            return 0.0
        if self._line is None:
            return y / weight * min(1.0, tokens * weight / x)
        fixed, slope = self._line
        usual = fixed * weight + slope * x
        return (fixed + slope * tokens) * y / usual if usual else y / weight

    def _fitted(self) -> tuple[float, float] | None:
        """Return the fixed time and the time per token of recent batches; None: their sizes are too much alike."""
        weight, x, y, xx, xy = self._sums
        variance = weight * xx - x * x
        if variance <= _ALIKE * x * x:
            return None
        slope = max((weight * xy - x * y) / variance, 0.0)
        fixed = (y - slope * x) / weight
        return (fixed, slope) if fixed >= 0 else (0.0, xy / xx)
