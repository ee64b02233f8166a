"""Sequences with images or videos as a source of tokens: what a processor of transformers gives for each text.

Tokens, grids and the number of images of each sequence are read once and stay in memory. Pixel values are read from the
records when a batch needs them, so a `datasets.Dataset` is not loaded as a whole. A batch gets them as columns of
objects: for each sequence one array, or None (`nopad.batch.images.columns_of_images`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.batch.features import from_features
from nopad.batch.images import KINDS, VIDEOS, Kind, Pictured
from nopad.corpus.objects import mapped_files
from nopad.errors import NopadError, OptionError, SourceError
from nopad.loading.sources.arrays import memory_tokens
from nopad.loading.sources.mapped import MappedFile
from nopad.loading.sources.source import EMPTY, Located, TokenSource
from nopad.sequences import Sequences

__all__ = ["PicturedTokens", "has_pictures", "pictured_tokens"]

_AT_ONCE = 256  # records that are read at a time
_SAMPLED = 64  # sequences whose pixel values are in a fingerprint


@dataclass(frozen=True, eq=False)
class _Stored:
    """The images of all sequences, or all their videos, without pixel values.

    Attributes:
        kind: whether these are images or videos.
        counts: number of images (or videos) of each sequence; int64 ``[n]``.
        columns: by name, the columns that describe the images, such as ``image_grid_thw``: one entry per sequence, None
            for a sequence without images.
    """

    kind: Kind
    counts: NDArray[np.int64]
    columns: Mapping[str, list[Any]]


class PicturedTokens(TokenSource):
    """Sequences of tokens in memory, and their images and videos, which are read from records by number.

    Attributes:
        images: number of images in each sequence, int64 ``[n]``, read-only; a video counts as many images as it has
            steps in time (the first number of its ``video_grid_thw``).
        videos: whether any sequence has a video.
    """

    exact = True
    images: NDArray[np.int64]

    def __init__(
        self,
        records: Any,
        tokens: TokenSource,
        images: NDArray[np.int64],
        stored: Sequence[_Stored],
        files: Sequence[MappedFile] = (),
    ) -> None:
        """Keep the arguments.

        Args:
            records: the records, by number: ``records[i]["pixel_values"]`` are the images of sequence i.
            tokens: the tokens of the sequences, without images.
            images: the attribute `images`: number of images in each sequence, int64 ``[n]``.
            stored: the images and the videos, without pixel values.
            files: the files that the records are mapped from; they are checked for changes at every `gather`.
        """
        self._records, self._tokens, self._shown = records, tokens, tuple(stored)
        images.flags.writeable = False
        self.images, self.videos = images, any(one.kind is VIDEOS for one in self._shown)
        super().__init__(tokens.name, files=files)

    def stored_lengths(self) -> NDArray[np.int32]:
        """Return the lengths of all sequences; int32 ``[n]``."""
        return self._tokens.seq_lengths

    def located(self, numbers: NDArray[np.int64]) -> Located:
        """Return the flat columns, where these sequences begin in them, and their images as columns (`Located`).

        Raises:
            SourceError: a record has fewer or more pixel values than when it was opened, or is gone.
        """
        found = self._tokens.located(numbers)
        wanted = numbers.tolist()
        columns: dict[str, list[Any]] = {}
        for one in self._shown:
            columns[one.kind.pixels] = [self._pixels(one, number) for number in wanted]
            columns |= {name: [values[number] for number in wanted] for name, values in one.columns.items()}
        return found._replace(values={**found.values, **{name: _objects(each) for name, each in columns.items()}})

    def _pixels(self, stored: _Stored, number: int) -> Any:
        """Return the pixel values of a sequence, as its record holds them; None if it has no image (or video).

        Raises:
            SourceError: the record has fewer or more pixel values than when it was opened, or is gone.
        """
        if not stored.counts[number]:
            return None
        name = stored.kind.pixels
        record = self._records[number] if number < len(self._records) else None
        pixels = record.get(name) if isinstance(record, Mapping) else None
        if pixels is None:
            raise SourceError(f"{self.name}: record {number} had {name} when it was opened, and has none now")
        grids = stored.columns.get(stored.kind.grids)
        wanted = int(stored.counts[number] if grids is None else np.asarray(grids[number]).prod(axis=1).sum())
        if _rows(pixels) != wanted:  # the plan of the packs knows of so many
            raise SourceError(
                f"{self.name}: the {name} of record {number} had {wanted} rows when it was opened, and have "
                f"{_rows(pixels)} now; open the records again"
            )
        return pixels

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content, in hex; computed at its first use.

        It covers the tokens (as `TokenSource.fingerprint` does), the numbers of images and of videos, and all grids and
        seconds. It also covers the pixel values of at most 64 sequences with images, spread evenly from the first to
        the last, and of at most 64 with videos.

        Raises:
            SourceError: a record has fewer or more pixel values than when it was opened, or is gone.
        """
        if self._fingerprint is None:
            digest = hashlib.sha256(f"nopad images 1\0{self._tokens.fingerprint}\0".encode())
            for one in self._shown:
                digest.update(f"{one.kind.name}\0".encode() + one.counts.astype("<i8").tobytes())
                for value in (value for values in one.columns.values() for value in values):
                    digest.update(b"-" if value is None else _bytes_of(value))
                pictured = np.flatnonzero(one.counts)
                spread = np.linspace(0, pictured.size - 1, min(pictured.size, _SAMPLED)).astype(np.int64)
                for number in pictured[np.unique(spread)].tolist():
                    digest.update(_bytes_of(self._pixels(one, number)))
            self._fingerprint = digest.hexdigest()
        return self._fingerprint


