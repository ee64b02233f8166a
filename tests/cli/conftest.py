"""Helpers of the command line's tests: `call` runs nopad in this process, `run` as `python -m nopad`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nopad.cli import main

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
TERMINAL_VARIABLES = ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "PY_COLORS", "GITHUB_ACTIONS", "COLUMNS", "LINES")
PROGRESS = re.compile(r"^nopad: .* after [\d,]+ s\n", re.MULTILINE)  # of work that takes long: on a busy machine, any
SPECIAL = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2}


class Ran(str):
    """What a command printed to stdout, with `code` and `err`, which has no lines of progress."""

    code: int
    err: str

    @classmethod
    def of(cls, code: int, out: str, err: str) -> Ran:
        ran = cls(out)
        ran.code, ran.err = code, PROGRESS.sub("", err)
        return ran

    def error(self) -> str:
        """The one line of an error, without its `nopad: `."""
        assert self.err.startswith("nopad: "), self.err
        assert self.err.count("\n") == 1, self.err
        assert self.err.endswith("\n")
        return self.err.removeprefix("nopad: ").rstrip("\n")


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch):
    for name in TERMINAL_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def call(capsys):
    def call(*arguments) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran.of(stop.value.code, captured.out, captured.err)

    return call


@pytest.fixture
def command():
    """The command line of a nopad process."""
    return lambda *arguments: [sys.executable, "-m", "nopad", *map(str, arguments)]


@pytest.fixture
def run(command):
    def run(*arguments, cwd=None, **environment) -> Ran:
        done = subprocess.run(
            command(*arguments), capture_output=True, text=True, cwd=cwd, env=os.environ | environment, timeout=600
        )
        return Ran.of(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def histogram(tmp_path):
    """Five sequences of lengths 2, 3, 4, 5, 8 for capacity 8, as a list of counts."""
    path = tmp_path / "histogram.json"
    path.write_text(json.dumps({"histogram": [0, 1, 1, 1, 1, 0, 0, 1]}))
    return path


@pytest.fixture
def lengths(tmp_path):
    path = tmp_path / "lengths.npy"
    np.save(path, np.array([5, 3, 4, 2, 8], dtype=np.int32))
    return path


@pytest.fixture(scope="session")
def words(tmp_path_factory):
    """A tokenizer.json: `w0`..`w49` have ids 3.., BERT's template, one token a word."""
    vocabulary = SPECIAL | {f"w{i}": i + 3 for i in range(50)}
    around = [{"SpecialToken": {"id": token, "type_id": 0}} for token in ("[CLS]", "[SEP]")]
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [around[0], {"Sequence": {"id": "A", "type_id": 0}}, around[1]],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {
                token: {"id": token, "ids": [SPECIAL[token]], "tokens": [token]} for token in ("[CLS]", "[SEP]")
            },
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def jsonl(tmp_path):
    """Four texts of 3, 6, 1 and 2 words: 5, 8, 3 and 4 tokens with [CLS] and [SEP]."""
    path = tmp_path / "texts.jsonl"
    texts = ["w0 w1 w2", "w3 w4 w5 w6 w7 w8", "w9", "w10 w11"]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture
def ids(tmp_path):
    path = tmp_path / "ids.jsonl"
    path.write_text('{"input_ids": [7, 8, 9]}\n{"input_ids": [5]}\n{"input_ids": [1, 2]}\n')
    return path


@pytest.fixture
def packed(call, ids, tmp_path):
    """A finished dataset of `ids` at capacity 4."""
    out = tmp_path / "packed"
    assert call("pack", ids, "-o", out, "-c", 4).code == 0
    return out


@pytest.fixture
def shared(_solved_before):
    """A function from a name to a published histogram; skips where the folder is not there."""

    def find(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"{path} is not there: the published histograms are no part of this repository")
        return path

    return find


@pytest.fixture
def mixed(call, tmp_path):
    """Two datasets, train and validation, of the sources a (60 records) and b (20)."""
    for name, records in (("a", 60), ("b", 20)):
        lines = (json.dumps({"input_ids": [at] * (1 + at % 7)}) for at in range(records))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    inputs = [f"{name}={tmp_path / name}.jsonl" for name in "ab"]
    out = tmp_path / "mixed"
    ran = call("pack", *inputs, "-o", out, "-c", 16, "--validation", "10%")
    assert (ran.code, ran.err) == (0, "")
    return out
