"""Read files, tables, datasets and Python objects as a stream of token sequences.

This package neither packs nor writes. `open_source` finds and opens the input. `load_tokenizer` loads a tokenizer
without its truncation and padding. `sequences` turns the records of a source into sequences as `CorpusOptions` say.
`chain` computes the fingerprint of a source from its blocks. A new kind of input is a subclass of `Source`.
`PretrainingSource` makes sentence pairs from documents for pre-training. `open_records` reads records as dicts, for
tasks.
"""

from nopad.corpus.arrays import ArrayFolder
from nopad.corpus.discover import open_source
from nopad.corpus.lengths import LengthsFile
from nopad.corpus.objects import DatasetSource, DictSource
from nopad.corpus.options import CorpusOptions, Counts, Empty, OnBadRecord, OverLong, ReaderOptions, TextUnit
from nopad.corpus.pairs import PairOptions
from nopad.corpus.pipeline import Group, sequences
from nopad.corpus.pretraining import PretrainingSource
from nopad.corpus.record_stream import RecordStream, open_records
from nopad.corpus.records import BadRecord, Carried, Record, Records
from nopad.corpus.source import CHAIN_START, Block, IterableSource, Source, chain
from nopad.corpus.stdlib import stdlib_texts
from nopad.corpus.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "CHAIN_START",
    "ArrayFolder",
    "BadRecord",
    "Block",
    "Carried",
    "CorpusOptions",
    "Counts",
    "DatasetSource",
    "DictSource",
    "Empty",
    "Group",
    "IterableSource",
    "LengthsFile",
    "OnBadRecord",
    "OverLong",
    "PairOptions",
    "PretrainingSource",
    "ReaderOptions",
    "Record",
    "RecordStream",
    "Records",
    "Source",
    "TextUnit",
    "Tokenizer",
    "chain",
    "load_tokenizer",
    "open_records",
    "open_source",
    "sequences",
    "stdlib_texts",
]
