"""Answers to questions, as spans of a context: SQuAD 1.1 and 2.0, and other data sets with the same columns.

A question and its context are one sequence. A long context gives several sequences, called windows; two consecutive
windows share `stride` tokens of the context, and each has the whole question. A window's target is where its answer
begins and ends, as positions in the sequence. In a window without the whole answer, both are the position of ``[CLS]``,
as in BERT's own recipe and transformers' run_qa (``absent="ignore"`` changes this). A prediction is the text of the
best span among all windows of a question; with a `threshold`, it may also be that there is no answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from nopad.batch import PackedBatch
from nopad.corpus.options import OverLong
from nopad.errors import BatchError, OptionError, RecordError
from nopad.losses.metrics import span_scores
from nopad.options import Option, check_choice, is_number, shown
from nopad.sequences import IGNORED
from nopad.tasks.examples import Examples, field_of, numbered, paired, stacked
from nopad.tasks.objectives import OfSpans
from nopad.tasks.pieces import Framed, check_offsets, cut, framed, trimmed
from nopad.tasks.squad import answers_of, best_thresholds, squad_scores
from nopad.tasks.task import Task

__all__ = ["Answers"]

Absent = Literal["cls", "ignore"]

_STRIDE = Option(default=128, low=0, help="tokens that two windows share")
_LONGEST = Option(default=30, help="most tokens of an answer")
_BEST = Option(default=20, help="candidates per window")
_AT_ONCE = 64  # windows whose spans are scored at once
_CONTEXT = "context"  # column: first and last position (exclusive) of the context, position of [CLS]; int64 ``[S, 3]``


class _OfAnswers(OfSpans):
    """The objective `OfSpans`, for batches with one more column, ``context``, which is not passed to the model."""

    def outputs(self, model: Any, batch: PackedBatch) -> Any:
        """Run the model on the batch without its targets and ``context``, and return the model's outputs."""
        return model(**{name: batch[name] for name in batch if name not in (*self.targets, _CONTEXT)})


