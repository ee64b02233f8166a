"""Plans with several capacities, each with a price; with two kinds of size (such as tokens and images); or with both.

`plan_several` minimises the total price of all packs. It uses column generation with one pricing table for all
capacities, and proves a lower bound that is checked without the solver. `docs/internals/algorithms.md` describes the
method.
"""

from nopad.planning.several.certificate import PriceCertificate
from nopad.planning.several.front import pack_several, plan_several
from nopad.planning.several.plan import SeveralPlan

__all__ = ["PriceCertificate", "SeveralPlan", "pack_several", "plan_several"]
