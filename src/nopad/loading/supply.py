"""`Supply`: the interface through which a `PackedLoader` gets its batches, from stored tokens or from a stream.

The methods of a supply take a *place*: an immutable value that says how far a loader has come. A supply does not
remember a place; only the loader does. So batches can be built ahead of the training loop, while the loader's place is
still that of the loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nopad.batch import PackedBatch
from nopad.batch.form import Form
from nopad.errors import OptionError
from nopad.loading.ranks import Ranks
from nopad.sequences import Sequences
from nopad.wording import counted

__all__ = ["Collate", "EpochCollate", "Place", "Serving", "Supply"]

# Makes a batch of sequences in columns; the last argument says how many of them lie in each row, int64 ``[rows]``.
Collate = Callable[[Sequences, Form, NDArray[np.int64]], PackedBatch]


class EpochCollate(ABC):
    """Base class of collates that make different batches of the same sequences in every epoch, such as with new masks.

    A subclass defines `at`, and also `facts` if its batches depend on settings. Random draws must depend only on the
    epoch and on the numbers of the sequences (the column ``seq_index`` of `Sequences.values`). Then the draws for a
    sequence are the same with any number of ranks or worker processes, and after a run is resumed.

    >>> from nopad.loading import EpochCollate, causal
    >>> class Same(EpochCollate):
    ...     def at(self, epoch):
    ...         return causal  # the same in every epoch; a real one would return a collate that draws by `epoch`
    >>> Same().at(3) is causal, Same().facts()
    (True, {})
    """

    @abstractmethod
    def at(self, epoch: int) -> Collate:
        """Return the `Collate` (a function that makes a batch) for epoch number `epoch`, from 0.

        For a stream, `epoch` is the number of the pass over its source, from 0.
        """

    def facts(self) -> Mapping[str, Any]:
        """Return the settings on which the batches depend, by name, as JSON values; by default, there are none.

        A saved run can only be resumed with the settings that it was saved with.
        """
        return {}

    def __call__(self, sequences: Sequences, form: Form, per_row: NDArray[np.int64]) -> PackedBatch:
        """Make a batch as in epoch 0.

        Args:
            sequences: the sequences of the batch, in columns.
            form: how the batch lies in memory: `nopad.Flat()` or `nopad.Rows(capacity)`.
            per_row: how many of the sequences lie in each row; int64 ``[rows]``.
        """
        return self.at(0)(sequences, form, per_row)


class Place(Protocol):
    """How far a loader has come.

    Properties: `epoch` is the number of the current epoch, from 0. `steps_seen`, `sequences_seen` and `tokens_seen`
    count the optimiser steps taken so far, and the sequences and tokens in them.
    """

    @property
    def epoch(self) -> int: ...  # noqa: D102

    @property
    def steps_seen(self) -> int: ...  # noqa: D102

    @property
    def sequences_seen(self) -> int: ...  # noqa: D102

    @property
    def tokens_seen(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, kw_only=True)
class Serving:
    """The rank for which batches are built, and the settings by which they are built.

    Attributes:
        ranks: this process's rank and the number of ranks.
        accumulation: number of micro-steps per optimiser step.
        per_rank: number of units (packs, rows, single sequences or groups) per rank and micro-step.
        rows: whether the step was given by the loader's argument `rows`; then each unit is a row of fixed capacity.
        tokens: the loader's argument `tokens`: maximum number of tokens per rank and micro-step; None if it was not
            given.
        token_cap: the loader's argument `token_cap`: maximum number of tokens per rank and micro-step, where ranks take
            sequences that are not packed; None: no limit.
        form: how the sequences of a batch lie in memory: `Flat` or `Rows`.
        collate: the function that makes a batch.
        prefetch: number of batches that are built ahead in a thread; 0: no thread.
    """

    ranks: Ranks
    accumulation: int
    per_rank: int
    rows: bool
    tokens: int | None
    token_cap: int | None
    form: Form
    collate: Collate
    prefetch: int

    def takes(self, unit: str) -> str:
        """Return what a rank takes in a micro-step, in words, such as "8 packs" if `unit` is "pack".

        If `tokens` is given, this is "4,096 tokens", for example, whatever the `unit`.
        """
        if self.tokens is not None:
            return f"{self.tokens:,} tokens"
        return counted(self.per_rank, unit) + (
            "" if self.token_cap is None else f" ({self.token_cap:,} tokens at most)"
        )

    def facts(self) -> dict[str, Any]:
        """Return the settings of `collate`, by name; {} if `collate` is not an `EpochCollate`.

        All values can be written as JSON.
        """
        return dict(self.collate.facts()) if isinstance(self.collate, EpochCollate) else {}

    def batch(self, sequences: Sequences, per_row: NDArray[np.int64], epoch: int) -> PackedBatch:
        """Make a batch of sequences with `collate`.

        Args:
            sequences: the sequences of the batch, in columns.
            per_row: number of sequences in each row of the batch; int64 ``[rows]``.
            epoch: number of the epoch (or of the pass over a stream), on which an `EpochCollate` depends.

        Raises:
            OptionError: `collate` did not return a `PackedBatch`, or returned one with more tokens than `token_cap`.
        """
        collate = self.collate.at(epoch) if isinstance(self.collate, EpochCollate) else self.collate
        batch = collate(sequences, self.form, per_row)
        if not isinstance(batch, PackedBatch):
            raise OptionError(f"collate gave a {type(batch).__name__}; it makes a nopad.PackedBatch")
        if self.token_cap is not None and batch.layout.tokens > self.token_cap:
            raise OptionError(
                f"collate made a batch of {batch.layout.tokens:,} tokens from sequences of "
                f"{int(sequences.seq_lengths.sum(dtype=np.int64)):,}, above token_cap={self.token_cap:,}; lower the "
                "cap by what it adds, or let it add no tokens"
            )
        return batch


class Supply(ABC):
    """Base class of supplies; a supply makes the batches of one rank, from any place on.

    A place is an immutable value that says how far a loader has come; each subclass has its own type of place.
    """

    @abstractmethod
    def begin(self) -> Any:
        """Return the place at which a new run begins."""

    @abstractmethod
    def described(self) -> str:
        """Return a phrase that says what is dealt to ranks, and what a rank takes in a micro-step.

        An example is "4 sequences, 2 sequences per rank and micro-step".
        """

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return, by name, the facts that a saved run and the run that resumes it must share.

        They are fingerprints of the data, and options. All values can be written as JSON.
        """

    @abstractmethod
    def agreed(self, at: Any) -> dict[str, Any]:
        """Return the facts that must be the same on all ranks when they begin to iterate at place `at`, by name."""

    @abstractmethod
    def length(self, at: Any) -> int:
        """Return how many batches a rank takes in the epoch of place `at`, from the beginning of the epoch to its end.

        If the ranks, the step or the balance changed within the epoch, only the batches since then count.

        Raises:
            TypeError: the data are a stream, whose length is not known.
        """

    def steps_in(self, at: Any, epoch: int) -> int:
        """Return the number of optimiser steps in epoch number `epoch`, with the ranks and settings of place `at`.

        This default is for streams, and always raises.

        Raises:
            TypeError: the data are a stream, whose length is not known.
        """
        raise TypeError("a stream has epochs of no known length")

    @abstractmethod
    def summary(self, at: Any) -> Any:
        """Return a summary of the epoch of place `at`; its text is for people to read."""

    @abstractmethod
    def state(self, at: Any, batches: int) -> dict[str, Any]:
        """Return the state of a loader `batches` batches after the place `at`; a dict that can be written as JSON.

        Raises:
            OptionError: the epoch has fewer than `batches` batches left; or the data are a stream, and `batches` is not
                0.
        """

    @abstractmethod
    def placed(self, state: Any) -> Any:
        """Return the place from which a loader goes on, given a saved state.

        For a stream, `state` may also be a list of the states of all former ranks.

        Raises:
            FormatError: `state` is not a state of such a loader, or does not fit the data.
            PlanMismatchError: the state is for other data or other options.
            OptionError: the data are not a stream, the units left of the epoch do not make whole steps, and the
                loader's `last` is "refuse".
            BalanceError: the data are not a stream, and the balance cannot divide the units left of the epoch among
                the ranks, or the cost model gives an invalid cost.
        """

    @abstractmethod
    def epoch_begin(self, at: Any, epoch: int) -> Any:
        """Return the place at which epoch number `epoch` begins, for a loader that is at place `at`.

        The numbers of steps, sequences and tokens seen stay as in `at`.

        Raises:
            OptionError: the data are a stream that never stops.
        """

    def settled(self, at: Any) -> Any:
        """Return `at`, or the beginning of the next epoch if no batch of this epoch comes after `at`.

        A stream always returns `at`, since only reading shows whether a batch comes.
        """
        return at

    @abstractmethod
    def batches(self, at: Any, worker: int = 0, workers: int = 1) -> Iterator[tuple[Any, PackedBatch | None]]:
        """Yield the remaining batches of the epoch that worker process number `worker` of `workers` builds.

        These are the batches `worker`, ``worker + workers``, and so on, counted from 0 at place `at`. Each item is
        (place after the batch, batch). Up to `Serving.prefetch` batches are built ahead in a thread. At the end of a
        stream, only reading shows that the epoch is over; the last item is then (beginning of the next epoch, None).
        Closing the iterator ends its threads.
        """

    @abstractmethod
    def places(self, at: Any) -> Iterator[Any]:
        """Yield the place after each of the remaining batches of the epoch.

        No batch is built: this is for a process whose batches other processes build.
        """

    @abstractmethod
    def check_workers(self, workers: int) -> None:
        """Refuse this number of worker processes if they cannot build these batches.

        Raises:
            OptionError: worker processes cannot build these batches; the message says what to do.
        """
