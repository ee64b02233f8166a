"""Planning: from a `Histogram` to a `Plan`.

`plan` runs an algorithm by its name and checks the result; each algorithm is one file of this folder.
"""

from nopad.planning.bounds import Bound, lower_bound
from nopad.planning.certificate import Certificate
from nopad.planning.front import plan
from nopad.planning.plan import Plan
from nopad.planning.registry import ALGORITHMS

__all__ = ["ALGORITHMS", "Bound", "Certificate", "Plan", "lower_bound", "plan"]
