"""The sequences of an index-only dataset as a source of tokens, which are gathered from the source that was packed.

An index says which part of which record each sequence is. So each record must have the tokens that it had when it was
packed: from the same column, and with padding cut off in the same way. Three checks refuse a source that differs:

* `Reading` chooses the options by which the source is read: the user's, if there are any. If columns of ready-made ids
  were packed, the user's options are refused if they choose other tokens than the options in the index's manifest.
* `IndexTokens` compares the number of records and their lengths when it is made.
* The tokens of each sequence are compared with a hash in the index whenever the sequence is gathered, at 1 ns per
  token. So records that changed places are found before they are used. Some sequences are also compared when the source
  is opened, so that a wrong source is mostly refused at once, and not in the middle of an epoch. An index that was made
  of lengths alone has no hashes: its tokens are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.corpus.options import CorpusOptions, ReaderOptions
from nopad.corpus.source import Source
from nopad.errors import OptionError, PlanMismatchError, SourceError
from nopad.loading.sources.corpora import whole_records
from nopad.loading.sources.source import Located, TokenSource
from nopad.options import shown
from nopad.properties import cached_property
from nopad.sequences import Sequences
from nopad.store.index import Index, hashes, read_index
from nopad.store.reader import open_packed

__all__ = ["IndexTokens", "Reading"]

_SELECTING = ("text_unit", "text_field", "ids_field", "mask_field", "pad_id", "suffixes")  # of ReaderOptions
_TRIED = 64  # sequences that are compared when the source is opened
_RIGHT = "give the source that it was made for, unchanged, or pack it again"


class Reading:
    """How the source of an index-only dataset is read.

    Args:
        path: folder of the index-only dataset.
        given: the user's options; None: there are none.

    Attributes:
        path: folder of the index-only dataset.
        manifest: its manifest.
        index: its content.
        options: the options by which the source is read. They are the user's, if there are any. Otherwise, if nopad
            read columns of ids when the source was packed, they are the options of that time, with `find_labels` False.
            Otherwise (nopad read lengths, lists of ids in memory, or texts), they are the defaults.

    Raises:
        SourceError: the dataset holds its tokens itself.
        OptionError: an option of the user contradicts how the source was read when it was packed.
        FormatError, CorruptError: the index is unfinished or damaged.
        StorageError: the index cannot be read.
    """

    def __init__(self, path: Path, given: ReaderOptions | None) -> None:
        """Read the index, which takes 5 to 32 bytes of memory per sequence, and compare the user's options with it."""
        self.path, self.manifest = path, open_packed(path).manifest
        if self.manifest.kind != "index":
            raise SourceError(f"{path}: holds its tokens itself; open it without source=")
        self.index = read_index(path, self.manifest)
        self._packed = ReaderOptions.from_settings(self.manifest.options)
        self._known = "ids_field" in self.manifest.options and self.manifest.tokenizer is None
        if self._known and given is not None:
            self._agree(given, "options")
        self.options = given or (replace(self._packed, find_labels=False) if self._known else ReaderOptions())

    def _agree(self, given: ReaderOptions, what: str) -> None:
        """Refuse options that choose other tokens than the options in the manifest.

        `given` are the options. `what` is what the message calls them, such as "options", or the type of a source that
        was opened with them.

        Raises:
            OptionError: an option that chooses tokens differs.
        """
        for name in _SELECTING:
            now, then = getattr(given, name), getattr(self._packed, name)
            if now != then:
                raise OptionError(
                    f"{what}: {name} is {now!r}, and {self.path} was made with {then!r}; give the same, or only the "
                    "path, dataset or records, which are then read as the index says"
                )

    def check(self, source: Any) -> None:
        """Refuse a source that is open already, if it may have been read otherwise than when it was packed.

        Other sources, such as a path or a dataset, are accepted without a check.

        Raises:
            OptionError: `source` is an open `TokenSource`, and the index was not made of lengths alone. Or `source` is
                from `nopad.open_source`, columns of ids were packed, and the options of `source` choose other tokens
                than those in the manifest.
            PlanMismatchError: `source` consists of named sources, and the index was made of others.
        """
        if isinstance(source, TokenSource) and self.index.seq_hash is not None:
            raise OptionError(
                f"source is {shown(source)}, which is open, so it may have been read otherwise than {self.path} says; "
                "give its path, dataset or records"
            )
        if not isinstance(source, Source):
            return
        if self._known:
            self._agree(ReaderOptions.from_settings(source.settings()), type(source).__name__)
        names, packed = list(source.names), [part["name"] for part in self.manifest.sources]
        if names not in ([""], packed):
            of = f"the sources {', '.join(packed)}" if packed else "a source without names"
            raise PlanMismatchError(f"{self.path}: was made of {of}, and these are {', '.join(names)}; {_RIGHT}")

    def must_copy(self, source: Any) -> bool:
        """Return whether this source must be read record by record, and copied, to get what was packed.

        This is so in four cases: padding was cut off, or the options have a `pad_id`; bad records were left out;
        `source` is a dict of named sources; or it is a folder of arrays, and the options set `ids_field` or
        `mask_field`.
        """
        counts, options = self.manifest.counts, self.options
        changed = options.pad_id is not None or counts["stripped"] or counts["bad_skipped"]
        other = options.ids_field is not None or options.mask_field != "auto"
        return bool(changed or isinstance(source, Mapping) or (other and _is_folder_of_arrays(source)))

    @property
    def records(self) -> CorpusOptions:
        """Options by which records stay whole, and bad ones are found and handled as when the source was packed."""
        return whole_records(**{name: self.manifest.options[name] for name in ("on_bad_record", "vocab_size")})


