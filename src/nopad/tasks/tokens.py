"""Classification of words, such as entities or parts of speech, learned from a tag per word or from labelled spans.

A record has a list of words and a list of tags, as in CoNLL's data sets; or a text and labelled spans, and the words
are then those of `nopad.tasks.pieces.words_in`. Words are tokenised as in running text, with spaces between them, so
any tokenizer that gives offsets can be used. Unless `label_all` is set, only the first token of a word has the word's
label; the other tokens are ignored (-100), as in transformers' examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from nopad.batch import PackedBatch
from nopad.corpus.options import OverLong
from nopad.corpus.records import check_text
from nopad.errors import OptionError, RecordError
from nopad.options import BOOLEAN, Option, shown
from nopad.sequences import IGNORED
from nopad.tasks.classification import names_of, number_of
from nopad.tasks.entities import OfTags, entities, f1_of, has_entities
from nopad.tasks.examples import Examples, field_of, numbered, paired, stacked
from nopad.tasks.pieces import aligned, check_offsets, cut, framed, trimmed, words_in
from nopad.tasks.task import Task

__all__ = ["TokenClassification"]

_ALL = Option(default=False, choices=BOOLEAN, help="label all tokens of a word")
_SIGNS = ("B-", "I-", "E-", "S-")  # of tags: the beginning of an entity, inside, its end, an entity of a single word


@dataclass(frozen=True)
class _Words:
    """The words of a record.

    Attributes:
        text: the record's text; for a list of words, the words joined by spaces.
        words: first and last character (exclusive) of each word in the text.
        tags: number of each word's tag; empty without labels.
    """

    text: str
    words: list[tuple[int, int]]
    tags: list[int] = field(default_factory=list)


class TokenClassification(Task):
    """Token classification with one tag per word.

    Args:
        tokenizer: the model's tokenizer; it must be a fast one, which gives offsets.
        labels: names of the tags, or their number. If names are like ``B-PER``, ``I-PER`` and ``O`` (BIO), entities and
            their F1 are computed.
        words: column of the words, a list of texts.
        tags: column of the tags, a list of names or numbers from 0, one per word.
        text: column of a text, instead of words.
        spans: column of the spans of this text: dicts with ``start``, ``end`` (exclusive) and ``label``, or lists of
            these three. A label is an entity's type, or a tag's name. Words outside of spans have the tag ``O``.
        label_all: label all tokens of a word, not only the first. The other tokens of a word with a ``B-`` tag get the
            ``I-`` tag of the same type, if there is one.
        max_length, over_long: see `Task`; "split" makes several sequences of a long record.

    A prediction has ``words``, ``tags``, ``scores`` (probabilities) and, if the tags mark entities, ``entities``. Tags
    and scores are one per word, None for a word that was cut away or has no token; words that share a token get the
    same tag. An entity is a dict with ``label``, ``text``, ``start`` and ``end`` (exclusive), counted in words, or in
    characters if records are texts.

    Raises:
        OptionError: an option has an invalid value; `text` is given, and no tag is ``O``; or the tokenizer is not a
            fast one.

    >>> from nopad.tasks import TokenClassification
    >>> task = TokenClassification(tokenizer, ["O", "B-LOC", "I-LOC"])
    >>> made = task.encode([{"words": ["born", "in", "London"], "tags": ["O", "O", "B-LOC"]}])
    >>> made.sequences.tokens["labels"].tolist()
    [-100, 0, 0, 1, -100]
    >>> task = TokenClassification(tokenizer, task.names, text="text")
    >>> made = task.encode([{"text": "born in London.", "spans": [{"start": 8, "end": 14, "label": "LOC"}]}])
    >>> made.sequences.tokens["labels"].tolist()
    [-100, 0, 0, 1, 0, -100]
    """

    name = "token-classify"
    auto: ClassVar[str] = "AutoModelForTokenClassification"
    texts_by: ClassVar[tuple[str, ...]] = ("text",)
    columns_by: ClassVar[tuple[str, ...]] = ("words", "tags", "spans")
    policies: ClassVar[tuple[OverLong, ...]] = ("error", "truncate", "drop", "split")

    def __init__(
        self,
        tokenizer: Any,
        labels: Sequence[str] | int,
        *,
        words: str = "words",
        tags: str = "tags",
        text: str | None = None,
        spans: str = "spans",
        label_all: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, **options)
        check_offsets(self.tokenizer, self.name)
        self.names = names_of(labels)
        self.words, self.tags, self.text, self.spans = words, tags, text, spans
        self.label_all = _ALL.check("label_all", label_all)
        self._number = {name: number for number, name in enumerate(self.names)}
        if text is not None and "O" not in self._number:
            raise OptionError(f"records are texts with spans, and no tag is 'O', for words outside: {self.names[:20]}")
        self.objective = OfTags(self.names)

    @classmethod
    def labels_in(cls, record: Mapping[str, Any], number: int, options: Mapping[str, Any]) -> Sequence[Any]:
        """Return the tags of record `number`, or, if records are texts, the tags that its spans need.

        Spans need the tag ``O``. A span whose label is a tag itself (``B-PER``, ``S-PER``) needs this tag and the tag
        of further words, ``I-PER``; any other label needs two tags: the label with ``B-`` and with ``I-`` before it.
        See `Task.labels_in`.

        Raises:
            RecordError: the record has no column of tags or spans, or the column or a span has another form.
        """
        if options["text"] is None:
            return _listed(record, options["tags"], number, "tags")
        found: list[Any] = ["O"]
        for at, span in enumerate(_listed(record, options["spans"], number, "spans")):
            label = _parts(span, f"record {number}: {options['spans']}[{at}]")[2]
            kind = label[2:] if label[:2] in _SIGNS else label
            found += [label, f"I-{kind}"] if kind != label else [f"B-{label}", f"I-{label}"]
        return found

    def model_options(self) -> dict[str, Any]:
        """Return settings of the model's configuration: ``id2label`` and ``label2id``, with the names of the tags."""
        return {"id2label": dict(enumerate(self.names)), "label2id": dict(self._number)}

    def encode(self, records: Iterable[Mapping[str, Any]], *, labels: bool = True) -> Examples:
        """Turn records into sequences; see `Task.encode`. With `labels`, they have the per-token column ``labels``.

        The result's count ``words_without_a_token`` (left out if it is 0) is the number of words without a token of
        their own: the tokenizer skips the word, or the word's first token belongs to an earlier word.

        `Examples.details` has, for each sequence: ``text``, the record's text; ``words``, the first and last character
        (exclusive) of each word in this text; and ``first``, int64 ``[2, n]`` for the n words whose first token is in
        the sequence: in row 0 their numbers in the record, in row 1 the positions of these tokens in the sequence.
        """
        given = [self._read(*one, labels) for one in numbered(records)]
        ids: list[list[int]] = []
        columns: dict[str, list[list[int]]] = {"token_type_ids": [], "labels": []}
        details: dict[str, list[Any]] = {"text": [], "words": [], "first": []}
        record: list[int] = []
        counts: dict[str, int] = {}
        pieces = framed(self.tokenizer, [one.text for one in given])
        for number, (mine, piece) in enumerate(zip(given, pieces, strict=True)):
            word_of, first_of = aligned(mine.words, piece.offsets)
            owned = first_of >= 0
            owned[owned] = word_of[first_of[owned]] == np.flatnonzero(owned)
            if not owned.all():
                counts["words_without_a_token"] = counts.get("words_without_a_token", 0) + int((~owned).sum())
            targets = self._targets(mine.tags, word_of, first_of, owned) if labels else np.zeros(0, np.int64)
            for begin, end in cut(self, piece, number, counts):
                part, types = piece.part(begin, end)
                ids.append(part)
                if types:
                    columns["token_type_ids"].append(types)
                if labels:
                    before, after = [IGNORED] * piece.first, [IGNORED] * (len(piece.ids) - piece.last)
                    columns["labels"].append([*before, *targets[begin:end].tolist(), *after])
                inside = np.flatnonzero((first_of >= begin) & (first_of < end))
                first = np.stack([inside, first_of[inside] - begin + piece.first])
                for name, value in (("text", mine.text), ("words", mine.words), ("first", first)):
                    details[name].append(value)
                record.append(number)
        return Examples(
            sequences=stacked(ids, record, tokens={name: lists for name, lists in columns.items() if lists}),
            record=np.array(record, np.int64),
            records=len(given),
            counts=counts,
            details=details,
        )

    def _targets(self, tags: Sequence[int], word_of: Any, first_of: Any, owned: Any) -> Any:
        """Return the label of each token of a record's text, -100 for tokens without a label; int64 ``[tokens]``.

        Args:
            tags: number of each word's tag.
            word_of: index of each token's word, -1 if it is in no word; int64 ``[tokens]``.
            first_of: index of each word's first token, -1 if it has none; int64 ``[words]``.
            owned: whether each word has a first token that does not belong to an earlier word; bool ``[words]``.
        """
        found = np.full(len(word_of), IGNORED)
        named = np.array(tags, np.int64)
        if self.label_all:
            inner = [
                self._number.get(f"I-{name[2:]}", n) if name[:2] == "B-" else n for n, name in enumerate(self.names)
            ]
            known = word_of >= 0
            found[known] = np.array(inner)[named[word_of[known]]]
        found[first_of[owned]] = named[owned]
        return found

    def _read(self, number: int, record: Mapping[str, Any], labels: bool) -> _Words:
        return (self._of_words if self.text is None else self._of_text)(number, record, labels)

    def _of_words(self, number: int, record: Mapping[str, Any], labels: bool) -> _Words:
        words = _listed(record, self.words, number, "words")
        for at, word in enumerate(words):
            if not isinstance(word, str):
                raise RecordError(f"record {number}: {self.words}[{at}] is {shown(word)}; expected a text")
            check_text(word, f"record {number}: {self.words}[{at}]")
        text, begin, places = " ".join(words), 0, []
        for word in words:
            places.append(trimmed(text, begin, begin + len(word)))
            begin += len(word) + 1
        if not any(begin < end for begin, end in places):
            raise RecordError(f"record {number} has no word: {self.words} is {words[:20]!r}; leave it out")
        if not labels:
            return _Words(text, places)
        tags = _listed(record, self.tags, number, "tags")
        if len(tags) != len(words):
            raise RecordError(
                f"record {number} has {len(words)} {self.words} and {len(tags)} {self.tags}; expected a tag per word"
            )
        return _Words(
            text,
            places,
            [number_of(tag, self.names, f"record {number}: {self.tags}[{n}]") for n, tag in enumerate(tags)],
        )

    def _of_text(self, number: int, record: Mapping[str, Any], labels: bool) -> _Words:
        assert self.text is not None
        text = field_of(record, self.text, number)
        words = words_in(text)
        if not words:
            raise RecordError(f"record {number} has no word: {self.text} is {text[:60]!r}; leave it out")
        if not labels:
            return _Words(text, words)
        tags = [self._number["O"]] * len(words)
        owner: list[Any] = [None] * len(words)
        for at, span in enumerate(_listed(record, self.spans, number, "spans")):
            where = f"record {number}: {self.spans}[{at}]"
            first, last, label = self._span(span, where, text, words)
            for word in range(first, last):
                if owner[word] is not None:
                    begin, end = words[word]
                    raise RecordError(
                        f"{where} is {shown(span)}, and {text[begin:end]!r} is in {shown(owner[word])} too; a word has "
                        "one tag: leave out all but one of them"
                    )
                owner[word] = span
            tags[first:last] = self._tags_of(label, last - first, where)
        return _Words(text, words, tags)

    def _span(self, span: Any, where: str, text: str, words: Sequence[tuple[int, int]]) -> tuple[int, int, str]:
        """Return the first and the last word (exclusive) of a span, as indices into `words`, and the span's label.

        Raises:
            RecordError: the span has another form, lies outside of the text, has no label, or does not consist of whole
                words; the message begins with `where`.
        """
        begin, end, label = _parts(span, where)
        if not 0 <= begin < end <= len(text):
            raise RecordError(f"{where} is {shown(span)}, and the text has the characters 0 to {len(text)}")
        touched = [n for n, (a, b) in enumerate(words) if a < end and b > begin]
        partly = [text[words[n][0] : words[n][1]] for n in touched if words[n][0] < begin or words[n][1] > end]
        if partly or not touched:
            what = f"a part of the word {partly[0]!r}" if partly else "no word"
            raise RecordError(f"{where} is {shown(span)}, which is {text[begin:end]!r}: {what}; a span has whole words")
        return touched[0], touched[-1] + 1, label

    def _tags_of(self, label: str, count: int, where: str) -> list[int]:
        """Return the tag numbers of the `count` words of a span with the label `label`.

        If `label` is one of the task's tags and begins with ``B-`` or ``I-``, such as ``B-PER``, the first word gets
        it, and the others get ``I-PER``. If it is one of them and begins with ``S-`` or ``E-``, the only word gets it.
        Any other `label` is an entity's type. Each word then gets the first of these tags that the task has:

        * a single word: ``S-label``, ``B-label``, ``I-label``, `label`
        * the first of several words: ``B-label``, ``I-label``, `label`
        * the last of several words: ``E-label``, ``I-label``, `label`
        * a word between these: ``I-label``, `label`

        Raises:
            RecordError: the task has none of the tags for a word; or `count` is above 1, and `label` is a tag of one
                word (``S-PER``, ``E-PER``) or ``B-PER`` without an ``I-PER``. The message begins with `where`.
        """
        if label in self._number and label[:2] in _SIGNS:
            kind = label[2:]
            if count > 1 and (label[0] in "ES" or f"I-{kind}" not in self._number):
                raise RecordError(
                    f"{where} has {count} words and the label {label!r}, the tag of one word; give its type, {kind!r}, "
                    "as label"
                )
            return [self._number[label], *(self._number[f"I-{kind}"] for _ in range(count - 1))]

        def tag(signs: str) -> int:
            found = [
                self._number[name] for name in (*(f"{sign}-{label}" for sign in signs), label) if name in self._number
            ]
            if not found:
                raise RecordError(
                    f"{where} has the label {label!r}, and no tag for it among {', '.join(self.names[:20])}; expected "
                    f"{' or '.join(f'{sign}-{label}' for sign in signs)}"
                )
            return found[0]

        if count == 1:
            return [tag("SBI")]
        return [tag("BI"), *[tag("I")] * (count - 2), tag("EI")]

    def results(self, outputs: Any, batch: PackedBatch) -> list[dict[str, Any]]:
        """Return, for each sequence, ``tags`` and ``scores`` (probabilities), one per token.

        `merged` returns tags and scores per word instead.
        """
        scores, tags = torch.softmax(outputs["logits"].double(), -1).max(-1)
        return [
            {"tags": [self.names[tag] for tag in mine.tolist()], "scores": share.tolist()}
            for mine, share in zip(batch.unpack_tokens(tags.cpu()), batch.unpack_tokens(scores.cpu()), strict=True)
        ]

    def merged(self, results: Sequence[dict[str, Any]], examples: Examples) -> list[dict[str, Any] | None]:
        """Return words, tags, scores and entities of each record (see the class); None if the task left it out."""
        found: list[dict[str, Any] | None] = [None] * examples.records
        places: dict[int, tuple[str, list[tuple[int, int]]]] = {}
        kept = (examples.details[name] for name in ("text", "words", "first"))
        for number, result, text, words, first in zip(examples.record.tolist(), results, *kept, strict=True):
            mine = found[number]
            if mine is None:
                nothing: list[Any] = [None] * len(words)
                mine = {"words": [text[a:b] for a, b in words], "tags": nothing, "scores": [*nothing]}
                found[number], places[number] = mine, (text, words)
            for word, at in first.T.tolist():
                mine["tags"][word], mine["scores"][word] = result["tags"][at], result["scores"][at]
        if has_entities(self.names):
            for number, (text, words) in places.items():
                mine = found[number]
                assert mine is not None
                mine["entities"] = [
                    self._entity(kind, begin, end, text, words) for kind, begin, end in entities(mine["tags"])
                ]
        return found

    def _entity(self, kind: str, begin: int, end: int, text: str, words: Sequence[tuple[int, int]]) -> dict[str, Any]:
        a, b = words[begin][0], words[end - 1][1]
        start, stop = (begin, end) if self.text is None else (a, b)
        return {"label": kind, "text": text[a:b], "start": start, "end": stop}

    def scores(
        self, predictions: Sequence[dict[str, Any] | None], records: Iterable[Mapping[str, Any]]
    ) -> dict[str, float]:
        """Return ``accuracy`` per word; if the tags mark entities, also their ``precision``, ``recall`` and ``f1``.

        A word without a predicted tag counts as wrong. In a record that the task left out, every word counts as wrong,
        and no entity counts as found.

        Raises:
            RecordError: the words and tags of a record, or its text and spans, are missing or invalid; or there is not
                one prediction for each record.
            LengthError: there is no record.
        """
        right, words = 0, 0
        counts = np.zeros(3)
        for number, record, prediction in paired(predictions, records):
            given = self._read(number, record, True)
            wanted = [self.names[tag] for tag in given.tags]
            tags = [None] * len(wanted) if prediction is None else prediction["tags"]
            right += sum(one == other for one, other in zip(tags, wanted, strict=True))
            words += len(wanted)
            one, other = set(entities(tags)), set(entities(wanted))
            counts += [len(one & other), len(one), len(other)]
        found = {"accuracy": right / words if words else float("nan")}
        return {**found, **f1_of(*counts.tolist())} if has_entities(self.names) else found


