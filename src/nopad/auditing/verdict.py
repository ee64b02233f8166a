"""What an audit found: checks with their numbers, and what they add up to."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Check", "Verdict"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was measured.

    Attributes:
        name: what.
        passed: whether it is as it must be.
        value: what was measured.
        limit: the most it may be.
        detail: in words.
        error: class of the exception that the model raised instead of a result; "": it raised none.
    """

    name: str
    passed: bool
    value: float
    limit: float
    detail: str = ""
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of `audit`.

    Attributes:
        isolated: every check passed.
        max_abs_diff: largest difference of an output, packed against alone, in float64.
        first_difference: name of the first module whose output differs; None when none does.
        model: class of the model.
        how: what kept, or did not keep, sequences apart.
        checks: all that was measured.
        notes: what is good to know.
    """

    isolated: bool
    max_abs_diff: float
    first_difference: str | None
    model: str
    how: str
    checks: Sequence[Check]
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def outcome(self) -> str:
        """In a word: "isolated", "contaminated", or "failed": all that did not pass is exceptions of the model."""
        if self.isolated:
            return "isolated"
        return "failed" if all(check.passed or check.error for check in self.checks) else "contaminated"

    def to_json(self) -> str:
        """Return all of it as JSON; a number that is not finite, of what could not be compared, is null."""

        def plain(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: plain(each) for name, each in value.items()}
            if isinstance(value, list | tuple):
                return [plain(each) for each in value]
            return None if isinstance(value, float) and not math.isfinite(value) else value

        return json.dumps(plain({**asdict(self), "outcome": self.outcome}), indent=1, allow_nan=False)

    def __str__(self) -> str:
        said = {"contaminated": "CONTAMINATED", "failed": "FAILED"}.get(self.outcome, self.outcome)
        head = f"{self.model}, {self.how}: {said}"
        if self.first_difference:
            head += f" at {self.first_difference}"
        width = max((len(check.name) for check in self.checks), default=0)
        lines = [
            f"  {'✓' if c.passed else '✗'} {c.name:<{width}}  {_shown(c.value, 1):>7}  (at most {_shown(c.limit, 0)})"
            + (f"  {c.detail}" if c.detail else "")
            for c in self.checks
        ]
        return "\n".join([head, *lines, *(f"  {note}" for note in self.notes)])


def _shown(value: float, digits: int) -> str:
    return f"{value:.{digits}e}" if value else "0"
