"""Plans for several capacities with a price each, or for two kinds of size; or both.

`plan_several` minimises the price of all packs: column generation with one table of pricing for all capacities, a bound
that is checked without the solver, and packs of each capacity. `docs/algorithms.md` tells the method.
"""

from nopad.planning.several.certificate import PriceCertificate
from nopad.planning.several.front import pack_several, plan_several
from nopad.planning.several.plan import SeveralPlan

__all__ = ["PriceCertificate", "SeveralPlan", "pack_several", "plan_several"]
