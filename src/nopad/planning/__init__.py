"""Planning: turn a `Histogram` (how many sequences have each length) into a `Plan` (which lengths share packs).

`plan` runs an algorithm by its name and checks the result. Each algorithm is a file of this folder, with two
exceptions: `auto` and `optimal` are in the folder ``optimal``, and `bfd` is another name of `lpfhp`.
"""

from nopad.planning.bounds import Bound, lower_bound
from nopad.planning.certificate import Certificate
from nopad.planning.front import plan
from nopad.planning.plan import Plan
from nopad.planning.registry import ALGORITHMS

__all__ = ["ALGORITHMS", "Bound", "Certificate", "Plan", "lower_bound", "plan"]
