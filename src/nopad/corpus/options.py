"""`ReaderOptions`: what is read; `CorpusOptions`: how records become sequences; `Counts`: what happened to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from nopad.corpus.records import MAX_ID
from nopad.errors import FormatError, OptionError

if TYPE_CHECKING:
    from nopad.corpus.tokenizer import Tokenizer

TextUnit = Literal["file", "line", "paragraph"]
OverLong = Literal["error", "truncate", "split", "drop"]
Empty = Literal["skip", "error"]
OnBadRecord = Literal["error", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    """What is read from files, tables and objects.

    Options are part of a source's identity: a job that was started with other options is not resumed.

    Attributes:
        text_unit: "file" if each text file is one document, "line" if each of its lines is, "paragraph" if each part
            between empty lines is.
        text_field: name of the column or object field with text; None: not given.
        ids_field: name of the column or object field with ready-made ids; None: not given. If neither field is given,
            ``input_ids`` is read if there is one, else ``text``.
        carry: names of columns that are packed along with the content; "auto": all columns of a supported type if the
            content is ready-made ids, no column if it is text.
        mask_field: name of the column that marks padding with 0; "auto": ``attention_mask`` if there is one; None: no
            column.
        pad_id: an id that is padding: runs of it at both ends of a record are removed; None: no id is.

    Raises:
        OptionError: an option has an invalid value, or two options contradict each other.
    """

    text_unit: TextUnit = "file"
    text_field: str | None = None
    ids_field: str | None = None
    carry: Sequence[str] | Literal["auto"] = "auto"
    mask_field: str | None = "auto"
    pad_id: int | None = None

    def __post_init__(self) -> None:
        if self.text_unit not in get_args(TextUnit):
            raise OptionError(f"text_unit is {self.text_unit!r}; it must be 'file', 'line' or 'paragraph'")
        for name in ("text_field", "ids_field", "mask_field"):
            value = getattr(self, name)
            if not isinstance(value, str | None):
                raise OptionError(f"{name} is {value!r}; it must be the name of a column, or None")
        if self.text_field is not None and self.ids_field is not None:
            raise OptionError(
                f"text_field {self.text_field!r} and ids_field {self.ids_field!r} exclude each other; give one of them"
            )
        if self.carry != "auto":
            if isinstance(self.carry, str) or not all(isinstance(name, str) for name in self.carry):
                raise OptionError(f"carry is {self.carry!r}; it must be a list of names of columns, or 'auto'")
            object.__setattr__(self, "carry", tuple(self.carry))
        if self.pad_id is not None and not (type(self.pad_id) is int and 0 <= self.pad_id <= MAX_ID):
            raise OptionError(f"pad_id is {self.pad_id!r}; it must be an integer from 0 to {MAX_ID}")
        if self.pad_id is not None and self.mask_field not in ("auto", None):
            raise OptionError("mask_field and pad_id exclude each other; give one of them")

    def settings(self) -> dict[str, Any]:
        """Return all options, ready for JSON, for a manifest."""
        return {**asdict(self), "carry": self.carry if self.carry == "auto" else list(self.carry)}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> ReaderOptions:
        """Return the options in `settings`, which may have other keys too; missing options get their defaults."""
        return cls(**{field.name: settings[field.name] for field in fields(cls) if field.name in settings})


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusOptions:
    """How records become sequences.

    Attributes:
        capacity: most tokens of a sequence, special tokens included.
        special_tokens: whether text gets the tokenizer's special tokens; ready-made ids never get any.
        over_long: what to do with records that have more tokens than the capacity, special tokens included: raise an
            "error", "truncate" them, "split" them into pieces, or "drop" them.
        empty: what to do with documents without a content token: "skip" them, or raise an "error".
        on_bad_record: what to do with records that cannot be decoded: "skip" them, or raise an "error".
        vocab_size: a record with a ready-made id of `vocab_size` or above is bad; None: ids are not checked.

    Raises:
        OptionError: an option has an invalid value.
    """

    capacity: int
    special_tokens: bool = True
    over_long: OverLong = "error"
    empty: Empty = "skip"
    on_bad_record: OnBadRecord = "error"
    vocab_size: int | None = None

    def __post_init__(self) -> None:
        if type(self.capacity) is not int or not 1 <= self.capacity <= MAX_ID:
            raise OptionError(f"capacity is {self.capacity!r}; it must be an integer from 1 to {MAX_ID}")
        if self.vocab_size is not None and not (type(self.vocab_size) is int and self.vocab_size >= 1):
            raise OptionError(f"vocab_size is {self.vocab_size!r}; it must be an integer of at least 1")
        if type(self.special_tokens) is not bool:
            raise OptionError(f"special_tokens is {self.special_tokens!r}; it must be True or False")
        for name, allowed in (("over_long", OverLong), ("empty", Empty), ("on_bad_record", OnBadRecord)):
            value, values = getattr(self, name), get_args(allowed)
            if value not in values:
                raise OptionError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, values))}")

    def content_capacity(self, tokenizer: Tokenizer | None) -> int:
        """Return how many content tokens fit beside the special tokens of `tokenizer` (None: ready-made ids).

        Raises OptionError if none fits.
        """
        special = self.special(tokenizer)
        if self.capacity <= special:
            raise OptionError(
                f"capacity is {self.capacity}, and {special} special tokens leave no room for content; "
                f"choose a capacity of at least {special + 1}, or special_tokens=False"
            )
        return self.capacity - special

    def special(self, tokenizer: Tokenizer | None) -> int:
        """Return the number of special tokens that each sequence gets."""
        return len(tokenizer.prefix) + len(tokenizer.suffix) if tokenizer and self.special_tokens else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts of what happened to the records; `a + b` are the counts of reading both sources together.

    Attributes:
        records: all records, skipped ones included (empty lines of a JSONL file are not records).
        sequences, tokens: sequences made of the records, and their tokens, special tokens included.
        truncated, split, dropped: records with more tokens than `CorpusOptions.content_capacity`, by what was done.
        truncated_tokens, dropped_tokens: content tokens that were lost by truncating and by dropping records.
        empty_skipped, bad_skipped: records that were skipped because they were empty, or could not be decoded.
        stripped, stripped_tokens: records that had padding, and tokens of this padding, which is not content.
        other_split, other_split_tokens: records that are in the other dataset (training or held out), and their
            tokens, special tokens included.
        documents, documents_empty: documents that pairs for pre-training were made of (`nopad.corpus.pretraining`;
            a record is one pair), and those without a sentence.
        long_sentences, long_sentences_tokens: sentences that did not fit, and what `over_long` lost of them.
        random_next: pairs whose second side is of another document.
        trimmed_tokens: tokens that pairs lost at the ends of their sides, to fit.
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
        """Return plain integers by name, for a journal or a manifest."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, int]) -> Counts:
        """Return the counts in a dict. Raises FormatError for other keys, and for values that are not counts."""
        names = {field.name for field in fields(cls)}
        if set(values) != names:
            raise FormatError(f"counts have the keys {sorted(values)}; they must be {sorted(names)}")
        for name, value in values.items():
            if type(value) is not int or value < 0:
                raise FormatError(f"the count {name} is {value!r}; it must be an integer of at least 0")
        return cls(**values)
