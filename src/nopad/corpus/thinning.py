"""Make the unwanted lines of a block empty, so that only the wanted ones are decoded.

The unwanted lines are not removed, so that the wanted ones keep their line numbers. Empty lines are not records, so the
result can be decoded as usual. Finding the lines of a block takes about 1 ms per MB; decoding them takes several times
as long.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Lines"]

_LINE_END, _RETURN = ord("\n"), ord("\r")


class Lines:
    r"""The lines in a bytes object that are not empty; lines end with LF or CRLF.

    `only` makes all lines empty except the chosen ones, so that these keep their line numbers. In the example, the
    lines "one" and "three", which are lines 1 and 5 of the bytes, are chosen.

    >>> lines = Lines(b"one\n\ntwo\r\n\r\nthree")
    >>> len(lines), lines.only(np.array([0, 2]))
    (3, b'one\n\n\n\nthree')
    """

    def __init__(self, data: bytes) -> None:
        """Find the lines of `data`."""
        self._data = data
        content = np.frombuffer(data, dtype=np.uint8)
        ends = np.append(np.flatnonzero(content == _LINE_END), content.size)
        begins = np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1] + 1])
        sizes = ends - begins
        filled = sizes > 0
        short = np.flatnonzero(sizes == 1)
        filled[short] = content[begins[short]] != _RETURN
        self._numbers = np.flatnonzero(filled)
        self._begins, self._ends = begins[filled], ends[filled]
        self._last = sizes.size - 1

    def __len__(self) -> int:
        """Return the number of lines that are not empty."""
        return self._numbers.size

    def only(self, chosen: NDArray[np.int64]) -> bytes:
        """Return the bytes with all lines made empty except the chosen ones.

        `chosen` are the indices of the k chosen lines among the lines that are not empty, in ascending order; int64
        ``[k]``.
        """
        found, at = [], 0
        numbers, begins, ends = (of[chosen].tolist() for of in (self._numbers, self._begins, self._ends))
        for number, begin, end in zip(numbers, begins, ends, strict=True):
            found += [b"\n" * (number - at), self._data[begin:end]]
            at = number
        return b"".join([*found, b"\n" * (self._last - at)])
