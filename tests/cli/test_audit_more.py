"""`nopad audit --trace --fix --html --junit`: what is drawn, named and written, and what is refused."""

from __future__ import annotations

import json
import os
import re
from xml.etree import ElementTree

import pytest
import torch
import transformers

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
QUICK = ("--capacity", "16", "--no-gradients")
STEP = """
import nopad
from transformers import LlamaConfig, LlamaForCausalLM

def model():
    return nopad.packed(LlamaForCausalLM(LlamaConfig(vocab_size=99, **SIZES)))

def examples():
    return [{"input_ids": list(range(3, 3 + n)), "labels": list(range(3, 3 + n))} for n in (7, 3, 12, 5, 9, 4, 15)]

def collate(features):
    return nopad.PackedBatch.from_features(features, causal=True)

def loss(model, batch, step):
    return model(**batch).loss / step.accumulation
"""

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=99, **SIZES)).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def step(tmp_path):
    file = tmp_path / "step.py"
    file.write_text(STEP.replace("**SIZES", f"**{SIZES}"))
    return file


def test_a_trace_of_a_sound_model(bert, call):
    out = call("audit", bert, "--trace", *QUICK)
    assert out.code == 0
    assert "token 4 of sequence 2 replaced; only its own sequence moves" in out
    [row] = [line for line in out.splitlines() if line.startswith("bert.encoder.layer.1")]
    parts = row[row.index("│") + 1 : -1].split("│")
    assert set("".join(parts[:2] + parts[3:])) == {"·"}
    assert set(parts[2]) <= set("░▒▓█")
    assert "\x1b" not in out


def test_a_trace_of_a_leak(bert, call, monkeypatch):
    out = call("audit", bert, "--trace", "--collator", "flattening", *QUICK)
    assert out.code == 1
    assert "LEAKS into sequences 0, 1, 3, 4, 5 from bert.encoder.layer.0.attention.self on" in out
    assert "XX" in out
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = call("audit", bert, "--trace", "--collator", "flattening", *QUICK)
    assert "\x1b[38;5;208m" in coloured
    assert "XX" not in coloured


def test_every_sequence_is_poisoned(bert, call):
    assert call("audit", bert, "--trace", "--poisoned", "each", *QUICK).count("▼") == 12  # two characters each
    out = call("audit", bert, "--trace", "--poisoned", "2:0, 5:1", *QUICK)
    assert out.count("▼") == 4
    assert "2 tokens, one at a time, replaced; none leaves its sequence" in out


def test_a_fix(bert, call):
    out = call("audit", bert, "--fix", "--collator", "flattening", *QUICK)
    assert out.code == 1  # the audit of what there is did not pass
    assert "fix: with 1 change the audit passes" in out
    assert 'batch["attention_mask"] = (number[:, :, None] == number[:, None, :])[:, None]' in out


def test_positions_that_run_on(bert, call, users, tmp_path):
    """No poison reaches another sequence, so nothing is called contaminated."""
    code = "def collate(features):\n    return placed(features) | {'position_ids': None}\n"
    html, junit = tmp_path / "audit.html", tmp_path / "audit.xml"
    files = ("--html", html, "--junit", junit)
    out = call("audit", bert, "--collator", users(code), "--trace", "--fix", *files, *QUICK)
    assert out.code == 1
    why = "at bert.embeddings.position_embeddings: other positions; no sequence sees another"
    assert out.splitlines()[0].endswith(f"DIFFERENT FROM ALONE {why}")
    assert "only its own sequence moves" in out
    assert "contaminated" not in (out + html.read_text() + junit.read_text()).lower()
    assert ">different from alone</span> first at <code>bert.embeddings.position_embeddings</code>: other posi" in (
        html.read_text()
    )
    assert f"DIFFERENT FROM ALONE {why}" in junit.read_text()
    assert "fix: with 1 change the audit passes" in out


def test_what_is_tried_is_shown(step, call, monkeypatch):
    """On a terminal, by the same bars as other stages; else nothing."""
    from nopad.cli.monitor import Bars

    stages = []
    kept = Bars.stage

    def stage(self, name, total, unit):
        stages.append(name)
        kept(self, name, total, unit)

    monkeypatch.setattr(Bars, "stage", stage)
    out = call("audit", "--step", step, "--fix", "--json")
    assert stages == ["auditing", "looking for a fix", "trying 1 of at most 3"]
    assert "trying" not in out + out.err
    assert json.loads(out)["fix"]["tried"] == 1


def test_a_fix_of_a_step(step, call):
    out = call("audit", "--step", step, "--fix")
    assert out.code == 1
    assert "denominator, in place of the loss" in out
    assert "return model(**batch, num_items_in_batch=step.num_items_in_batch).loss * step.ranks" in out


def test_json_holds_all(bert, call):
    out = call("audit", bert, "--collator", "flattening", "--trace", "--fix", "--json", *QUICK)
    found = json.loads(out)
    assert found["outcome"] == "contaminated"
    assert found["trace"]["first_leak"] == found["first_difference"] == "bert.encoder.layer.0.attention.self"
    assert len(found["trace"]["influence"][0]) == len(found["trace"]["modules"])
    assert [change["name"] for change in found["fix"]["changes"]] == ["block-diagonal attention_mask"]
    assert not {"trace", "fix"} & set(json.loads(call("audit", bert, "--json", *QUICK)))


