"""`benchmarks/gpu.py` runs every line without a GPU, at toy sizes, and says that there was none."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def gpu():
    """The script as a module."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import gpu
        import gpu_tools

        yield gpu
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in ("gpu", "gpu_tools", "inputs"):
            sys.modules.pop(name, None)
    assert gpu_tools


def run(gpu, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["gpu.py", *words])
    state = torch.get_rng_state()
    try:
        gpu.main()
    finally:
        torch.set_rng_state(state)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_line_without_a_gpu(gpu, monkeypatch, capsys):
    run(gpu, monkeypatch, "--device", "cpu", "--tiny")
    said = capsys.readouterr().out
    assert said.count("NO GPU WAS HERE") == 2
    assert "every audit passed" in said
    assert said.count("isolated") == 4
    assert "one step of nopad's and of the kernel by hand differ by 0.0e+00" in said
    assert "replayed states differ from those of a call by 0.0e+00" in said
    rows = ("varlen (segments in its place)", "padded, efficient", "mask, cudnn", "static rows, CUDA graph")
    for row in ("by_hand", *rows):
        line = next(line for line in said.splitlines() if line.startswith(f"  {row} "))
        assert "not here" not in line
    assert len(re.findall(r" aten::_?scaled_dot_product_\w*attention", said)) == 4  # of the kernel by hand
    assert said.count("by hand = ") == 3
    assert "NOT MET" not in said  # nor met: it says nothing here
    assert not [
        line for line in said.splitlines() if "not here" in line and "flex" not in line and "varlen" not in line
    ]


def test_without_a_device_it_says_so(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="There is no CUDA device here, so nothing was measured"):
        run(gpu, monkeypatch)


@pytest.mark.parametrize(
    ("words", "says"), [(["--device", "cpu"], "only --tiny is of use"), (["x"], "unknown parts: x; there are audit")]
)
def test_wrong_words(gpu, monkeypatch, capsys, words, says):
    with pytest.raises(SystemExit):
        run(gpu, monkeypatch, *words)
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_flops_are_those_that_pytorch_counts(gpu, kind):
    from torch.utils.flop_counter import FlopCounterMode

    sizes = {**gpu.SMALL, "vocab_size": 99}
    make = {
        "bert": lambda: transformers.BertModel(transformers.BertConfig(**sizes, **gpu.QUIET), add_pooling_layer=False),
        "llama": lambda: transformers.LlamaModel(transformers.LlamaConfig(**sizes, use_cache=False)),
    }
    model = make[kind]().train()
    work = gpu.Work(gpu.find("cpu"), model, np.array([40, 24]), 64, 1)
    model.set_attn_implementation("eager")  # plain products, of which every one is counted
    counted = 0
    for length in (40, 24):
        with FlopCounterMode(display=False) as counter:
            states = model(input_ids=torch.ones(1, length, dtype=torch.long)).last_hidden_state
            states.backward(torch.ones_like(states))
        counted += counter.get_total_flops()
    squares = 3 * 4 * (40**2 + 24**2) * 32 * 2
    wanted = counted - (squares / 2 if kind == "llama" else 0)  # eager attention computes what causality hides
    assert work.flops() == pytest.approx(wanted, rel=1e-3)  # older versions of Llama multiply positions too


def test_rows_that_could_not_be_measured_say_why(gpu):
    def fails(_):
        raise RuntimeError("no kernel\nfor this")

    row = gpu.measured(gpu.find("cpu"), "x", fails, lambda: [1], 1)
    assert row.said == "not here: no kernel for this"


def test_no_time_is_left(gpu, capsys):
    device = gpu.find("cpu")
    gpu._ways(gpu._bert(device, True), [("padded", "cudnn"), ("mask", "")], gpu.Clock(0.0), 0.5)
    said = capsys.readouterr().out
    assert "padded, cudnn" in said
    assert said.count("left out: no time is left for it") == 2
