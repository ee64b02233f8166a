"""SQuAD's own files, 1.1 and 2.0, as records: one per question. A file is read as a whole; the largest has 40 MB."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from nopad.corpus.inputs import InputFile
from nopad.corpus.runs import Run, object_runs
from nopad.errors import FormatError, SourceError
from nopad.notation import from_json

__all__ = ["begins_as_squad", "is_squad", "read_squad", "squad_runs"]

_HEAD = 1 << 16  # bytes, in which a file shows what it is
_SCALAR = rb'"[^"\\]*"\s*:\s*(?:"(?:[^"\\]|\\.)*"|[-0-9.]+|null)\s*,\s*'  # a member that may come before
_SQUAD = re.compile(rb'\s*\{\s*(?:%s)*"data"\s*:\s*\[\s*\{\s*(?:%s)*"paragraphs"\s*:\s*\[' % (_SCALAR, _SCALAR))


def read_squad(source: str | os.PathLike[str] | Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the questions of a SQuAD file, 1.1 or 2.0 (``data``, ``paragraphs``, ``qas``), or of its parsed JSON.

    Returns:
        A dict per question, with the keys ``id``, ``title``, ``question``, ``context`` and ``answers``. The value of
        ``answers`` is a dict of two lists of the same length, ``text`` and ``answer_start``. Both are empty if the file
        has an empty list of answers, as for impossible questions. If the file has no list ``answers`` for a question,
        the dict lacks this key; so it is in test sets whose answers are secret.

    Raises:
        SourceError: the file cannot be read.
        FormatError: `source` is of another type, the content is not that of a SQuAD file, or an impossible question
            has answers; the message says where.

    >>> from nopad.tasks import read_squad
    >>> asked = {"id": "7", "question": "Where?", "answers": [{"text": "Rome", "answer_start": 3}]}
    >>> read_squad({"data": [{"title": "a", "paragraphs": [{"context": "In Rome.", "qas": [asked]}]}]})
    [{'id': '7', 'title': 'a', 'question': 'Where?', 'context': 'In Rome.',
      'answers': {'text': ['Rome'], 'answer_start': [3]}}]
    """
    if not isinstance(source, str | os.PathLike | Mapping):
        raise FormatError(f"this is no file of SQuAD, but a {type(source).__name__}; flat records need no reader")
    content = source if isinstance(source, Mapping) else _read(Path(source))
    records = []
    for n, article in enumerate(_list(content, "data", "the file")):
        for m, paragraph in enumerate(_list(article, "paragraphs", f"data[{n}]")):
            where = f"data[{n}].paragraphs[{m}]"
            for k, asked in enumerate(_list(paragraph, "qas", where)):
                records.append(_record(asked, paragraph, article, f"{where}.qas[{k}]"))
    return records


def _read(path: Path) -> Any:
    try:
        return from_json(path.read_bytes())
    except OSError as error:
        raise SourceError(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise FormatError(f"{path} is no JSON ({error})") from error


def _list(holder: Any, name: str, where: str) -> list[Any]:
    found = holder.get(name) if isinstance(holder, Mapping) else None
    if not isinstance(found, list):
        raise FormatError(f"this is no file of SQuAD: {where} has no list {name!r}; flat records need no reader")
    return found


def _record(asked: Any, paragraph: Mapping[str, Any], article: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(asked, Mapping) or "question" not in asked or "context" not in paragraph:
        raise FormatError(f"this is no file of SQuAD: {where} lacks a question, or its paragraph a context")
    record = {"id": asked.get("id"), "title": article.get("title"), "question": asked["question"]}
    record["context"] = paragraph["context"]
    if "answers" not in asked:
        return record
    answers = _list(asked, "answers", where)
    if asked.get("is_impossible") and answers:
        raise FormatError(f"{where} is impossible and has answers: {answers!r}; take out one of the two")
    if not all(isinstance(one, Mapping) and {"text", "answer_start"} <= one.keys() for one in answers):
        raise FormatError(f"{where}: answers are {answers!r}; each has text and answer_start")
    return record | {"answers": {name: [one[name] for one in answers] for name in ("text", "answer_start")}}


def is_squad(file: InputFile) -> bool:
    """Return whether the beginning of a JSON file shows a list ``data`` of articles with ``paragraphs``, as in SQuAD.

    Raises:
        SourceError: the file cannot be read, or changed since it was found.
    """
    return begins_as_squad(file.whole(_HEAD))


def begins_as_squad(head: bytes) -> bool:
    """Return whether a file that begins with these bytes may be a JSON file of SQuAD."""
    return _SQUAD.match(head.removeprefix(b"\xef\xbb\xbf")) is not None


def squad_runs(file: InputFile) -> Iterator[Run]:
    """Yield the questions of a SQuAD file in runs (`Run`) of records; `read_squad` describes the records.

    Raises:
        SourceError: the file cannot be read, or changed since it was found.
        FormatError: the content of the file is not that of a SQuAD file, or an impossible question has answers; the
            message says where.
    """
    try:
        records = read_squad(from_json(b"".join(file.chunks(1 << 20))))
    except FormatError as error:
        raise FormatError(f"{file.path}: {error}") from error
    except ValueError as error:
        raise FormatError(f"{file.path} is no JSON ({error})") from error
    for run in object_runs(records, str(file.path)):
        part, records = records[: run.count], records[run.count :]
        yield Run(run.count, run.each, partial(_places, part, file))


def _places(records: list[dict[str, Any]], file: InputFile) -> Iterator[str]:
    return (f"{file.path}, question {one['id']}" for one in records)
