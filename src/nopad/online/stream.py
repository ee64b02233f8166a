"""Pack an endless stream: sequences are packed as they arrive, and each pack is returned as soon as it is made.

A buffer holds back at most `buffer` sequences, with fewer than `buffer_tokens` tokens in total. When one of these
limits is reached, a pack is made and returned. The pack begins with one of the longest sequences held. Then the longest
sequence that fits is added, again and again, until one or two sequences held fill the rest of the pack *exactly*, or
until none fits or the pack holds `depth` sequences. If there are several ways to fill it exactly, the lengths held most
often are taken. So common lengths are used up, rare lengths wait for the packs that only they complete, and the buffer
stays varied. `finish` packs all sequences still held; no sequence is lost.

If `depth` sequences of average length would not fill a pack, another rule holds while more than two sequences may still
be added: each sequence added is about as long as an equal share of the pack's free room. The last two sequences that
`depth` allows are chosen as described before.

A sequence of the full capacity is returned immediately, as a pack by itself; with a depth of 1, every sequence is. A
sequence does not wait for ever: when `patience` sequences have arrived after it, it begins the next pack. The packs
depend only on the options, the lengths and their order, not on how sequences are divided among calls of `push`. A
packer restored by `load_state_dict` gives identical packs.

Packing takes O(1 + capacity / 64) time per sequence, and memory of about 12 bytes per token of capacity and 40 bytes
per sequence of the buffer. If few combinations of lengths fill a pack (as in SQuAD), a plan of the whole corpus has
fewer packs; `docs/streaming.md` compares both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nopad.errors import FormatError, LengthError, OptionError
from nopad.histogram import as_lengths, integers
from nopad.options import check_integer, check_sizes
from nopad.packs import Packs
from nopad.wording import numbers_of

__all__ = ["StreamPacker", "stream_pack"]

MAX_CAPACITY = 2**24
MAX_BUFFER = 2**24
_FORMAT, _VERSION = "nopad.stream", 1
_PATIENCE = 64  # default of `patience`, times `buffer`
_CHUNK = 256  # items that `stream_pack` reads at once

Item = TypeVar("Item")


class StreamPacker:
    """Packs sequences as they arrive, holding back at most `buffer` of them.

    Sequences are numbered from 0 in order of arrival, over all calls of `push` and `finish`. Each sequence is in
    exactly one pack, and the numbers in a pack ascend. `push` and `finish` return the packs that they made as `Packs`,
    with int64 arrays.

    Args:
        capacity: most tokens a pack may hold, up to 2^24.
        depth: most sequences a pack may hold; None: unlimited.
        buffer: most sequences held back, up to 2^24; a larger buffer gives fuller packs, up to a point.
        patience: most sequences that may arrive after a sequence before it is put into a pack; None: 64 times `buffer`.
        buffer_tokens: a second limit: the sequences held back have fewer tokens than this in total; None: no limit.

    Raises:
        OptionError: an option has an invalid value.

    >>> import nopad
    >>> packer = nopad.StreamPacker(capacity=8, buffer=3)
    >>> [p.tolist() for p in packer.push([5, 2, 3, 8, 6])]
    [[0, 2], [3]]
    >>> packer.held
    2
    >>> [p.tolist() for p in packer.finish()]
    [[1, 4]]
    """

    def __init__(
        self,
        capacity: int,
        *,
        depth: int | None = None,
        buffer: int = 4096,
        patience: int | None = None,
        buffer_tokens: int | None = None,
    ) -> None:
        """Create a packer that holds no sequence."""
        self.capacity, self.depth = check_sizes(capacity, depth)
        if self.capacity > MAX_CAPACITY:
            raise OptionError(f"a stream's capacity is at most {MAX_CAPACITY:,}, got {capacity:,}")
        self.buffer = check_integer("buffer", buffer, high=MAX_BUFFER)
        self.patience = check_integer("patience", _PATIENCE * self.buffer if patience is None else patience, high=2**62)
        self.buffer_tokens = buffer_tokens
        if buffer_tokens is not None:
            self.buffer_tokens = check_integer("buffer_tokens", buffer_tokens, high=2**62)
        self._clear(arrived=0)

    def _clear(self, arrived: int) -> None:
        self._held = _kernels().empty_buffer(self.capacity, self.buffer, arrived)

    @property
    def held(self) -> int:
        """Number of sequences held back now; below `buffer`, since a pack is made as soon as `buffer` are held."""
        return int(self._held[0][0])

    @property
    def arrived(self) -> int:
        """Number of sequences that have arrived so far; the next sequence gets this number."""
        return int(self._held[0][2])

    def __repr__(self) -> str:
        """Return one line with the main options, the number of sequences that arrived, and the number held back."""
        return (
            f"StreamPacker(capacity={self.capacity}, depth={self.depth}, buffer={self.buffer}, "
            f"patience={self.patience}: {self.arrived:,} arrived, {self.held:,} held)"
        )

    def push(self, lengths: ArrayLike) -> Packs:
        """Add sequences of these lengths, integers ``[n]``; return the packs that were made.

        Raises:
            LengthError: lengths are not integers ``[n]``, or a length is masked, below 1 or above the capacity; then no
                sequence of this call is added.
        """
        checked = as_lengths(lengths, self.capacity)
        return self._packs(
            checked.size, _kernels().push, checked, self._most, self.patience, self.buffer_tokens or 2**62
        )

    def finish(self) -> Packs:
        """Pack all sequences held back, and return these packs.

        `push` may be called again afterwards; sequence numbers continue.
        """
        return self._packs(0, _kernels().drain, self._most)

    @property
    def _most(self) -> int:
        return self.capacity + 1 if self.depth is None else self.depth

    def _packs(self, arriving: int, kernel: Callable[..., int], *arguments: Any) -> Packs:
        """Call a kernel that writes packs, and return these packs; the sequence numbers of each pack ascend.

        `arriving` is the number of new sequences, by which the output arrays are made large enough. `arguments` are
        passed to the kernel.
        """
        from nopad._kernels import sort_within_packs

        indptr = np.zeros(self.held + arriving + 1, dtype=np.int64)
        sequence = np.empty(self.held + arriving, dtype=np.int64)
        indptr = indptr[: kernel(*self._held, *arguments, indptr, sequence) + 1].copy()
        sequence = sequence[: indptr[-1]].copy()
        sort_within_packs(indptr, sequence)
        return Packs(self.capacity, self.depth, indptr, sequence)

    def state_dict(self) -> dict[str, Any]:
        """Return the packer's state as a dict of JSON values.

        It holds the options, the format and version of the state, and these keys:

        * ``arrived``: number of sequences pushed so far; after a restart, read the source from there on
        * ``numbers`` and ``lengths``: numbers and lengths of the sequences held back, in order of arrival; store the
          contents of these sequences too, or read them again
        """
        numbers, lengths = [], []
        state, slots = self._held[:2]
        slot = int(state[3])
        while slot >= 0:
            number, length, _, _, slot = slots[slot].tolist()
            numbers.append(number)
            lengths.append(length)
        return {
            "format": _FORMAT,
            "version": _VERSION,
            **self._options(),
            "arrived": self.arrived,
            "numbers": numbers,
            "lengths": lengths,
        }

    def _options(self) -> dict[str, int | None]:
        return {name: getattr(self, name) for name in ("capacity", "depth", "buffer", "patience", "buffer_tokens")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give this packer the state that `state_dict` returned; the sequences that it held before are forgotten.

        Raises:
            FormatError: `state` is not a packer's state, or is damaged.
            OptionError: the state comes from a packer with other options.
        """
        if not isinstance(state, Mapping) or (state.get("format"), state.get("version")) != (_FORMAT, _VERSION):
            raise FormatError(f"not the state of a stream packer (format {_FORMAT}, version {_VERSION})")
        for name, value in self._options().items():
            if name not in state or state[name] != value:
                raise OptionError(f"the state is of a packer with {name} {state.get(name)}, this one has {value}")
        numbers, lengths, arrived = self._checked(state)
        self._clear(arrived)
        for number, length in zip(numbers.tolist(), lengths.tolist(), strict=True):
            _kernels().insert(*self._held, number, length)

    def _checked(self, state: Mapping[str, Any]) -> tuple[NDArray[np.int64], NDArray[np.int32], int]:
        """Return ``(numbers, lengths, arrived)`` from a stored state.

        The first two are the numbers and lengths of the sequences held back, in order of arrival; int64 and int32
        ``[held]``. ``arrived`` is how many sequences have arrived.

        Raises:
            FormatError: the state is damaged.
        """
        try:
            arrived = state["arrived"]
            if type(arrived) is not int or not 0 <= arrived <= 2**62:
                raise ValueError(f"arrived is {arrived!r}")
            lengths = as_lengths(state["lengths"], self.capacity)
            numbers = integers(state["numbers"]).astype(np.int64)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise FormatError(f"the state of the stream packer is damaged: {error}") from error
        ascending = np.all(np.diff(numbers, prepend=-1, append=arrived) > 0)
        if not numbers.size == lengths.size < self.buffer or not ascending:
            raise FormatError("the state of the stream packer is damaged: what it holds does not fit together")
        return numbers, lengths, arrived


