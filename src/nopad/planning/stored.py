"""A plan file of either kind, for one capacity or several."""

from __future__ import annotations

import re
from pathlib import Path

from nopad.planning.plan import Plan
from nopad.planning.several.plan import SeveralPlan
from nopad.planning.several.plan_file import FORMAT

__all__ = ["load_plan"]


def load_plan(path: str | Path) -> Plan | SeveralPlan:
    """Read a plan file.

    Raises:
        FormatError: the file is missing, no plan, has an unknown version, or its numbers contradict each other.
    """
    try:
        several = re.search(rf'"format"\s*:\s*"{re.escape(FORMAT)}"', Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        several = None  # `Plan.load` says what is wrong
    return SeveralPlan.load(path) if several else Plan.load(path)
