"""Decide whether a loader's data are a stream, and open it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from nopad.corpus.discover import open_source
from nopad.corpus.options import CorpusOptions
from nopad.corpus.records import MAX_ID
from nopad.corpus.source import Source
from nopad.corpus.tokenizer import Tokenizer, load_tokenizer
from nopad.errors import OptionError
from nopad.loading.streams.packing import Packing
from nopad.loading.streams.reading import Reader
from nopad.loading.streams.shuffling import SHUFFLE, Shuffling
from nopad.options import Option, check_sizes

__all__ = ["is_stream", "open_stream"]

_EXHAUSTED = Option(default="repeat", choices=("repeat", "stop"), help="what happens at the end of the source")
_CORPUS = tuple(field.name for field in fields(CorpusOptions) if field.name != "capacity")
_PACKING = ("buffer", "patience", "buffer_tokens")
_MAKE_STREAM = ("tokenizer", "exhausted")
_OWN = (*_MAKE_STREAM, "shuffle_buffer", *_PACKING, *_CORPUS)


def is_stream(data: Any, options: Mapping[str, Any]) -> bool:
    """Return whether the data are a stream.

    These are streams: a source of texts that `nopad.open_source` returned, a function, an iterator, and an iterable
    dataset. All other data are a stream if the option `tokenizer` or `exhausted` is given.

    Raises:
        OptionError: the data are not a stream, and another option of a stream is given, such as `over_long`.
    """
    if any(name in options for name in _MAKE_STREAM) or _never_stored(data):
        return True
    odd = [name for name in _OWN if name in options]
    if odd:
        raise OptionError(
            f"{', '.join(odd)}: for streams only, and stored tokens are taken as they are; leave that out, and cut or "
            "drop long sequences before: nopad.pack_dataset(data, capacity, over_long='truncate'). Texts are read as a "
            "stream with tokenizer=, stored tokens with exhausted='repeat' or 'stop'. Sequences without tokens are "
            "skipped by nopad.loading.sources.open_tokens(data, empty='skip')"
        )
    return False


def _never_stored(data: Any) -> bool:
    if isinstance(data, Source):
        return data.kind == "text"
    return (callable(data) and not hasattr(data, "__len__")) or isinstance(data, Iterator) or _is_iterable_dataset(data)


def _is_iterable_dataset(data: Any) -> bool:
    return hasattr(data, "with_format") and not hasattr(data, "__len__")


def open_stream(
    data: Any, capacity: int | None, options: Mapping[str, Any], *, unpacked: bool, seed: int = 0
) -> tuple[Reader, Packing, Shuffling]:
    """Return the reader of `data`, and the settings by which its sequences are packed and shuffled.

    Args:
        data: the texts, ids or function to read, as in `PackedLoader`.
        capacity: maximum number of tokens of a pack; None if sequences are not packed.
        options: the options that `PackedLoader` takes for a stream.
        unpacked: whether sequences are not packed.
        seed: the seed of the shuffling.

    Raises:
        OptionError: one of these:

            * an option is unknown or invalid, or the capacity leaves no room beside the special tokens
            * sequences are to be packed, and `capacity` is None
            * sequences are not packed, and an option of packs is given
            * the data are texts and there is no tokenizer, or they are ready-made ids and there is one
            * `data` is an iterator, which can be read only once
        SourceError, RecordError: the data cannot be opened, as for `nopad.open_source`.
        FormatError: a SQuAD file is broken, or the tokenizer cannot be read.
        MissingExtraError: a package that the data or the tokenizer need is not installed.
    """
    unknown = [name for name in options if name not in (*_OWN, "depth")]
    if unknown:
        raise OptionError(f"{', '.join(unknown)} is no option of a stream; it takes {', '.join((*_OWN, 'depth'))}")
    if isinstance(data, Iterator):
        raise OptionError(
            "an iterator can be read once, so no run could go on with it; give a function that returns a new one"
        )
    if capacity is None and not unpacked:
        raise OptionError("rows of what capacity? Give one")
    source = data if isinstance(data, Source) else open_source(data)
    given = {name: options[name] for name in (*_PACKING, "depth") if options.get(name) is not None}
    if capacity is None and given:
        raise OptionError(f"{', '.join(given)} are options of packs, and sequences are not packed here; leave them out")
    packing = Packing(capacity=capacity, **given)
    corpus = CorpusOptions(
        capacity=MAX_ID if packing.capacity is None else packing.capacity,
        **{name: options[name] for name in _CORPUS if name in options},
    )
    tokenizer = _tokenizer(source, options.get("tokenizer"))
    corpus.content_capacity(tokenizer)
    repeat = _EXHAUSTED.check("exhausted", options.get("exhausted", "repeat")) == "repeat"
    check_sizes(1, None, seed)
    shuffling = Shuffling(size=SHUFFLE.check("shuffle_buffer", options.get("shuffle_buffer")) or 0, seed=int(seed))
    return Reader(source, tokenizer, corpus, repeat), packing, shuffling


def _tokenizer(source: Source, given: Any) -> Tokenizer | None:
    if source.kind == "ids" and given is not None:
        raise OptionError("a tokenizer is given, and the source holds ready-made ids; leave it out, or name the text")
    if source.kind == "text" and given is None:
        raise OptionError("the source holds texts; give the tokenizer of your model, tokenizer=")
    return None if given is None else load_tokenizer(given)
