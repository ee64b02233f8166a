"""SQuAD 1.1 and 2.0: the answers of a record, and the scores of their evaluation script.

The scores are those of the script for 2.0, which equal those of the script for 1.1 if every question has an answer.
Here they are from 0 to 1, not percentages.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

import numpy as np

from nopad.corpus.records import listed
from nopad.errors import RecordError
from nopad.options import shown

__all__ = ["best_thresholds", "exact_and_f1", "normalised", "squad_scores"]

_SIDES = ("text", "answer_start")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_SIGNS = str.maketrans("", "", string.punctuation)


def answers_of(record: Mapping[str, Any], name: str, number: int, context: str) -> list[tuple[str, int]]:
    """Return (text, index of its first character) of each answer in a record, after checking them against the context.

    The column `name` holds a dict with two equally long lists, ``text`` and ``answer_start``, or a list of dicts with
    these two keys. Without an answer, each of these lists is empty. `number` is the record's number, for messages.

    Raises:
        RecordError: the record has no column `name`, the column has another form, or an answer's text is blank or not
            at its ``answer_start`` in the context.
    """
    given = record.get(name)
    if isinstance(given, Mapping) and {"text", "answer_start"} <= given.keys():
        sides = [listed(given[side]) for side in _SIDES]
    elif isinstance(given, list | tuple) and all(isinstance(one, Mapping) for one in given):
        sides = [[one.get(side) for one in given] for side in _SIDES]
    else:
        sides = [None, None]
    texts, starts = sides
    if texts is None or starts is None or isinstance(given, str) or len(texts) != len(starts):
        raise RecordError(
            f"record {number}: {name} is {shown(given)[:80]}; expected {{'text': [...], 'answer_start': [...]}} of one "
            "length, both empty where there is no answer"
        )
    return [
        (text, _start(text, at, context, f"record {number}: {name}")) for text, at in zip(texts, starts, strict=True)
    ]


def _start(text: Any, at: Any, context: str, where: str) -> int:
    try:
        start = None if isinstance(at, bool) else index(at)
    except TypeError:
        start = None
    if not isinstance(text, str) or start is None:
        raise RecordError(
            f"{where} has the text {shown(text)} at {shown(at)}; expected a text, and the number of a character"
        )
    if not text.strip():
        raise RecordError(f"{where} has the text {text!r}, which is empty; where there is no answer, give no text")
    if start < 0 or start + len(text) > len(context):
        raise RecordError(
            f"{where} has {text!r} at characters {shown(start)} to {shown(start + len(text))}, and the context has "
            f"the characters 0 to {len(context)}"
        )
    found = context[start : start + len(text)]
    if found != text:
        elsewhere = context.find(text)
        hint = f"it is at {elsewhere}" if elsewhere >= 0 else "it is nowhere in the context"
        raise RecordError(f"{where} has {text!r} at character {start}, where the context has {found!r}; {hint}")
    return start


def normalised(text: str) -> str:
    """Return a text as SQuAD compares it: in lower case, without ASCII punctuation, articles and extra spaces.

    >>> normalised("The  Eiffel-Tower, an icon")
    'eiffeltower icon'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_SIGNS)).split())


def exact_and_f1(text: str, answers: Sequence[str]) -> tuple[float, float]:
    """Return (exact match, F1) of a predicted text, each the highest over all right answers, from 0.0 to 1.0.

    Texts are compared after `normalised`. An answer that becomes empty, such as "the", does not count. If no answer is
    left, the empty text is right.
    """
    right = [one for one in map(normalised, answers) if one] or [""]
    mine = normalised(text)
    return float(mine in right), max(_f1(mine.split(), one.split()) for one in right)


def _f1(mine: Sequence[str], right: Sequence[str]) -> float:
    if not mine or not right:
        return float(mine == right)
    same = (Counter(mine) & Counter(right)).total()
    return 2 * same / (len(mine) + len(right))


def squad_scores(texts: Sequence[str | None], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return ``exact`` (exact match) and ``f1`` of predicted texts: means over all questions, from 0 to 1.

    `texts` has one prediction per question: a text; "" for "there is no answer"; or None for no prediction, which
    counts as wrong. `answers` has a list of right texts for each question; if the list is empty, "" is right. If there
    are no questions, both scores are NaN. If some questions have answers and others have none, the result also has the
    scores of each kind: ``has_answer_exact``, ``has_answer_f1``, ``no_answer_exact`` and ``no_answer_f1``.
    """
    each = [
        (0.0, 0.0) if text is None else exact_and_f1(text, right) for text, right in zip(texts, answers, strict=True)
    ]
    kinds = {"": list(each)}
    if any(answers) and not all(answers):
        kinds["has_answer_"] = [one for one, right in zip(each, answers, strict=True) if right]
        kinds["no_answer_"] = [one for one, right in zip(each, answers, strict=True) if not right]
    return {
        f"{kind}{name}": sum(one[side] for one in found) / len(found) if found else float("nan")
        for kind, found in kinds.items()
        for side, name in enumerate(("exact", "f1"))
    }


def best_thresholds(
    predictions: Sequence[tuple[str, float | None] | None], answers: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return the best exact match and F1 that any threshold gives, and the smallest thresholds that give them.

    The keys are ``best_exact``, ``best_exact_threshold``, ``best_f1`` and ``best_f1_threshold``. The scores are means
    over all questions, from 0 to 1; without questions, they are NaN.

    A question is answered unless the ``no_answer`` in its prediction is above the threshold. So questions with equal
    ``no_answer`` are all answered, or all not answered. SQuAD's script for 2.0 also considers answering only some of
    them, so it may report scores that no threshold gives. If answering nothing is best, the threshold is just below the
    smallest ``no_answer`` (0 if no question has one).

    Args:
        predictions: for each question, (best text, ``no_answer``); or None: no prediction, which counts as wrong.
            ``no_answer`` is the score of "there is no answer" minus the score of the text; None: there is no text, and
            the question is never answered.
        answers: the right texts of each question; without any, "there is no answer" is right.

    >>> best_thresholds([("red", -2.0), ("dog", 1.0), ("cat", 3.0)], [["red"], [], ["cat"]])
    {'best_exact': 0.666..., 'best_exact_threshold': -2.0, 'best_f1': 0.666..., 'best_f1_threshold': -2.0}

    With the threshold -2, only the first question is answered. This is right for the first question and for the second,
    which has no answer, but not for the third. The threshold 3 gives equal scores, but is larger.
    """
    silent = np.zeros(2)
    gains: list[tuple[float, float, float]] = []
    for one, right in zip(predictions, answers, strict=True):
        if one is not None:
            empty = exact_and_f1("", right)
            silent += empty
            if one[1] is not None:
                exact, f1 = exact_and_f1(one[0], right)
                gains.append((one[1], exact - empty[0], f1 - empty[1]))
    gains.sort()
    table = np.array(gains, np.float64).reshape(-1, 3)
    limits = table[:, 0]
    ends = np.flatnonzero(np.append(limits[1:] != limits[:-1], True)) if len(limits) else np.zeros(0, np.int64)
    below = np.nextafter(limits[0], -np.inf) if len(limits) else 0.0
    thresholds = np.concatenate([[below], limits[ends]])
    found: dict[str, float] = {}
    for name, base, gain in zip(("exact", "f1"), silent, table[:, 1:].T, strict=True):
        totals = base + np.concatenate([[0.0], gain.cumsum()[ends]])
        at = int(totals.argmax())
        best = float(totals[at] / len(answers)) if answers else float("nan")
        found |= {f"best_{name}": best, f"best_{name}_threshold": float(thresholds[at])}
    return found
