"""Whether packed pre-training learns the same in less time: arXiv 2107.02027, section 4.2 to 4.3, on this machine.

`prepare` says beforehand what will run and how long it takes, `study_learning` runs it, `learning_chart` draws it.
"""

from __future__ import annotations

from nopad.study.learning.charts import learning_chart
from nopad.study.learning.runs import SIZES, Curve, Point, Recipe, Size
from nopad.study.learning.setups import BASE, GROUPS, RIGHT, recipes
from nopad.study.learning.study import Learning, Prepared, Spread, prepare, study_learning

__all__ = [
    "BASE",
    "GROUPS",
    "RIGHT",
    "SIZES",
    "Curve",
    "Learning",
    "Point",
    "Prepared",
    "Recipe",
    "Size",
    "Spread",
    "learning_chart",
    "prepare",
    "recipes",
    "study_learning",
]