def _is_folder_of_arrays(source: Any) -> bool:
    return isinstance(source, str | Path) and (Path(source) / "offsets.npy").is_file()


class IndexTokens(TokenSource):
    """The sequences of an index-only dataset, gathered from the source that holds their records.

    Columns are those of the source, and ``seq_index``, the number of each sequence's record.

    Args:
        reading: the index, and how its source was read.
        source: the source, opened with the options of `reading`. Its empty records must be skipped, not refused
            (`empty` "skip"); they still count as records.

    Raises:
        PlanMismatchError: the source has another number of records than the one that was packed, a record has another
            length, or a sequence has other tokens.
        SourceError: a file of the source changed since it was opened, or is damaged.
    """

    def __init__(self, reading: Reading, source: TokenSource) -> None:
        """Compare `source` with what was packed: number and lengths of records, and the tokens of some sequences.

        Tokens are compared for up to 64 sequences, spread evenly. An index that was made of lengths alone has no tokens
        to compare.
        """
        self._path, self._source, self._manifest = reading.path, source, reading.manifest
        self._index = reading.index
        self.left_out = source.left_out
        super().__init__(str(reading.path), files=source.files)
        if self._index.seq_hash is not None:
            self.gather(np.unique(np.linspace(0, len(self) - 1, min(len(self), _TRIED)).astype(np.int64)))

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes that a worker process gets: all but the index and the arrays per sequence.

        A worker reads the index anew, and checks that its checksum is still the same.
        """
        return {name: value for name, value in super().__getstate__().items() if name != "_index"}

    @cached_property
    def _index(self) -> Index:
        return read_index(self._path, self._manifest)

    def stored_lengths(self) -> NDArray[np.int32]:
        """Return the lengths of all stored sequences, 0 or more; int32 ``[stored]``.

        Raises:
            PlanMismatchError: the source has another number of records than the one that was packed, a record has
                another length, or truncated records have another number of tokens beyond the capacity; or the index
                names a record that does not exist.
        """
        index, held, records = self._index, self._source.stored_lengths(), self._manifest.counts["records"]
        if held.size != records:
            raise PlanMismatchError(
                f"{self.name}: was made of {records:,} records, and {self._source.name} has {held.size:,}; {_RIGHT}"
            )
        lengths = index.seq_lengths.astype(np.int32)
        numbers = np.arange(lengths.size)
        at, ends = index.records(numbers), index.starts(numbers) + lengths
        if at.size and (at.min() < 0 or at.max() >= records):
            raise PlanMismatchError(f"{self.name}: names record {at.max()} of {records:,}; {_RIGHT}")
        if index.seq_start is not None:  # the length of a record is where its last piece ends
            packed = np.zeros(records, np.int64)
            np.maximum.at(packed, at, ends)
            ends = packed[at]
        self._compare_lengths(ends, held[at], numbers)
        self._compare_truncated(held)
        return lengths

    def _compare_lengths(self, packed: NDArray[np.int64], held: NDArray[np.int32], numbers: NDArray[np.int64]) -> None:
        """Refuse records that do not have the length that they had when they were packed.

        If records were truncated when they were packed, a record that was packed with as many tokens as the capacity
        may be longer.

        Args:
            packed: for each of n sequences, how many tokens of its record were packed; int64 ``[n]``.
            held: for each of these sequences, the number of tokens of its record in the source; int32 ``[n]``.
            numbers: numbers of these sequences, for the message; int64 ``[n]``.

        Raises:
            PlanMismatchError: a record has another length.
        """
        cut = (packed == self._manifest.capacity) & (held > packed) & self._truncates
        bad = (packed != held) & ~cut
        if bad.any():
            at = int(np.argmax(bad))
            raise PlanMismatchError(
                f"{self.name}: sequence {numbers[at]} is of record {self._index.records(numbers)[at]}, which had "
                f"{packed[at]} tokens when it was packed, and has {held[at]} in {self._source.name}; {_RIGHT}"
            )

    def _compare_truncated(self, held: NDArray[np.int32]) -> None:
        """Refuse a source with another total of tokens beyond the capacity than the source that was packed.

        These are the tokens by which records are longer than the capacity. `held` are the lengths of all records of the
        source. Nothing is checked if no record of ids was truncated when the source was packed.

        Raises:
            PlanMismatchError: the total is not the one that the manifest states.
        """
        if not self._truncates:
            return
        lost, stated = int(np.maximum(held - self._manifest.capacity, 0).sum()), self._manifest.counts
        if lost != stated["truncated_tokens"]:
            raise PlanMismatchError(
                f"{self.name}: {stated['truncated_tokens']:,} tokens of truncated records were left out, and of "
                f"{self._source.name} it would be {lost:,}; {_RIGHT}"
            )

    @property
    def _truncates(self) -> bool:
        """Whether records of ready-made ids were cut to the capacity when the source was packed; False for texts."""
        return self._manifest.tokenizer is None and self._manifest.counts["truncated"] > 0

    def located(self, numbers: NDArray[np.int64]) -> Located:
        """Return the source's flat columns, and where these sequences (parts of records) begin in them (`Located`).

        Raises:
            PlanMismatchError: a record became shorter than the index says.
        """
        records, starts = self._index.records(numbers), self._index.starts(numbers)
        whole = self._source.located(records)
        lengths = self._index.seq_lengths[numbers].astype(np.int64)
        if (starts + lengths > whole.lengths).any():
            raise PlanMismatchError(f"{self.name}: records of {self._source.name} became shorter; open it again")
        return Located(
            lengths,
            {name: (flat, begins + starts) for name, (flat, begins) in whole.tokens.items()},
            {**whole.values, "seq_index": records},
        )

    def _compare(self, found: Sequences, chosen: NDArray[np.int64]) -> None:
        """Refuse gathered sequences whose tokens have another hash than those that were packed.

        `found` are the sequences, and `chosen` their numbers in the index. Nothing is compared if the index was made of
        lengths alone.

        Raises:
            PlanMismatchError: there is such a sequence; the message names the first one.
        """
        packed = self._index.seq_hash
        if packed is None:
            return
        other = hashes(found.tokens["input_ids"], found.seq_lengths) != packed[chosen]
        if other.any():
            at = chosen[other][:1]
            raise PlanMismatchError(
                f"{self.name}: sequence {at[0]}, of record {self._index.records(at)[0]}, has other tokens in "
                f"{self._source.name} than when it was packed; {_RIGHT}"
            )
