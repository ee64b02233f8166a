"""Run an iterator in a thread, some items ahead of the code that reads it."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import TypeVar, cast

from nopad.threads import Pool

__all__ = ["ahead"]

Item = TypeVar("Item")
_END = object()


def ahead(items: Generator[Item, None, None], count: int, name: str) -> Generator[Item, None, None]:
    """Yield the items of the generator `items`; a thread computes up to `count` of them ahead.

    The thread's name begins with `name`; with `count` 0 there is no thread. An error that `items` raises is raised
    after the items before it. Closing the returned generator closes `items` and ends the thread.
    """
    if not count:
        try:
            yield from items
        finally:
            items.close()
        return
    with Pool(1, thread_name_prefix=name) as pool:
        try:
            making = deque(pool.submit(next, items, cast(Item, _END)) for _ in range(count))
            while (item := making.popleft().result()) is not _END:
                making.append(pool.submit(next, items, cast(Item, _END)))
                yield item
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            items.close()
