"""`Supply`: the interface between `PackedLoader` and what makes its batches, which is stored tokens or a stream.

The methods of a supply take a *place*: an immutable value that says where a loader stands. A supply keeps no place
itself, so that batches can be built ahead of the training loop while the loader alone knows how far the loop is.
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
    """A `Collate` that makes different batches from the same sequences in every epoch, such as with masks drawn anew.

    A subclass defines `at`, and also `facts` if its batches depend on settings. Random draws must depend only on the
    epoch and on the numbers of the sequences (``seq_index`` in their values). Then ranks, worker processes and resuming
    do not change them.

    >>> from nopad.loading import EpochCollate, causal
    >>> class Same(EpochCollate):
    ...     def at(self, epoch):
    ...         return causal  # or a collate that draws by `epoch` and by ``seq_index``
    >>> Same().at(3) is causal, Same().facts()
    (True, {})
    """

    @abstractmethod
    def at(self, epoch: int) -> Collate:
        """Return the `Collate` for epoch number `epoch`, from 0; of a stream, `epoch` counts passes over the source."""

    def facts(self) -> Mapping[str, Any]:
        """Return the settings on which the batches depend, by name, as JSON values.

        A saved run goes on only if they are the same.
        """
        return {}

    def __call__(self, sequences: Sequences, form: Form, per_row: NDArray[np.int64]) -> PackedBatch:
        """Make a batch as in epoch 0; the arguments are those of a `Collate`."""
        return self.at(0)(sequences, form, per_row)


class Place(Protocol):
    """Where a loader stands; its attributes mean the same as the properties of `PackedLoader` with these names."""

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
        rows: whether a unit is a row of fixed capacity.
        tokens: the loader's argument `tokens`: most tokens per rank and micro-step; None if it was not given.
        token_cap: the loader's argument `token_cap`; None: no limit.
        form: how a batch lies in memory.
        collate: the function that makes batches.
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
        """Return what a rank takes in a micro-step, in words, such as "8 packs"; `unit` is "pack" in this example."""
        if self.tokens is not None:
            return f"{self.tokens:,} tokens"
        return counted(self.per_rank, unit) + (
            "" if self.token_cap is None else f" ({self.token_cap:,} tokens at most)"
        )

    def facts(self) -> dict[str, Any]:
        """Return the settings on which a batch depends besides its sequences, by name; JSON values."""
        return dict(self.collate.facts()) if isinstance(self.collate, EpochCollate) else {}

    def batch(self, sequences: Sequences, per_row: NDArray[np.int64], epoch: int) -> PackedBatch:
        """Make a batch from sequences; `per_row` is the number of sequences in each row, int64 ``[rows]``.

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
    """Base class of supplies: makes the batches of one rank, from any place on; a place says where a loader stands."""

    @abstractmethod
    def begin(self) -> Any:
        """Return the place where a run begins."""

    @abstractmethod
    def described(self) -> str:
        """Return a phrase that says what is dealt, and what a rank takes in a micro-step."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return the facts that must be the same when a saved run goes on, by name; JSON values."""

    @abstractmethod
    def agreed(self, at: Any) -> dict[str, Any]:
        """Return the facts that must be the same on all ranks when they iterate from this place, by name."""

    @abstractmethod
    def length(self, at: Any) -> int:
        """Return how many batches a rank takes in the whole epoch of this place, those before the place included.

        If the ranks, the step or the balance changed within the epoch, only the batches since then count.

        Raises:
            TypeError: the length of a stream is not known.
        """

    def steps_in(self, at: Any, epoch: int) -> int:
        """Return the number of steps of a whole epoch, for a loader that stands at `at`.

        Raises:
            TypeError: the length of a stream is not known.
        """
        raise TypeError("a stream has epochs of no known length")

    @abstractmethod
    def summary(self, at: Any) -> Any:
        """Return a summary of the epoch of this place, to print."""

    @abstractmethod
    def state(self, at: Any, batches: int) -> dict[str, Any]:
        """Return the state of a loader that stands at `at` and then takes `batches` more batches; plain JSON.

        Raises:
            OptionError: the epoch has fewer batches left; or the data are a stream, and `batches` is not 0.
        """

    @abstractmethod
    def placed(self, state: Any) -> Any:
        """Return the place that a state holds.

        Raises:
            FormatError: this is not a state of such a loader.
            PlanMismatchError: the state is for other data or other options.
            OptionError: stored units that are left do not make whole steps, and `last` is "refuse".
        """

    @abstractmethod
    def epoch_begin(self, at: Any, epoch: int) -> Any:
        """Return the place where epoch number `epoch` begins, for a loader that stands at `at`.

        Raises:
            OptionError: the data are a stream that never stops.
        """

    def settled(self, at: Any) -> Any:
        """Return `at`; for stored tokens, the beginning of the next epoch if this one has no batch after `at`."""
        return at

    @abstractmethod
    def batches(self, at: Any, worker: int = 0, workers: int = 1) -> Iterator[tuple[Any, PackedBatch | None]]:
        """Yield every `workers`-th batch that is left of the epoch, from number `worker` on; batches are built ahead.

        Each item is (place after the batch, batch). Where only reading shows that the epoch is over (at the end of a
        stream), the last item is (beginning of the next epoch, None). Closing the iterator ends its threads.
        """

    @abstractmethod
    def places(self, at: Any) -> Iterator[Any]:
        """Yield the place after each batch left of the epoch; no batch is built, since other processes build them."""

    @abstractmethod
    def check_workers(self, workers: int) -> None:
        """Refuse this number of worker processes if they cannot build these batches.

        Raises:
            OptionError: worker processes cannot build these batches; the message says what to do.
        """
