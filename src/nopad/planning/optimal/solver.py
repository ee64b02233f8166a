"""`run`: solve a HiGHS model, whatever other HiGHS models of this process are set to.

All models of a process share one pool of threads, sized by the first that is solved; a later one that asks for another
number of threads is not solved at all. nopad's models ask for one. Where another library came first they take its pool;
their algorithms are serial ones, and find the same in it.
"""

from __future__ import annotations

import highspy

__all__ = ["run"]


def run(model: highspy.Highs) -> None:
    """Solve `model`; what came of it is in its model status."""
    status = model.run()
    if status == highspy.HighsStatus.kError and model.getModelStatus() == highspy.HighsModelStatus.kNotset:
        model.setOptionValue("threads", 0)  # as many as the pool has
        model.run()
