"""`benchmarks/sweep.py` writes the table of every model type, and the sentence that counts its rows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def sweep():
    """The script as a module."""
    path = [*sys.path]
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import sweep

        yield sweep
    finally:
        sys.path[:] = path
        for name in ("sweep", "inputs", "kinds"):
            sys.modules.pop(name, None)


def test_the_page_counts_its_rows(sweep):
    page = sweep.PAGE.read_text()
    assert sweep.written(page, [], keep=True) == page


def test_the_sentence_follows_the_rows(sweep):
    rows = [
        sweep.Row("one", "One", "the table", "isolated", "9 checks", 1.0),
        sweep.Row("two", "Two", "a refusing table, and derived: `Family()`", "isolated", "9 checks", 1.0),
        sweep.Row("three", "Three", "derived: `Family()`", "refused", "an error", 1.0),
    ]
    page = sweep.written(sweep.PAGE.read_text(), rows, keep=False)
    said = "Of 3 types, 2 are isolated, 1 of them by a derived line, and 1 are refused with a reason; none is"
    assert said in page
    again = sweep.written(page, [sweep.Row("three", "Three", "the table", "isolated", "", 2.0)], keep=True)
    assert "Of 3 types, 3 are isolated, 1 of them by a derived line, and 0 are refused" in again
    assert "| three | Three | the table | **isolated** | 2.0 |" in again