def test_files(bert, step, call, tmp_path):
    html, junit = tmp_path / "audit.html", tmp_path / "audit.xml"
    out = call("audit", bert, "--collator", "flattening", "--trace", "--fix", "--html", html, "--junit", junit, *QUICK)
    assert out.code == 1
    assert out.endswith(f"saved {html}\nsaved {junit}\n")
    page = html.read_text()
    assert page.count("<svg") == 1
    ElementTree.fromstring(re.search(r"<svg.*?</svg>", page, re.DOTALL)[0])
    assert "contaminated</span> first at <code>bert.encoder.layer.0.attention.self</code>" in page
    assert "prefers-color-scheme: dark" in page
    assert not re.findall(r"(?:src|href)=\"(?!data:)", page)  # it needs no other file
    assert "[:, None]</code></pre>" in page
    suite = ElementTree.parse(junit).getroot()[0]
    assert int(suite.get("failures")) == page.count('class="missed"') > 0
    again = call("audit", bert, "--junit", junit, *QUICK)
    assert again.code == 2
    assert "is there already; --force replaces it" in again.error()
    assert call("audit", bert, "--junit", junit, "--force", *QUICK).code == 0
    assert ElementTree.parse(junit).getroot().get("failures") == "0"
    assert call("audit", "--step", step, "--html", html, "--junit", junit, "--force").code == 1
    assert "mean of means" in html.read_text()
    assert "model.layers.0" in html.read_text()
    assert ElementTree.parse(junit).getroot()[0].get("name").startswith("a step of LlamaForCausalLM")


def test_a_model_that_fails_has_no_trace(bert, call, tmp_path, monkeypatch):
    (tmp_path / "strange.py").write_text(
        "import torch\n"
        "def collate(features):\n"
        "    ids = torch.tensor([[t for feature in features for t in feature['input_ids']]])\n"
        "    return {'input_ids': ids, 'token_type_ids': torch.full_like(ids, 7)}\n"
    )
    monkeypatch.chdir(tmp_path)
    out = call("audit", bert, "--collator", "strange:collate", "--trace", *QUICK)
    assert (out.code, out.err) == (1, "")
    assert "no trace: BertForMaskedLM cannot be traced: packed, packed: IndexError" in out


def test_a_narrow_terminal(bert, call, monkeypatch):
    from nopad.cli import audit_more

    monkeypatch.setattr(audit_more, "console", lambda: audit_more_console(30))
    out = call("audit", bert, "--trace", *QUICK)
    assert out.code == 0
    assert "the terminal is too narrow to draw this trace; --html FILE draws it" in out


def audit_more_console(width):
    from rich.console import Console

    return Console(width=width, emoji=False, highlight=False)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--poisoned", "each"), "--poisoned each says what is traced; give --trace too"),
        (("--trace", "--poisoned", "2"), "--poisoned is '2'; give one, each, or SEQUENCE:TOKEN,... from 0"),
        (("--trace", "--poisoned", "9:0"), "poisoned names sequence 9; there are 0 to 5"),
        (("--fix",), "--fix mends a foreign collator or step; give --collator or --step"),
        (("--html", "none/a.html"), "there is no folder none"),
        (("--html", "a", "--junit", "a"), "--html and --junit are both a; give two files"),
    ],
)
def test_refusals(bert, call, options, why):
    out = call("audit", bert, *options)
    assert out.code == 2
    assert why in out.error()


PLACED = """
import sys

import torch

def placed(features):
    ids = torch.tensor([[t for feature in features for t in feature["input_ids"]]])
    positions = torch.tensor([[at for feature in features for at in range(len(feature["input_ids"]))]])
    number = torch.tensor([[n for n, feature in enumerate(features) for _ in feature["input_ids"]]])
    same = (number[:, :, None] == number[:, None])[:, None]
    return {"input_ids": ids, "position_ids": positions, "attention_mask": same}

"""


@pytest.fixture
def users(tmp_path, monkeypatch):
    """Write a module ``users_<n>`` with a collator, in the working directory."""
    monkeypatch.chdir(tmp_path)
    numbers = iter(range(99))

    def users(code):
        name = f"users_{tmp_path.name.replace('-', '_')}_{next(numbers)}"
        (tmp_path / f"{name}.py").write_text(PLACED + code)
        return f"{name}:collate"

    return users


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("sys.exit(0)", "it raised SystemExit: 0"),
        ("raise RuntimeError('no GPU')", "it raised RuntimeError: no GPU"),
        ("collate = undefined", "it raised NameError: name 'undefined' is not defined"),
        ("def collate(:", "it raised SyntaxError"),
        ("def collate(features): sys.exit(0)", "the collator failed on dicts of input_ids and labels"),
        ("collate = 5", "is int, which cannot be called"),
        ("", "has no attribute 'collate'"),
    ],
)
def test_no_end_of_a_users_code_passes_for_an_answer(bert, call, users, tmp_path, code, said):
    junit, html = tmp_path / "audit.xml", tmp_path / "audit.html"
    for earlier in (junit, html):
        earlier.write_text("of an earlier audit, which passed")
    out = call("audit", bert, "--collator", users(code), "--junit", junit, "--html", html, "--force", *QUICK)
    assert (out.code, str(out)) == (2, "")
    assert said in out.error()
    assert not html.exists()
    [suite] = ElementTree.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("1", "0", "1")
    assert said in suite.find("testcase/error").get("message")


