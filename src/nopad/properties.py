"""`cached_property`, without a lock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

__all__ = ["cached_property"]

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:
    import functools
    from contextlib import nullcontext

    class cached_property(functools.cached_property[Any]):
        """Python's own, without the lock that it has before 3.12.

        In a process that was forked while another thread computed such a property of any object, the lock would be held
        for ever.
        """

        def __init__(self, function: Callable[[Any], Any]) -> None:
            super().__init__(function)
            self.lock = nullcontext()