def _parts(span: Any, where: str) -> list[Any]:
    """Return ``[start, end, label]`` of a span: a dict with these three keys, or a list or tuple of the three.

    Raises:
        RecordError: the span has another form, start or end is no integer, or the label is no text; the message begins
            with `where`.
    """
    fields = [span.get(one) for one in ("start", "end", "label")] if isinstance(span, Mapping) else span
    if not isinstance(fields, list | tuple) or len(fields) != 3:
        raise RecordError(f"{where} is {shown(span)}; expected a dict with start, end and label")
    for value in fields[:2]:
        if not isinstance(value, int | np.integer) or isinstance(value, bool):
            raise RecordError(f"{where} is {shown(span)}; start and end are numbers of characters")
    if not isinstance(fields[2], str):
        raise RecordError(f"{where} is {shown(span)}; its label is a name, such as 'PER'")
    return list(fields)


def _listed(record: Mapping[str, Any], name: str, number: int, option: str) -> list[Any]:
    """Return the value of column `name` of record `number`, a list, tuple or NumPy array, as a list.

    `option` is the task's option that names the column, for messages.

    Raises:
        RecordError: there is no such column, its value is none of these, or it is an array of another shape than
            ``[n]``.
    """
    found = field_of(record, name, number, (list, tuple, np.ndarray), option)
    if isinstance(found, np.ndarray):
        if found.ndim != 1:
            raise RecordError(f"record {number}: {name} is an array of shape {list(found.shape)}, expected [n]")
        found = found.tolist()
    return list(found)
