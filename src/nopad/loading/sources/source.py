"""`TokenSource`: the interface between stored tokens and the loader, which gathers sequences by number.

`gather` checks what every source promises:

* sequence numbers are in range
* files did not change before or during the read, as far as `nopad.loading.sources.mapped` can tell
* runs of tokens lie within their columns, and ids are from 0 to 2^31 - 1
* an attention mask, if there is one, marks no padding

Empty sequences are refused or left out when the source is opened. A subclass says only where its sequences lie; tokens
are copied here, once, in their stored type or as int64.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nopad import _kernels
from nopad.batch.columns import narrowed
from nopad.corpus.records import MAX_ID, MAX_TOKENS
from nopad.errors import LengthError, NopadError, OptionError, SourceError
from nopad.loading import _kernels as _loading_kernels
from nopad.loading.sources.mapped import MappedFile
from nopad.options import Option
from nopad.sequences import MASK, Sequences, as_integers
from nopad.wording import counted

__all__ = ["EMPTY", "Bits", "Located", "TokenSource"]

EMPTY = Option(default="refuse", choices=("refuse", "skip"), help="what to do with sequences that have no token")

_SAMPLED_TOKENS = 1 << 22  # most tokens that a fingerprint covers
_SAMPLED = 4096  # most sequences that it covers of a source with more tokens than that
_BLOCK = 1 << 14  # sequences that are hashed at once

_Held = tuple[NDArray[np.int64] | None, NDArray[np.int32]]


@dataclass(frozen=True)
class Bits:
    """A column of booleans, stored as bits; `words` is uint8, and value i is bit ``i % 8`` of byte ``i // 8``."""

    words: NDArray[np.uint8]

    @property
    def size(self) -> int:
        """Number of bits in `words`; some of them may hold no value."""
        return 8 * self.words.size

    def runs(self, begins: NDArray[np.int64], lengths: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return runs of values, concatenated; run i has ``lengths[i]`` values from index ``begins[i]`` on."""
        ends = np.cumsum(lengths, dtype=np.int64)
        at = np.arange(int(ends[-1]) if ends.size else 0) + np.repeat(begins - ends + lengths, lengths)
        found: NDArray[np.bool_] = (self.words[at >> 3] >> (at & 7).astype(np.uint8) & 1).astype(np.bool_)
        return found


class Located(NamedTuple):
    """Where k sequences lie in the flat columns of a source.

    Attributes:
        lengths: their lengths in tokens; int64 ``[k]``.
        tokens: per-token columns by name, such as ``input_ids``: for each a flat array, and where each sequence begins
            in it, int64 ``[k]``.
        values: per-sequence columns by name; ``[k]``.
    """

    lengths: NDArray[np.int64]
    tokens: Mapping[str, tuple[NDArray[Any] | Bits, NDArray[np.int64]]]
    values: Mapping[str, NDArray[Any]]

    def gathered(self, name: str, *, wide: bool = False) -> Sequences:
        """Return the sequences, with their tokens copied; `name` is the source's name in messages.

        With `wide`, per-token columns of integers become int64; else they keep the type in which they are stored.

        Raises:
            SourceError: a sequence lies outside of its column, or has an impossible length; an id is negative or above
                2^31 - 1; or, with `wide`, a number in another column does not fit into int64.
        """
        made: dict[str, NDArray[Any]] = {}
        lengths, total, checked = np.empty(self.lengths.size, np.int32), 0, (-1, -1)
        for column, (flat, begins) in self.tokens.items():
            if checked != (id(begins), flat.size):  # columns may share the array `begins`
                total = _loading_kernels.total_of_runs(begins, self.lengths, flat.size, lengths)
                checked = id(begins), flat.size
            if total < 0:
                raise SourceError(
                    f"{name}: a sequence has a length below 0 or above {MAX_TOKENS}, or lies beyond the {flat.size:,} "
                    f"values of {column}; make it again"
                )
            if isinstance(flat, Bits):
                made[column] = flat.runs(begins, lengths)
                continue
            if wide and flat.dtype.kind in "iu":
                made[column] = out = np.empty(total, np.int64)
                bits = _kernels.gather_tokens(flat, begins, lengths, out)
            else:
                made[column] = out = np.empty(total, flat.dtype)
                bits = _kernels.gather_tokens(as_integers(flat), begins, lengths, as_integers(out))
            if column == "input_ids":
                _check_ids(bits, flat.dtype, name)
            elif wide and flat.dtype == np.uint64 and (out < 0).any():
                raise SourceError(f"{name}: {column} holds a number beyond 64-bit integers; make it smaller")
        return Sequences(seq_lengths=lengths, tokens=made, values=self.values)


class TokenSource(ABC):
    """Base class of sources: n sequences of tokens, read by number. Threads may share a source, and it can be pickled.

    Attributes:
        name: name of the source in messages.
        skipped: number of sequences without a token that were left out; the others are numbered from 0.
        left_out: names of stored columns that are not gathered: they were not asked for, or hold neither numbers nor
            lists of numbers.
        exact: whether columns of float64 keep this dtype in batches, as for arrays that the user gave; if False, they
            become float32.
        images: number of images in each sequence, as a limit of images per pack counts them, int64 ``[n]``: 1 for an
            image, and for a video its steps in time. None: the source holds no images.
        videos: whether any sequence has a video.
    """

    left_out: tuple[str, ...] = ()
    exact = False
    images: NDArray[np.int64] | None = None
    videos = False

    def __init__(self, name: str, *, empty: str = "refuse", files: Sequence[MappedFile] = ()) -> None:
        """Read the lengths of all stored sequences (`stored_lengths`); O(n).

        Args:
            name: name of the source in messages.
            empty: what to do with sequences that have no token: "refuse" or "skip", which leaves them out.
            files: the files that are checked for changes at every `gather`.

        Raises:
            LengthError: a sequence has no token, and `empty` is "refuse".
            SourceError: no sequence has a token, a stored length is invalid, or a file cannot be read or has changed.
            OptionError: `empty` has another value.
        """
        self.name, self._files = name, tuple(files)
        EMPTY.check("empty", empty)
        self._fingerprint: str | None = None
        lengths = self.stored_lengths()
        self.skipped = int(lengths.size - np.count_nonzero(lengths))
        if self.skipped and empty == "refuse":
            raise LengthError(
                f"{name}: sequence {int(np.argmin(lengths))} has no token, as {self.skipped:,} of {lengths.size:,}; "
                'leave them out, or skip them with empty="skip"'
            )
        if self.skipped == lengths.size:
            raise SourceError(f"{name}: holds no sequence with a token; give at least one")
        self._stored = lengths.size
        self._held: _Held | None = self._numbered(lengths)
        self._prove()

    def _numbered(self, lengths: NDArray[np.int32]) -> _Held:
        """Return ``(kept, lengths)`` of the sequences that have tokens, which `gather` numbers from 0 to n - 1.

        `kept` are their indices among all stored sequences, int64 ``[n]``; None: all stored sequences have tokens. The
        returned lengths are int32 ``[n]``, read-only; the argument `lengths` has those of all stored sequences.
        """
        kept = np.flatnonzero(lengths) if self.skipped else None
        lengths = lengths if kept is None else lengths[kept]
        lengths.flags.writeable = False
        return kept, lengths

    def _arrays(self) -> _Held:
        """Return ``(kept, lengths)`` as `_numbered` does, computing them again if they were freed (`release`).

        Another thread may free them at any time; arrays that were returned stay valid.
        """
        held = self._held
        if held is None:
            self._held = held = self._numbered(self.stored_lengths())
            self._prove()
        return held

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes that a worker process gets: all but lengths and the indices of sequences with tokens.

        A worker process computes both again when it needs them.
        """
        return {**vars(self), "_held": None}

    def __len__(self) -> int:
        """Number of sequences."""
        return self._stored - self.skipped

    def __repr__(self) -> str:
        """Return the type of the source, its name and its number of sequences, in one line."""
        return f"{type(self).__name__}({self.name!r}, {counted(len(self), 'sequence')})"

    @property
    def seq_lengths(self) -> NDArray[np.int32]:
        """Length of each sequence in tokens, at least 1; int32 ``[n]``, read-only."""
        return self._arrays()[1]

    def release(self) -> None:
        """Free the lengths of sequences and the indices of those with tokens; both are computed again when needed."""
        self._held = None

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content, in hex, the same however the tokens are stored; computed at its first use.

        It covers the length of every sequence, and the names and kinds of the columns. If there are at most 4 million
        tokens, it covers all tokens and per-sequence values. Otherwise it covers those of at most 4,096 sequences: the
        first, the last (however long these are), and others spread evenly, as many as fit into 4 million tokens. So a
        changed length is always detected, and a changed token or value only in the sequences covered. `gather` and
        `check_unchanged` detect writes while the source is open.

        Raises:
            SourceError, PlanMismatchError: the sequences cannot be read, as in `gather`.
        """
        if self._fingerprint is None:
            digest = hashlib.sha256(f"nopad tokens 1\0{len(self)}\0".encode())
            digest.update(np.ascontiguousarray(self.seq_lengths, "<i4").data)
            numbers = _spread(self.seq_lengths)
            for begin in range(0, numbers.size, _BLOCK):
                for part in _content(self.gather(numbers[begin : begin + _BLOCK])):
                    digest.update(part)
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def check_unchanged(self) -> None:
        """Refuse files that were written to, replaced or removed since the source was opened; call it between epochs.

        Raises:
            SourceError: a file changed; the message names it.
        """
        for file in self._files:
            file.prove()
            file.prove_path()

    def gather(self, numbers: ArrayLike, *, wide: bool = False) -> Sequences:
        """Return the sequences with these numbers, in this order; per-token columns are concatenated.

        All columns are returned, except those in `left_out`, and except ``attention_mask``, which must be all 1.

        Args:
            numbers: integers from 0 to n - 1, ``[k]``; a number may come more than once.
            wide: whether columns get the types that batches need: per-token integers become int64, which saves a later
                copy, and float64 becomes float32, unless the source is `exact`. If False, columns keep the type in
                which they are stored.

        Raises:
            OptionError: a number is not an integer or out of range.
            SourceError: a file changed since it was opened, or is damaged; an ``attention_mask`` is not all 1; an id is
                not from 0 to 2^31 - 1; or, with `wide`, a number in another column does not fit into int64.
            BatchError: with `wide`, a finite float64 is too large for float32.
            PlanMismatchError: for an index-only dataset, a sequence has other tokens than those that were packed, or a
                record became shorter.
        """
        chosen = self._chosen(numbers)
        for file in self._files:
            file.prove_size()
        try:
            found = self.located(chosen).gathered(self.name, wide=wide)
        except NopadError:
            self._prove()  # if a file has changed, report that as the cause
            raise
        self._prove()
        found = self._without_mask(found, np.asarray(numbers)) if MASK in found.tokens else found
        self._compare(found, chosen)
        return narrowed(found) if wide and not self.exact else found

    def _chosen(self, numbers: ArrayLike) -> NDArray[np.int64]:
        """Check sequence numbers that `gather` got, and return their indices among all stored sequences; int64 ``[k]``.

        Raises:
            OptionError: a number is not an integer or out of range.
        """
        wanted = np.asarray(numbers)
        if wanted.ndim != 1 or (wanted.dtype.kind not in "iu" and wanted.size):
            raise OptionError(f"numbers of sequences are integers [k], got {wanted.dtype} {list(wanted.shape)}")
        chosen: NDArray[np.int64] = wanted if wanted.dtype == np.int64 else wanted.astype(np.int64)
        if not _loading_kernels.within(chosen, self._stored - self.skipped):
            odd = wanted[(wanted < 0) | (wanted >= len(self))][0]
            raise OptionError(f"sequence {odd} of {self.name}; there are 0 to {len(self) - 1}")
        if not self.skipped:
            return chosen
        kept = self._arrays()[0]
        assert kept is not None
        return kept[chosen]

    @property
    def files(self) -> tuple[MappedFile, ...]:
        """The files that are checked for changes at every `gather`."""
        return self._files

    def _prove(self) -> None:
        for file in self._files:
            file.prove()

    def _without_mask(self, found: Sequences, numbers: NDArray[Any]) -> Sequences:
        """Return the sequences without their ``attention_mask``, after checking that it marks no padding.

        `numbers` are the numbers of these sequences, as `gather` got them, for the message.

        Raises:
            SourceError: the mask is not all 1.
        """
        mask = found.tokens[MASK]
        if not (mask == 1).all():
            at = int(np.searchsorted(np.cumsum(found.seq_lengths), int(np.argmax(mask != 1)), side="right"))
            raise SourceError(
                f"{self.name}: sequence {numbers[at]} is padded: its {MASK} is not all 1, and padding would be "
                "trained on as content; cut it off before"
            )
        tokens = {name: column for name, column in found.tokens.items() if name != MASK}
        return Sequences(seq_lengths=found.seq_lengths, tokens=tokens, values=found.values)

    def _compare(self, found: Sequences, chosen: NDArray[np.int64]) -> None:  # noqa: B027 - most sources know no hash
        """Refuse gathered sequences that are not the expected ones; here nothing is checked, but a subclass may do so.

        `found` are the sequences, and `chosen` their numbers among all stored sequences.
        """

    @abstractmethod
    def stored_lengths(self) -> NDArray[np.int32]:
        """Return the lengths of all stored sequences, 0 or more; int32 ``[stored]``.

        The array must be new or read-only, since the caller keeps it and makes it read-only.
        """

    @abstractmethod
    def located(self, numbers: NDArray[np.int64]) -> Located:
        """Return where the stored sequences with these numbers lie; `numbers` is int64 ``[k]``.

        The numbers are in range. They count all stored sequences, also those without a token, which `gather` leaves
        out.
        """


def _spread(lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the numbers of the sequences whose tokens a fingerprint covers, ascending; int64 ``[k]``.

    These are all sequences if they have up to 4 million tokens. Otherwise they are at most 4,096: the first, the last,
    and others spread evenly, as many as fit into 4 million tokens.
    """
    n = lengths.size
    if int(lengths.sum(dtype=np.int64)) <= _SAMPLED_TOKENS:
        return np.arange(n)
    numbers = np.unique(np.linspace(0, n - 1, min(n, _SAMPLED)).astype(np.int64))
    # Coarse to fine, so that what is left out is left out evenly: ends, middle, quarters, ...
    places = np.arange(numbers.size)
    rank = np.array([int(f"{place:013b}"[::-1], 2) for place in places.tolist()])
    order = np.concatenate([[0, numbers.size - 1], np.argsort(rank, kind="stable")])
    order = order[np.sort(np.unique(order, return_index=True)[1])]
    fits = np.cumsum(lengths[numbers[order]], dtype=np.int64) <= _SAMPLED_TOKENS
    fits[:2] = True
    return np.sort(numbers[order[fits]])


def _content(found: Sequences) -> Iterator[bytes | memoryview]:
    """Yield the columns of sequences as bytes that do not depend on the types in which they are stored.

    For example, ids stored in 16 bits give the same bytes as ids stored in 64.
    """
    for per, columns in (("token", found.tokens), ("sequence", found.values)):
        for name in sorted(columns):
            column = columns[name]
            kind = {"u": "i", "b": "i", "O": "U"}.get(column.dtype.kind, column.dtype.kind)
            yield f"{per}\0{name}\0{kind}\0".encode()
            if kind == "U":
                for text in column.tolist():
                    data = str(text).encode("utf-8", "surrogatepass")
                    yield len(data).to_bytes(8, "little") + data
            else:
                yield np.ascontiguousarray(column, "<i8" if kind == "i" else "<f8").data


def _check_ids(bits: int, dtype: np.dtype[Any], name: str) -> None:
    """Refuse ids out of range.

    `bits` is the bitwise OR of all ids, each read as a signed integer of the same width; `dtype` is their stored type.

    Raises:
        SourceError: an id is negative or above 2^31 - 1; the message names the source `name`.
    """
    if bits > MAX_ID or (bits < 0 and (dtype.kind == "i" or dtype.itemsize > 2)):
        raise SourceError(f"{name}: holds an id that is negative or above {MAX_ID}; ids are integers from 0 to that")
