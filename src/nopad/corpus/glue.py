"""The nine GLUE sets: their columns and classes, and a function that finds their training files in a folder.

The names are those of ``nyu-mll/glue`` on the Hugging Face hub.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from nopad.corpus.finding import BESIDE
from nopad.errors import SourceError

__all__ = ["GLUE", "glue_files"]

# Name: (column of the text, column of the second text, classes; no classes: the label is a number)
GLUE: Mapping[str, tuple[str, str | None, tuple[str, ...]]] = {
    "cola": ("sentence", None, ("unacceptable", "acceptable")),
    "mnli": ("premise", "hypothesis", ("entailment", "neutral", "contradiction")),
    "mrpc": ("sentence1", "sentence2", ("not_equivalent", "equivalent")),
    "qnli": ("question", "sentence", ("entailment", "not_entailment")),
    "qqp": ("question1", "question2", ("not_duplicate", "duplicate")),
    "rte": ("sentence1", "sentence2", ("entailment", "not_entailment")),
    "sst2": ("sentence", None, ("negative", "positive")),
    "stsb": ("sentence1", "sentence2", ()),
    "wnli": ("sentence1", "sentence2", ("not_entailment", "entailment")),
}
"""GLUE's nine sets by name: the column of the text, the column of the second text or None, and the class names.

For "stsb", whose label is a number, there are no class names.

>>> from nopad.tasks import GLUE
>>> sorted(GLUE)
['cola', 'mnli', 'mrpc', 'qnli', 'qqp', 'rte', 'sst2', 'stsb', 'wnli']
>>> GLUE["rte"]
('sentence1', 'sentence2', ('entailment', 'not_entailment'))
"""

_TRAIN = re.compile(r"train[.-]")  # train.tsv, train-00000-of-00001.parquet


def glue_files(folder: Path) -> dict[str, list[Path]]:
    """Return the paths of the training data of each GLUE set in `folder`, by the set's name, such as "cola".

    A set is a file named after it (``cola.jsonl``), or a folder named after it (``cola``, ``SST-2``). Such a folder
    holds files ``train.*`` or ``train-*``, or a folder ``train``, or is itself a dataset that `save_to_disk` wrote.

    Raises:
        SourceError: there is no such folder, two entries are of one set, or the folder of a set has no training data.
    """
    if not folder.is_dir():
        raise SourceError(f"{folder}: no such folder; give one with a folder or file for each set: {', '.join(GLUE)}")
    entries: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        name = re.sub(r"[^a-z0-9]", "", path.name.lower().partition(".")[0])
        if name not in GLUE:
            continue
        if name in entries:
            raise SourceError(f"{entries[name]} and {path} are both {name}; leave one of them in the folder")
        entries[name] = path
    return {name: _training(path) if path.is_dir() else [path] for name, path in entries.items()}


def _training(folder: Path) -> list[Path]:
    if (folder / "train").is_dir():
        return [folder / "train"]
    if files := sorted(path for path in folder.iterdir() if path.is_file() and _TRAIN.match(path.name)):
        return files
    if any((folder / name).is_file() for name in BESIDE):
        return [folder]
    raise SourceError(f"{folder} has no train.jsonl, train.parquet, train.tsv or folder train; give the training set")
