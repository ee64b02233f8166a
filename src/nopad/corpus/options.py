"""`ReaderOptions` (what is read), `CorpusOptions` (how records become sequences), `Counts` (what became of records)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from nopad.corpus.records import MAX_ID
from nopad.errors import FormatError, OptionError
from nopad.options import check_choice, names_in, shown

if TYPE_CHECKING:
    from nopad.corpus.tokenizer import Tokenizer

TextUnit = Literal["file", "line", "paragraph"]
"""What can be one document of a text file; see `ReaderOptions`.

>>> from typing import get_args
>>> from nopad.corpus import TextUnit
>>> get_args(TextUnit)
('file', 'line', 'paragraph')
"""
OverLong = Literal["error", "truncate", "split", "drop"]
"""What can be done with records above the capacity; see `CorpusOptions`.

>>> from typing import get_args
>>> from nopad.corpus import OverLong
>>> get_args(OverLong)
('error', 'truncate', 'split', 'drop')
"""
WAYS: tuple[OverLong, ...] = ("truncate", "split", "drop")  # all but "error"
Empty = Literal["skip", "error"]
"""What can be done with documents without a content token; see `CorpusOptions`.

>>> from typing import get_args
>>> from nopad.corpus import Empty
>>> get_args(Empty)
('skip', 'error')
"""
OnBadRecord = Literal["error", "skip"]
"""What can be done with records that cannot be decoded; see `CorpusOptions`.

