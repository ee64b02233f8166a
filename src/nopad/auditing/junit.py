"""Verdicts as JUnit XML, which CI systems read: one test case per check."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from nopad.auditing.verdict import Check

__all__ = ["junit"]

_ODD = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # what XML 1.0 cannot hold


def junit(suite: str, checks: Sequence[Check], said: str, others: Sequence[tuple[str, str]] = ()) -> str:
    """Return checks as JUnit XML.

    A check that did not pass is a failure with its measured value, limit and detail as the message, or an error if the
    model raised an exception.

    Args:
        suite: name of the test suite: what was audited, and how.
        checks: the checks; each is one test case.
        said: the whole verdict as text, which becomes the suite's output.
        others: further failures that are no checks, as (name, message).
    """
    failures = sum(not check.passed and not check.error for check in checks) + len(others)
    errors = sum(not check.passed and bool(check.error) for check in checks)
    counts = {"tests": str(len(checks) + len(others)), "failures": str(failures), "errors": str(errors)}
    top = ElementTree.Element("testsuites", {"name": "nopad audit", **counts})
    inside = ElementTree.SubElement(top, "testsuite", {"name": _plain(suite), **counts, "skipped": "0"})
    for check in checks:
        case = ElementTree.SubElement(inside, "testcase", {"classname": _plain(suite), "name": _plain(check.name)})
        if not check.passed:
            limit = f"{check.limit:.0e}" if check.limit else "0"
            message = f"{check.value:.1e}, at most {limit}" + (f": {check.detail}" if check.detail else "")
            given = {"message": _plain(message), "type": check.error or "failed"}
            ElementTree.SubElement(case, "error" if check.error else "failure", given).text = _plain(message)
    for name, message in others:
        case = ElementTree.SubElement(inside, "testcase", {"classname": _plain(suite), "name": _plain(name)})
        given = {"message": _plain(message), "type": "failed"}
        ElementTree.SubElement(case, "failure", given).text = _plain(message)
    ElementTree.SubElement(inside, "system-out").text = _plain(said)
    ElementTree.indent(top)
    made: bytes = ElementTree.tostring(top, encoding="utf-8", xml_declaration=True)
    return made.decode() + "\n"


def _plain(text: str) -> str:
    return _ODD.sub("�", text)
