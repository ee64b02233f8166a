"""Study whether packed pre-training learns as much in less time, as in arXiv 2107.02027, sections 4.2 and 4.3.

`prepare` returns what a study will run and how long it will take, `study_learning` runs the study, and
`learning_chart` draws its results.
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
