"""`Mixture`: several sources of stored tokens in one epoch, each with a share of the epoch's tokens.

Every source is read in passes, each in a random order of its own. Unless `exhausted` is "drop", an epoch takes from
each source its share of the tokens, from where the epoch before stopped. So the shares are exact to within one sequence
of each source, and over several epochs no sequence is left out. With "drop", an epoch takes every sequence once, and
the shares hold only until a source runs out.

Which sequences an epoch takes depends only on the mixture, seed and epoch. Cost: O(sequences of a source) for each pass
that an epoch touches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nopad import _kernels, random
from nopad.errors import OptionError
from nopad.loading.sources import TokenSource, open_tokens
from nopad.options import MAX_LENGTH, check_choice, is_number, shown
from nopad.packs import index_dtype
from nopad.sequences import Sequences, gather_runs

__all__ = ["Chosen", "Exhausted", "Mixture"]

Exhausted = Literal["repeat", "drop", "stop"]


@dataclass(frozen=True, eq=False)
class Chosen:
    """The sequences that one epoch takes from a mixture.

    Attributes:
        numbers: numbers of these sequences, counted over all sources of the mixture; ``[n]``. A sequence that is
            repeated occurs several times.
        phases: where each phase begins in `numbers`, and where the last one ends; so one integer more than there are
            phases. The shares of the sources are constant within a phase. If the mixture drops exhausted sources, a
            phase ends when a source runs out; otherwise the epoch is one phase.
        notes: one line for each source, for the summary.
    """

    numbers: NDArray[Any]
    phases: tuple[int, ...]
    notes: tuple[str, ...]


class Mixture:
    """Named sources of stored tokens, each with a share of the tokens of every epoch; the `data` of a `PackedLoader`.

    Args:
        sources: a dict from names to sources, each in any form that `nopad.loading.sources.open_tokens` takes.
        weights: the share of each source, by name: positive numbers. Only their ratios matter. None: in proportion to
            the number of tokens of each source.
        exhausted: what happens when a source has been read once. "repeat": the source is read again, and the epoch ends
            when every source has given as many tokens as it holds. "stop": the epoch ends as soon as any source has
            been read once; the others go on in the next epoch where they stopped. "drop": the epoch goes on with the
            other sources, in the same proportions, until all have been read once.

    Attributes:
        names: names of the sources, in the order given. ``batch.records["seq_source"]`` has, for each sequence of a
            batch, the index of its source in `names`.
        exhausted: the argument of this name.

    Raises:
        OptionError: `sources` is not a dict or is empty; `weights` are not a dict; a weight names no source, is
            missing, or is not a finite number above 0; `exhausted` has another value; the sources do not have the same
            columns; or an epoch would take more than 2^31 - 1 sequences from one source.
        SourceError, FormatError, CorruptError, RecordError, LengthError, StorageError, MissingExtraError: a source
            cannot be opened, as for `open_tokens`.

    >>> import nopad
    >>> from nopad.loading import Mixture
    >>> data = Mixture({"text": [[1, 1]] * 6, "code": [[2, 2]] * 2}, weights={"text": 1, "code": 1})
    >>> loader = nopad.PackedLoader(data, capacity=4, rows=1)
    >>> tokens = [number for batch in loader for number in batch["input_ids"].flatten().tolist()]
    >>> tokens.count(1), tokens.count(2)  # equal shares: the 4 tokens of "code" are read three times
    (12, 12)
    """

    def __init__(
        self,
        sources: Mapping[str, Any],
        weights: Mapping[str, float] | None = None,
        *,
        exhausted: Exhausted = "repeat",
    ) -> None:
        """Open the sources."""
        if not isinstance(sources, Mapping) or not sources:
            raise OptionError("a mixture has its sources by name: give a dict, such as {'text': ..., 'code': ...}")
        check_choice("exhausted", exhausted, Exhausted)
        self.names, self.exhausted = tuple(sources), exhausted
        self._sources = [given if isinstance(given, TokenSource) else open_tokens(given) for given in sources.values()]
        self._begin = np.concatenate([[0], np.cumsum([len(source) for source in self._sources])])
        self._tokens = [int(source.seq_lengths.sum(dtype=np.int64)) for source in self._sources]
        self._shares = _shares(weights, self.names, self._tokens)
        ends = [Fraction(tokens) / share for tokens, share in zip(self._tokens, self._shares, strict=True)]
        self._total = max(ends) if exhausted == "repeat" else min(ends)  # tokens of an epoch
        self._check_columns()
        self._check_size()

    def __len__(self) -> int:
        """Number of sequences in all sources."""
        return int(self._begin[-1])

    @property
    def seq_lengths(self) -> NDArray[np.int32]:
        """Lengths of all sequences, source after source; int32 ``[n]``."""
        return np.concatenate([source.seq_lengths for source in self._sources])

    def facts(self) -> dict[str, Any]:
        """Return, by name, the fingerprint of each source, the shares of the sources, and `exhausted`.

        All values can be written as JSON.
        """
        found: dict[str, Any] = {f"data of {n}": s.fingerprint for n, s in zip(self.names, self._sources, strict=True)}
        shares = {name: str(share) for name, share in zip(self.names, self._shares, strict=True)}
        return {**found, "shares": shares, "exhausted": self.exhausted}

    def check_unchanged(self) -> None:
        """Refuse sources whose files changed since they were opened.

        Raises:
            SourceError: a file changed; the message names it.
        """
        for source in self._sources:
            source.check_unchanged()

    def release(self) -> None:
        """Free the arrays with one value per sequence; they are computed again at their next use."""
        for source in self._sources:
            source.release()

    def chosen(self, seed: int, epoch: int) -> Chosen:
        """Return which sequences epoch number `epoch` takes; `seed` is the seed of all random choices.

        This takes O(sequences of a source) for each pass over the source that the epoch touches.
        """
        if self.exhausted == "drop":
            return self._each_once(seed, epoch)
        parts, notes = [], []
        for place, share in enumerate(self._shares):
            quota = share * self._total
            begin, end = int(epoch * quota), int((epoch + 1) * quota)
            part = self._window(place, seed, begin, end)
            parts.append(part)
            tokens = int(self._sources[place].seq_lengths[part - self._begin[place]].sum(dtype=np.int64))
            notes.append(
                f"{self.names[place]}: {part.size:,} sequences, {tokens:,} tokens ({float(share):.1%}), "
                f"read {tokens / self._tokens[place]:.2f} times"
            )
        numbers = np.concatenate(parts).astype(index_dtype(len(self)))
        return Chosen(numbers, (0, numbers.size), tuple(notes))

    def _window(self, place: int, seed: int, begin: int, end: int) -> NDArray[np.int64]:
        """Return the numbers of the sequences of a source that begin at one of the tokens `begin` to `end` (exclusive).

        The tokens of a source are numbered over all passes, one pass after the other. The result is int64 ``[k]``; it
        counts sequences over all sources of the mixture.

        Args:
            place: number of the source, from 0.
            seed: the seed of all random choices.
            begin: number of the first token.
            end: number of the token after the last one.
        """
        tokens = self._tokens[place]
        parts = [np.zeros(0, dtype=np.int64)]
        for number in range(begin // tokens, -(-end // tokens)):
            order, starts = self._pass(place, seed, number)
            first, last = np.searchsorted(starts, [begin - number * tokens, end - number * tokens])
            parts.append(order[first:last] + int(self._begin[place]))
        return np.concatenate(parts)

    def _pass(self, place: int, seed: int, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the order in which a pass takes the sequences of a source, and the token at which each of them begins.

        Both are int64 ``[n]``, in the order of the pass. Sequences are numbered from 0 in the source, and tokens from 0
        in the pass. `place` is the number of the source, and `number` that of the pass, both from 0.
        """
        order = np.arange(len(self._sources[place]))
        _kernels.shuffle(order, np.uint64(random.key(seed, random.STREAM_PASS, place, number)))
        lengths = self._sources[place].seq_lengths[order]
        ends = np.cumsum(lengths, dtype=np.int64)
        return order, ends - lengths

    def _each_once(self, seed: int, epoch: int) -> Chosen:
        """Return a `Chosen` in which every sequence of every source occurs once, for `exhausted` "drop".

        A phase ends where a source runs out; the other sources go on in the next phase.
        """
        passes = [self._pass(place, seed, epoch) for place in range(len(self.names))]
        read, parts, phases = [Fraction(0)] * len(passes), [], [0]
        left = [Fraction(tokens) for tokens in self._tokens]
        while any(left):
            active = [place for place, tokens in enumerate(left) if tokens]
            step = min(left[place] / self._shares[place] for place in active)
            for place in active:
                order, starts = passes[place]
                until = read[place] + step * self._shares[place]
                first, last = np.searchsorted(starts, [int(-(-read[place] // 1)), int(-(-until // 1))])
                parts.append(order[first:last] + int(self._begin[place]))
                read[place], left[place] = until, left[place] - step * self._shares[place]
            phases.append(sum(part.size for part in parts))
        notes = tuple(f"{name}: {tokens:,} tokens, all" for name, tokens in zip(self.names, self._tokens, strict=True))
        bounds = tuple(sorted(set(phases)))  # a phase may be shorter than a sequence
        return Chosen(np.concatenate(parts).astype(index_dtype(len(self))), bounds, notes)

    def gather(self, numbers: NDArray[np.int64]) -> Sequences:
        """Return the sequences with these numbers, in this order; their values include ``seq_source``.

        `numbers` are counted over all sources, as in `Chosen`. Per-token integers become int64. Columns of float64
        become float32, unless their source is `exact` (its arrays are the user's own). ``seq_source`` is the index of
        each sequence's source in `names`. ``seq_index`` is the source's column of that name if it has one, else the
        sequence's number within its source.

        Raises:
            SourceError: the tokens changed since the sources were opened, or are damaged.
            BatchError: a finite float64 is too large for float32.
            PlanMismatchError: for an index-only dataset, a sequence has other tokens than those that were packed.
        """
        of = np.searchsorted(self._begin, numbers, side="right") - 1
        by_source = np.argsort(of, kind="stable")
        parts = list(self._parts(numbers, of))
        joined = Sequences.joined(parts)
        place = np.empty_like(by_source)  # where each wanted sequence is in `joined`
        place[by_source] = np.arange(by_source.size)
        begins, lengths = joined.begins[place], joined.seq_lengths[place]
        return Sequences(
            seq_lengths=lengths,
            tokens={name: gather_runs(column, begins, lengths)[0] for name, column in joined.tokens.items()},
            values={**{name: column[place] for name, column in joined.values.items()}, "seq_source": of},
        )

    def _parts(self, numbers: NDArray[np.int64], of: NDArray[np.int64]) -> Iterator[Sequences]:
        """Yield one `Sequences`, with ``seq_index``, for each source that has some of the sequences in `numbers`.

        ``seq_index`` is the source's column of that name if it has one, else the sequence's number within its source.
        `of` is the index of each sequence's source. The sequences of a source are in the order of `numbers`.
        """
        for place in np.unique(of).tolist():
            local = numbers[of == place] - self._begin[place]
            found = self._sources[place].gather(local, wide=True)
            yield Sequences(
                seq_lengths=found.seq_lengths, tokens=found.tokens, values={"seq_index": local, **found.values}
            )

    def _check_size(self) -> None:
        """Refuse weights with which an epoch would take more than 2^31 - 1 sequences from one source.

        With `exhausted` "drop", nothing is checked.

        Raises:
            OptionError: there is such a source; the message names it.
        """
        if self.exhausted == "drop":
            return
        for name, source, tokens, share in zip(self.names, self._sources, self._tokens, self._shares, strict=True):
            times = share * self._total / tokens
            if times * len(source) > MAX_LENGTH:
                raise OptionError(
                    f"with these weights, an epoch reads {name!r} {float(times):,.0f} times, which is more than "
                    f"{MAX_LENGTH:,} sequences, until every other source was read once; choose exhausted='stop', or "
                    "weights that differ less"
                )

    def _check_columns(self) -> None:
        names = [_columns(source.gather(np.zeros(1, dtype=np.int64))) for source in self._sources]
        for name, found in zip(self.names, names, strict=True):
            if found != names[0]:
                raise OptionError(
                    f"sources of a mixture have the same columns: {self.names[0]!r} has {', '.join(sorted(names[0]))}, "
                    f"and {name!r} has {', '.join(sorted(found))}"
                )


def _columns(found: Sequences) -> set[str]:
    return {f"{name} per token" for name in found.tokens} | {f"{name} per sequence" for name in found.values}


def _shares(weights: Mapping[str, float] | None, names: tuple[str, ...], tokens: list[int]) -> list[Fraction]:
    """Return the share of each source, in the order of `names`; the shares add up to 1.

    `tokens` are the numbers of tokens of the sources; without `weights`, the shares are in proportion to them.

    Raises:
        OptionError: `weights` are no dict; or a weight names no source, is missing, or is not a finite number above 0.
    """
    if weights is None:
        return [Fraction(count, sum(tokens)) for count in tokens]
    if not isinstance(weights, Mapping):
        raise OptionError(f"weights are {shown(weights)}; give a dict with a number for each of {', '.join(names)}")
    for name in weights:
        if name not in names:
            raise OptionError(f"there is a weight for {name!r}, and no such source; there are {', '.join(names)}")
    for name in names:
        weight = weights.get(name)
        if weight is None:
            raise OptionError(f"there is no weight for {name!r}; give each source one, or none any")
        if not is_number(weight) or weight <= 0:
            raise OptionError(
                f"the weight of {name!r} is {shown(weight)}; it is a number above 0, or leave the source out"
            )
    exact = [Fraction(weight.item() if isinstance(weight := weights[name], np.generic) else weight) for name in names]
    return [weight / sum(exact) for weight in exact]
