"""On a GPU: every backend, the kernel in half precision, autocast, CUDA graphs, compiled models, audits.

The judge is the stock model in float64 on the CPU, on each sequence alone.
"""

from __future__ import annotations

import copy
import sys

import pictures
import pytest
import torch
import transformers as t

import nopad
from nopad.errors import BatchError, NotPackSafeError
from nopad.losses import sequence_loss, token_loss
from nopad.model import pooled, static_inputs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.filterwarnings("ignore"),
]
GPU = "cuda"
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96, "vocab_size": 99}
QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
IDS = dict.fromkeys([f"{name}_token_id" for name in ("pad", "bos", "eos", "cls", "sep")], 0)
LENGTHS = [7, 1, 30, 12, 3, 19, 30, 5]
FORMS = {"flat": nopad.Flat(), "rows": nopad.Rows(40), "end to end": nopad.Rows(37, end_to_end=True)}
KINDS = {
    "bert": lambda: t.BertModel(t.BertConfig(**SIZES, **QUIET)),
    "deberta": lambda: t.DebertaV2Model(
        t.DebertaV2Config(**SIZES, **QUIET, relative_attention=True, position_buckets=8, pos_att_type=["c2p", "p2c"])
    ),
    "llama": lambda: t.LlamaModel(t.LlamaConfig(**SIZES, num_key_value_heads=1)),
    "mistral": lambda: t.MistralModel(t.MistralConfig(**SIZES, num_key_value_heads=1, sliding_window=6)),
    "modernbert": lambda: t.ModernBertModel(t.ModernBertConfig(**SIZES, **IDS, local_attention=8)),
    "t5": lambda: t.T5EncoderModel(
        t.T5Config(vocab_size=99, d_model=64, d_kv=32, num_heads=2, num_layers=2, d_ff=96, dropout_rate=0.0)
    ),
}
LIMITS = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def half():
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


def build(kind):
    torch.manual_seed(0)
    return KINDS[kind]().eval()


def sequences():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, 99, (n,), generator=generator).tolist() for n in LENGTHS]


def alone(model, numbers=None):
    """States and gradients of the stock model on these sequences, in float64 on the CPU."""
    exact = copy.deepcopy(model).double()
    states = [
        exact(input_ids=torch.tensor([sequences()[at]])).last_hidden_state[0] for at in numbers or range(len(LENGTHS))
    ]
    sum(one.square().sum() for one in states).backward()
    return [one.detach() for one in states], {name: p.grad for name, p in exact.named_parameters()}


def check(model, form, dtype):
    """Compare states and gradients, relative to the largest value."""
    wanted, slopes = alone(model)
    subject = model.to(GPU, dtype)
    batch = nopad.PackedBatch.from_sequences(sequences(), FORMS[form]).to(GPU)
    states = batch.unpack_tokens(subject(**batch).last_hidden_state)
    sum(one.double().square().sum() for one in states).backward()
    scale = max(float(one.abs().max()) for one in wanted)
    for found, one in zip(states, wanted, strict=True):
        assert float((found.detach().double().cpu() - one).abs().max()) < LIMITS[dtype] * scale
    largest = max(float(one.abs().max()) for one in slopes.values() if one is not None)
    for name, parameter in subject.named_parameters():
        if slopes[name] is not None:
            apart = float((parameter.grad.double().cpu() - slopes[name]).abs().max())
            assert apart < 2 * LIMITS[dtype] * largest, name


def needs_kernel():
    from nopad.model.backends.varlen import on_kernel

    if not on_kernel(torch.device(GPU)):
        pytest.skip("PyTorch's variable-length kernel takes compute capability 8.0 and torch 2.11")