def stream_pack(
    items: Iterable[Item],
    capacity: int,
    *,
    length: Callable[[Item], int] = len,  # type: ignore[assignment]
    depth: int | None = None,
    buffer: int = 4096,
    patience: int | None = None,
    buffer_tokens: int | None = None,
) -> Iterator[list[Item]]:
    """Pack the items of any iterable; return an iterator over the packs.

    Each pack is a list of its items, in order of arrival. The iterator is lazy, so `items` may be endless: at most
    `buffer` items are held back, besides the 256 items that were just read and the packs made from them.

    Args:
        items: the items, such as lists of token ids.
        capacity: most tokens a pack may hold, up to 2^24.
        length: function that returns an item's number of tokens.
        depth: most items a pack may hold; None: unlimited.
        buffer: most items held back, up to 2^24; a larger buffer gives fuller packs, up to a point.
        patience: most items that may arrive after an item before it is put into a pack; None: 64 times `buffer`.
        buffer_tokens: the items held back have fewer tokens than this in total; None: no limit.

    Raises:
        LengthError: an item's length is below 1, not an integer, or above the capacity; raised by the iterator.
        OptionError: an option has an invalid value.

    >>> import nopad
    >>> list(nopad.stream_pack(["hello", "is", "all", "packable", "packed"], capacity=8, buffer=3))
    [['hello', 'all'], ['packable'], ['is', 'packed']]
    """
    packer = StreamPacker(capacity, depth=depth, buffer=buffer, patience=patience, buffer_tokens=buffer_tokens)
    return _stream(iter(items), packer, length)


def _stream(items: Iterator[Item], packer: StreamPacker, length: Callable[[Item], int]) -> Iterator[list[Item]]:
    held: dict[int, Item] = {}
    while chunk := list(islice(items, _CHUNK)):
        first = packer.arrived
        try:
            packs = packer.push([length(item) for item in chunk])
        except LengthError as error:
            where = numbers_of("item", first, first + len(chunk) - 1)
            raise LengthError(f"in {where} of the stream: {error}") from error
        held.update(enumerate(chunk, start=first))
        for pack in packs:
            yield [held.pop(number) for number in pack.tolist()]
    for pack in packer.finish():
        yield [held.pop(number) for number in pack.tolist()]


def _kernels() -> Any:
    """Return the module of compiled loops.

    It is imported only when needed, since importing Numba takes longer than importing all of nopad.
    """
    from nopad import _stream_kernels

    return _stream_kernels
