"""A histogram, a plan and a packed dataset to report on; read once, since each is planned 21 times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import nopad
from nopad.corpus import IterableSource
from nopad.corpus.mixture import MixtureSource
from nopad.report import Subject, read_subject

LENGTHS = [5, 3, 4, 2, 8, 1, 1, 7, 6, 2] * 12
ROWS = [{"input_ids": [at] * n} for at, n in enumerate(LENGTHS)] + [{"input_ids": []}, {"input_ids": [7] * 40}]


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="session")
def rows(folder) -> Path:
    """What the dataset was packed from."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture(scope="session")
def histogram(folder) -> Path:
    path = folder / "some <lengths>.json"
    path.write_text('{"histogram": [24, 24, 12, 12, 12, 12, 12, 12], "max_sequence_length": 8}')
    return path


@pytest.fixture(scope="session")
def plan(folder) -> Path:
    nopad.plan(LENGTHS, 16, depth=3, algorithm="lpfhp").save(folder / "deep.plan.json")
    return folder / "deep.plan.json"


@pytest.fixture(scope="session")
def dataset(folder, rows) -> Path:
    options = nopad.CorpusOptions(capacity=16, over_long="split")
    nopad.pack_corpus(nopad.open_source(rows), folder / "packed", options, packing=nopad.PackOptions(depth=6, seed=3))
    return folder / "packed"


@pytest.fixture(scope="session")
def mixture(folder) -> Path:
    """Two datasets of two sources; the long one has tokens dropped."""
    long, short = ([[at] * n for at, n in enumerate(lengths)] for lengths in (LENGTHS, [1, 2, 3] * 40))
    source = MixtureSource({"long": IterableSource(long), "short": IterableSource(short)})
    packing = nopad.PackOptions(validation=0.1)
    nopad.pack_corpus(source, folder / "mixed", nopad.CorpusOptions(capacity=7, over_long="drop"), packing=packing)
    return folder / "mixed"


@pytest.fixture(scope="session")
def subjects(histogram, plan, dataset, mixture) -> list[Subject]:
    """One of each kind, in this order, and one of named sources."""
    return [read_subject(path) for path in (histogram, plan, dataset, mixture / "train")]


@pytest.fixture(params=["histogram", "plan", "dataset"])
def subject(subjects, request) -> Subject:
    return next(found for found in subjects if found.kind == request.param)
