"""`Pool`: threads of a generator, which may still be open when Python ends."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

__all__ = ["Pool"]


class Pool(ThreadPoolExecutor):
    """A `ThreadPoolExecutor` that may be shut down while Python ends.

    A generator that is still open then is closed by the garbage collector, maybe after the modules that a shutdown
    needs. Its threads have been joined by then.
    """

    _is_ending = staticmethod(sys.is_finalizing)  # an attribute: globals of this module may be gone, too

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do what `ThreadPoolExecutor.shutdown` does; nothing while Python ends."""
        if not self._is_ending():
            ThreadPoolExecutor.shutdown(self, wait, cancel_futures=cancel_futures)
