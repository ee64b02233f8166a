"""Read a plan file of either kind: a plan for one capacity (`Plan`), or for several capacities (`SeveralPlan`)."""

from __future__ import annotations

import re
from pathlib import Path

from nopad.planning.document import text_of
from nopad.planning.plan import Plan
from nopad.planning.several.plan import SeveralPlan
from nopad.planning.several.plan_file import FORMAT, parsed

__all__ = ["load_plan"]


def load_plan(path: str | Path) -> Plan | SeveralPlan:
    """Read a plan file; return a `Plan`, or a `SeveralPlan` if the file is for several capacities.

    Raises:
        FormatError: the file cannot be read, is not a plan, has an unknown version, or its numbers contradict each
            other.
    """
    text, name = text_of(path), str(path)
    if re.search(rf'"format"\s*:\s*"{re.escape(FORMAT)}"', text):
        return SeveralPlan(**parsed(text, name))
    return Plan.from_json(text, name=name)