def test_a_step_whose_code_ends_the_program(step, call):
    text = step.read_text()
    step.write_text(text + "\nimport sys\nsys.exit(0)\n")
    out = call("audit", "--step", step)
    assert out.code == 2
    assert f"it raised SystemExit: 0, line {len(text.splitlines()) + 3}" in out.error()
    step.write_text(text + "\ndef model():\n    raise SystemExit\n")
    assert call("audit", "--step", step).code == 2
    step.write_text(text + "\ndef loss(model, batch, step):\n    raise SystemExit(0)\n")
    out = call("audit", "--step", step)
    assert out.code == 1
    assert "SystemExit: 0" in out


def test_the_program_is_ended_behind_our_back(call, monkeypatch):
    from nopad.cli import audit

    def ends(*given):
        raise SystemExit(0)

    monkeypatch.setattr(audit, "load_model", ends)
    out = call("audit", "some/model")
    assert out.code == 2
    assert "there is no result, for code that is not nopad's ended the program" in out.error()


def test_a_step_with_a_dataclass_and_a_relative_path(step, call, monkeypatch):
    code = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    code += "@dataclass\nclass Sizes:\n    n: int = 3\n"
    step.write_text(code + step.read_text() + "\ndef model():\n    return 1 / 0\n")
    monkeypatch.chdir(step.parent)
    out = call("audit", "--step", step.name)
    assert out.code == 2
    assert (
        f"model() raised ZeroDivisionError: division by zero, line {len(step.read_text().splitlines())}" in out.error()
    )


def test_stdout_is_the_answers(bert, call, users):
    talks = users("def collate(features):\n    print('collating')\n    return placed(features)\n")
    out = call("audit", bert, "--collator", talks, "--json", *QUICK)
    assert json.loads(out)["isolated"]
    assert "collating" in out.err


def test_a_collator_of_a_class_that_imports_late(bert, call, users, tmp_path):
    (tmp_path / "late_one.py").write_text("name = 'input_ids'\n")
    name = users(
        "class Mine:\n    @staticmethod\n    def collate(features):\n        import late_one\n"
        "        assert late_one.name in features[0]\n        return placed(features)\n"
    )
    assert call("audit", bert, "--collator", name.replace(":", ":Mine."), *QUICK).code == 0


def test_a_trace_that_fails_costs_no_verdict(bert, call, users, tmp_path):
    """The collator counts tokens that only the poisoned batch lacks."""
    code = "first = []\ndef collate(features):\n    ids = [t for feature in features for t in feature['input_ids']]\n"
    code += "    if not first:\n        first.append(ids)\n"
    code += "    changed = len(ids) == len(first[0]) and sum(a != b for a, b in zip(ids, first[0])) == 1\n"
    code += "    assert not changed, 'another token'\n    return placed(features)\n"
    junit = tmp_path / "audit.xml"
    out = call("audit", bert, "--collator", users(code), "--trace", "--poisoned", "0:0", "--junit", junit, *QUICK)
    assert out.code == 0
    assert "no trace: the collator failed" in out
    assert "another token" in out
    assert "isolated" in out
    assert ElementTree.parse(junit).getroot().get("failures") == "0"


def test_a_message_that_is_no_utf_8(step, call, tmp_path):
    step.write_text(step.read_text() + "\ndef loss(model, batch, step):\n    raise OSError('a\\udcffb.txt <b>')\n")
    html, junit = tmp_path / "audit.html", tmp_path / "audit.xml"
    out = call("audit", "--step", step, "--html", html, "--junit", junit)
    assert out.code == 1
    assert "a\\udcffb.txt &lt;b&gt;" in html.read_text()
    [suite] = ElementTree.parse(junit).getroot()
    assert suite.get("errors") == "1"
    assert suite.find("testcase/error").get("type") == "OSError"


def test_an_output_that_is_no_regular_file(bert, call, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    out = call("audit", bert, "--html", tmp_path / "pipe", "--force", *QUICK)
    assert out.code == 2
    assert "is no regular file" in out.error()
    assert call("audit", bert, "--junit", "/dev/stdout", "--force", *QUICK).code == 2
    (tmp_path / "folder").mkdir()
    same = call("audit", bert, "--html", tmp_path / "a", "--junit", tmp_path / "folder" / ".." / "a", *QUICK)
    assert "give two files" in same.error()


def test_a_step_has_no_trace(step, call):
    out = call("audit", "--step", step, "--trace")
    assert out.code == 2
    assert "--trace draws a model's layers, and --step audits a loss" in out.error()