>>> from typing import get_args
>>> from nopad.corpus import OnBadRecord
>>> get_args(OnBadRecord)
('error', 'skip')
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    """Which content is read from files, tables and objects.

    These options are part of a source's identity: a job that was started with other options is not resumed.

    Attributes:
        text_unit: "file" if each text file is one document, "line" if each line is one, "paragraph" if each run
            of lines between blank lines is one.
        text_field: name of the column or object field with text.
        ids_field: name of the column or object field with ready-made ids; not allowed together with `text_field`. If
            both are None, ``input_ids`` is read if it exists, else ``text``. In JSON Lines, an ``input_ids`` that is
            not a list is passed over if ``text`` is a string. From a folder of arrays, ``ids`` is read.
        carry: names of columns that are packed along with the content. "auto": beside ready-made ids, all columns of
            numbers, booleans, strings, or lists of numbers or booleans; beside text, no column (but see `find_labels`).
        mask_field: name of the column that marks padding of ready-made ids with 0; "auto": ``attention_mask``,
            unless it holds only null, or one number or boolean per record, or there is a `pad_id`; None: no column
            marks padding.
        pad_id: the id of padding tokens; runs of this id at both ends of a record are removed. None: no id marks
            padding.
        suffixes: suffixes of the files to read from folders. A file whose suffix is listed here, but unknown to nopad,
            is read as text. (): all files of known kinds are read.
        find_labels: whether a column of labels is looked for; only if `carry` is "auto". With text, the column
            ``labels``, ``label`` or ``label_ids`` is packed along if it holds numbers or booleans. With ids, the column
            ``assistant_masks`` (so called by transformers and TRL) becomes ``labels``: a label is the token's id where
            the column is 1, and -100 elsewhere. `nopad.pack_dataset` sets `find_labels` to True, and so does `nopad
            pack`, except for pre-training pairs.

    Raises:
        OptionError: an option has an invalid value, or two options contradict each other.

    >>> import numpy as np, nopad
    >>> padded = np.array([[7, 8, 9], [5, 0, 0]])
    >>> source = nopad.open_source(list(padded), nopad.ReaderOptions(pad_id=0))
    >>> [records.ids.seq_lengths.tolist() for block in source.blocks() for records in block.records()]
    [[3, 1]]
    """

    text_unit: TextUnit = "file"
    text_field: str | None = None
    ids_field: str | None = None
    carry: Sequence[str] | Literal["auto"] = "auto"
    mask_field: str | None = "auto"
    pad_id: int | None = None
    suffixes: Sequence[str] = ()
    find_labels: bool = False

    def __post_init__(self) -> None:
        suffixes = names_in(self.suffixes)
        if suffixes is None or not all(re.fullmatch(r"\.\w+", one) for one in suffixes):
            raise OptionError(f"suffixes are {shown(self.suffixes)}; they are a list such as ['.py', '.html']")
        object.__setattr__(self, "suffixes", tuple(one.lower() for one in suffixes))
        check_choice("text_unit", self.text_unit, TextUnit)
        for name in ("text_field", "ids_field", "mask_field"):
            value = getattr(self, name)
            if not isinstance(value, str | None):
                raise OptionError(f"{name} is {shown(value)}; it must be the name of a column, or None")
        if self.text_field is not None and self.ids_field is not None:
            raise OptionError(
                f"text_field {shown(self.text_field)} and ids_field {shown(self.ids_field)} exclude each other; give "
                "one of them"
            )
        if not (isinstance(self.carry, str) and self.carry == "auto"):
            carry = names_in(self.carry)
            if carry is None:
                raise OptionError(f"carry is {shown(self.carry)}; it must be a list of names of columns, or 'auto'")
            object.__setattr__(self, "carry", carry)
        if self.pad_id is not None and not (type(self.pad_id) is int and 0 <= self.pad_id <= MAX_ID):
            raise OptionError(f"pad_id is {shown(self.pad_id)}; it must be an integer from 0 to {MAX_ID}")
        if self.pad_id is not None and self.mask_field not in ("auto", None):
            raise OptionError("mask_field and pad_id exclude each other; give one of them")
        if type(self.find_labels) is not bool:
            raise OptionError(f"find_labels is {shown(self.find_labels)}; it must be True or False")

    def settings(self) -> dict[str, Any]:
        """Return the options by name as JSON values; `suffixes` and `find_labels` are left out if empty or False."""
        found = {**asdict(self), "carry": self.carry if self.carry == "auto" else list(self.carry)}
        further = {"suffixes": list(found.pop("suffixes")), "find_labels": found.pop("find_labels")}
        return found | {name: value for name, value in further.items() if value}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> ReaderOptions:
        """Return the options in `settings`, which may have other keys too; missing options get their defaults.

        Raises:
            OptionError: an option has an invalid value, or two options contradict each other.
        """
        return cls(**{field.name: settings[field.name] for field in fields(cls) if field.name in settings})


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusOptions:
    """How records become sequences.

    Attributes:
        capacity: maximum number of tokens in a sequence, special tokens included.
        special_tokens: whether the tokenizer's special tokens are added to text; none are added to ready-made ids.
        over_long: what to do with records that have more tokens than the capacity, special tokens included: "error"
            raises RecordError, "truncate" keeps their beginning, "split" cuts them into pieces, "drop" leaves them out.
        empty: what to do with records without a content token: "skip" leaves them out, "error" raises RecordError.
        on_bad_record: what to do with records that cannot be decoded: "skip" leaves them out, "error" raises
            RecordError.
        vocab_size: a record with a ready-made id of `vocab_size` or more is treated as one that cannot be decoded.
            None: ids are not checked against a vocabulary.

    Raises:
        OptionError: an option has an invalid value.

    >>> import nopad
    >>> options = nopad.CorpusOptions(capacity=512, over_long="split")
    >>> options.capacity, options.over_long, options.empty
    (512, 'split', 'skip')
    """

    capacity: int
    special_tokens: bool = True
    over_long: OverLong = "error"
    empty: Empty = "skip"
    on_bad_record: OnBadRecord = "error"
    vocab_size: int | None = None

    def __post_init__(self) -> None:
        if type(self.capacity) is not int or not 1 <= self.capacity <= MAX_ID:
            raise OptionError(f"capacity is {shown(self.capacity)}; it must be an integer from 1 to {MAX_ID}")
        if self.vocab_size is not None and not (type(self.vocab_size) is int and self.vocab_size >= 1):
            raise OptionError(f"vocab_size is {shown(self.vocab_size)}; it must be an integer of at least 1")
        if type(self.special_tokens) is not bool:
            raise OptionError(f"special_tokens is {shown(self.special_tokens)}; it must be True or False")
        for name, allowed in (("over_long", OverLong), ("empty", Empty), ("on_bad_record", OnBadRecord)):
            check_choice(name, getattr(self, name), allowed)

    def content_capacity(self, tokenizer: Tokenizer | None) -> int:
        """Return how many content tokens fit into a sequence, beside its special tokens.

        A sequence has the special tokens of `tokenizer`. It has none if `tokenizer` is None (for ready-made ids) or
        `special_tokens` is False.

        Raises:
            OptionError: no content token fits.
        """
        special = self.special(tokenizer)
        if self.capacity <= special:
            raise OptionError(
                f"capacity is {self.capacity}, and {special} special tokens leave no room for content; "
                f"choose a capacity of at least {special + 1}, or special_tokens=False"
            )
        return self.capacity - special

    def special(self, tokenizer: Tokenizer | None) -> int:
        """Return how many special tokens each sequence has; 0 if `tokenizer` is None or `special_tokens` is False."""
        return len(tokenizer.prefix) + len(tokenizer.suffix) if tokenizer and self.special_tokens else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many records were read, skipped, truncated and so on; ``a + b`` adds up the counts of two sources.

    Attributes:
        records: number of records, skipped ones included (empty lines of a JSONL file are not records).
        sequences, tokens: number of sequences made from the records, and number of tokens in these sequences, special
            tokens included.
        truncated, split, dropped: number of records with more tokens than `CorpusOptions.content_capacity` that were
            truncated, split or dropped. `split` also counts records of which a task or encoder made several sequences.
            A record counts as truncated, not as dropped, if others of these are left.
        truncated_tokens, dropped_tokens: number of content tokens lost by truncating and by dropping records.
        empty_skipped, bad_skipped: number of records skipped because they were empty, or could not be decoded.
        stripped, stripped_tokens: number of records that had padding, and number of padding tokens removed from them.
        other_split, other_split_tokens: number of records that are not in this dataset but in the other one (training
            or held-out), and number of their tokens, special tokens included.
        documents, documents_empty: number of documents from which pre-training pairs were made, and of documents
            without a sentence that fits into a pair (`nopad.corpus.pretraining`; there, each pair is a record).
        long_sentences, long_sentences_tokens: number of sentences that were too long for a pair, and number of their
            tokens that were truncated or dropped.
        random_next: number of pairs whose side B comes from another document.
        trimmed_tokens: number of tokens cut off the ends of the sides of pairs that were too long.

    >>> from nopad.corpus import Counts
    >>> both = Counts(records=3, sequences=3, tokens=12) + Counts(records=1, sequences=2, tokens=9, split=1)
    >>> both.records, both.sequences, both.split
    (4, 5, 1)
    """

    records: int = 0
    sequences: int = 0
    tokens: int = 0
    truncated: int = 0
    truncated_tokens: int = 0
    split: int = 0
    dropped: int = 0
    dropped_tokens: int = 0
    empty_skipped: int = 0
    bad_skipped: int = 0
    stripped: int = 0
    stripped_tokens: int = 0
    other_split: int = 0
    other_split_tokens: int = 0
    documents: int = 0
    documents_empty: int = 0
    long_sentences: int = 0
    long_sentences_tokens: int = 0
    random_next: int = 0
    trimmed_tokens: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)})

    def to_dict(self) -> dict[str, int]:
        """Return the counts by name as plain integers, for a journal or a manifest."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, int]) -> Counts:
        """Return the `Counts` that `to_dict` turned into this dict.

        Raises:
            FormatError: this is no dict, a key is missing or unknown, or a value is not an integer of at least 0.
        """
        if not isinstance(values, Mapping):
            raise FormatError(f"counts are {values!r}; they must be a dict")
        names = {field.name for field in fields(cls)}
        if set(values) != names:
            raise FormatError(f"counts have the keys {sorted(values)}; they must be {sorted(names)}")
        for name, value in values.items():
            if type(value) is not int or value < 0:
                raise FormatError(f"the count {name} is {value!r}; it must be an integer of at least 0")
        return cls(**values)
