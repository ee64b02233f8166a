"""`run`: solve a HiGHS model, whatever other HiGHS models of this process are set to.

All models of a process share one pool of threads, sized by the first that is solved; a later one that asks for another
number of threads is not solved at all. nopad's models ask for one. Where another library came first, they are solved in
its pool; nopad's options keep the algorithms serial, so the result is the same.
"""

from __future__ import annotations

import highspy

__all__ = ["run"]


def run(model: highspy.Highs) -> None:
    """Solve `model`; its model status says what came of it.

    If HiGHS refuses the number of threads, the model gets that of the pool, and is solved again.
    """
    status = model.run()
    if status == highspy.HighsStatus.kError and model.getModelStatus() == highspy.HighsModelStatus.kNotset:
        model.setOptionValue("threads", 0)  # as many as the pool has
        model.run()
