"""Sequences with images as a source of tokens: what a processor of transformers gives for each text.

Tokens, grids and the number of images of each sequence are read once and stay in memory. Pixel values are read from the
records when a batch needs them, so a `datasets.Dataset` is not loaded as a whole. A batch gets them as columns of
objects: for each sequence one array, or None (`nopad.batch.images.columns_of_images`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.batch.features import from_features
from nopad.batch.images import GRIDS, PIXELS
from nopad.errors import NopadError, OptionError, SourceError
from nopad.loading.sources.arrays import memory_tokens
from nopad.loading.sources.source import EMPTY, Located, TokenSource
from nopad.sequences import Sequences

__all__ = ["PicturedTokens", "has_pictures", "pictured_tokens"]

_AT_ONCE = 256  # records that are read at a time
_SAMPLED = 64  # sequences whose pixel values are in a fingerprint


class PicturedTokens(TokenSource):
    """Sequences of tokens in memory, and their images, which are read from records by number.

    Attributes:
        images: number of images of each sequence; int64 ``[n]``, read-only.
    """

    exact = True
    images: NDArray[np.int64]

    def __init__(self, records: Any, tokens: TokenSource, images: NDArray[np.int64], grids: list[Any] | None) -> None:
        """Keep the arguments.

        Args:
            records: the records, by number: ``records[i]["pixel_values"]`` are the images of sequence i.
            tokens: the tokens of the sequences, without images.
            images: number of images of each sequence, int64 ``[n]``.
            grids: ``image_grid_thw`` of each sequence, None for one without images; None: images have no grids.
        """
        self._records, self._tokens, self._grids = records, tokens, grids
        images.flags.writeable = False
        self.images = images
        super().__init__(tokens.name)

    def stored_lengths(self) -> NDArray[np.int32]:
        """Return the lengths of all sequences; int32 ``[n]``."""
        return self._tokens.seq_lengths

    def located(self, numbers: NDArray[np.int64]) -> Located:
        """Return where these sequences lie in the flat columns, and their images; see `TokenSource.located`.

        Raises:
            SourceError: a record cannot be read, or has fewer or more pixel values than when it was opened.
        """
        found = self._tokens.located(numbers)
        columns: dict[str, list[Any]] = {PIXELS: [self._pixels(number) for number in numbers.tolist()]}
        if self._grids is not None:
            columns[GRIDS] = [self._grids[number] for number in numbers.tolist()]
        return found._replace(values={**found.values, **{name: _objects(each) for name, each in columns.items()}})

    def _pixels(self, number: int) -> Any:
        """Return the pixel values of a sequence, as its record holds them; None: it has no image."""
        if not self.images[number]:
            return None
        pixels = self._records[number].get(PIXELS)
        if pixels is None:
            raise SourceError(f"{self.name}: record {number} had {PIXELS} when it was opened, and has none now")
        grid = None if self._grids is None else np.asarray(self._grids[number])
        wanted = int(self.images[number] if grid is None else grid.prod(axis=1).sum())
        if _rows(pixels) != wanted:  # the plan of the packs knows of so many
            raise SourceError(
                f"{self.name}: the {PIXELS} of record {number} had {wanted} rows when it was opened, and have "
                f"{_rows(pixels)} now; open the records again"
            )
        return pixels

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content, in hex; computed at its first use.

        It covers the tokens as `TokenSource.fingerprint` does, the numbers of images, all grids, and the pixel values
        of the first and the last sequence with images and of others spread evenly between them, 64 at most.
        """
        if self._fingerprint is None:
            digest = hashlib.sha256(f"nopad images 1\0{self._tokens.fingerprint}\0".encode())
            digest.update(self.images.astype("<i8").tobytes())
            for grid in () if self._grids is None else self._grids:
                digest.update(b"-" if grid is None else _bytes_of(grid))
            pictured = np.flatnonzero(self.images)
            spread = np.linspace(0, pictured.size - 1, min(pictured.size, _SAMPLED)).astype(np.int64)
            for number in pictured[np.unique(spread)].tolist():
                digest.update(_bytes_of(self._pixels(number)))
            self._fingerprint = digest.hexdigest()
        return self._fingerprint


