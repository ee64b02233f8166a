"""What nopad hands to PyTorch's variable-length kernel, which needs a GPU: here a plain reference takes its place."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from kinds import tiny
from transformers import AutoModel
from zoo import FORMS, build

import nopad
from nopad.errors import BatchError
from nopad.model.backends import AUTOMATIC, backend_of
from nopad.model.safety import state_of


def reference(q, k, v, cu_q, cu_k, max_q, max_k, *, scale, window_size):
    """What torch's documentation says of `varlen_attn`, by matrix products."""
    assert q.dim() == k.dim() == v.dim() == 3
    assert q.shape[2] == k.shape[2] == v.shape[2]
    assert q.shape[2] % 8 == 0
    assert cu_q.dtype == cu_k.dtype == torch.int32
    assert max_q == int((cu_q[1:] - cu_q[:-1]).max())
    left, right = window_size
    out = []
    for (a, b), (c, d) in zip(pairwise(cu_q.tolist()), pairwise(cu_k.tolist()), strict=True):
        scores = torch.einsum("qhd,khd->hqk", q[a:b], k[c:d]) * scale
        far = torch.arange(d - c)[None, :] - torch.arange(b - a)[:, None]  # how far right of the query a key is
        hidden = torch.zeros_like(far, dtype=torch.bool)
        hidden |= (far > right) if right >= 0 else hidden
        hidden |= (far < -left) if left >= 0 else hidden
        out.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v[c:d]))
    return torch.cat(out)


@pytest.fixture
def kernel(monkeypatch):
    """Run the reference as if it were the kernel of this device, in any dtype; note how often."""
    import sys

    module = sys.modules["nopad.model.backends.varlen"]
    calls = []

    def noted(*args, **named):
        calls.append(args[0].shape)
        return reference(*args, **named)

    monkeypatch.setattr(module, "_kernel", lambda: noted)
    monkeypatch.setattr(module, "on_kernel", lambda device: True)
    monkeypatch.setattr(module, "HALF", (torch.float64, torch.bfloat16))
    return calls


@pytest.fixture
def sequences():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(4, 99, (n,), generator=generator).tolist() for n in (7, 1, 30, 12, 3)]


def states_of(model, sequences, form):
    batch = nopad.PackedBatch.from_sequences(sequences, **form)
    with torch.no_grad():
        return batch.unpack_tokens(model(**batch).last_hidden_state)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["bert", "llama", "mistral", "modernbert", "t5"])
def test_the_kernel_gets_what_it_is_documented_to_take(kernel, sequences, kind, form):
    """Llama has groups of queries and heads of 6; Mistral and ModernBERT have windows; T5 has a bias."""
    model = build(kind)
    if kind == "t5":
        with pytest.raises(BatchError, match="knows no position bias"):
            states_of(nopad.packed(model, backend="varlen"), sequences, FORMS[form])
        return
    with torch.no_grad():
        alone = [model(torch.tensor([ids])).last_hidden_state[0] for ids in sequences]
    nopad.packed(model, backend="varlen")
    for found, wanted in zip(states_of(model, sequences, FORMS[form]), alone, strict=True):
        assert (found - wanted).abs().max() < (1e-5 if kind in ("llama", "mistral") else 1e-10)  # norms in float32
    assert kernel
    assert all(shape[0] == sum(map(len, sequences)) and shape[2] == 8 for shape in kernel)


@pytest.mark.parametrize(("kind", "uses"), [("bert", True), ("t5", False), ("gemma2", False)])
def test_auto_takes_what_the_kernel_lacks_sequence_by_sequence(kernel, sequences, monkeypatch, kind, uses):
    if kind == "gemma2":  # of scores that are capped
        model = AutoModel.from_config(tiny(kind), attn_implementation="eager").double().eval()
        sequences = [[token % 61 for token in ids] for ids in sequences]
    else:
        model = build(kind)
    with torch.no_grad():
        alone = [model(torch.tensor([ids])).last_hidden_state[0] for ids in sequences]
    nopad.packed(model)
    monkeypatch.setattr(type(state_of(model)), "_choice", lambda *_: AUTOMATIC)  # what it is on a GPU
    for found, wanted in zip(states_of(model, sequences, {}), alone, strict=True):
        assert (found - wanted).abs().max() < 1e-4
    assert bool(kernel) is uses


def test_dropout_in_training_is_no_error(kernel, sequences, monkeypatch):
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = nopad.packed(BertModel(BertConfig(**sizes)).double().train())
    monkeypatch.setattr(type(state_of(model)), "_choice", lambda *_: AUTOMATIC)
    batch = nopad.PackedBatch.from_sequences(sequences)
    model(**batch).last_hidden_state.sum().backward()
    assert not kernel
    model.eval()
    model(**batch).last_hidden_state.sum().backward()
    assert kernel


def test_autocast_decides_the_dtype(kernel, sequences):
    model = nopad.packed(build("llama").float(), backend="varlen")
    batch = nopad.PackedBatch.from_sequences(sequences)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        model(**batch)
    assert kernel


def test_where_there_is_no_such_kernel(sequences):
    model = nopad.packed(build("bert"), backend="varlen")
    with pytest.raises(BatchError, match=r"runs on CUDA in float16 or bfloat16, and this is cpu in torch\.float64"):
        states_of(model, sequences, {})
    assert backend_of("mask") is not backend_of(AUTOMATIC)


def test_the_audit_of_a_kernel_without_float64(kernel, monkeypatch):
    """In float64 it is of another backend, and says so; in the model's own dtype it is of the kernel."""
    import sys

    monkeypatch.setattr(sys.modules["nopad.model.backends.varlen"], "HALF", (torch.bfloat16,))
    model = build("bert").to(torch.bfloat16)
    for given in (model, nopad.packed(build("bert").to(torch.bfloat16), backend="varlen")):
        kernel.clear()
        backend = "varlen" if given is model else "auto"
        verdict = nopad.audit(given, backend=backend, capacity=16, gradients=given is model)
        assert verdict.isolated, verdict
        assert "the kernel of 'varlen' has no float64: what is measured there is 'segments'" in verdict.notes
        assert {check.name.split()[0] for check in verdict.checks if "outputs" in check.name} == {"float64", "bfloat16"}
        assert "nopad, backend 'varlen'" in str(verdict)
        assert kernel
    assert state_of(given).backend == "varlen"
