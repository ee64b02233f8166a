"""The recipes of the study: three comparisons as in the paper's Figure 3, the faults of Figure 4, and other choices.

Source: arXiv 2107.02027, section 4.2, Figures 3 and 4; supplement, Figures 7 to 9; section 5 (segments).
"""

from __future__ import annotations

from dataclasses import replace

from nopad.study.learning.runs import Recipe

__all__ = ["BASE", "GROUPS", "RIGHT", "WITHOUT_NEXT", "Group", "recipes"]

Group = tuple[str, tuple[Recipe, ...]]

BASE = Recipe(name="not packed", way="one per row")
RIGHT = Recipe(name="packed")
WITHOUT_NEXT = replace(RIGHT, name="no next sentence", next_sentence=False)
_MANY = Recipe(name="packed, p x batch", larger=True)
_CONTROL = replace(BASE, larger=True)
_RATES = (0.5, 2.0)

GROUPS: tuple[Group, ...] = (
    ("equal batch", (BASE, RIGHT)),
    (
        "larger batch",
        (
            _MANY,
            replace(_MANY, name="packed, p x batch, betas^p", betas="factor"),
            replace(_MANY, name="packed, p x batch, rate x p", rate="factor"),
            replace(_CONTROL, name="not packed, p x batch, betas^p", betas="factor"),
        ),
    ),
    (
        "tuned",
        tuple(
            replace(of, name=f"{of.name}, rate x {rate:g}", rate=rate)
            for of in (BASE, replace(_MANY, betas="factor", name="packed, p x batch, betas^p"))
            for rate in _RATES
        ),
    ),
    (
        "faults",
        (
            replace(RIGHT, name="no mask", way="no mask"),
            replace(RIGHT, name="no position reset", way="no reset"),
            replace(RIGHT, name="neither", way="neither"),
            replace(RIGHT, name="greedy, separators only", way="neither", greedy=True),
        ),
    ),
    (
        "choices",
        (
            replace(RIGHT, name="loss per sequence", per="sequence"),
            WITHOUT_NEXT,
            replace(RIGHT, name="segments apart", way="segments"),
        ),
    ),
)


def recipes(groups: tuple[str, ...] | None = None) -> list[Recipe]:
    """Return the recipes of the groups with these names, each recipe once; None: of all groups.

    The groups are "equal batch", "larger batch", "tuned", "faults" and "choices"; other names are ignored. The recipes
    "not packed" (`BASE`) and "packed" (`RIGHT`) are always included, and come first.
    """
    chosen = [one for name, found in GROUPS if groups is None or name in groups for one in found]
    return list(dict.fromkeys([BASE, RIGHT, *chosen]))
