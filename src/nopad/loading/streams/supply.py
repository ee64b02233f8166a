"""Supply a loader from a stream: each rank reads, tokenises and packs its own records, ahead of the training loop.

An endless stream needs no communication while it runs. If ranks stop at the end of the source, they exchange before
every step how many units each of them has for the step, so that all ranks stop together; this happens on the thread of
the training loop.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from nopad.batch import PackedBatch
from nopad.batch.columns import narrowed
from nopad.corpus.options import Counts
from nopad.errors import FormatError, OptionError
from nopad.loading.agreement import Exchange, exchange_of
from nopad.loading.ahead import ahead
from nopad.loading.legs import Last
from nopad.loading.state import check_same
from nopad.loading.streams.deal import Deal
from nopad.loading.streams.flow import Flow
from nopad.loading.streams.packing import Packing
from nopad.loading.streams.place import Held, Pack, StreamPlace, dealt_again
from nopad.loading.streams.reading import Cursor, Reader
from nopad.loading.streams.shuffling import Buffer, Shuffling
from nopad.loading.streams.state import read_state, written
from nopad.loading.streams.summary import StreamSummary
from nopad.loading.supply import Serving, Supply
from nopad.sequences import Sequences

__all__ = ["Exhausted", "StreamSupply"]

Exhausted = Literal["repeat", "stop"]


class _Begun(NamedTuple):
    """The start of a step.

    Attributes:
        units: number of units (packs or single sequences) that this rank has for the step.
        left: the place of this rank if the stream ends before this step. All sequences in this place, held or waiting
            for a random turn, are then left out.
    """

    units: int
    left: StreamPlace


class _Made(NamedTuple):
    """The batch of one micro-step, and the place of the rank after it."""

    after: StreamPlace
    batch: PackedBatch


@dataclass(frozen=True)
class StreamSupply(Supply):
    """The batches of one rank of a stream.

    The methods take and return places (`StreamPlace`), which say how far a rank has come.

    Attributes:
        reader: reads and tokenises the source.
        packing: how sequences become units.
        shuffling: how sequences wait for a random turn before they are packed.
        serving: the rank for which batches are built, and how.
        last: what happens to units that are too few for a whole step when ranks stop at the end of the source. "drop"
            leaves them out; "fill" and "short" take a last step with fewer units; "refuse" raises OptionError.
    """

    reader: Reader
    packing: Packing
    shuffling: Shuffling
    serving: Serving
    last: Last

    def __post_init__(self) -> None:
        """Check that ranks which stop at the end of the source can tell one another when they stop.

        Raises:
            OptionError: there are several such ranks, and torch.distributed has no process group.
        """
        if not self.reader.repeat and self.serving.ranks.world_size > 1 and exchange_of(self.serving.ranks) is None:
            raise OptionError(
                "ranks that stop at the end of a stream must tell one another how much they have left, and there is no "
                "process group: call torch.distributed.init_process_group first, or choose exhausted='repeat'"
            )

    def begin(self) -> StreamPlace:
        """Return the place at the beginning of the source."""
        ranks = self.serving.ranks
        return StreamPlace(
            cursor=Cursor(deal=Deal(world_size=ranks.world_size, rank=ranks.rank)),
            buffer=Buffer.of(),
            held=Held.none(),
            accumulation=self.serving.accumulation,
            per_rank=self.serving.per_rank,
            counts=Counts(),
        )

    def epoch_begin(self, at: StreamPlace, epoch: int) -> StreamPlace:
        """Return the place where pass number `epoch` over the source begins.

        The steps, sequences and tokens seen stay as in `at`.

        Raises:
            OptionError: the stream is repeated without end, so it has no epochs.
        """
        if self.reader.repeat:
            raise OptionError("an endless stream has no epochs to go to; it goes on by itself, pass after pass")
        cursor = replace(self.begin().cursor, passes=epoch, length=at.cursor.length)
        buffer = Buffer.of_epoch(epoch)
        return replace(at, cursor=cursor, buffer=buffer, held=Held.none(), ready=(), arrived=0, batches=0)

    def described(self) -> str:
        """Return a phrase that says that the data are a stream, and what a rank takes in a micro-step.

        An example is "a stream in packs of at most 4,096 tokens, 1 pack per rank and micro-step".
        """
        packs = f" in packs of at most {self.packing.capacity:,} tokens" if self.packing.capacity else ""
        return f"a stream{packs}, {self.serving.takes(self.packing.unit)} per rank and micro-step"

    def facts(self) -> dict[str, Any]:
        """Return, by name, what a saved run and the run that resumes it must share: source, tokenizer and options."""
        source, tokenizer = self.reader.source, self.reader.tokenizer
        said = [source.kind, source.names, source.settings(), source.inventory()]
        options = asdict(self.reader.options)
        options.pop("capacity")
        return {
            **self.serving.facts(),
            **self.packing.facts(),
            **self.shuffling.facts(),
            **options,
            "data": hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest(),
            "tokenizer": None if tokenizer is None else tokenizer.fingerprint,
            "exhausted": self._exhausted,
        }

    @property
    def _exhausted(self) -> Exhausted:
        return "repeat" if self.reader.repeat else "stop"

    def agreed(self, at: StreamPlace) -> dict[str, Any]:
        """Return, by name, what all ranks must agree on.

        These are `facts`, the number of ranks, the size of a step, `last`, and how many steps and batches were taken.
        """
        return {
            **self.facts(),
            "world_size": self.serving.ranks.world_size,
            "the step": f"{at.accumulation} x {at.per_rank}",
            "last": self.last,
            "the position": (at.steps_seen, at.batches),
        }

    def length(self, at: StreamPlace) -> int:
        """Refuse: the length of a stream is not known.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            "how many batches a stream gives is not known"
            + (": it never ends; count steps" if self.reader.repeat else " before its end; count steps")
            + " instead (max_steps=, loader.steps_seen)"
        )

    def summary(self, at: StreamPlace) -> StreamSummary:
        """Return what this rank knows about the stream at place `at`: how far it has read, and what it has taken."""
        return StreamSummary(
            takes=self.serving.takes(self.packing.unit),
            world_size=at.cursor.deal.world_size,
            accumulation=at.accumulation,
            exhausted=self._exhausted,
            passes=at.epoch,
            records=at.cursor.length,
            steps=at.steps_seen,
            sequences=at.sequences_here,
            tokens=at.tokens_here,
            slots=at.units_here * self.packing.capacity if self.serving.rows and self.packing.capacity else None,
            held_sequences=len(at.held) + len(at.buffer),
            held_tokens=at.held.tokens + at.buffer.tokens,
            left_out=(at.left_sequences, at.left_tokens),
            counts=at.counts,
        )

    def state(self, at: StreamPlace, batches: int) -> dict[str, Any]:
        """Return the state of this rank at place `at`; a dict that can be written as JSON.

        It has the place, and the sequences that were read for later steps. `batches`, the number of further batches
        after which the state is wanted, must be 0, since later batches have not been read.

        Raises:
            OptionError: `batches` is not 0.
        """
        if batches:
            raise OptionError(
                "what a stream holds after further batches is not known before they are read; take the state when the "
                "loop has them"
            )
        return written(at, self.facts())

    def placed(self, state: Any) -> StreamPlace:
        """Return the place from which this rank goes on.

        `state` is the state that this rank saved, or a list of the states of all former ranks, in any order.

        Raises:
            FormatError: a state is not one of a stream, or is damaged; the states are neither this rank's own nor those
                of all former ranks; or the number of ranks changed, and they were not saved after the same step.
            PlanMismatchError: the states are for other data, another tokenizer or other options.
        """
        states = [state] if isinstance(state, Mapping) or not isinstance(state, Sequence) else list(state)
        if not states:
            raise FormatError("there is no state in this list; give what state_dict() returned on each rank")
        read = [read_state(one, self.packing) for one in states]
        facts = self.facts()
        for _, there in read:
            check_same(there, facts)
        if self.reader.repeat and any(place.cursor.ended for place, _ in read):
            raise FormatError("this state is damaged: a stream that is repeated has no end")
        places = _in_order([place for place, _ in read], self.serving.ranks.rank, self.serving.ranks.world_size)
        ranks, shape = self.serving.ranks, (self.serving.accumulation, self.serving.per_rank)
        for place in places:
            if (place.cursor.deal.world_size, place.cursor.deal.rank) == (ranks.world_size, ranks.rank):
                same = (place.accumulation, place.per_rank) == shape
                return place if same else replace(place, accumulation=shape[0], per_rank=shape[1], batches=0)
        return dealt_again(places, self.packing, ranks.world_size, ranks.rank, *shape)

    def check_workers(self, workers: int) -> None:
        """Refuse worker processes: each of them would read the whole stream again.

        Raises:
            OptionError: `workers` is not 0.
        """
        if workers:
            raise OptionError(
                f"num_workers is {workers}, and each worker process would read the stream from its beginning; leave it "
                "at 0: texts are tokenised ahead in threads, on other cores"
            )

    def places(self, at: StreamPlace) -> Iterator[StreamPlace]:
        """Refuse: other processes cannot build the batches of a stream.

        Raises:
            OptionError: always.
        """
        self.check_workers(1)
        yield at

    def batches(
        self, at: StreamPlace, worker: int = 0, workers: int = 1
    ) -> Iterator[tuple[StreamPlace, PackedBatch | None]]:
        """Yield (place after the batch, batch) for each micro-batch of this rank from place `at` on.

        If the stream stops at the end of its source, the last item is (place where the next pass begins, None).

        Raises:
            OptionError: `workers` is above 1; the stream ended in the middle of a step, and `last` is "refuse"; a
                record is text, and there is no tokenizer; the tokenizer cannot encode chats; or `collate` did not
                return a `PackedBatch`.
            SourceError: reading fails, the source has changed, or its last passes gave this rank no sequence.
            RecordError: a record is bad, too long or empty, and the options do not allow it.
            LengthError: the source is a task's, and the task refuses a record.
            FormatError: the tokenizer cannot encode a text.
            BatchError: a finite float64 of a column is too large for float32.
        """
        if workers > 1:
            self.check_workers(workers)
        exchange = exchange_of(self.serving.ranks) or (lambda mine: [mine])
        with closing(ahead(self._steps(at), self.serving.prefetch, "nopad-batch")) as made:
            for one in made:
                if isinstance(one, _Made):
                    yield one.after, one.batch
                elif not self.reader.repeat and not self._goes_on(one.units, exchange):
                    yield self._left_out(one.left), None
                    return

    def _goes_on(self, units: int, exchange: Exchange) -> bool:
        """Return whether all ranks take one more step; `units` is how many packs or sequences this rank has for it.

        `exchange` sends this number to all ranks and returns theirs, so every rank must call this.

        Raises:
            OptionError: a rank has units, not every rank has enough for a whole step, and `last` is "refuse".
        """
        every, full = list(exchange(units)), self.serving.accumulation * self.serving.per_rank
        if min(every) == full:
            return True
        if self.last == "refuse" and any(every):
            raise OptionError(
                f"the stream ended in the middle of a step: the ranks have {min(every)} to {max(every)} of {full} "
                "units left; choose last='drop', 'fill' or 'short', or exhausted='repeat'"
            )
        return self.last in ("fill", "short") and any(every)

    def _left_out(self, at: StreamPlace) -> StreamPlace:
        """Return the beginning of the next pass; the sequences that this rank still holds are counted as left out."""
        left = replace(
            at,
            left_sequences=at.left_sequences + len(at.held) + len(at.buffer),
            left_tokens=at.left_tokens + at.held.tokens + at.buffer.tokens,
        )
        return self.epoch_begin(left, at.epoch + 1)

    def _steps(self, at: StreamPlace) -> Generator[_Begun | _Made, None, None]:
        """Yield what happens in each step from place `at` on: first a `_Begun`, then a `_Made` for each micro-step.

        Micro-steps that were taken before `at` are left out.
        """
        with closing(Flow(at, self.reader, self.packing, self.shuffling)) as flow:
            while True:
                begun = replace(flow.place(), batches=0)
                packs = flow.take(at.accumulation * at.per_rank)
                if self.reader.repeat and len(packs) < at.accumulation * at.per_rank:
                    raise AssertionError("a stream that is repeated never has too few units")
                yield _Begun(len(packs), flow.place())
                micros = [packs[micro :: at.accumulation] for micro in range(at.accumulation)]
                for micro in range(at.batches if begun.steps_seen == at.steps_seen else 0, at.accumulation):
                    batch = self._batch(flow, micros[micro], begun.epoch)
                    if micro + 1 < at.accumulation:
                        yield _Made(replace(begun, batches=micro + 1), batch)
                flow.given(packs)
                yield _Made(flow.place(), batch)

    def _batch(self, flow: Flow, packs: Sequence[Pack], epoch: int) -> PackedBatch:
        """Build a batch of the units `packs`, in a step that began in pass `epoch`.

        Without units, the batch is a stand-in of one token, with weight 0 in the loss (`PackedBatch.as_stand_in`).
        """
        if not packs:
            return self.serving.batch(self._nothing(), np.ones(1, dtype=np.int64), epoch).as_stand_in()
        sequences, per_row = flow.sequences(packs)
        return self.serving.batch(narrowed(sequences.gathered()), per_row, epoch)

    def _nothing(self) -> Sequences:
        """Return one sequence of one token, from which a rank without sequences makes a stand-in batch.

        It has the columns that the sequences of the stream have, except columns of strings.
        """
        columns: dict[str, dict[str, Any]] = {"token": {"input_ids": np.zeros(1, dtype=np.int32)}, "sequence": {}}
        for one in self.reader.source.carried:
            if one.type != "string":
                columns[one.per][one.name] = np.zeros(1, dtype=_TYPES.get(one.type, one.type))
        names = ("seq_index", "seq_start", "seq_source") if self.reader.named else ("seq_index", "seq_start")
        records = {name: np.zeros(1, dtype=np.int64) for name in names}
        return Sequences(
            seq_lengths=np.ones(1, dtype=np.int32),
            tokens=columns["token"],
            values={**records, **columns["sequence"]},
        )


