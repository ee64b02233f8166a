"""Encoders, which turn chats, pairs of texts or several text fields into what is packed (`nopad.corpus.record_files`).

An encoder turns records (dicts) into dicts with the content to pack, ``input_ids`` or ``text``, and columns that belong
to this content, such as ``labels``. For chats, `nopad.corpus.chats` decides which token ids a chat gives and which of
them are learned; training uses the same code.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from nopad.corpus.chats import ChatEncoder
from nopad.corpus.columns import listed_columns, no_column
from nopad.corpus.conversations import CHATS, conversation_of, roles_of
from nopad.corpus.framing import tokenised
from nopad.corpus.options import WAYS, OverLong
from nopad.corpus.records import shown
from nopad.corpus.tokenizer import load_tokenizer
from nopad.errors import LengthError, OptionError, RecordError
from nopad.sequences import IGNORED

__all__ = ["CHAT_OPTIONS", "SEPARATOR", "Chats", "Encoder", "Fields", "TextPairs", "has_chat"]

SEPARATOR = "\n\n"  # between several fields of text
CHAT_OPTIONS = ("last_only", "rewriting", "end_of_turn", "template", "roles")
_RECORD = re.compile(r"^record \d+:? ")
_IDS = pa.list_(pa.int32())

Made = list[dict[str, Any]] | str  # the dicts made from a record, or the reason why it is bad


class Encoder(ABC):
    """Turns records into the dicts that are packed.

    Attributes:
        content: name of the field that is packed: "text" or "input_ids".
        columns: Arrow type of each field of the dicts that the encoder makes, by name; `content` comes first.
        reads: names of the record fields that the encoder may read.
        divisible: whether each record becomes at most one dict, which may still be split into several sequences. Only
            then can records be held out (`Source.divisible`).
        ways: which values of `CorpusOptions.over_long`, besides "error", are possible for the records.
    """

    content: str
    columns: Mapping[str, pa.DataType]
    reads: tuple[str, ...] = ()
    divisible: bool = True
    ways: tuple[OverLong, ...] = ("truncate", "drop")

    @abstractmethod
    def encode(self, records: Sequence[Mapping[str, Any]]) -> tuple[list[Made], dict[str, int]]:
        """Return ``(made, counts)``: a list with one entry for each record, and counts.

        An entry is the list of dicts that were made from the record, or a string that says why the record is bad. The
        keys of `counts` are field names of `nopad.corpus.Counts`.
        """

    def missing(self, columns: Collection[str]) -> str:
        """Return a message about the first column in `reads` that is missing from `columns`; "" if all are there.

        `columns` are the names of an input's columns.
        """
        gone = next((name for name in self.reads if name not in columns), None)
        return "" if gone is None else no_column(gone, columns)

    def check(self, records: Sequence[Mapping[str, Any]]) -> None:  # noqa: B027 - most encoders have nothing to check
        """Check that the encoder can encode records such as these, the first ones of a source.

        A source calls this before any other work starts.

        Raises:
            OptionError: the encoder cannot encode them, for example because the tokenizer has no chat template.
        """

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the settings on which the result of `encode` depends, by name, as JSON values."""


class Fields(Encoder):
    """Joins several text fields of a record, with an empty line between them.

    Args:
        fields: names of the fields, in the order in which they are joined. A record in which one of these fields is
            missing or not a string is bad.

    Attributes:
        ways: which values of `CorpusOptions.over_long`, besides "error", are possible: all of them, since the text may
            be cut anywhere.
    """

    content = "text"
    ways: tuple[OverLong, ...] = WAYS

    def __init__(self, fields: Sequence[str]) -> None:
        self.reads, self.columns = tuple(fields), {"text": pa.string()}

    def encode(self, records: Sequence[Mapping[str, Any]]) -> tuple[list[Made], dict[str, int]]:
        """Return ``(made, {})``: a list with one entry for each record, and no counts.

        An entry is a list of one dict with the joined text as ``text``, or a string that says why the record is bad.
        """
        made: list[Made] = []
        for record in records:
            odd = _not_text(record, self.reads)
            made.append(odd or [{"text": SEPARATOR.join(record[name] for name in self.reads)}])
        return made, {}

    def settings(self) -> dict[str, Any]:
        """Return one entry, "encoder": the encoder's name and the names of the fields."""
        return {"encoder": {"name": "fields", "fields": list(self.reads)}}


