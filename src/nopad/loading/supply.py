"""The seam between `PackedLoader` and where its batches come from: epochs over stored tokens, or a stream.

A supply is asked about *places*: where a loader stands, as an immutable value. It keeps none itself, so that batches
may be built ahead of the training loop, and the loader alone says how far the loop is.
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

__all__ = ["Collate", "EpochCollate", "Place", "Serving", "Supply"]

# Makes a batch of sequences in columns; the last argument says how many of them lie in each row, int64 ``[rows]``.
Collate = Callable[[Sequences, Form, NDArray[np.int64]], PackedBatch]


class EpochCollate(ABC):
    """A `Collate` that makes other batches of the same sequences in every epoch, such as masks drawn anew.

    What it draws must be a function of the epoch and of the numbers of the sequences (``seq_index`` in their values)
    alone. Then ranks, worker processes and resuming change nothing.
    """

    @abstractmethod
    def at(self, epoch: int) -> Collate:
        """Return the `Collate` of an epoch; of a stream, that of a pass over its source."""

    def facts(self) -> Mapping[str, Any]:
        """Return what its batches depend on, by name, as JSON values; a saved run goes on only with the same."""
        return {}

    def __call__(self, sequences: Sequences, form: Form, per_row: NDArray[np.int64]) -> PackedBatch:
        """Make a batch as in epoch 0."""
        return self.at(0)(sequences, form, per_row)


class Place(Protocol):
    """Where a loader stands; see the properties of `PackedLoader` by these names."""

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
    """For which rank batches are built, and how.

    Attributes:
        ranks: this process's place.
        accumulation: micro-steps per optimiser step.
        per_rank: units per rank and micro-step.
        rows: whether a unit is a row of a capacity.
        tokens: most tokens per rank and micro-step, where that is the step; None: it is a number of units.
        token_cap: most tokens per rank and micro-step, where the step is a number of units; None: no limit.
        form: how a batch lies in memory.
        collate: makes a batch.
        prefetch: batches that are built ahead in a thread.
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
        """Return what a rank takes in a micro-step, in words; `unit` is what a unit is called."""
        if self.tokens is not None:
            return f"{self.tokens:,} tokens"
        return f"{self.per_rank:,} {unit}s" + (
            "" if self.token_cap is None else f" ({self.token_cap:,} tokens at most)"
        )

    def facts(self) -> dict[str, Any]:
        """Return what batches depend on beside the sequences in them, by name; JSON values."""
        return dict(self.collate.facts()) if isinstance(self.collate, EpochCollate) else {}

    def batch(self, sequences: Sequences, per_row: NDArray[np.int64], epoch: int) -> PackedBatch:
        """Make a batch of sequences in rows, in an epoch.

        Raises:
            OptionError: `collate` gave something else, or more tokens than the cap.
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
    """Gives the batches of one rank from any place on."""

    @abstractmethod
    def begin(self) -> Any:
        """Return the place where a run begins."""

    @abstractmethod
    def described(self) -> str:
        """Return what is dealt and what a rank takes of it in a micro-step, in a few words."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return the facts that must be the same when a saved run goes on, by name; JSON values."""

    @abstractmethod
    def agreed(self, at: Any) -> dict[str, Any]:
        """Return what must be the same on all ranks when they iterate from this place, by name."""

    @abstractmethod
    def length(self, at: Any) -> int:
        """Return how many batches a rank takes in the epoch of this place.

        Raises:
            TypeError: nobody can know.
        """

    def steps_in(self, at: Any, epoch: int) -> int:
        """Return the steps of a whole epoch, for a loader that stands at `at`.

        Raises:
            TypeError: nobody can know.
        """
        raise TypeError("a stream has epochs of no known length")

    @abstractmethod
    def summary(self, at: Any) -> Any:
        """Return what is known of the epoch of this place, to print."""

    @abstractmethod
    def state(self, at: Any, batches: int) -> dict[str, Any]:
        """Return the state of a loader that stands at `at` and then takes `batches` more batches; plain JSON.

        Raises:
            OptionError: the epoch has fewer batches left; or it is a stream, where only `batches` = 0 is known.
        """

    @abstractmethod
    def placed(self, state: Any) -> Any:
        """Return the place of a state.

        Raises:
            FormatError: this is not a state of such a loader.
            PlanMismatchError: it is of other data, or other options.
        """

    @abstractmethod
    def epoch_begin(self, at: Any, epoch: int) -> Any:
        """Return the place where this epoch begins, for a loader that stands at `at`."""

    def settled(self, at: Any) -> Any:
        """Return `at`, or the beginning of the next epoch if this one has no batch after it."""
        return at

    @abstractmethod
    def batches(self, at: Any, worker: int = 0, workers: int = 1) -> Iterator[tuple[Any, PackedBatch | None]]:
        """Yield every `workers`-th batch of what is left of the epoch, from number `worker` on, built ahead.

        Each comes as (place after it, batch). Where the place does not tell that the epoch is over (the end of a
        stream), a last item is (beginning of the next epoch, None). Closing the iterator ends its threads.
        """

    @abstractmethod
    def places(self, at: Any) -> Iterator[Any]:
        """Yield the place after each batch that is left of the epoch, and build none: other processes do."""

    @abstractmethod
    def check_workers(self, workers: int) -> None:
        """Refuse this number of worker processes if they cannot build these batches.

        Raises:
            OptionError: they cannot; the message says what to do.
        """