@pytest.mark.parametrize("backend", ["segments", "mask", "repack"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("precise", [True, False])
@pytest.mark.parametrize("kind", ["bert", "llama", "mistral", "t5"])
def test_backends(kind, backend, form, precise):
    if backend == "mask" and form == "end to end":
        pytest.skip("a mask does not follow sequences into the next row")
    check(nopad.packed(build(kind), backend=backend), form, torch.float32 if precise else half())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["bert", "llama", "mistral", "modernbert"])
def test_the_kernel(kind, form):
    needs_kernel()
    check(nopad.packed(build(kind), backend="varlen"), form, half())


@pytest.mark.slow
@pytest.mark.parametrize("precise", [True, False])
@pytest.mark.parametrize("kind", ["bert", "llama", "mistral"])
def test_flex(kind, precise):
    check(nopad.packed(build(kind), backend="flex"), "rows", torch.float32 if precise else half())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_auto(kind, form):
    """DeBERTa has an attention of its own, T5 a bias that the kernel does not know."""
    check(nopad.packed(build(kind)), form, half())


def test_heads_that_are_too_narrow_for_flex():
    torch.manual_seed(0)
    model = t.BertModel(t.BertConfig(**{**SIZES, "num_attention_heads": 8}, **QUIET)).to(GPU)
    batch = nopad.PackedBatch.from_sequences(sequences(), FORMS["rows"]).to(GPU)
    with pytest.raises(BatchError, match="heads of at least 16"):
        nopad.packed(model, backend="flex")(**batch)


def test_dropout_in_training_by_auto():
    model = nopad.packed(t.BertModel(t.BertConfig(**SIZES)).to(GPU, half()).train())
    batch = nopad.PackedBatch.from_sequences(sequences()).to(GPU)
    model(**batch).last_hidden_state.float().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_autocast_takes_the_kernel(monkeypatch):
    needs_kernel()
    module = sys.modules["nopad.model.backends.varlen"]  # the package has a function of this name
    kernel, calls = module._kernel(), []
    monkeypatch.setattr(module, "_kernel", lambda: lambda *args, **named: calls.append(1) or kernel(*args, **named))
    model = build("llama")
    wanted, _ = alone(model)
    nopad.packed(model.to(GPU))
    batch = nopad.PackedBatch.from_sequences(sequences()).to(GPU)
    with torch.autocast(GPU, dtype=half()), torch.no_grad():
        states = batch.unpack_tokens(model(**batch).last_hidden_state)
    assert len(calls) == 2
    scale = max(float(one.abs().max()) for one in wanted)
    for found, one in zip(states, wanted, strict=True):
        assert float((found.double().cpu() - one).abs().max()) < 5e-2 * scale


def rows_of(model, numbers):
    batch = nopad.PackedBatch.from_sequences([sequences()[at] for at in numbers], nopad.Rows(40, rows=2)).to(GPU)
    return batch, static_inputs(model, batch)


def test_static_rows_as_a_cuda_graph():
    model = nopad.packed(build("bert").to(GPU), backend="mask")
    _, first = rows_of(model, [0, 1, 3])
    held = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in first.items()}

    def step():
        states = model(**held).last_hidden_state
        (states * (held["attention_mask"][:, 0, 0, :, None] != 0)).square().sum().backward()  # without padding
        return states.detach()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        states = step()
    for numbers in ([0, 1, 3], [2, 7], [5, 4, 0]):
        batch, inputs = rows_of(model, numbers)
        for name, value in inputs.items():
            if isinstance(value, torch.Tensor):
                held[name].copy_(value)
        graph.replay()
        torch.cuda.synchronize()
        wanted, slopes = alone(_stock(model), numbers)
        for found, one in zip(batch.unpack_tokens(states), wanted, strict=True):
            assert float((found.double().cpu() - one).abs().max()) < 1e-3
        largest = max(float(one.abs().max()) for one in slopes.values() if one is not None)
        for name, parameter in model.named_parameters():
            if slopes[name] is not None:
                assert float((parameter.grad.double().cpu() - slopes[name]).abs().max()) < 1e-3 * largest, name


def _stock(model):
    stock = KINDS["bert"]().eval()
    stock.load_state_dict({name: value.cpu() for name, value in model.state_dict().items()})
    return stock


@pytest.mark.slow
def test_a_whole_model_compiles_to_one_graph():
    model = build("bert")
    wanted, _ = alone(model)
    nopad.packed(model.to(GPU))
    compiled = torch.compile(model, fullgraph=True)
    for numbers in ([0, 1, 3], [2, 7]):
        batch, inputs = rows_of(model, numbers)
        with torch.no_grad():
            states = batch.unpack_tokens(compiled(**inputs).last_hidden_state)
        for found, at in zip(states, numbers, strict=True):
            assert float((found.double().cpu() - wanted[at]).abs().max()) < 1e-3


def test_gradient_checkpointing():
    model = build("llama").train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    check(nopad.packed(model), "flat", half())