class TextPairs(Encoder):
    """Encodes two texts as one sequence, with special tokens, and with token types if the tokenizer has them.

    Args:
        tokenizer: a tokenizer from transformers.
        first, second: names of the two text fields.
        capacity: number of tokens above which a pair is over-long.
        over_long: what to do with over-long pairs. "truncate" removes tokens here, one by one from the text that is
            longer at that moment, at the tokenizer's `truncation_side`, by default the end. Other policies are applied
            later, by the packing job.

    Raises:
        OptionError: `over_long` is "split".
        FormatError: the tokenizer is one that `nopad.corpus.Tokenizer` refuses.
    """

    content = "input_ids"

    def __init__(self, tokenizer: Any, first: str, second: str, *, capacity: int, over_long: OverLong) -> None:
        _refuse_split(over_long, "a pair of texts")
        self.reads, self._tokenizer = (first, second), tokenizer
        self._capacity, self._truncate = capacity, over_long == "truncate"
        self._fingerprint = load_tokenizer(tokenizer).fingerprint
        self._typed = bool(tokenised(tokenizer, ["a"], ["a"]).types)
        self._special = len(tokenised(tokenizer, [""], [""], empty="keep").ids[0])
        self.columns = {"input_ids": _IDS} | ({"token_type_ids": pa.list_(pa.int8())} if self._typed else {})

    def encode(self, records: Sequence[Mapping[str, Any]]) -> tuple[list[Made], dict[str, int]]:
        """Return ``(made, counts)``: a list with one entry for each record, and counts.

        An entry is a list of one dict, or a string that says why the record is bad. The dict has ``input_ids`` (int32),
        and ``token_type_ids`` (int8) if the tokenizer gives them. Both are empty for a pair that has no tokens but
        special ones. The counts are "truncated", the number of truncated pairs, and "truncated_tokens", the number of
        tokens removed from them.
        """
        made: list[Made] = [_not_text(record, self.reads) or [] for record in records]
        good = [at for at, one in enumerate(made) if not isinstance(one, str)]
        texts, pairs = ([records[at][name] for at in good] for name in self.reads)
        whole = tokenised(self._tokenizer, texts, pairs, empty="keep")  # the job's policy is for these
        counts = {"truncated": 0, "truncated_tokens": 0}
        for at, number in enumerate(good):
            ids, types = whole.ids[at], whole.types[at] if self._typed else []
            if len(ids) <= self._special:
                ids, types = [], []
            if self._truncate and len(ids) > self._capacity:
                try:
                    cut = tokenised(
                        self._tokenizer, [texts[at]], [pairs[at]], max_length=self._capacity, over_long="truncate"
                    )
                except LengthError as error:
                    made[number] = _RECORD.sub("", str(error))
                    continue
                counts["truncated"] += 1
                counts["truncated_tokens"] += len(ids) - len(cut.ids[0])
                ids, types = cut.ids[0], cut.types[0] if self._typed else []
            columns = {"token_type_ids": np.array(types, np.int8)} if self._typed else {}
            made[number] = [{"input_ids": np.array(ids, np.int32), **columns}]
        return made, counts

    def settings(self) -> dict[str, Any]:
        """Return one entry, "encoder": the encoder's name, the names of the fields, and the tokenizer's fingerprint."""
        return {"encoder": {"name": "pairs", "fields": list(self.reads), "tokenizer": self._fingerprint}}


