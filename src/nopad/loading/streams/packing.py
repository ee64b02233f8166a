"""How a stream's sequences become units: packs made by `StreamPacker`, or single sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.errors import FormatError
from nopad.online import StreamPacker
from nopad.options import check_sizes
from nopad.packs import Packs

__all__ = ["Packer", "Packing"]

_HELD_PACKS, _HELD_TOKENS = 16, 1 << 16


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Settings by which the sequences of a stream are packed.

    Attributes:
        capacity: maximum number of tokens per pack; None: each sequence is a unit by itself, and the other settings
            have no effect.
        depth: maximum number of sequences per pack; None: no limit.
        buffer: maximum number of sequences that wait to be packed.
        patience: maximum number of sequences that may arrive after a sequence before that one is packed; None: 64 times
            `buffer`.
        buffer_tokens: the sequences that wait have fewer tokens than this in total; None:
            ``max(16 * capacity, 65536)``. This limits how much is read before the first batch.

    Raises:
        OptionError: `capacity` is given, and a setting has an invalid value.
    """

    capacity: int | None
    depth: int | None = None
    buffer: int = 4096
    patience: int | None = None
    buffer_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.capacity is not None:
            object.__setattr__(self, "capacity", check_sizes(self.capacity, self.depth)[0])
            if self.buffer_tokens is None:
                object.__setattr__(self, "buffer_tokens", max(_HELD_PACKS * self.capacity, _HELD_TOKENS))
        self.packer()

    @property
    def unit(self) -> str:
        """Name of a unit in messages: "pack" or "sequence"."""
        return "sequence" if self.capacity is None else "pack"

    def packer(self) -> Packer:
        """Return a new packer, which holds no sequence."""
        return Packer(self)

    def facts(self) -> dict[str, Any]:
        """Return the settings that a saved run and the run that resumes it must share, by name."""
        if self.capacity is None:
            return {"unit": self.unit}
        names = ("capacity", "depth", "buffer", "patience", "buffer_tokens")
        return {"unit": self.unit, **{name: getattr(self, name) for name in names}}


class Packer:
    """Makes units (packs or single sequences) from sequences as they arrive; numbers the sequences from 0 on."""

    def __init__(self, packing: Packing) -> None:
        """Begin without any sequence."""
        self._arrived = 0
        self._inner: StreamPacker | None = None
        if packing.capacity is not None:
            self._inner = StreamPacker(
                packing.capacity,
                depth=packing.depth,
                buffer=packing.buffer,
                patience=packing.patience,
                buffer_tokens=packing.buffer_tokens,
            )

    def push(self, lengths: NDArray[np.int32]) -> list[tuple[int, ...]]:
        """Add sequences of these lengths; return the units that this makes, each as the numbers of its sequences."""
        first, self._arrived = self._arrived, self._arrived + lengths.size
        if self._inner is not None:
            return _numbers(self._inner.push(lengths))
        return [(number,) for number in range(first, self._arrived)]

    def finish(self) -> list[tuple[int, ...]]:
        """Pack all sequences that still wait; return these packs, each as the numbers of its sequences.

        If sequences are not packed, none waits, and the result is empty.
        """
        return [] if self._inner is None else _numbers(self._inner.finish())

    def restore(self, arrived: int, numbers: NDArray[np.int64], lengths: NDArray[np.int32]) -> None:
        """Set a new packer to the state in which `arrived` sequences have come and some of them still wait.

        Args:
            arrived: number of sequences that have come; the next one gets this number.
            numbers: numbers of the sequences that wait to be packed; int64 ``[n]``.
            lengths: their lengths; int32 ``[n]``.

        Raises:
            FormatError: no packer with these settings can have such numbers and lengths.
        """
        self._arrived = arrived
        if self._inner is not None:
            held = {"arrived": arrived, "numbers": numbers.tolist(), "lengths": lengths.tolist()}
            self._inner.load_state_dict({**self._inner.state_dict(), **held})
        elif numbers.size:
            raise FormatError("this state holds sequences that were not given, and sequences by themselves never wait")


def _numbers(packs: Packs) -> list[tuple[int, ...]]:
    return [tuple(pack.tolist()) for pack in packs]