def has_pictures(inputs: Any) -> bool:
    """Return whether `inputs` are records with pixel values of images or videos.

    This is so for a list or tuple in which at least one dict has pixel values, and for a `datasets.Dataset` with a
    column of pixel values.
    """
    names = {kind.pixels for kind in KINDS}
    if hasattr(inputs, "with_format"):  # one that is read as a stream has no rows by number, and is refused as such
        return hasattr(inputs, "cache_files") and not names.isdisjoint(getattr(inputs, "column_names", None) or ())
    return isinstance(inputs, list | tuple) and any(
        isinstance(one, Mapping) and not names.isdisjoint(one) for one in inputs
    )


def pictured_tokens(inputs: Any, *, empty: str = "refuse") -> PicturedTokens:
    """Open records with images as a source; all records are read once.

    A record is what a processor of transformers gives for one text, as for `PackedBatch.from_features`. Tokens whose
    ``attention_mask`` is 0 are padding and are removed.

    Raises:
        SourceError: there is no record, records have different columns, or a record cannot be used. Records are checked
            in parts of 256; the message names the first record of the part, and counts from there.
        OptionError: `empty` is not "refuse".
    """
    if empty != EMPTY.default:
        raise OptionError(f"empty is {empty!r}, and records with images are taken as they are; leave empty ones out")
    is_list = isinstance(inputs, list | tuple)
    records = inputs if is_list else inputs.with_format("numpy")
    files = [MappedFile(Path(file.path)) for file in mapped_files(records)]
    name = "records" if is_list else "dataset"
    parts: list[Sequences] = []
    shown: list[tuple[int, Sequence[Pictured]]] = []
    for begin, part in _parts(records):
        try:
            found, _, images = from_features(part)
        except NopadError as error:
            raise SourceError(f"{name}, counted from {begin:,}: {error}") from error
        parts.append(found)
        shown.append((len(part), images))
    if not parts:
        raise SourceError(f"{name}: holds no sequence; give at least one")
    stored = [_stored(kind, shown, name) for kind in KINDS]
    sizes = np.concatenate([sum((one.sizes() for one in images), np.zeros(n, np.int64)) for n, images in shown])
    tokens = memory_tokens(_joined(parts, name), name)
    return PicturedTokens(records, tokens, sizes, [one for one in stored if one.counts.any()], files)


def _stored(kind: Kind, shown: Sequence[tuple[int, Sequence[Pictured]]], name: str) -> _Stored:
    """Return the images of all records, or their videos if `kind` says so, without pixel values.

    `shown` has a pair for each part of the records: how many records it has, and their images and videos. `name` is the
    source's name in messages.

    Raises:
        SourceError: some images (or videos) have grids or seconds, and others have not.
    """
    counts: list[NDArray[np.int64]] = []
    columns: dict[str, list[Any]] = {column: [] for column in kind.columns if column != kind.pixels}
    for records, images in shown:
        mine = next((one for one in images if one.kind is kind), None)
        counts.append(np.zeros(records, dtype=np.int64) if mine is None else mine.counts)
        for column, values in columns.items():
            values += [None] * records if mine is None else mine.columns.get(column, [None] * records)
    joined = np.concatenate(counts)
    for column, values in columns.items():
        given = np.fromiter(_given(values), dtype=bool)
        if given.any() and joined[~given].any():
            raise SourceError(f"{name}: some {kind.name} have {column} and others have not; give them to all")
    return _Stored(kind, joined, {column: values for column, values in columns.items() if any(_given(values))})


def _given(values: Sequence[Any]) -> Iterator[bool]:
    return (value is not None for value in values)


def _parts(records: Any) -> Iterator[tuple[int, list[Mapping[str, Any]]]]:
    """Yield (number of the first record, list of records) for parts of up to 256 records, from first to last.

    So the images of only one part need to be in memory.
    """
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
    """Return an object array with one entry per value; ``np.array`` would join arrays of equal shapes into one."""
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