class Answers(Task):
    """Extractive question answering: the answer to a question is a span of its context.

    Args:
        tokenizer: the model's tokenizer; it must be a fast one, which gives offsets.
        question, context, answers: names of the columns. The answers of a record are a dict with two lists of the same
            length, ``text`` and ``answer_start`` (index of the first character), or a list of dicts with these keys.
            The model learns the first answer; scores accept any of them. `read_squad` reads SQuAD's own files.
        max_length: most tokens of a window, with its question, 384 by default; None: no limit.
        stride: number of context tokens that two consecutive windows share; None: a third of `max_length`, at most 128.
        over_long: what happens to sequences longer than `max_length`: "split" into windows, "truncate" to the first
            window, "error" or "drop"; None: "split" if there is a `max_length`, else "error".
        absent: what the model learns from a window without the whole answer: the position of ``[CLS]`` ("cls"), or
            nothing ("ignore").
        threshold: None: every question has an answer (SQuAD 1.1). A number: a question has no answer if ``[CLS]``
            scores higher than the best span by more than this (SQuAD 2.0; 0 is usual).
        max_answer: most tokens of a predicted answer, 30 by default.
        n_best: number of candidate spans that are kept per window, and then per question, 20 by default.

    A prediction has ``text`` ("" for no answer), ``start`` (index of the text's first character in the context; None
    for no answer) and ``score`` (the prediction's probability among the candidates, from 0 to 1). With a threshold, it
    has two more keys. ``no_answer`` is the score of ``[CLS]`` minus that of the best span (logits). ``best_text`` is
    the text of the best span, even if the threshold decides for no answer. If all candidates consist of spaces, the
    texts are empty, ``score`` is 0, and ``no_answer`` is None.

    Raises:
        OptionError: an option has an invalid value, or the tokenizer is not a fast one.

    >>> from nopad.tasks import Answers
    >>> task = Answers(tokenizer)
    >>> made = task.encode([{
    ...     "question": "where?", "context": "born in London", "answers": {"text": ["London"], "answer_start": [8]}
    ... }])
    >>> at = made.sequences.values["start_positions"]
    >>> at.tolist(), tokenizer.decode(made.sequences.tokens["input_ids"][at])
    ([6], 'London')
    """

    name = "answer"
    auto: ClassVar[str] = "AutoModelForQuestionAnswering"
    texts_by: ClassVar[tuple[str, ...]] = ("question", "context")
    columns_by: ClassVar[tuple[str, ...]] = ("answers",)
    policies: ClassVar[tuple[OverLong, ...]] = ("split", "error", "truncate", "drop")

    def __init__(
        self,
        tokenizer: Any,
        *,
        question: str = "question",
        context: str = "context",
        answers: str = "answers",
        max_length: int | None = 384,
        stride: int | None = None,
        over_long: OverLong | None = None,
        absent: Absent = "cls",
        threshold: float | None = None,
        max_answer: int = 30,
        n_best: int = 20,
    ) -> None:
        usual: OverLong = "error" if max_length is None else "split"
        super().__init__(tokenizer, max_length=max_length, over_long=usual if over_long is None else over_long)
        check_offsets(self.tokenizer, self.name)
        self.question, self.context, self.answers = question, context, answers
        usual_stride = min(128, self.max_length // 3) if self.max_length is not None else 0
        self.stride: int = usual_stride if stride is None else _STRIDE.check("stride", stride)
        if max_length is not None and self.stride >= max_length and self.over_long == "split":
            raise OptionError(f"stride is {stride}, and a window has {max_length} tokens (max_length); it is less")
        self.absent: Absent = check_choice("absent", absent, Absent)
        if threshold is not None and not is_number(threshold):
            raise OptionError(
                f"threshold is {shown(threshold)}; it is a finite number, or None: every question has an answer"
            )
        self.threshold = None if threshold is None else float(threshold)
        self.max_answer, self.n_best = _LONGEST.check("max_answer", max_answer), _BEST.check("n_best", n_best)
        self.objective = _OfAnswers(self.max_answer)

    def encode(self, records: Iterable[Mapping[str, Any]], *, labels: bool = True) -> Examples:
        """Turn records (dicts of columns) into windows, which are the sequences of the result.

        With `labels`, windows have the columns ``start_positions`` and ``end_positions``: the positions of the learned
        answer's first and last token in the sequence. In a window without the whole answer, both are the position of
        ``[CLS]``, or -100 if `absent` is "ignore". The count ``windows_without_the_answer`` says how many such windows
        there are. Without `labels`, records need no answers.

        The per-sequence column ``context``, int64 ``[n, 3]``, holds the positions at which the context begins and ends
        (exclusive) in each sequence, and the position of ``[CLS]`` (0 if there is none). `Examples.details` has, for
        each window, ``context`` (the text of the record's context) and ``offsets`` (first and last character,
        exclusive, of each context token).

        Raises:
            RecordError: a question, a context or the answers are missing or invalid; an answer is not in its context;
                or a context or an answer has no token. The message gives the record's number.
            LengthError: a sequence is longer than `max_length`, and `over_long` is "error"; a question leaves too few
                tokens of a window for the context; or there is no record.
        """
        questions, contexts, spans = self._read(records, labels)
        ids: list[list[int]] = []
        types: list[list[int]] = []
        places: list[tuple[int, ...]] = []
        found: list[tuple[int, int]] = []
        record: list[int] = []
        details: dict[str, list[Any]] = {"context": [], "offsets": []}
        counts: dict[str, int] = {}
        for number, piece in enumerate(framed(self.tokenizer, questions, contexts)):
            if not len(piece.offsets):
                raise RecordError(f"record {number}: {self.context} has no token: {contexts[number][:60]!r}")
            span = _tokens(piece, spans[number], contexts[number], number) if labels else None
            for begin, end in cut(self, piece, number, counts, self.stride):
                part, kinds = piece.part(begin, end)
                null = part.index(self.tokenizer.cls_token_id) if self.tokenizer.cls_token_id in part else 0
                first = piece.first
                ids.append(part)
                types += [kinds] if kinds else []
                places.append((first, first + end - begin, null))
                inside = span is not None and begin <= span[0] and span[1] < end
                at = (span[0] - begin + first, span[1] - begin + first) if inside and span else None
                found.append(at or ((null, null) if self.absent == "cls" else (IGNORED, IGNORED)))
                if labels and not at:
                    counts["windows_without_the_answer"] = counts.get("windows_without_the_answer", 0) + 1
                record.append(number)
                details["context"].append(contexts[number])
                details["offsets"].append(piece.offsets[begin:end])
        values = {_CONTEXT: np.array(places, np.int64)}
        if labels:
            values["start_positions"], values["end_positions"] = np.array(found, np.int64).reshape(-1, 2).T
        return Examples(
            sequences=stacked(ids, record, tokens={"token_type_ids": types} if types else {}, values=values),
            record=np.array(record, np.int64),
            records=len(questions),
            counts=counts,
            details=details,
        )

    def _read(
        self, records: Iterable[Mapping[str, Any]], labels: bool
    ) -> tuple[list[str], list[str], list[tuple[int, int] | None]]:
        """Return three lists: questions, contexts, and the places of the learned answers in their contexts.

        A place is a pair of character indices, begin and end (exclusive). It is None for a question without an answer.
        The third list is empty if `labels` is False. Spaces at the beginning of a question are left out.

        Raises:
            RecordError: a question or context is missing or empty; or answers are missing, have another form, or are
                not in their context.
            LengthError: there is no record.
        """
        questions, contexts = [], []
        spans: list[tuple[int, int] | None] = []
        for number, record in numbered(records):
            question = field_of(record, self.question, number, option="question")
            context = field_of(record, self.context, number, option="context")
            for name, text in ((self.question, question), (self.context, context)):
                if not text.strip():
                    raise RecordError(f"record {number}: {name} is empty: {text!r}; leave the record out")
            questions.append(question.lstrip())
            contexts.append(context)
            if labels:
                given = answers_of(record, self.answers, number, context)
                spans.append((given[0][1], given[0][1] + len(given[0][0])) if given else None)
        return questions, contexts, spans

    def results(self, outputs: Any, batch: PackedBatch) -> list[dict[str, Any]]:
        """Return a dict for each window (sequence) of the batch: ``spans``, its best spans, and ``null``.

        There are at most `n_best` spans, the best first; each lies in the context and has at most `max_answer` tokens.
        A span is a list of first token, last token (inclusive) and score. Tokens are counted from the context's first
        token in the window. The score is the start logit of the first token plus the end logit of the last one.
        ``null``, the score for no answer, is the sum of both logits at ``[CLS]``.

        Raises:
            BatchError: the highest score or ``null`` of a window is NaN or infinite; or the batch lacks the column
                ``context`` of this task.
        """
        if _CONTEXT not in batch:
            raise BatchError(
                f"the batch has no {_CONTEXT!r}, which says where contexts lie; make it of task.encode(...)"
            )
        start, end = outputs["start_logits"].detach().double(), outputs["end_logits"].detach().double()
        places = batch[_CONTEXT].to(start.device)
        parts = [torch.split(one, _AT_ONCE) for one in (start, end, places)]
        return [one for part in zip(*parts, strict=True) for one in self._best(*part)]

    def _best(self, start: Any, end: Any, places: Any) -> list[dict[str, Any]]:
        """Return a dict with ``spans`` and ``null`` for each of W windows, as `results` does.

        `start` and `end` are the logits, ``[W, L]``. `places` is the column ``context`` of these windows, ``[W, 3]``:
        where the context begins and ends (exclusive), and the position of ``[CLS]``.

        Raises:
            BatchError: the highest score or ``null`` of a window is NaN or infinite.
        """
        at = torch.arange(start.shape[1], device=start.device)
        outside = (at < places[:, :1]) | (at >= places[:, 1:2])
        null = (start + end).gather(1, places[:, 2:])[:, 0]
        start, end = start.masked_fill(outside, -torch.inf), end.masked_fill(outside, -torch.inf)
        scores = span_scores(start, end, self.max_answer)
        longest, scores = scores.shape[2], scores.flatten(1)
        best, which = scores.topk(min(self.n_best, scores.shape[1]), 1)
        if not bool((best[:, 0] + null).isfinite().all()):
            raise BatchError("the model's logits are NaN or infinite, so no answer is the best; look at its weights")
        first = which // longest
        last = first + which % longest
        lists = (first - places[:, :1]).tolist(), (last - places[:, :1]).tolist(), best.tolist()
        return [
            {"spans": [list(one) for one in zip(*window, strict=True) if math.isfinite(one[2])], "null": score}
            for *window, score in zip(*lists, null.tolist(), strict=True)
        ]

    def merged(self, results: Sequence[dict[str, Any]], examples: Examples) -> list[dict[str, Any] | None]:
        """Return the answer to each question, chosen from the best spans of its windows.

        An answer is a dict with ``text``, ``start``, ``score`` and so on, as the class describes it. It is None if the
        task left the question out. Spaces at the ends of a span are left out, and a span of only spaces does not count.
        A span found in two windows counts once, with the higher score. The score for no answer is the lowest ``null``
        of the question's windows.
        """
        spans: dict[int, dict[tuple[int, int], float]] = {}
        nulls: dict[int, float] = {}
        kept = examples.details["context"], examples.details["offsets"]
        for number, result, context, offsets in zip(examples.record.tolist(), results, *kept, strict=True):
            mine = spans.setdefault(number, {})
            nulls[number] = min(nulls.get(number, math.inf), result["null"])
            for first, last, score in result["spans"]:
                place = trimmed(context, int(offsets[first][0]), int(offsets[last][1]))
                if place[0] < place[1]:
                    mine[place] = max(mine.get(place, -math.inf), score)
        contexts = dict(zip(examples.record.tolist(), examples.details["context"], strict=True))
        found: list[dict[str, Any] | None] = [None] * examples.records
        for number, mine in spans.items():
            found[number] = self._answer(contexts[number], mine, nulls[number])
        return found

    def _answer(self, context: str, spans: Mapping[tuple[int, int], float], null: float) -> dict[str, Any]:
        ranked = sorted(spans.items(), key=lambda one: (-one[1], one[0]))[: self.n_best]
        scores = [score for _, score in ranked] + ([null] if self.threshold is not None else [])
        if not ranked:  # all spans kept are only spaces
            nothing = {} if self.threshold is None else {"no_answer": None, "best_text": ""}
            return {"text": "", "start": None, "score": 0.0} | nothing
        shares = [math.exp(score - max(scores)) for score in scores]
        (begin, end), best = ranked[0]
        none = {} if self.threshold is None else {"no_answer": null - best, "best_text": context[begin:end]}
        if self.threshold is not None and null - best > self.threshold:
            return {"text": "", "start": None, "score": shares[-1] / sum(shares), **none}
        return {"text": context[begin:end], "start": begin, "score": shares[0] / sum(shares), **none}

    def scores(
        self, predictions: Sequence[dict[str, Any] | None], records: Iterable[Mapping[str, Any]]
    ) -> dict[str, float]:
        """Return exact match and F1 of the predicted texts as SQuAD's script defines them, but from 0 to 1.

        If only some questions have answers, the result also has the scores of questions with and without an answer
        (`nopad.tasks.squad`). A record without a prediction counts as wrong. If the task has a `threshold`, the result
        also has ``best_exact`` and ``best_f1``, the best scores that any threshold gives. ``best_exact_threshold`` and
        ``best_f1_threshold`` are the smallest thresholds that give them.

        Raises:
            RecordError: the context or the answers of a record are missing or invalid; or there is not one prediction
                for each record.
            LengthError: there is no record.
        """
        texts, right = [], []
        for number, record, prediction in paired(predictions, records):
            context = field_of(record, self.context, number, option="context")
            right.append([text for text, _ in answers_of(record, self.answers, number, context)])
            texts.append(None if prediction is None else prediction["text"])
        found = squad_scores(texts, right)
        if self.threshold is None:
            return found
        kept = [None if one is None else (one["best_text"], one["no_answer"]) for one in predictions]
        return found | best_thresholds(kept, right)


def _tokens(piece: Framed, span: tuple[int, int] | None, context: str, number: int) -> tuple[int, int] | None:
    """Return the first and last token (inclusive) that hold characters of an answer; None if there is no answer.

    Tokens are counted from the context's first token.

    Args:
        piece: the tokenised record, with the character offsets of the context's tokens.
        span: first and last character (exclusive) of the answer in `context`; None: there is no answer. Spaces at the
            answer's two ends are left out.
        context: the text of the context.
        number: the record's number, for messages.

    Raises:
        RecordError: no token covers a character of the answer.
    """
    if span is None:
        return None
    begin, end = trimmed(context, *span)
    inside = (piece.offsets[:, 0] < end) & (piece.offsets[:, 1] > begin) & (piece.offsets[:, 0] < piece.offsets[:, 1])
    at = np.flatnonzero(inside)
    if not at.size:
        raise RecordError(
            f"record {number}: the tokenizer has no token for the answer {context[begin:end]!r} at character {begin}; "
            "leave the record out"
        )
    return int(at[0]), int(at[-1])
