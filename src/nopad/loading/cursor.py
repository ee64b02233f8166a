"""`Cursor`: the position of a loader among its batches, and the one iteration that advances it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from nopad.batch import PackedBatch
from nopad.errors import OptionError
from nopad.loading.agreement import check_agreement, exchange_of
from nopad.loading.ranks import Ranks
from nopad.loading.supply import Place, Supply

__all__ = ["Cursor"]

Served = Iterator[tuple[Place, PackedBatch | None]]  # of `Supply.batches`


class Cursor:
    """The position of one rank among the batches of a `Supply`.

    An iteration advances the position batch by batch; a new iteration ends the one before.

    Attributes:
        at: the current position; set it with `go`.
    """

    def __init__(self, supply: Supply, ranks: Ranks) -> None:
        """Begin at the first batch of a run.

        Args:
            supply: makes the batches of this rank.
            ranks: this process's rank and the number of ranks.
        """
        self._supply, self._ranks = supply, ranks
        self.go(supply.begin())

    def go(self, at: Place) -> None:
        """Set the position to `at`, and end the current iteration.

        The next iteration first checks that all ranks have the same data, options and position.
        """
        self.at: Place = at
        self._begin_again()

    def _begin_again(self) -> None:
        self._running: tuple[int, object] | None = None  # id of the process, mark of its current iteration
        self._agreed = False

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker process or a copy gets: the supply, the ranks and the position.

        The current iteration is left out, and so is the mark that the ranks were found to agree.
        """
        private = {"_running", "_agreed"}
        return {name: value for name, value in vars(self).items() if name not in private}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the cursor in another process, or as a copy, at the same position."""
        vars(self).update(state)
        self._begin_again()

    def batches(self) -> Iterator[PackedBatch]:
        """Iterate over the remaining batches of this epoch, and advance the position batch by batch.

        Errors of reading and building are those that `PackedLoader.__iter__` lists.

        Raises:
            OptionError: the ranks have different data, options or positions; or, while this iteration runs, another one
                begins, `go` is called, or the process is a fork of the one in which it began.
        """
        return self._moved_on(self._supply.batches)

    def follow(self, batches: Callable[[], Iterator[PackedBatch]]) -> Iterator[PackedBatch]:
        """Iterate over batches that other processes build, and advance the position batch by batch.

        ``batches()`` returns an iterator over the remaining batches of this epoch, in order.

        Raises:
            OptionError: there are too few batches; the ranks have different data, options or positions; or, while this
                iteration runs, another one begins, `go` is called, or the process is a fork of the one in which it
                began.
        """
        return self._moved_on(lambda at: self._paired(at, batches()))

    def _paired(self, at: Place, batches: Iterator[PackedBatch]) -> Iterator[tuple[Place, PackedBatch]]:
        for number, after in enumerate(self._supply.places(at)):
            batch = next(batches, None)
            if batch is None:
                raise OptionError(f"the worker processes gave {number} batches and then no more; see their messages")
            yield after, batch

    def _moved_on(self, batches: Callable[[Place], Served]) -> Iterator[PackedBatch]:
        """Yield the batches of ``batches(place)``, where `place` is the current position, and advance the position.

        ``batches(place)`` yields pairs (position after the batch, batch). The position is advanced before the batch is
        yielded. A batch of None ends the iteration. After the last batch, the position is the beginning of the next
        epoch. If the current epoch has no batch left, the batches are those of the next epoch.

        Raises:
            OptionError: the ranks have different data, options or positions; or, while this iteration runs, another one
                begins, `go` is called, or the process is a fork of the one in which it began.
        """
        self._agree()
        self.at = self._supply.settled(self.at)  # the last loop may have stopped right after the last batch
        running = self._running = os.getpid(), object()
        for after, batch in batches(self.at):
            self._check_running(running)
            self.at = after
            if batch is None:
                return
            yield batch
            self._check_running(running)
        self.at = self._supply.epoch_begin(self.at, self.at.epoch + 1)

    def _check_running(self, running: tuple[int, object]) -> None:
        if running[0] != os.getpid():
            raise OptionError(
                "this iteration began in another process, whose threads build its batches; begin a new one"
            )
        if self._running is not running:
            raise OptionError(
                "this iteration is over: another one of the same loader began, or the loader was set to another place"
            )

    def _agree(self) -> None:
        """Check that all ranks have the same data, options and position; later calls do nothing until the next `go`.

        Raises:
            OptionError: these differ between the ranks.
        """
        exchange = None if self._agreed else exchange_of(self._ranks)
        if exchange is not None:
            check_agreement(self._ranks, self._supply.agreed(self.at), exchange)
        self._agreed = True
