"""How a runner starts: what it warms up, in a forked process too, and with the defaults that docs/runner.md names."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import time
from pathlib import Path

import pytest
import torch
from tests.serving.gate import WAIT, Gate
from transformers import BertConfig, BertModel

import nopad
from nopad.serving import Batching, OnlinePacker

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
ONE = {"input_ids": [20, 21]}
PAGE = Path(__file__).parents[2] / "docs" / "runner.md"


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nopad.packed(BertModel(BertConfig(**SIZES, vocab_size=120)).double().eval())


@pytest.mark.parametrize(
    ("batching", "sizes"),
    [
        (Batching(capacity=1024), [8, 64, 512, 1024]),
        (Batching(capacity=256, rows=4), [8, 64, 512, 1024]),
        (Batching(capacity=512), [8, 64, 512]),
        (Batching(capacity=100), [8, 64, 100]),
        (Batching(capacity=32, rows=2), [8, 64]),
        (Batching(capacity=4), [4]),
        (Batching(capacity=1024, max_waiting_tokens=16), [8, 64, 512, 1024]),
    ],
)
def test_what_is_warmed_up(model, batching, sizes):
    """Batches of 8, 64 and 512 tokens and a full one, as far as they fit; all but the full one again, to be timed."""
    seen = []

    def look(module, given, named):
        ids = named["input_ids"]
        seen.append(int((ids == 1).sum()))
        assert ids.shape == ((1, seen[-1]) if batching.rows is None else (batching.rows, batching.capacity))

    hook = model.register_forward_pre_hook(look, with_kwargs=True)
    with nopad.PackRunner(model, batching) as runner:
        assert seen == [*sizes, *sizes[:-1]]
        assert runner.statistics.answered == 0
        assert runner.statistics.us_per_token > 0
    seen.clear()
    with nopad.PackRunner(model, batching, warm_up=False):
        assert seen == []
    hook.remove()


def test_draining_within_a_time(model):
    gate = Gate(model)
    with nopad.PackRunner(model, warm_up=False) as runner:
        assert runner.drain(0)
        running = runner.submit(ONE)
        assert gate.entered.wait(WAIT)
        waiting = runner.submit(ONE)
        for seconds in (0, 0.02):
            begin = time.monotonic()
            assert runner.drain(seconds) is False
            assert time.monotonic() - begin >= seconds
        assert [running.done(), waiting.done()] == [False, False]
        gate.open.set()
        assert runner.drain(WAIT) is True
        assert [running.done(), waiting.done()] == [True, True]


@pytest.mark.parametrize("is_open", [True, False])
def test_a_forked_process_starts_a_runner_of_its_own(model, is_open):
    """As the message of the parent's runner advises, even while a batch of that runs, which holds the model's turn."""
    runner = nopad.PackRunner(model)
    expected = runner(ONE)["pooler_output"]
    gate = Gate(model, shut=is_open)
    future = runner.submit(ONE)
    assert gate.entered.wait(WAIT)
    if not is_open:
        runner.close()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        said = "nothing"
        try:
            gate.open.set()
            with nopad.PackRunner(model) as own:
                said = str(torch.equal(own(ONE)["pooler_output"], expected))
        except BaseException as error:
            said = repr(error)
        finally:
            os.write(write, said.encode())
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "True"
    gate.open.set()
    assert future.result(WAIT)
    runner.close()


def documented() -> dict[str, str]:
    """The defaults in the tables of docs/runner.md, by option, without marks; "" where the option must be given."""
    text = PAGE.read_text().split("## Every option, and its counterpart in PopRT's PackRunner\n")[1]
    rows = [map(str.strip, line.split("|")) for line in text.split("\n## ")[0].splitlines() if line.startswith("| `")]
    found = {}
    for _, option, _, default, *_ in rows:
        call, given = re.fullmatch(r"`(?:(\w+)\()?([^)`]*)\)?`", option).groups()
        names = re.findall(r"\w+", given)
        cells = [default] if len(names) == 1 else default.split(", ")
        for name, cell in zip(names, cells, strict=False):
            found[f"{call}.{name}" if call else name] = cell.partition(":")[0].strip(" `").replace(",", "")
    return found


def in_code() -> dict[str, str]:
    """The defaults of a runner's options in the code, by the names of the page."""
    calls = {"": nopad.PackRunner.__init__, "add.": OnlinePacker.add, "submit.": nopad.PackRunner.submit}
    found = {field.name: field.default for field in dataclasses.fields(Batching)}
    for begin, call in calls.items():
        parameters = [one for one in inspect.signature(call).parameters.values() if one.kind is not one.VAR_KEYWORD]
        found |= {begin + one.name: one.default for one in parameters if one.name != "self"}
    none = {dataclasses.MISSING: "", inspect.Parameter.empty: "", time.monotonic_ns: "time.monotonic_ns"}
    return {name: none.get(default, str(default)) for name, default in found.items()}


def test_the_defaults_of_the_page_are_those_of_the_code(model):
    page, code = documented(), in_code()
    assert {name: page[name] for name in ("rows", "max_waiting_tokens", "add.lead_ns", "compile")} == {
        "rows": "None",
        "max_waiting_tokens": "1048576",
        "add.lead_ns": "0",
        "compile": "False",
    }
    assert page.pop("batching") == "flat 4096 tokens; for a Predictor what suits it"
    assert code.pop("batching") == "None"
    with nopad.PackRunner(model, warm_up=False) as runner:
        assert runner.batching == Batching(capacity=4096)
    both = set(page) & set(code)
    assert {name: page[name] for name in both} == {name: code[name] for name in both}
    assert len(both) == 22
    # Requests are described elsewhere, and priorities once. The other names on the page are no options of these calls.
    assert set(code) - set(page) == {"add.length", "add.now_ns", "submit.inputs", "submit.priority"}
    assert set(page) - set(code) >= {"submit.out", "submit.prompt", "cancel.number"}