_TYPES = {"float": "float32", "double": "float32", "halffloat": "float16", "bool": "bool"}


def _in_order(places: Sequence[StreamPlace], rank: int, world_size: int) -> list[StreamPlace]:
    """Return the places in the order of their ranks, after checking that none is missing.

    They must be the places of all ranks of one run. If that run had `world_size` ranks, as this run has, the place of
    rank `rank` alone is enough too.

    Raises:
        FormatError: ranks are missing or there twice, or the places are of runs with different numbers of ranks.
    """
    ordered = sorted(places, key=lambda place: place.cursor.deal.rank)
    found = [place.cursor.deal.rank for place in ordered]
    sizes = {place.cursor.deal.world_size for place in ordered}
    if len(sizes) == 1 and ((found == [rank] and sizes == {world_size}) or found == list(range(*sizes))):
        return ordered
    (size,) = sizes if len(sizes) == 1 else (max(sizes),)
    missing = sorted(set(range(size)) - set(found))
    lacks = f"those of ranks {', '.join(map(str, missing[:8]))} are missing" if missing else "some are there twice"
    raise FormatError(
        f"this is rank {rank} of {world_size}, and these are {len(found)} states of ranks {_some(found)} of "
        f"{' and '.join(map(str, sorted(sizes)))}: {lacks}. A rank needs its own state, or, if the number of ranks "
        "changed, those of all ranks that were there, as a list"
    )


def _some(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
