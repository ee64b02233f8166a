"""`PackedLoader`: from stored tokens, or a stream, to the batches of one rank.

For stored tokens, every rank computes which units (packs or sequences) each step takes, and which rank gets which unit.
This depends only on the lengths, the options and the number of the epoch. So every rank takes the same number of steps,
and ranks communicate only before they iterate, to check that all have the same data, options and position. A state is a
few integers and fingerprints. After a state is loaded, the loader gives the batches that were still to come; if the
number of ranks has changed, it gives new batches of the sequences that were still to come.
`nopad.loading.streams.reading` says how streams are read.

Cost: O(sequences) per epoch; O(units of a step) per step, on every rank; O(tokens) per batch. From the second epoch on,
the units of an epoch are made in the background, while the previous epoch ends. Batches are built ahead in a thread
(`prefetch`) or in worker processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, NoReturn

from numpy.typing import ArrayLike

from nopad.balance import Balance, CostModel, Tokens
from nopad.batch import PackedBatch
from nopad.batch.form import Form
from nopad.errors import MissingExtraError, OptionError, install
from nopad.loading.arguments import refuse_dealing, refuse_images, refuse_torchs
from nopad.loading.cursor import Cursor
from nopad.loading.epochs import Epochs
from nopad.loading.finite import EpochSupply
from nopad.loading.groups import Together
from nopad.loading.legs import Last
from nopad.loading.opening import open_feed
from nopad.loading.ranks import Ranks
from nopad.loading.sharing import shared
from nopad.loading.step import Step
from nopad.loading.streams.opening import is_stream, open_stream
from nopad.loading.streams.summary import StreamSummary
from nopad.loading.streams.supply import StreamSupply
from nopad.loading.summary import Summary
from nopad.loading.supply import Collate, Supply
from nopad.options import Option
from nopad.wording import counted

if TYPE_CHECKING:
    from nopad.loading.torch import TorchLoader

__all__ = ["Collate", "PackedLoader"]

_NUMBER = Option(default=0, low=0, help="of an epoch, or of batches")


class PackedLoader:
    """The batches of one rank, epoch after epoch, or from a stream.

    ``for batch in loader`` gives the remaining batches of the current epoch; the next such loop gives the next epoch.
    ``len(loader)`` is the number of batches that a rank takes in a whole epoch.

    Args:
        data: a packed dataset or its folder; tokens already stored, also with images, in any form that
            `nopad.loading.sources.open_tokens` takes; a `nopad.loading.Mixture` of several of these; or a stream (see
            `options`).
        capacity: with `rows`, maximum number of tokens per pack; the sequences are packed anew every epoch. None: the
            rows of a packed dataset are used as stored.
        images: maximum number of images per pack, for sequences with images; packs then have two limits, tokens and
            images. A video counts as many images as it has steps in time (the first number of its ``video_grid_thw``).
            None: no limit.
        rows: number of packs per rank and micro-step. Give exactly one of `rows`, `tokens` and `sequences`.
        tokens: maximum number of tokens per rank and micro-step: one pack, as one flat row without padding unless
            `align` or `form` says otherwise; replaces `rows` and `capacity`.
        sequences: number of sequences per rank and micro-step, not packed, as one flat row without padding unless
            `form` says otherwise; replaces `rows` and `capacity`.
        token_cap: only with `sequences`: maximum number of tokens per rank and micro-step. To keep to this limit, ranks
            may get different numbers of sequences; if the sequences of a step still do not fit, the step takes fewer,
            and the sequences left over go to the next step. None: no limit.
        accumulation: micro-steps per optimiser step.
        last: what happens at the end of an epoch to the units (packs, single sequences or groups) that are too few for
            a whole step. "drop" leaves them out (`summary` counts them); "fill" completes the step with empty rows, so
            that all batches have one shape; "short" takes them in fewer rows, and computes nothing for empty ones;
            "refuse" raises OptionError. With "fill" and "short", a rank without any sequence gets a batch of weight 0
            in the loss.
        balance: how units are drawn and dealt to ranks: a `nopad.balance.Balance`, or a name in
            `nopad.balance.METHODS`.
        cost: how much work a sequence is, by its length, so that ranks get equal work: a `nopad.balance.CostModel`.
            None: a sequence costs its number of tokens.
        seed: the seed of all random choices.
        align: every sequence takes a multiple of this many slots of its row, padded at its end. Context parallelism
            needs 2 x its number of ranks; FP8 kernels need a multiple too. Packs are planned for it.
        groups: the group of each sequence, integers ``[n]``, for sequences that stay together (preference pairs,
            answers to one prompt); or an integer k: every k consecutive sequences are a group. None: no groups.
        together: what the sequences of a group share when they are not packed: "rank", the same rank and micro-step; or
            "step", only the same step. Where sequences are packed, a group always shares a pack; "pack" is then allowed
            too. Values other than "rank" need `groups`.
        form: how a batch lies in memory: `nopad.Rows(capacity)` or `nopad.Flat()`. None: `Rows` with the argument
            `rows`, or with `align` above 1; else `Flat`.
        collate: a function that makes the `PackedBatch`; it gets the sequences (`nopad.sequences.Sequences`), `form`,
            and how many of the sequences lie in each row, int64 ``[rows]``; or `nopad.loading.EpochCollate`, which
            makes other batches in every epoch. None: `PackedBatch.from_columns`.
        rank, world_size, node_size, group: this process's data-parallel rank, the number of these ranks, how many of
            them share a node, and their process group, as in `Ranks.found`. None: found from torch.distributed, or else
            from the environment.
        prefetch: number of batches that a thread builds ahead; 0: no thread.
        host_dir: a folder where the ranks of a host share the arrays that describe the epoch, so that memory does not
            grow with the number of ranks. None: a temporary folder if the host has two or more ranks and the data have
            2**20 (about a million) sequences or more; else nothing is shared.
        options: for stored tokens, the options of the plan: depth, algorithm, effort, ... (see `nopad.plan`); or
            ``plan``, a plan made before. For a stream: ``tokenizer``; ``exhausted``, "repeat" or "stop";
            ``shuffle_buffer``, the number of sequences that wait for a random turn (by `seed`) before they are packed;
            depth, buffer, patience and buffer_tokens, as in `nopad.StreamPacker`; and the options of
            `nopad.CorpusOptions`. Data are a stream if ``tokenizer`` or ``exhausted`` is given; or if they are a source
            of texts that `nopad.open_source` returned, an iterable dataset, or a function that returns an iterator of
            dicts. With "repeat", the batches of a stream never end; with "stop", they end with the source
            (`docs/loading.md`).

    Attributes:
        ranks: this process's data-parallel rank and the number of ranks (`Ranks`).

    Raises:
        OptionError: an argument is invalid, two contradict each other, or the units do not make a single step; or they
            do not make whole steps, and `last` is "refuse".
        LengthError: a sequence (or group) is longer than the capacity, or than `token_cap`; a sequence has more images
            than `images`; or a stored sequence has no token.
        PlanMismatchError: `plan` is for other lengths or another capacity, or has a pack that does not fit with
            `align`.
        BalanceError: the balance cannot draw or deal these units, or `cost` gives an invalid cost.
        SourceError, FormatError, CorruptError, RecordError: the data cannot be read, as for `open_tokens`; or, for a
            stream, the tokenizer cannot be read (FormatError).
        StorageError: `host_dir`, or the folder for copies of the tokens, cannot be written; or a packed dataset cannot
            be read.
        MissingExtraError: a package that the data or the tokenizer need is not installed.

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
        images: int | None = None,
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
        stream = is_stream(data, options)
        step = self._step = Step.of(
            stream=stream,
            rows=rows,
            tokens=tokens,
            sequences=sequences,
            capacity=capacity,
            token_cap=token_cap,
            accumulation=accumulation,
            last=last,
            align=align,
            form=form,
            collate=collate,
            prefetch=prefetch,
        )
        how: dict[str, Any] = {"unpacked": step.unpacked, "seed": seed}
        self._supply: Supply
        if stream:
            dealing = {"balance": balance, "cost": cost, "groups": groups, "together": together}
            shuffled = options.get("shuffle_buffer") is not None
            refuse_images(images)
            refuse_dealing(**dealing, align=step.align, host_dir=host_dir, seed=0 if shuffled else seed)
            opened = open_stream(data, step.capacity, options, **how)
            self._capacity = opened[1].capacity
            self._rows = step.per_rank
            self._supply = StreamSupply(*opened, step.serving(self.ranks, self._capacity or 1), step.last)
        else:
            if step.align > 1:
                options["align"] = step.align
            feed = open_feed(data, step.capacity, groups=groups, together=together, images=images, **how, **options)
            self._capacity = None if step.unpacked else feed.capacity
            epochs = Epochs(feed, Tokens() if cost is None else cost, step.last, shared(self.ranks, feed, host_dir))
            serving = step.serving(self.ranks, feed.capacity, feed.group_size)
            self._rows = step.per_rank if feed.apart else serving.per_rank  # a group that stays together is one row
            self._supply = EpochSupply(epochs, serving, Balance.named(balance))
        self._cursor = Cursor(self._supply, self.ranks)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the loader in another process, or as a copy, at the same position; it then advances on its own."""
        vars(self).update(state)
        self._cursor = copy(self._cursor)

    @property
    def epoch(self) -> int:
        """Number of the current epoch, from 0; for a stream, the number of finished passes over its source."""
        return self._cursor.at.epoch

    @property
    def steps_seen(self) -> int:
        """Number of whole optimiser steps taken since the run began; the same on all ranks."""
        return self._cursor.at.steps_seen

    @property
    def sequences_seen(self) -> int:
        """Number of sequences in the steps that `steps_seen` counts, on all ranks together.

        Raises:
            OptionError: the data are a stream and there are several ranks: each rank knows only its own number.
        """
        return self._cursor.at.sequences_seen

    @property
    def tokens_seen(self) -> int:
        """Number of tokens in the steps that `steps_seen` counts, on all ranks together.

        Raises:
            OptionError: the data are a stream and there are several ranks: each rank knows only its own number.
        """
        return self._cursor.at.tokens_seen

    @property
    def is_stream(self) -> bool:
        """Whether the data are a stream; then every rank has a state of its own."""
        return isinstance(self._supply, StreamSupply)

    @property
    def capacity(self) -> int | None:
        """Maximum number of tokens per pack; None: sequences are not packed."""
        return self._capacity

    @property
    def accumulation(self) -> int:
        """Micro-steps per optimiser step."""
        return self._step.accumulation

    @property
    def per_rank(self) -> int:
        """Number of rows or sequences per rank and micro-step; 1 for a loader made with `tokens`."""
        return self._step.per_rank

    @property
    def rows(self) -> int:
        """Limit on the number of rows of a batch; 1 if all sequences lie in one flat row.

        Empty rows that the argument `form` adds are not counted.
        """
        return 1 if self._step.flat else self._rows

    def __repr__(self) -> str:
        """Return in one line what is loaded, for which rank, and the loader's position."""
        return (
            f"PackedLoader({self._supply.described()}, {counted(self._step.accumulation, 'micro-step')} per step; "
            f"rank {self.ranks.rank} of {self.ranks.world_size}; epoch {self.epoch}, {self.steps_seen:,} steps seen)"
        )

    def __getitem__(self, index: Any) -> NoReturn:
        """Refuse access by number: a loader gives its batches in order only.

        Raises:
            OptionError: always.
        """
        raise OptionError(
            "a PackedLoader gives whole batches in order, and none by number; iterate over it, or train with "
            "nopad.training.PackedTrainer, PackedSFTTrainer, or loader.dataloader() in Lightning"
        )

    def __len__(self) -> int:
        """Number of batches that a rank takes in the whole epoch, those already taken included.

        If the ranks, the size of a step or the balancing changed within this epoch, only the batches after the last
        change count.

        Raises:
            TypeError: the data are a stream, whose length is not known.
        """
        return self._supply.length(self._cursor.at)

    def steps_in(self, epoch: int) -> int:
        """Return the number of optimiser steps of epoch number `epoch`, from its beginning to its end.

        Every epoch has the same number of steps, except with a `Mixture` or a `token_cap`: then the epoch must be dealt
        to count its steps, which takes O(sequences).

        Raises:
            OptionError: `epoch` is not an integer from 0 to 2^31 - 1; the units of that epoch do not make a single
                step; or they do not make whole steps, and `last` is "refuse".
            BalanceError: the balance cannot draw the units of that epoch, or `cost` gives an invalid cost.
            TypeError: the data are a stream, whose length is not known.
        """
        return self._supply.steps_in(self._cursor.at, _NUMBER.check("epoch", epoch))

    def summary(self) -> Summary | StreamSummary:
        """Return a summary of the current epoch: steps, sequences, tokens, what is left out, and how evenly ranks work.

        If the ranks, the size of a step or the balancing changed within this epoch, only the part after the last change
        is summarised. For a stream, the summary says what this rank has read so far (`StreamSummary`).

        >>> import nopad
        >>> data = [[1, 2, 3], [4], [5, 6], [7, 8]]
        >>> print(nopad.PackedLoader(data, capacity=4, rows=1, rank=0, world_size=2).summary())
        step     2 ranks x 1 micro-step x 1 pack: 4 sequences, 8 tokens on average
        epoch    1 step: 4 sequences, 8 tokens (100.00% of the slots)
                 one sequence per row would take 2 steps: a schedule in steps sees 2.00 times as many ...
        balance  the slowest rank of a step costs 0.00% more than the mean (floor 0.00%), in tokens
        """
        found: Summary | StreamSummary = self._supply.summary(self._cursor.at)
        return found

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of epoch number `epoch`; if `epoch` is the current epoch, nothing changes.

        Raises:
            OptionError: `epoch` is not an integer from 0 to 2^31 - 1; or the data are a stream that never ends, and
                `epoch` is not the current epoch.
        """
        if _NUMBER.check("epoch", epoch) != self._cursor.at.epoch:
            self._cursor.go(self._supply.epoch_begin(self._cursor.at, epoch))

    def rewind(self) -> None:
        """Go back to where the loader began: the beginning of its first epoch."""
        self._cursor.go(self._supply.begin())

    def facts(self) -> dict[str, Any]:
        """Return, by name, what a saved run and the run that resumes it must share, such as the seed.

        All values can be written as JSON.
        """
        return self._supply.facts()

    def state_dict(self, *, batches: int = 0) -> dict[str, Any]:
        """Return the loader's state, or the state that it will have after `batches` more batches of this epoch.

        The result is a dict that can be written as JSON. A batch counts as seen as soon as the training loop gets it.
        After the last batch of an epoch, the loader is at the beginning of the next epoch.

        Raises:
            OptionError: `batches` is not an integer from 0 to 2^31 - 1; this epoch has fewer batches left; or the data
                are a stream, and `batches` is not 0.
        """
        return self._supply.state(self._cursor.at, _NUMBER.check("batches", batches))

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Set this loader to the position at which `state` was saved.

        If the numbers of ranks and nodes, the size of a step (with `token_cap`) and `balance` are those of the loader
        that was saved, the next batch is the one that would have come next. If any of these differs, the epoch goes on
        with exactly those packs (or sequences, or groups) that the run has not seen yet. A step that was taken only in
        part then counts as not seen, since its gradient was never applied.

        For a stream, each rank loads the state that it saved itself; if the number of ranks changed, each rank loads a
        list of the states of all former ranks.

        Raises:
            FormatError: `state` is not the state of a loader, is of another format version, does not fit the data, or
                lacks the states of some ranks.
            PlanMismatchError: the state is for other data, or another plan, cost model, seed or option; the message
                names what differs.
            OptionError: `last` is "refuse", and the packs (or sequences, or groups) left do not make whole steps.
            BalanceError: the balance cannot draw the units left, or `cost` gives an invalid cost.
        """
        self._cursor.go(self._supply.placed(state))

    def __iter__(self) -> Iterator[PackedBatch]:
        """Iterate over the remaining batches of this epoch.

        Raises:
            OptionError: one of these:

                * the ranks have different data, options or positions (checked at the first iteration, and again after
                  the position was set, if torch.distributed is in use)
                * another iteration of this loader began meanwhile, the loader was set to another position, or this
                  process is a fork of the one in which the iteration began
                * the units of an epoch do not make a single step
                * `last` is "refuse", and the units of an epoch do not make whole steps, or a stream ended in the middle
                  of a step
                * a stream holds text, and no `tokenizer` was given
                * `collate` did not return a `PackedBatch` of at most `token_cap` tokens
            CorruptError, SourceError: the data changed since the loader was made, or a stream cannot be read.
            RecordError: a record of a stream is bad, too long or empty, and the options do not allow it.
            FormatError: the tokenizer cannot encode a text of a stream; or the folder of a packed dataset holds none
                any more.
            LengthError: the data are a stream of a task's records, and the task refuses a record.
            BatchError: a finite float64 in the data is too large for float32, or `collate` refuses the sequences.
            BalanceError: the balance cannot draw the units of an epoch; or `cost` gives an invalid cost, or costs whose
                sum does not fit into 64 bits.
            PlanMismatchError: a sequence of an index-only dataset has other tokens than those that were packed.
            StorageError: a shard of a packed dataset cannot be read.
        """
        return self._cursor.batches()

    def dataloader(self, *, num_workers: int = 0, **options: Any) -> TorchLoader:
        """Return a torch `DataLoader` that gives the remaining batches of the epoch, as a loop over this loader does.

        Iterating over it advances this loader as well, so save this loader's `state_dict`.

        Args:
            num_workers: number of processes that build batches; 0: this process builds them.
            options: further arguments of the DataLoader: pin_memory, prefetch_factor, timeout, ...

        Raises:
            MissingExtraError: torch is not installed.
            OptionError: an option would change the batches or their order; `num_workers` is not an integer from 0 to
                65,536; or the data are a stream, and `num_workers` is not 0.
        """
        try:
            from nopad.loading.torch import TorchLoader
        except ModuleNotFoundError as error:
            raise MissingExtraError(f"a DataLoader needs {error.name}; {install('torch')}") from error
        self._supply.check_workers(num_workers)
        return TorchLoader(self, num_workers=num_workers, **options)

    def share(self, worker: int, workers: int) -> Iterator[PackedBatch]:
        """Yield the batches that worker process number `worker` of `workers` builds; the position does not change.

        Of the remaining batches of this epoch, counted from 0, these are number `worker` and every `workers`-th after
        it. Errors of reading and building are those that `__iter__` lists.
        """
        return (batch for _, batch in self._supply.batches(self._cursor.at, worker, workers) if batch is not None)

    def follow(self, batches: Callable[[], Iterator[PackedBatch]]) -> Iterator[PackedBatch]:
        """Iterate over the remaining batches of this epoch, while other processes build them (`share`).

        `batches` is a function without arguments that returns an iterator over these batches in order; it is called
        once.

        Raises:
            OptionError: the other processes gave too few batches; another iteration of this loader began meanwhile, or
                the loader was set to another position; or the ranks have different data, options or positions.
        """
        return self._cursor.follow(batches)
