"""Verdicts as JUnit XML, which CI systems read: one test case per check."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from nopad.auditing.verdict import Check

__all__ = ["Failure", "junit"]

_ODD = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # what XML 1.0 cannot hold


@dataclass(frozen=True)
class Failure:
    """One failed test case.

    Attributes:
        name: name of the test case.
        message: why it failed.
        error: class name of the exception that was raised; "": none was raised.
    """

    name: str
    message: str
    error: str = ""

    @classmethod
    def of(cls, check: Check) -> Failure:
        """Return the failure of a check that did not pass; the message has its value, limit and detail."""
        limit = f"{check.limit:.0e}" if check.limit else "0"
        message = f"{check.value:.1e}, at most {limit}" + (f": {check.detail}" if check.detail else "")
        return cls(check.name, message, check.error)


def junit(suite: str, checks: Sequence[Check], said: str, others: Sequence[Failure] = ()) -> str:
    """Return checks as JUnit XML.

    A check that did not pass becomes a failure, with its measured value, limit and detail as the message. If the model
    raised an exception, the check becomes an error instead.

    Args:
        suite: name of the test suite: what was audited, and how.
        checks: the checks; each is one test case.
        said: the whole verdict as text, which becomes the suite's output.
        others: failed test cases that do not come from a check; those with an `error` become errors, the rest failures.

    Returns:
        The XML document as text. Characters that XML cannot hold are replaced by U+FFFD.
    """
    cases = [(check.name, None if check.passed else Failure.of(check)) for check in checks]
    cases += [(one.name, one) for one in others]
    errors = sum(one is not None and bool(one.error) for _, one in cases)
    failures = sum(one is not None for _, one in cases) - errors
    counts = {"tests": str(len(cases)), "failures": str(failures), "errors": str(errors)}
    top = ElementTree.Element("testsuites", {"name": "nopad audit", **counts})
    inside = ElementTree.SubElement(top, "testsuite", {"name": _plain(suite), **counts, "skipped": "0"})
    for name, one in cases:
        case = ElementTree.SubElement(inside, "testcase", {"classname": _plain(suite), "name": _plain(name)})
        if one is not None:
            given = {"message": _plain(one.message), "type": one.error or "failed"}
            ElementTree.SubElement(case, "error" if one.error else "failure", given).text = _plain(one.message)
    ElementTree.SubElement(inside, "system-out").text = _plain(said)
    ElementTree.indent(top)
    made: bytes = ElementTree.tostring(top, encoding="utf-8", xml_declaration=True)
    return made.decode() + "\n"


def _plain(text: str) -> str:
    return _ODD.sub("�", text)