def has_pictures(inputs: Any) -> bool:
    """Return whether records hold images: a list of dicts or a `datasets.Dataset` with ``pixel_values``."""
    if hasattr(inputs, "with_format"):
        return PIXELS in (getattr(inputs, "column_names", None) or ())
    return isinstance(inputs, list | tuple) and any(isinstance(one, Mapping) and PIXELS in one for one in inputs)


def pictured_tokens(inputs: Any, *, empty: str = "refuse") -> PicturedTokens:
    """Open records with images; each is what a processor gives for one text, as for `PackedBatch.from_features`.

    Tokens whose ``attention_mask`` is 0 are padding and are removed. All records are read once.

    Raises:
        SourceError: a record cannot be used; the message says why, and names the records that it counts from.
        OptionError: `empty` is "skip".
    """
    if empty != EMPTY.default:
        raise OptionError(f"empty is {empty!r}, and records with images are taken as they are; leave empty ones out")
    is_list = isinstance(inputs, list | tuple)
    records = inputs if is_list else inputs.with_format("numpy")
    name = "records" if is_list else "dataset"
    parts: list[Sequences] = []
    counts: list[NDArray[np.int64]] = []
    grids: list[Any] = []
    for begin, part in _parts(records):
        try:
            found, _, images = from_features(part)
        except NopadError as error:
            raise SourceError(f"{name}, counted from {begin:,}: {error}") from error
        parts.append(found)
        counts.append(np.zeros(len(part), dtype=np.int64) if images is None else images.counts)
        given = None if images is None else images.grids
        grids += [None] * len(part) if given is None else list(given)
    if not parts:
        raise SourceError(f"{name}: holds no sequence; give at least one")
    images_of, joined = np.concatenate(counts), _joined(parts, name)
    with_grids = any(grid is not None for grid in grids)
    if with_grids and any(grid is None for grid, count in zip(grids, images_of.tolist(), strict=True) if count):
        raise SourceError(f"{name}: some images have {GRIDS} and others have not; give them to all")
    return PicturedTokens(records, memory_tokens(joined, name), images_of, grids if with_grids else None)


def _parts(records: Any) -> Iterator[tuple[int, list[Mapping[str, Any]]]]:
    """Yield (number of the first, records) for all records, some at a time, so that few images are in memory."""
    for begin in range(0, len(records), _AT_ONCE):
        yield begin, [records[number] for number in range(begin, min(begin + _AT_ONCE, len(records)))]


def _joined(parts: Sequence[Sequences], name: str) -> Sequences:
    """Return all sequences of the parts, which must have the same columns.

    Raises:
        SourceError: columns differ.
    """
    for part in parts:
        odd = {*part.tokens, *part.values} ^ {*parts[0].tokens, *parts[0].values}
        odd |= part.tokens.keys() ^ parts[0].tokens.keys()
        if odd:
            raise SourceError(f"{name}: some records have {', '.join(sorted(odd))}, and others have not")
    return Sequences.joined(parts)


def _objects(values: list[Any]) -> NDArray[Any]:
    """Return values as an array of objects, one entry each; NumPy would make one array of arrays of equal shapes."""
    made = np.empty(len(values), dtype=object)
    for at, value in enumerate(values):
        made[at] = value
    return made


def _rows(pixels: Any) -> int:
    """Return the size of the first dimension of pixel values, which are an array, a tensor or nested lists."""
    shape = getattr(pixels, "shape", None)
    if shape is None:
        return len(pixels) if isinstance(pixels, Sized) else 0
    return int(shape[0]) if len(shape) else 0


def _bytes_of(value: Any) -> bytes:
    array = np.asarray(value.detach().cpu().float() if hasattr(value, "detach") else value)
    kind = "<f8" if array.dtype.kind == "f" else "<i8"
    return f"{array.shape}\0".encode() + np.ascontiguousarray(array, kind).tobytes()