class Chats(Encoder):
    """Encodes chats, or prompts with completions; the label of a learned token is its id, that of any other -100.

    Args:
        tokenizer: a tokenizer from transformers, with a chat template if there are chats.
        capacity: number of tokens above which a chat is over-long.
        over_long: what the packing job will do with over-long chats. With "truncate", the job cuts off their ends. A
            sequence that would then have no token to learn is made empty here.
        options: options of `nopad.tasks.Chat` by name; `CHAT_OPTIONS` lists those allowed. None: their defaults.

    Raises:
        OptionError: `over_long` is "split", or an option is unknown or has an invalid value.
        FormatError: the tokenizer is one that `nopad.corpus.Tokenizer` refuses.
    """

    content = "input_ids"
    reads = (*CHATS, "prompt", "completion", "tools", "chat_template_kwargs")

    def __init__(
        self, tokenizer: Any, *, capacity: int, over_long: OverLong, options: Mapping[str, Any] | None = None
    ) -> None:
        _refuse_split(over_long, "a chat")
        self._options = dict(options or {})
        for name in self._options:
            if name not in CHAT_OPTIONS:
                raise OptionError(f"chats have no option {name!r}; they have {', '.join(CHAT_OPTIONS)}")
        own = {name: value for name, value in self._options.items() if name not in ("template", "roles")}
        self._encoder = ChatEncoder(tokenizer, **own, options=self._options.get("template"))
        self._roles = roles_of(self._options.get("roles"))
        self._capacity, self._truncate = capacity, over_long == "truncate"
        template = str(getattr(tokenizer, "chat_template", None))
        self._prints = {
            "tokenizer": load_tokenizer(tokenizer).fingerprint,
            "chat_template": hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest(),
        }
        self.columns = {"input_ids": _IDS, "labels": _IDS}
        self.divisible = self._options.get("rewriting") != "expand"

    def encode(self, records: Sequence[Mapping[str, Any]]) -> tuple[list[Made], dict[str, int]]:
        """Return ``(made, {})``: a list with one entry for each record, and no counts.

        An entry is a list of dicts, or a string that says why the record is bad. A dict has ``input_ids`` and
        ``labels``, int32 ``[length]`` each. There are several dicts if the option `rewriting` is "expand", the chat
        template rewrites earlier turns of the chat, and several turns are learned.

        Raises:
            OptionError: the tokenizer cannot encode such records, for example because it has no chat template.
        """
        return [self._one(record) for record in records], {}

    def missing(self, columns: Collection[str]) -> str:
        """Return a message that says why an input with these columns cannot hold chats; "" if it may hold some."""
        if not {*CHATS}.isdisjoint(columns) or {"prompt", "completion"} <= {*columns}:
            return ""
        return (
            f"no chats; it has {listed_columns(list(columns))}, and a chat is 'messages', 'conversations', or 'prompt' "
            "and 'completion'"
        )

    def check(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Check that the tokenizer can encode chats, or prompts with completions, such as those in `records`.

        Raises:
            OptionError: the tokenizer cannot encode them, for example because it has no chat template.
        """
        for record in records:
            try:
                given = conversation_of(record, 0, self._roles)
            except RecordError:  # it will be a bad record
                continue
            self._encoder.check_tokenizer(given)

    def _one(self, record: Mapping[str, Any]) -> Made:
        try:
            found = self._encoder(conversation_of(record, 0, self._roles), 0)
        except RecordError as error:
            return _RECORD.sub("", str(error))
        made: list[dict[str, Any]] = []
        for one in found:
            ids, labels = np.array(one.ids, np.int32), np.array(one.labels, np.int32)
            if self._truncate and ids.size > self._capacity and (labels[1 : self._capacity] == IGNORED).all():
                ids, labels = ids[:0], labels[:0]
            made.append({"input_ids": ids, "labels": labels})
        return made

    def settings(self) -> dict[str, Any]:
        """Return one entry, "encoder": the encoder's name, its options, and fingerprints of tokenizer and template."""
        return {"encoder": {"name": "chats", "options": self._options, **self._prints}}


def has_chat(record: Mapping[str, Any], place: str = "the record") -> bool:
    """Return whether a record holds a chat, or a prompt with its completion, and no ready-made ids.

    `place` is the name of the input, for messages.

    Raises:
        OptionError: the record would count as one with a chat, but holds a ``text`` besides, so it is not known which
            of the two to read.

    >>> has_chat({"messages": [{"role": "user", "content": "hi"}]}), has_chat({"text": "hi"})
    (True, False)
    """
    if record.get("input_ids") is not None:
        return False
    found = [name for name in CHATS if isinstance(record.get(name), list | tuple | np.ndarray)]
    sides = ["prompt", "completion"]
    found += sides if all(record.get(name) is not None for name in sides) else []
    if found and record.get("text") is not None:
        raise OptionError(
            f"{place} holds a text and a chat ({', '.join(found)}); say which: text_field='text', or chat=True"
        )
    return bool(found)


def _not_text(record: Mapping[str, Any], fields: Sequence[str]) -> str:
    """Return a message about the first of `fields` that is missing from a record or is not a string.

    The result is "" if all of them are strings.
    """
    for name in fields:
        if name not in record:
            return f"no {name!r} in this record; it has {', '.join(map(shown, list(record)[:8]))}"
        if not isinstance(record[name], str):
            return f"{name!r} is {shown(record[name])}, not a string"
    return ""


def _refuse_split(over_long: OverLong, what: str) -> None:
    if over_long == "split":
        raise OptionError(f'over_long="split" would cut {what} into pieces; choose over_long="truncate" or "drop"')
