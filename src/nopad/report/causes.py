"""Explain why a plan has padding: the share of the slots that each cause takes, computed from lower bounds."""

from __future__ import annotations

from nopad.planning import Certificate, Plan
from nopad.planning.bounds import lower_bound

__all__ = ["SMALLEST", "causes_of_padding"]

SMALLEST = 0.01  # causes with a smaller share of the slots are left out


def causes_of_padding(plan: Plan) -> list[str]:
    """Return a sentence for each cause of padding that takes at least 1 % of all slots, largest first.

    All slots are packs x capacity. Three lower bounds on the number of packs are used: `free` without a depth limit,
    `deep` with the plan's depth, and `Plan.lower_bound`, which also counts the conditions on packs. The padding has up
    to four causes:

    * the lengths: the padding that there would be in `free` packs
    * the depth: all slots of ``deep - free`` packs
    * the conditions on packs: all slots of ``lower_bound - deep`` packs
    * the algorithm: all slots of ``packs - lower_bound`` packs

    For a plan without packs, the list is empty.

    >>> import nopad
    >>> causes_of_padding(nopad.plan([10] * 100, 100, depth=2))
    ['80.0% of all slots: a pack holds at most 2 sequences here. A greater depth would fill them.']
    """
    if not plan.packs:
        return []
    histogram, capacity, certificate = plan.histogram, plan.capacity, plan.bound.certificate
    proof = certificate if isinstance(certificate, Certificate) else None
    # A certificate that is made for a depth also proves a bound without one, if that can be checked.
    without = proof if proof is not None and proof.problem(capacity, None) is None else None
    free = lower_bound(histogram, capacity, None, without).packs
    deep = free if plan.depth is None else max(free, lower_bound(histogram, capacity, plan.depth, proof).packs)
    under = max(deep, plan.lower_bound)
    few = "sequence" if plan.depth == 1 else "sequences"
    reasons = [
        (free * capacity - plan.tokens, "no plan at this capacity has less, because of the lengths themselves."),
        (
            (deep - free) * capacity,
            f"a pack holds at most {plan.depth} {few} here. A greater depth would fill them.",
        ),
        ((under - deep) * capacity, "the conditions on packs ask for them."),
        (
            (plan.packs - under) * capacity,
            f"{plan.algorithm} needs more packs than the proven minimum. The algorithm auto comes closest to it.",
        ),
    ]
    shares = [(slots / (plan.packs * capacity), reason) for slots, reason in reasons]
    told = sorted(((share, reason) for share, reason in shares if share >= SMALLEST), reverse=True)
    return [f"{share:.1%} of all slots: {reason}" for share, reason in told]
