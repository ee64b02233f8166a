"""What a corpus pipeline is told (`CorpusOptions`) and what it reports (`Counts`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Literal, get_args

from nopad.corpus.records import MAX_ID
from nopad.corpus.tokenizer import Tokenizer
from nopad.errors import FormatError, OptionError

OverLong = Literal["error", "truncate", "split", "drop"]
Empty = Literal["skip", "error"]
OnBadRecord = Literal["error", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusOptions:
    """How records become sequences of at most `capacity` tokens. Raises OptionError for any other value.

    `special_tokens`: put the tokenizer's special tokens around text; ready-made ids never get any.
    `over_long`: content is cut so that with its special tokens it fills the capacity; `split` keeps all pieces.
    `empty`: documents without a single content token. `on_bad_record`: what cannot be decoded. `vocab_size`: a record
    with a ready-made id of this or above is bad; None: not checked.
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

    def room(self, tokenizer: Tokenizer | None) -> int:
        """Content tokens that fit beside the special tokens of `tokenizer` (None: ready-made ids).

        Raises OptionError when there is room for none.
        """
        special = self.special(tokenizer)
        if self.capacity <= special:
            raise OptionError(
                f"capacity is {self.capacity}, and {special} special tokens leave no room for content; "
                f"choose a capacity of at least {special + 1}, or --no-special-tokens"
            )
        return self.capacity - special

    def special(self, tokenizer: Tokenizer | None) -> int:
        """Number of special tokens that each sequence gets."""
        return len(tokenizer.prefix) + len(tokenizer.suffix) if tokenizer and self.special_tokens else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What became of the records; `a + b` is what reading both in one go would have counted.

    `records`: all of them, skipped ones included (empty lines of a JSONL file are none). `sequences`, `tokens`: what
    came out, special tokens included. `truncated`, `split`, `dropped`: records longer than `CorpusOptions.room`, by
    policy; `*_tokens` of these: content tokens that did not come out. `empty_skipped`, `bad_skipped`: records.
    `stripped`: records that came padded, `stripped_tokens`: their padding, which is no content. Of a dataset made of a
    part of a source: `other_split`: records in the other dataset, held out or not; `left_by_weight`: records in none,
    so that the sources have their weights; `*_tokens` of these: theirs, special tokens included.
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
    left_by_weight: int = 0
    left_by_weight_tokens: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)})

    def to_dict(self) -> dict[str, int]:
        """Plain integers by name, for a journal or a manifest."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, int]) -> Counts:
        """The inverse of `to_dict`. Raises FormatError for any other keys, and for what is no count."""
        names = {field.name for field in fields(cls)}
        if set(values) != names:
            raise FormatError(f"counts have the keys {sorted(values)}; they must be {sorted(names)}")
        for name, value in values.items():
            if type(value) is not int or value < 0:
                raise FormatError(f"the count {name} is {value!r}; it must be an integer of at least 0")
        return cls(**values)
