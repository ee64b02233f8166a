"""The class `Content`: the user's description of what the records of an input hold, and which `Encoder` they need.

`nopad pack` and `nopad.pack_dataset` both use it, so both make the same sequences of the same record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nopad.corpus.encoders import Chats, Encoder, Fields, TextPairs, has_chat
from nopad.corpus.options import CorpusOptions
from nopad.errors import OptionError

__all__ = ["Content"]


@dataclass(frozen=True, kw_only=True)
class Content:
    """What the records hold: one text or ids, several texts, pairs of texts, or chats.

    Attributes:
        fields: names of the text fields; the texts of several fields are joined. (): the user named none.
        pair: names of the two text fields that become one sequence; None: there is no pair.
        chat: whether records are chats. None: they are if the first record is one, and none of `fields`, `pair` and
            `other` is given.
        chat_options: options of chats by name (`nopad.corpus.encoders.CHAT_OPTIONS`).
        other: name of another option that the user gave and that decides what is read, such as ``ids_field``; "": none.

    Raises:
        OptionError: two of these are given: `fields`, `pair`, and `chat` with the value True; `fields` has a name
            twice; or `other` is given beside several fields, a pair, or `chat` with the value True.
    """

    fields: Sequence[str] = ()
    pair: tuple[str, str] | None = None
    chat: bool | None = None
    chat_options: Mapping[str, Any] = field(default_factory=dict)
    other: str = ""

    def __post_init__(self) -> None:
        special = len(self.fields) > 1 or self.pair is not None or self.chat is True
        ways = {
            "text_field=": bool(self.fields),
            "text_pair=": self.pair is not None,
            "chat=True": self.chat is True,
            f"{self.other}=": bool(self.other) and special,
        }
        given = [name for name, there in ways.items() if there]
        if len(given) > 1:
            raise OptionError(f"{given[0]} and {given[1]} read the records in two ways; give one of them")
        if len(set(self.fields)) < len(self.fields):
            raise OptionError(f"text_field= names {', '.join(self.fields)}; name each field once")

    @property
    def text_field(self) -> str | None:
        """Name of the text field; None: no field is named, or several are."""
        return self.fields[0] if len(self.fields) == 1 else None

    def encoder(
        self,
        first: Callable[[], Mapping[str, Any] | None],
        tokenizer: Callable[[], Any],
        options: CorpusOptions,
        place: str,
    ) -> Encoder | None:
        """Return the encoder that makes text or ids of each record; None if one field of the record holds them already.

        Args:
            first: returns the first record, or None if it is not known; called only if `chat` is None and the first
                record decides.
            tokenizer: returns the tokenizer of transformers, or None if the user gave none; called only for chats and
                pairs.
            options: the job's options. The encoder needs `capacity`, and `over_long` (what is done with records that
                have more tokens). For chats and pairs, `special_tokens` must be True and `vocab_size` None.
            place: name of the input, for messages.

        Raises:
            OptionError: an option has an invalid value, or cannot be used with such records; the records are chats or
                pairs, and there is no tokenizer; or the first record holds both a text and a chat.
            FormatError: the tokenizer is one that `nopad.corpus.Tokenizer` refuses.
        """
        chat = self.chat
        if chat is None and not (self.fields or self.pair or self.other):
            record = first()
            chat = record is not None and has_chat(record, place)
        if self.chat_options and not chat:
            raise OptionError(f"{next(iter(self.chat_options))} is an option of chats, and {place} holds none")
        if len(self.fields) > 1:
            return Fields(self.fields)
        if not chat and self.pair is None:
            return None
        if not options.special_tokens:
            raise OptionError("special_tokens=False: chats and pairs are made with the tokenizer's own; leave it out")
        if options.vocab_size is not None:
            raise OptionError("vocab_size= is for ready-made ids, and these are texts; leave it out")
        loaded = tokenizer()
        how: dict[str, Any] = {"capacity": options.capacity, "over_long": options.over_long}
        if self.pair is not None:
            if loaded is None:
                raise OptionError(f"{place} holds texts; give tokenizer=, that of the model that reads the pairs")
            return TextPairs(loaded, *self.pair, **how)
        if loaded is None:
            raise OptionError(
                f"{place} holds chats; give the tokenizer= of the model that learns them, for its chat template, or "
                "read one field as text: text_field="
            )
        return Chats(loaded, **how, options=self.chat_options)
