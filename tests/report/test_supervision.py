from __future__ import annotations

import numpy as np
import pytest

import nopad
from nopad.report import read_subject, supervision
from nopad.store import Manifest

LABELS = [[-100, -100, 5, 6], [-100, 7], [1, 2, 3], [-100]] * 5


def packed(folder, **columns):
    rows = [
        {"input_ids": [9] * len(labels), **{name: make(labels) for name, make in columns.items()}} for labels in LABELS
    ]
    nopad.pack_corpus(nopad.open_source(rows), folder, nopad.CorpusOptions(capacity=8))
    return folder


def mask(labels):
    return [int(label != -100) for label in labels]


def test_labels(tmp_path):
    found = read_subject(packed(tmp_path / "a", labels=list)).supervised
    assert (found.column, found.learned, found.tokens, found.packs) == ("labels", 30, 50, None)
    assert found.share == 0.6
    assert found.meaning == "labels other than -100"


@pytest.mark.parametrize("name", supervision.MASKS)
def test_masks(tmp_path, name):
    found = read_subject(packed(tmp_path / "a", **{name: mask})).supervised
    assert (found.column, found.share, found.meaning) == (name, 0.6, f"{name} other than 0")


def test_labels_before_masks(tmp_path):
    assert (
        read_subject(packed(tmp_path / "a", loss_mask=lambda labels: [1] * len(labels), labels=list)).supervised.share
        == 0.6
    )


@pytest.mark.parametrize(
    "columns",
    [{}, {"labels": len}, {"labels": lambda labels: [0.5] * len(labels)}, {"token_type_ids": mask}],
    ids=["none", "per sequence", "not integers", "another column"],
)
def test_nothing_to_count(tmp_path, columns):
    assert read_subject(packed(tmp_path / "a", **columns)).supervised is None


def test_a_large_dataset_is_counted_in_part_and_says_so(tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    rows = [{"input_ids": [9] * n, "labels": draw.choice([-100, 1], n).tolist()} for n in [60, 64, 68] * 60]
    options = nopad.CorpusOptions(capacity=2**15)
    nopad.pack_corpus(nopad.open_source(rows * 50), tmp_path / "big", options)
    manifest = Manifest.load(tmp_path / "big")
    whole = supervision.supervised(tmp_path / "big", manifest)
    monkeypatch.setattr(supervision, "READ_SLOTS", 1)
    found = supervision.supervised(tmp_path / "big", manifest)
    assert whole.packs is None
    assert found.packs < manifest.packs
    assert found.tokens < whole.tokens
    assert found.share == pytest.approx(whole.share, abs=0.05)
    assert found.meaning == f"labels other than -100, in {found.packs} evenly spaced packs"
