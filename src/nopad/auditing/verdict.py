"""The result of an audit: its measurements, and a verdict."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from nopad.auditing.inputs import UNSEEN, input_of
from nopad.wording import finite

__all__ = ["Check", "Verdict", "lines_of", "short"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One measurement, and whether it passed.

    Attributes:
        name: name of the measurement.
        passed: whether the value is within the limit.
        value: the measured value; infinite if the model raised an exception.
        limit: the largest value allowed.
        detail: details as text, such as the place of the largest difference.
        error: class name of the exception that the model raised instead of a result; "": it raised none.

    >>> from nopad.auditing import Check
    >>> check = Check(name="float64 outputs, flat", passed=True, value=4e-15, limit=1e-12)
    >>> check.passed, check.value <= check.limit
    (True, True)
    """

    name: str
    passed: bool
    value: float
    limit: float
    detail: str = ""
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of `audit` or `audit_samples`.

    Attributes:
        isolated: whether every check passed.
        max_abs_diff: largest absolute difference of an output between packed and alone, in float64; infinite if
            outputs could not be compared.
        first_difference: name of the first module whose output differs; None: no output differs, no such module was
            found, or modules were not compared (`audit_samples`, and `audit` of images without a collator).
        model: class name of the model.
        how: the backend, collator or function that is meant to keep sequences apart.
        checks: all measurements.
        notes: remarks for the user.
        unseen: whether outputs differ from those of the sequences alone, although no sequence sees another: replacing
            the tokens of any sequence does not change the outputs of the others.

    >>> import nopad
    >>> from transformers import BertConfig, BertModel
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> verdict = nopad.audit(BertModel(BertConfig(**sizes)))
    >>> verdict.isolated, verdict.checks[0].name
    (True, 'float64 outputs, flat')
    """

    isolated: bool
    max_abs_diff: float
    first_difference: str | None
    model: str
    how: str
    checks: Sequence[Check]
    notes: Sequence[str] = field(default_factory=tuple)
    unseen: bool = False

    @property
    def outcome(self) -> str:
        """The verdict in one word: "isolated", "contaminated", "different", or "failed".

        It is "isolated" if every check passed, and "failed" if in every check that did not pass, the model raised an
        exception. It is "different" if outputs differ from those alone although no sequence sees another (`unseen`),
        for example because positions are wrong. In all other cases, it is "contaminated".
        """
        if self.isolated:
            return "isolated"
        if all(check.passed or check.error for check in self.checks):
            return "failed"
        return "different" if self.unseen else "contaminated"

    @property
    def reason(self) -> str:
        """Why results differ, as text, if the outcome is "different"; "" for any other outcome."""
        if self.outcome != "different":
            return ""
        found = input_of(self.first_difference)
        return f"other {found or 'positions, token types or mask within a sequence'}; {UNSEEN}"

    def to_json(self) -> str:
        """Return all attributes, `outcome` and `reason` as JSON text; a number that is infinite or NaN becomes null."""
        return json.dumps(
            finite({**asdict(self), "outcome": self.outcome, "reason": self.reason}), indent=1, allow_nan=False
        )

    def to_junit(self) -> str:
        """Return the verdict as JUnit XML for CI systems, as text; each check is one test case."""
        from nopad.auditing.junit import junit

        return junit(f"{self.model}, {self.how}", self.checks, str(self))

    def __str__(self) -> str:
        loud = {"contaminated": "CONTAMINATED", "different": "DIFFERENT FROM ALONE", "failed": "FAILED"}
        said = loud.get(self.outcome, self.outcome)
        head = f"{self.model}, {self.how}: {said}"
        if self.first_difference:
            head += f" at {self.first_difference}"
        if self.reason:
            head += f": {self.reason}"
        return "\n".join([head, *lines_of(self.checks), *(f"  {note}" for note in self.notes)])


def lines_of(checks: Sequence[Check]) -> list[str]:
    """Return a line of text for each check: whether it passed, its name, value, limit and detail."""
    width = max((len(check.name) for check in checks), default=0)
    return [
        f"  {'✓' if c.passed else '✗'} {c.name:<{width}}  {short(c.value):>7}  (at most {short(c.limit, 0)})"
        + (f"  {c.detail}" if c.detail else "")
        for c in checks
    ]


def short(value: float, digits: int = 1) -> str:
    """Return a number in scientific notation, with `digits` digits after the point; 0 becomes "0"."""
    return f"{value:.{digits}e}" if value else "0"
