"""Planning: from a `Histogram` to a `Plan`. One algorithm per file, bounds, and `plan`, which chooses and checks."""

from nopad.planning.bounds import Bound, lower_bound
from nopad.planning.certificate import Certificate
from nopad.planning.front import ALGORITHMS, plan
from nopad.planning.plan import Plan

__all__ = ["ALGORITHMS", "Bound", "Certificate", "Plan", "lower_bound", "plan"]
