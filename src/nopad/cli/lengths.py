"""Read lengths for `nopad plan` and `nopad study`, from a corpus (as `nopad pack` reads it), a file or a histogram."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.cli.content import encoder_for
from nopad.cli.inputs import called, open_inputs, refuse_policies
from nopad.cli.pretrain import Wrap
from nopad.corpus import CorpusOptions, Counts, LengthsFile, ReaderOptions, Source, Tokenizer, load_tokenizer, sequences
from nopad.corpus.content import Content
from nopad.corpus.hub import HUB
from nopad.corpus.inputs import reading
from nopad.corpus.npy import NpyFile
from nopad.corpus.options import WAYS, TextUnit
from nopad.corpus.pipeline import listed
from nopad.corpus.remote import is_url
from nopad.errors import FormatError, OptionError, SourceError
from nopad.files import replacing
from nopad.histogram import Histogram, as_lengths, exact_dot, exact_sum, read_histogram
from nopad.options import MAX_LENGTH, check_sizes
from nopad.store import Monitor
from nopad.store.choice import check_divisible, check_share, choose
from nopad.wording import counted

__all__ = ["Given", "read_given", "read_pairs"]


@dataclass(frozen=True, kw_only=True)
class Given:
    """The capacity and the lengths that a command plans with.

    Attributes:
        capacity: most tokens a pack may hold.
        chosen: whether nopad chose the capacity, since neither the user nor the input gave one.
        histogram: histogram of the lengths; not empty.
        lengths: lengths in the order of the input, any int dtype ``[n]``; None if the input is a histogram.
        policies: for a corpus, a text on what `nopad pack` can do with records above the capacity; else "".
        over_long, over_long_tokens: number of sequences above the capacity, and of their tokens; these sequences are
            left out of `histogram` and `lengths`.
        longest: number of tokens in the longest sequence above the capacity; 0 if there is none.
        text_unit: what one record of the text files is, "file", "line" or "paragraph"; None: no text file was read.
        counts: for a corpus, how many records were read, truncated and so on; None: the input has no records.
        passed_over: names of files in the given folders that were not read.
        sources: for named inputs, the number of sequences and of tokens of each, by name; sequences above the capacity
            count too.
        corpus: how the input was read, to be stored in `Plan.facts`: the options, the names of the sources, and the
            tokenizer, under the names that a dataset's manifest has.
    """

    capacity: int
    histogram: Histogram
    lengths: NDArray[Any] | None
    policies: str = ""
    over_long: int = 0
    over_long_tokens: int = 0
    longest: int = 0
    chosen: bool = False
    text_unit: TextUnit | None = None
    counts: Counts | None = None
    passed_over: Sequence[str] = ()
    sources: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    corpus: Mapping[str, Any] = field(default_factory=dict)

    def apart(self, file: str) -> Given:
        """Return a copy without the sequences above the capacity.

        The copy describes these sequences in `over_long`, `over_long_tokens` and `longest`. If there are none, the
        object itself is returned.

        Raises:
            SourceError: no sequence is left; `file` names the input in the message.
        """
        lengths, counts = self.histogram.lengths, self.histogram.counts
        over = lengths > self.capacity
        if not over.any():
            return self
        longest = int(lengths[over].max())
        if over.all():
            most = counted(self.capacity, "token")
            raise SourceError(f"{file}: every sequence has more than {most}; choose a capacity of up to {longest:,}")
        kept = None if self.lengths is None else self.lengths[self.lengths <= self.capacity]
        return replace(
            self,
            histogram=Histogram(lengths=lengths[~over], counts=counts[~over]),
            lengths=kept,
            over_long=exact_sum(counts[over]),
            over_long_tokens=exact_dot(lengths[over], counts[over]),
            longest=longest,
        )


def read_given(
    inputs: Sequence[str],
    capacity: int | None,
    monitor: Monitor,
    *,
    tokenizer: str | None,
    policies: Mapping[str, Any],
    reader: ReaderOptions,
    validation: float = 0.0,
    seed: int = 0,
    as_pairs: Wrap | None = None,
    content: Content | None = None,
    apart: bool = False,
    keep: Path | None = None,
) -> Given:
    """Read histograms (.json), lengths (.npy) or a corpus, and return them as a `Given`.

    Args:
        inputs: the inputs as given on the command line.
        capacity: most tokens per pack; None: the capacity that the histograms state. If no input states one and `apart`
            is True, it is the smallest power of two that holds the longest sequence.
        monitor: is told the progress of tokenising.
        tokenizer: the value of ``--tokenizer``, for a corpus of texts.
        policies: options of `CorpusOptions` by name, for a corpus.
        reader: which fields and columns of a corpus are read, and how.
        validation: the share of records to hold out; the result has the lengths of the other records.
        seed: random seed of the choice of records to hold out.
        as_pairs: a function that turns the source of a corpus into a source of pairs, whose lengths are read instead;
            None: the lengths of the corpus itself are read.
        content: what the records hold; None: a text, or ids.
        apart: whether sequences above the capacity are counted and left out; if False, they are handled as `policies`
            say, or are an error.
        keep: an ``.npy`` file in which the lengths are saved, those above the capacity included if `apart` is True;
            None: they are not saved.

    Raises:
        StorageError: the lengths cannot be saved.
        OptionError: `capacity` is None, and the histograms state different capacities; `capacity` is None, no input
            states one, and `apart` is False; histograms or files of lengths are given with another kind of input or
            with corpus options; a histogram is given with `as_pairs`, `keep` or a `validation` above 0; `validation` is
            above 0, and several records may contain the same text (`Source.divisible`), as with `as_pairs`; or an
            option has an invalid value.
        RecordError: `policies` do not allow a record; a CSV, TSV or JSON file is broken; or no record is left to plan
            for.
        SourceError: there is no such file, it holds no sequences, or `apart` is True and all are above the capacity.
        FormatError: a histogram, a file of lengths or the tokenizer cannot be read.
        LengthError: a length or count in a histogram or a file of lengths is not an integer, or is out of range.
        MissingExtraError: an input or the tokenizer needs a package that is not installed.
    """
    check_share(validation)
    file = called(inputs)
    for given in inputs:
        if not _elsewhere(given) and not _named(given) and not Path(given).exists():
            raise SourceError(f"{given}: no such file or folder; check the path")
    if any(map(_is_histogram, inputs)):
        if as_pairs is not None:
            raise OptionError(f"--pretrain makes pairs of documents, and {file} is a histogram; give the texts")
        if keep is not None:
            raise OptionError(f"--save-lengths is for corpora, and {file} is a histogram, which holds its lengths")
        found = _read_histogram(inputs, capacity, policies, reader, validation, apart)
        return found.apart(file) if apart else found
    source = open_inputs(inputs, reader, policies) if any(given.endswith(".npy") for given in inputs) else None
    if capacity is None and not apart:
        raise OptionError(f"{file} does not say for which capacity; give --capacity")
    room = MAX_LENGTH if capacity is None else capacity
    encoder = None if source or content is None else encoder_for(content, inputs, room, policies, tokenizer)
    source = source or open_inputs(inputs, reader, policies, encoder)
    source = source if as_pairs is None else as_pairs(source, room)
    check_divisible(source, validation)
    counts: Counts | None = None
    by_name: dict[str, tuple[int, int]] = {}
    how: dict[str, Any] = {"seed": seed, "validation": validation or None}
    if isinstance(source, LengthsFile):
        lengths = source.lengths
        if validation:
            lengths = as_lengths(lengths, MAX_LENGTH if apart else room)
            choice = choose(np.arange(lengths.size), {"": lengths.size}, validation=validation, seed=seed)
            lengths = lengths[choice.of("train")]
    else:
        options = CorpusOptions(capacity=room, **policies)
        loaded = None if source.kind == "ids" else load_tokenizer(tokenizer)
        options.content_capacity(loaded)
        options = replace(options, capacity=MAX_LENGTH) if apart else options
        lengths, record, by_source = _lengths(source, loaded, options, monitor)
        records = {name: one.records for name, one in by_source.items()}
        counts = sum(by_source.values(), Counts())
        names = [] if source.names == ("",) else list(source.names)
        stated = loaded and {"sha256": loaded.fingerprint}
        how |= {**policies, **source.settings(), "sources": names, "tokenizer": stated}
        if names or validation:
            choice = choose(record, records, validation=validation, seed=seed)
            kept = choice.of("train")
            lengths = lengths[kept]
            of_each = [lengths[choice.source[kept] == place] for place in range(len(names))]
            by_name = {name: (one.size, int(one.sum())) for name, one in zip(names, of_each, strict=True)}
    histogram = Histogram.from_lengths(lengths)
    if not histogram.sequences:
        raise SourceError(f"{file} holds no sequences")
    if keep is not None:
        with replacing(keep) as partial, open(partial, "wb") as out:
            np.save(out, lengths)
    ways = listed(encoder.ways if encoder else WAYS).replace('"', "")
    ways = "" if isinstance(source, LengthsFile) else ways
    read = _given(capacity, histogram=histogram, lengths=lengths, policies=ways)
    read = replace(read, counts=counts, passed_over=source.ignored, corpus=how, text_unit=source.text_unit)
    read = replace(read, sources=by_name)
    return read.apart(file) if apart else read


def read_pairs(
    inputs: Sequence[str],
    *,
    policies: Mapping[str, Any],
    reader: ReaderOptions,
    validation: float,
    keep: Path | None,
    **_: Any,
) -> NDArray[Any]:
    """Return two sizes for each sequence, ``[n, 2]``, read from ``.npy`` files; the dtype is not checked.

    Corpus options have no effect on such files, so they must have their defaults.

    Args:
        inputs: the files, as given on the command line.
        policies: options of `CorpusOptions` by name.
        reader: options on the fields and columns of a corpus.
        validation: must be 0.
        keep: must be None.

    Raises:
        OptionError: an input is no ``.npy`` file, is a URL or on the hub, or has a name (NAME=INPUT); corpus options or
            `keep` are given; or `validation` is not 0.
        FormatError: a file holds an array whose shape is not ``[n, 2]``.
        SourceError: a file is missing or damaged, or the files hold no sequences.
    """
    if keep is not None:
        raise OptionError(f"--save-lengths saves one length per sequence, and {inputs[0]} has two kinds of size")
    arrays = []
    for file in inputs:
        if not file.endswith(".npy") or _elsewhere(file) or _named(file):
            raise OptionError(f"two kinds of size are read from .npy files of integers [n, 2], not from {file}")
        refuse_policies(file, reader, policies)
        if validation:
            raise OptionError(f"--validation holds out records, and {file} has two kinds of size; leave it out")
        array = NpyFile(Path(file))
        if len(array.shape) != 2 or array.shape[1] != 2:
            raise FormatError(f"{file} holds an array of shape {array.shape}; for two kinds of size it is (n, 2)")
        if array.size:
            arrays.append(array.whole().reshape(array.shape, order="F" if array.fortran else "C"))
    if not arrays:
        raise SourceError(f"{inputs[0]} holds no sequences")
    return np.concatenate(arrays)


def _is_histogram(given: str) -> bool:
    """Return whether an input is a histogram: a local ``.json`` file that is no array of objects."""
    if Path(given).suffix != ".json" or _elsewhere(given) or _named(given):
        return False
    with reading(Path(given)), open(given, "rb") as file:
        return not re.match(rb"\s*\[\s*\{", file.read(1 << 16))


def _elsewhere(file: str) -> bool:
    return is_url(file) or file.startswith(HUB)


def _named(given: str) -> bool:
    """Return whether an input has the form NAME=INPUT, which names it, and is not itself an existing path."""
    return "=" in given and not Path(given).exists()


def _read_histogram(
    inputs: Sequence[str],
    capacity: int | None,
    policies: Mapping[str, Any],
    reader: ReaderOptions,
    validation: float,
    apart: bool,
) -> Given:
    """Read histograms, add them up, and return the sum as a `Given`.

    The capacity is `capacity`, or if that is None, the one that the histograms state. If they state none and `apart` is
    True, it is the smallest power of two that holds the longest sequence.

    Raises:
        OptionError: another kind of input, options of a corpus or a `validation` above 0 are given with the histograms;
            `capacity` is invalid; `capacity` is None, and the histograms state different capacities; or `capacity` is
            None, no histogram states one, and `apart` is False.
        SourceError: there are no sequences.
        FormatError: a histogram cannot be read.
        LengthError: a length or count of a histogram is not an integer, or is out of range.
    """
    file = called(inputs)
    if other := [given for given in inputs if not _is_histogram(given)]:
        raise OptionError(f"{other[0]} is no histogram, and others are; give only histograms, or none")
    refuse_policies(inputs[0], reader, policies)
    if validation:
        raise OptionError(f"--validation holds out records, and {inputs[0]} is a histogram; give the corpus")
    read = [read_histogram(Path(given)) for given in inputs]
    histogram = sum((one for one, _ in read[1:]), read[0][0])
    declared = {one for _, one in read if one is not None}
    if capacity is None and len(declared) > 1:
        said = ", ".join(f"{one:,}" for one in sorted(declared))
        raise OptionError(f"these histograms are for different capacities ({said}); give --capacity")
    capacity = next(iter(declared), None) if capacity is None else capacity
    if capacity is None and not apart:
        raise OptionError(f"{file} does not say for which capacity; give --capacity")
    check_sizes(1 if capacity is None else capacity, None, 0)
    if not histogram.sequences:
        raise SourceError(f"{file} holds no sequences")
    return _given(capacity, histogram=histogram, lengths=None)


def _given(capacity: int | None, *, histogram: Histogram, lengths: NDArray[Any] | None, policies: str = "") -> Given:
    """Return a `Given` with this histogram and these lengths.

    If `capacity` is None, the capacity of the result is the smallest power of two that holds the longest sequence, but
    at most `MAX_LENGTH`.
    """
    least = min(1 << (histogram.max_length - 1).bit_length(), MAX_LENGTH) if capacity is None else capacity
    return Given(capacity=least, histogram=histogram, lengths=lengths, policies=policies, chosen=capacity is None)


def _lengths(
    source: Source, tokenizer: Tokenizer | None, options: CorpusOptions, monitor: Monitor
) -> tuple[NDArray[np.int32], NDArray[np.int64], dict[str, Counts]]:
    """Tokenise a corpus; return the length and record number of each sequence, and the counts of each source.

    Both arrays are ``[n]``, in the order of the corpus; the counts are by name of the source. No token is kept: this
    takes 12 bytes of memory per sequence.

    Raises:
        RecordError: a record is bad, empty or too long, and `options` say "error" for such records; or a CSV, TSV or
            JSON file is broken.
        SourceError, FormatError, LengthError, OptionError: `nopad.corpus.sequences` raised it.
    """
    monitor.stage("tokenising", source.total_bytes, "bytes")
    lengths, record = [np.zeros(0, dtype=np.int32)], [np.zeros(0, dtype=np.int64)]
    counts = dict.fromkeys(source.names, Counts())
    for group in sequences(source.blocks(), tokenizer, options):
        monitor.advance(sum(block.progress for block in group.blocks), group.counts.tokens)
        lengths.append(group.batch.seq_lengths)
        record.append(group.batch.values["seq_index"])
        counts[group.blocks[0].source] += group.counts
    return np.concatenate(lengths), np.concatenate(record), counts