def test_images():
    torch.manual_seed(0)
    sizes = {name: value for name, value in SIZES.items() if name != "vocab_size"}
    model = t.ViTModel(t.ViTConfig(**sizes, image_size=32, patch_size=8)).eval()
    images = [torch.rand(1, 3, *shape) for shape in ((32, 16), (8, 8), (24, 40))]
    with torch.no_grad():
        wanted = [model(image, interpolate_pos_encoding=True).pooler_output[0] for image in images]
        nopad.packed(model.to(GPU))
        states = [model.embeddings(image.to(GPU), interpolate_pos_encoding=True)[0] for image in images]
        batch = nopad.PackedBatch.from_embeddings(states, nopad.Rows(40))
        assert batch["inputs_embeds"].device.type == batch["position_ids"].device.type == GPU
        found = model(**batch).pooler_output
    for mine, one in zip(found.cpu(), wanted, strict=True):
        assert float((mine - one).abs().max()) < 1e-2  # convolutions may take TF32


@pytest.mark.parametrize("kind", ["llava", "qwen2_5_vl", "qwen2_vl"])
def test_images_beside_tokens(kind):
    given, model = pictures.samples(kind), pictures.build(kind)
    given = [{name: value for name, value in one.items() if name != "labels"} for one in given]
    with torch.no_grad():
        wanted = [pictures.alone(model, one).logits[0] for one in given]
        nopad.packed(model.float().to(GPU))
        for form in FORMS.values():
            batch = nopad.PackedBatch.from_features(given, form).to(GPU)
            batch["pixel_values"] = batch["pixel_values"].float()
            found = batch.unpack_tokens(model(**batch).logits)
            for mine, one in zip(found, wanted, strict=True):
                assert float((mine.double().cpu() - one).abs().max()) < 1e-2  # convolutions may take TF32
    with pytest.raises(BatchError, match="pixel_values are on cpu and the model on cuda"):
        model(**{**batch, "pixel_values": batch["pixel_values"].cpu()})


def test_a_batch_that_is_not_moved_is_refused():
    batch = nopad.PackedBatch.from_sequences(sequences())
    with pytest.raises(BatchError, match=r"input_ids are on cpu and the model on cuda:0; use batch\.to\('cuda:0'\)"):
        nopad.packed(build("bert").to(GPU))(**batch)


def test_a_stock_model_is_refused():
    batch = nopad.PackedBatch.from_sequences(sequences()).to(GPU)
    with pytest.raises(NotPackSafeError):
        build("bert").to(GPU)(**batch)
    with pytest.raises(BatchError):  # without its mask
        nopad.packed(build("bert").to(GPU))(input_ids=batch["input_ids"], position_ids=batch["position_ids"])


@pytest.mark.parametrize("per", ["token", "sequence"])
def test_losses(per):
    labels = [[n % 9 for n in range(length)] for length in LENGTHS]
    batch = nopad.PackedBatch.from_sequences(sequences(), FORMS["rows"], columns={"labels": labels})
    logits = torch.randn(*batch.layout.shape, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wanted = token_loss(logits, batch["labels"], batch, per=per)
    found = token_loss(logits.to(GPU), batch["labels"].to(GPU), batch.to(GPU), per=per)
    assert found.device.type == GPU
    assert float(found) == pytest.approx(float(wanted), rel=1e-12)
    scores, classes = logits[0, : len(LENGTHS)], torch.arange(len(LENGTHS))
    single = sequence_loss(scores.to(GPU), classes.to(GPU))
    assert float(single) == pytest.approx(float(sequence_loss(scores, classes)), rel=1e-12)
    means = pooled(logits.to(GPU), batch.to(GPU), "mean").cpu()
    for mine, one in zip(means, batch.unpack_tokens(logits), strict=True):
        assert float((mine - one.mean(0)).abs().max()) < 1e-12


@pytest.mark.parametrize("backend", ["auto", "mask", "segments", "varlen"])
def test_audit(backend):
    if backend == "varlen":
        needs_kernel()
    verdict = nopad.audit(build("bert").to(GPU, half()), backend=backend, capacity=16)
    assert verdict.isolated, verdict
    stock = nopad.audit(build("bert").to(GPU), collator=_flattening)
    assert stock.outcome == "contaminated"


def _flattening(features):
    batch = t.DataCollatorWithFlattening(return_tensors="pt")(features)
    return {name: value.to(GPU) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def test_audit_of_samples():
    def together(model, samples):
        batch = nopad.PackedBatch.from_embeddings(samples, nopad.Rows(24))
        return batch.unpack_tokens(model(**batch).last_hidden_state)

    verdict = nopad.audit_samples(
        nopad.packed(build("bert").to(GPU)),
        [torch.randn(n, 64) for n in (3, 20, 7)],
        alone=lambda model, one: model(inputs_embeds=one[None]).last_hidden_state[0],
        packed=together,
    )
    assert verdict.isolated, verdict
