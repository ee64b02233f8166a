"""Plans for several capacities with a price each, for two kinds of size (such as tokens and images), or for both.

`plan_several` minimises the total price of all packs. It uses column generation with one pricing table for all
capacities, and proves a lower bound that is checked without the solver. `docs/algorithms.md` describes the method.
"""

from nopad.planning.several.certificate import PriceCertificate
from nopad.planning.several.front import pack_several, plan_several
from nopad.planning.several.plan import SeveralPlan

__all__ = ["PriceCertificate", "SeveralPlan", "pack_several", "plan_several"]
