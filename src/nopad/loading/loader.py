"""`PackedLoader`: from stored tokens, or a stream, to the batches of one rank.

Of stored tokens, every rank computes which units (packs or sequences) each step takes and which rank gets which, from
lengths, seed and epoch alone: nothing is communicated, and every rank takes the same number of steps. A state is a few
integers: a loader that loads it gives the batches that were still to come, or, on another number of ranks, the
sequences that were still to come. `nopad.loading.streams` says how streams are read.

Cost: O(sequences) when an epoch begins, computed ahead while the epoch before ends; O(units of a step) per step, for
all ranks; O(tokens) per batch. Batches are built ahead in a thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nopad.balance import Balance, CostModel, Tokens
from nopad.batch import Flat, PackedBatch, Rows
from nopad.batch.form import Form, check_form
from nopad.errors import OptionError
from nopad.loading.agreement import check_agreement, exchange_of
from nopad.loading.arguments import aligned, capped, fitting, groups_per_rank, per_rank, refuse_dealing, refuse_torchs
from nopad.loading.epochs import Epochs
from nopad.loading.feeds import Feed
from nopad.loading.finite import EpochSupply
from nopad.loading.groups import Together
from nopad.loading.legs import Last
from nopad.loading.opening import open_feed
from nopad.loading.ranks import Ranks
from nopad.loading.sharing import HostArrays
from nopad.loading.streams.opening import is_stream, open_stream
from nopad.loading.streams.summary import StreamSummary
from nopad.loading.streams.supply import StreamSupply
from nopad.loading.summary import Summary
from nopad.loading.supply import Collate, Place, Serving, Supply
from nopad.options import Option, check_choice
from nopad.sequences import Sequences

if TYPE_CHECKING:
    from nopad.loading.torch import TorchLoader

__all__ = ["Collate", "PackedLoader"]

_ACCUMULATION = Option(default=1, help="micro-steps of an optimiser step")
_PREFETCH = Option(default=2, low=0, high=1024, help="batches built ahead")
_SHARED_FROM = 1 << 20  # sequences
_NUMBER = Option(default=0, low=0, help="of an epoch, or of batches")


class PackedLoader:
    """Batches of one rank, epoch after epoch, or from a stream. The module docstring says how, and what it costs.

    ``for batch in loader`` gives what is left of the epoch under way; after it comes the next epoch. ``len(loader)`` is
    how many batches a rank takes in a whole epoch.

    Args:
        data: a packed dataset or its folder; tokens already stored, in any form that
            `nopad.loading.sources.open_tokens` takes; a `nopad.loading.Mixture` of several of
            these; or a stream (see `options`).
        capacity: most tokens per pack; the sequences are packed anew every epoch. None: the rows of a packed dataset
            stay as they are, or sequences are not packed.
        rows: packs per rank and micro-step.
        tokens: most tokens per rank and micro-step: one pack, as one flat row without padding, ``[1, tokens]``; instead
            of `rows` and `capacity`.
        sequences: sequences per rank and micro-step, as one flat row without padding; instead of `rows` and `capacity`.
        token_cap: only with `sequences`: most tokens per rank and micro-step. If `sequences` sequences on each rank
            would exceed it, ranks get different numbers of sequences; if a whole step's do not fit even so, the step
            takes fewer, and the rest go to the next step. None: no limit.
        accumulation: micro-steps per optimiser step.
        last: what happens at the end of an epoch to units (packs, or single sequences or groups) too few for a whole
            step: "drop" them (counted in `summary`), "fill" the step with empty rows (a rank without any sequence gets
            a stand-in of weight 0), or "refuse" with an OptionError.
        balance: how units are drawn and dealt to ranks; a `nopad.balance.Balance` or the name of one.
        cost: how much work a sequence is, so that ranks get equal work: a `nopad.balance.CostModel`; None: its number
            of tokens.
        seed: the seed of all random choices.
        align: every sequence takes a multiple of this many slots of its row, the last of them padding (2 x the ranks of
            context parallelism; FP8 kernels). Packs are planned for it.
        groups: the group of each sequence, integers ``[n]``, for sequences that stay together (preference pairs,
            answers to one prompt); or a number k: every k sequences are a group.
        together: what the sequences of a group share. In packs: always a "pack", whatever is given. Not packed: a
            "rank", in the same micro-step; or only the "step".
        form: how a batch lies in memory; None: `Rows` for packs of a capacity, `Flat` for others.
        collate: a function that makes the `PackedBatch`; it gets the sequences (`nopad.sequences.Sequences`), `form`,
            and how many of the sequences lie in each row, int64 ``[rows]``; or `nopad.loading.EpochCollate`, which
            makes other batches in every epoch. None: `PackedBatch.from_columns`.
        rank, world_size, node_size, group: this process's place (`Ranks.found`); None: from torch.distributed, or the
            environment.
        prefetch: batches that are built ahead in a thread; 0: none.
        host_dir: a folder where the ranks of a host share what all of them need, so that memory does not grow with the
            number of ranks; None: a temporary folder if the host has two or more ranks and the data about a million
            sequences (2**20) or more, else nothing is shared.
        options: of the plan: depth, algorithm, effort, ... (see `nopad.plan`); or ``plan``, one that exists. Of a
            stream: ``tokenizer``; ``exhausted``, "repeat" or "stop"; ``shuffle_buffer``, how many sequences wait for a
            random turn (by `seed`) before they are packed; depth, buffer, patience and buffer_tokens of
            `nopad.StreamPacker`; and those of `nopad.CorpusOptions`. Data are a stream if they are texts
            (`nopad.open_source`), a function that returns an iterator of dicts, an iterable dataset, or if
            ``tokenizer`` or ``exhausted`` is given; then batches never end, or end where the source does
            (`docs/loading.md`).

    Attributes:
        ranks: this process's place.

    Raises:
        OptionError: an argument is invalid, two contradict each other, or the units do not make a single step.
        LengthError: a sequence (or group) is longer than the capacity, or than `token_cap`.

    >>> import nopad
    >>> loader = nopad.PackedLoader([[1, 2, 3], [4], [5, 6], [7, 8, 9]], capacity=4, rows=1)
    >>> len(loader), sorted(batch.layout.tokens for batch in loader)
    (3, [2, 3, 4])
    """

    def __init__(
        self,
        data: Any,
        capacity: int | None = None,
        *,
        rows: int | None = None,
        tokens: int | None = None,
        sequences: int | None = None,
        token_cap: int | None = None,
        accumulation: int = 1,
        last: Last = "drop",
        balance: str | Balance = "karmarkar_karp",
        cost: CostModel | None = None,
        seed: int = 0,
        align: int = 1,
        groups: int | ArrayLike | None = None,
        together: Together = "rank",
        form: Form | None = None,
        collate: Collate | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        node_size: int | None = None,
        group: Any = None,
        prefetch: int = 2,
        host_dir: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        self.ranks = Ranks.found(rank=rank, world_size=world_size, node_size=node_size, group=group)
        refuse_torchs(options)
        taken = per_rank(rows, tokens, sequences, capacity)
        prefetch = _PREFETCH.check("prefetch", prefetch)
        self._per_rank = taken
        accumulation = int(_ACCUMULATION.check("accumulation", accumulation))
        self._accumulation = accumulation
        last = check_choice("last", last, Last)
        capacity = capacity if tokens is None else tokens
        align = aligned(align, capacity, options)
        stream, unpacked = is_stream(data, options), sequences is not None
        form = None if form is None else fitting(check_form(form), align, packed=capacity is not None)
        flat = rows is None and align == 1 if form is None else isinstance(form, Flat)
        self._rows = 1 if flat else taken

        token_cap = capped(token_cap, form, unpacked=unpacked, stream=stream)

        def serving(capacity: int, group_size: int = 1) -> Serving:
            usual = Flat() if flat else Rows(capacity, rows=taken, align=align)
            return Serving(
                ranks=self.ranks,
                accumulation=accumulation,
                per_rank=groups_per_rank(taken, group_size),
                rows=rows is not None,
                tokens=tokens,
                token_cap=token_cap,
                form=form or usual,
                collate=collate or _collated,
                prefetch=prefetch,
            )

        self._supply: Supply
        if stream:
            dealing = {"balance": balance, "cost": cost, "groups": groups, "together": together}
            shuffled = options.get("shuffle_buffer") is not None
            refuse_dealing(**dealing, align=align, host_dir=host_dir, seed=0 if shuffled else seed)
            opened = open_stream(data, capacity, options, unpacked=unpacked, seed=seed)
            self._supply = StreamSupply(*opened, serving(opened[1].capacity or 1), last)
            self._capacity = opened[1].capacity
        else:
            feed = open_feed(data, capacity, unpacked=unpacked, seed=seed, groups=groups, together=together, **options)
            epochs = Epochs(feed, cost or Tokens(), last, _shared(self.ranks, feed, host_dir))
            self._supply = EpochSupply(epochs, serving(feed.capacity, feed.group_size), Balance.named(balance))
            self._capacity = None if unpacked else feed.capacity
        self._at: Place = self._supply.begin()
        self._begin_again()

    def _begin_again(self) -> None:
        """Forget the iteration under way."""
        self._running: tuple[int, object] | None = None  # process, iteration
        self._agreed = False

    def __getstate__(self) -> dict[str, Any]:
        """Return what worker processes need."""
        private = {"_running", "_agreed"}
        return {name: value for name, value in vars(self).items() if name not in private}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore in another process, at the same place."""
        vars(self).update(state)
        self._begin_again()

    @property
    def epoch(self) -> int:
        """Number of the epoch under way, from 0; of a stream, how many passes over the source are over."""
        return self._at.epoch

    @property
    def steps_seen(self) -> int:
        """Whole steps taken since the first epoch; the same on all ranks."""
        return self._at.steps_seen

    @property
    def sequences_seen(self) -> int:
        """Sequences in the whole steps taken since the first epoch (`steps_seen`), on all ranks.

        Raises:
            OptionError: the data are a stream, and a rank of several knows only its own number.
        """
        return self._at.sequences_seen

    @property
    def tokens_seen(self) -> int:
        """Tokens in the whole steps taken since the first epoch (`steps_seen`), on all ranks.

        Raises:
            OptionError: the data are a stream, and a rank of several knows only its own number.
        """
        return self._at.tokens_seen

    @property
    def is_stream(self) -> bool:
        """Whether the data are a stream; then every rank has a state of its own."""
        return isinstance(self._supply, StreamSupply)

    @property
    def capacity(self) -> int | None:
        """Most tokens per pack; None where sequences are not packed."""
        return self._capacity

    @property
    def accumulation(self) -> int:
        """Micro-steps per optimiser step."""
        return self._accumulation

    @property
    def per_rank(self) -> int:
        """Rows or sequences per rank and micro-step; 1 where a step is a number of tokens."""
        return self._per_rank

    @property
    def rows(self) -> int:
        """Most rows of a batch: 1 where all its sequences lie in one flat row."""
        return self._rows

    def __repr__(self) -> str:
        """Return in one line what is loaded, for which rank, and where the loader stands."""
        return (
            f"PackedLoader({self._supply.described()}, {self._accumulation:,} micro-steps per step; rank "
            f"{self.ranks.rank} of {self.ranks.world_size}; epoch {self.epoch}, {self.steps_seen:,} steps seen)"
        )

    def __getitem__(self, index: Any) -> NoReturn:
        """Refuse: batches have no numbers.

        Raises:
            OptionError: always.
        """
        raise OptionError(
            "a PackedLoader gives whole batches in order, and none by number; iterate over it, or train with "
            "nopad.training.PackedTrainer, PackedSFTTrainer, or loader.dataloader() in Lightning"
        )

    def __len__(self) -> int:
        """Batches that a rank takes in the whole epoch; after a change of ranks, in what this change left of it.

        Raises:
            TypeError: nobody knows, since the data are a stream.
        """
        return self._supply.length(self._at)

    def steps_in(self, epoch: int) -> int:
        """Return how many optimiser steps the whole epoch of this number has.

        Every epoch has the same number, except in mixtures and with a `token_cap`; there the epoch must be dealt to
        know it, which takes O(sequences).

        Raises:
            TypeError: nobody knows, since the data are a stream.
        """
        return self._supply.steps_in(self._at, _NUMBER.check("epoch", epoch))

    def summary(self) -> Summary | StreamSummary:
        """Return a summary of the epoch under way: steps, sequences, tokens, what is left out, how evenly ranks work.

        >>> import nopad
        >>> data = [[1, 2, 3], [4], [5, 6], [7, 8]]
        >>> print(nopad.PackedLoader(data, capacity=4, rows=1, rank=0, world_size=2).summary())
        step     2 ranks x 1 micro-steps x 1 packs: 4 sequences, 8 tokens
        epoch    1 steps: 4 sequences, 8 tokens (100.00% of the slots)
                 one sequence per row would take 2 steps: a schedule in steps sees 2.00 times as many ...
        balance  the slowest rank of a step costs 0.00% more than the mean (floor 0.00%), by Tokens()
        """
        found: Summary | StreamSummary = self._supply.summary(self._at)
        return found

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of epoch number `epoch`; nothing happens if it is the one under way.

        Raises:
            OptionError: `epoch` is not an integer of at least 0.
        """
        if _NUMBER.check("epoch", epoch) != self._at.epoch:
            self._at = self._supply.epoch_begin(self._at, epoch)
            self._begin_again()

    def rewind(self) -> None:
        """Go back to where the loader began: the beginning of its first epoch."""
        self._at = self._supply.begin()
        self._begin_again()

    def facts(self) -> dict[str, Any]:
        """Return the facts that must be the same when a saved run goes on, by name; JSON values."""
        return self._supply.facts()

    def state_dict(self, *, batches: int = 0) -> dict[str, Any]:
        """Return where the loader stands, or will stand after that many further batches of this epoch.

        The result is plain JSON. A batch counts as seen from when the loop gets it; after the last one of an epoch, the
        loader stands at the beginning of the next.

        Raises:
            OptionError: this epoch has fewer batches left.
        """
        return self._supply.state(self._at, _NUMBER.check("batches", batches))

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Move this loader to where the loader that gave `state` stood.

        With the same ranks, step and balance, the next batch is the one that would have come next. With others, the
        epoch goes on with exactly the units that it has not seen yet; a step of which only a part was taken counts as
        not seen, since its gradient was never applied.

        A rank of a stream needs the state that it gave itself, or, if the number of ranks changed, those of all ranks
        that were there, as a list.

        Raises:
            FormatError: this is not a state of a loader, or one of a newer nopad, or states of ranks are missing.
            PlanMismatchError: the state is of other data, another plan, cost model or seed; the message names it.
        """
        self._at = self._supply.placed(state)
        self._begin_again()

    def __iter__(self) -> Iterator[PackedBatch]:
        """Iterate over the batches that are left of this epoch.

        Raises:
            OptionError: the ranks disagree (checked once, where torch.distributed is in use), or another iteration of
                this loader began meanwhile.
            CorruptError: the tokens changed since the loader was made.
        """
        return self._moved_on(lambda: self._supply.batches(self._at))

    def dataloader(self, *, num_workers: int = 0, **options: Any) -> TorchLoader:
        """Return a torch `DataLoader` of these batches, which `num_workers` processes build; 0: this process.

        Iterating over it moves this loader on as well, so this loader's `state_dict` is the one to save. `options` are
        the DataLoader's: pin_memory, prefetch_factor, timeout, ...

        Raises:
            MissingExtraError: torch is not installed.
            OptionError: an option would change which batches there are.
        """
        from nopad.loading.torch import TorchLoader

        self._supply.check_workers(num_workers)
        return TorchLoader(self, num_workers=num_workers, **options)

    def share(self, worker: int, workers: int) -> Iterator[PackedBatch]:
        """Yield batch number `worker` of those that are left of this epoch, and every `workers`-th after it.

        For worker processes; the loader itself stays where it is.
        """
        return (batch for _, batch in self._supply.batches(self._at, worker, workers) if batch is not None)

    def follow(self, batches: Callable[[], Iterator[PackedBatch]]) -> Iterator[PackedBatch]:
        """Iterate over what is left of this epoch, with batches that other processes build (`share`), in order.

        Raises:
            OptionError: as `__iter__`; or the other processes gave too few batches.
        """
        return self._moved_on(lambda: self._paired(batches()))

    def _paired(self, batches: Iterator[PackedBatch]) -> Iterator[tuple[Place, PackedBatch]]:
        for number, after in enumerate(self._supply.places(self._at)):
            batch = next(batches, None)
            if batch is None:
                raise OptionError(f"the worker processes gave {number} batches and then no more; see their messages")
            yield after, batch

    def _moved_on(self, batches: Callable[[], Iterator[tuple[Place, PackedBatch | None]]]) -> Iterator[PackedBatch]:
        """Yield the batches, and stand after each of them when the loop has got it."""
        self._agree()
        self._at = self._supply.settled(self._at)  # a loop that counts never asks for one more than the last batch
        running = self._running = os.getpid(), object()
        for after, batch in batches():
            self._check_running(running)
            self._at = after
            if batch is None:
                return
            yield batch
            self._check_running(running)
        self._at = self._supply.epoch_begin(self._at, self._at.epoch + 1)

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
        """Compare with the other ranks, once."""
        exchange = None if self._agreed else exchange_of(self.ranks)
        if exchange is not None:
            check_agreement(self.ranks, self._supply.agreed(self._at), exchange)
        self._agreed = True


def _collated(sequences: Sequences, form: Form, per_row: NDArray[np.int64]) -> PackedBatch:
    return PackedBatch.from_columns(sequences, form, per_row=per_row)


def _shared(ranks: Ranks, feed: Feed, host_dir: str | os.PathLike[str] | None) -> HostArrays | None:
    """Return where the ranks of this host share arrays, if that is worth it or wanted."""
    if host_dir is None and (ranks.node_size == 1 or feed.sequences < _SHARED_FROM):
        return None
    return HostArrays(feed.facts(), None if host_dir is None else Path(host_dir))
