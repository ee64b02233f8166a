"""`Pool`: a pool of threads for a generator. It is safe even if the generator is still open when Python ends."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

__all__ = ["Pool"]


class Pool(ThreadPoolExecutor):
    """A `ThreadPoolExecutor` whose shutdown does nothing while Python ends.

    A generator that is still open at the end of Python is closed by the garbage collector. By then, the modules that a
    shutdown uses may be gone. The pool's threads have ended before, since Python joins them.
    """

    _is_ending = staticmethod(sys.is_finalizing)  # an attribute: globals of this module may be gone, too

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut down as `ThreadPoolExecutor.shutdown` does; do nothing while Python ends."""
        if not self._is_ending():
            ThreadPoolExecutor.shutdown(self, wait, cancel_futures=cancel_futures)
