"""torch.compile: one graph for a whole dataset of rows, however its sequences fall."""

from __future__ import annotations

import pytest
import torch
from zoo import build

import nopad
from nopad.errors import BatchError, OptionError, UnsupportedModelError
from nopad.model import static_inputs

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler's own, of torch's internals


@pytest.fixture(autouse=True)
def counters():
    """What the compiler counts, from nothing; it is imported here because that takes seconds."""
    import torch._dynamo
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    return counters


def drawn(seed, columns=False):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 30, (12,), generator=generator).tolist()
    sequences = [torch.randint(5, 99, (n,), generator=generator) for n in lengths]
    how = {"columns": {"labels": sequences}} if columns else {}
    return nopad.PackedBatch.from_sequences(sequences, form=nopad.Rows(64, rows=6), **how)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "head", "name"),
    [
        ("bert", "base", "last_hidden_state"),
        ("roberta", "masked LM", "logits"),
        ("modernbert", "token classification", "logits"),
        ("llama", "causal LM", "logits"),
        ("qwen3", "base", "last_hidden_state"),
        ("gpt2", "base", "last_hidden_state"),
    ],
)
def test_one_graph_for_a_whole_dataset(kind, head, name, counters):
    model = nopad.packed(build(kind, head), backend="mask")
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    labelled = head.endswith("LM")
    for seed in range(8):
        batch = drawn(seed, labelled)
        wanted, found = model(**batch), compiled(**static_inputs(model, batch))
        real = batch.layout.sequence_ids > 0
        assert torch.allclose(found[name][real], wanted[name][real], atol=1e-12)
        assert found.get("pooler_output") is None
        if labelled:
            assert torch.allclose(found.loss, wanted.loss, atol=1e-12)
            compiled(**static_inputs(model, batch)).loss.backward()
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


@pytest.mark.slow
def test_batches_sorted_by_length_compile_again_and_again(counters):
    model = build("bert")
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=False)
    for width in (5, 12, 19, 30):
        compiled(input_ids=torch.randint(5, 99, (4, width)))
    assert counters["stats"]["unique_graphs"] == 4


@pytest.mark.slow
def test_inductor_gives_the_same_numbers(inductor, counters):
    model = nopad.packed(build("bert", "masked LM", dtype=torch.float32, num_hidden_layers=1), backend="mask")
    compiled = torch.compile(model, fullgraph=True)
    with torch.no_grad():
        for seed in range(3):
            batch = drawn(seed)
            real = batch.layout.sequence_ids > 0
            found, wanted = compiled(**static_inputs(model, batch)).logits[real], model(**batch).logits[real]
            assert torch.allclose(found, wanted, atol=1e-5)
    assert counters["stats"]["unique_graphs"] == 1


def test_the_same_without_compiling():
    model = nopad.packed(build("roberta"), backend="mask")
    batch = drawn(0)
    real = batch.layout.sequence_ids > 0
    assert torch.equal(model(**static_inputs(model, batch))[0][real], model(**batch)[0][real])


def test_refusals():
    with pytest.raises(BatchError, match="a compiled model takes rows"):
        static_inputs(nopad.packed(build("bert")), nopad.PackedBatch.from_sequences([[1]]))
    with pytest.raises(OptionError, match="this BertModel is not pack-safe; make it so"):
        static_inputs(build("bert"), drawn(0))
    with pytest.raises(UnsupportedModelError, match="compile its layers one by one"):
        static_inputs(nopad.packed(build("deberta")), drawn(0))
    for kind, head in (("bert", "sequence classification"), ("llama", "question answering")):
        with pytest.raises(OptionError, match="gives a result per sequence, and static shapes need a limit"):
            static_inputs(nopad.packed(build(kind, head)), drawn(0))
    mean = build("modernbert", "sequence classification", classifier_pooling="mean")
    with pytest.raises(UnsupportedModelError, match="takes means by its own mask, which static shapes do not give"):
        static_inputs(nopad.packed(mean, max_sequences=15), drawn(0))
    with pytest.raises(
        BatchError, match="12 sequences, and this model was made pack-safe for 11; plan with a smaller depth"
    ):
        static_inputs(nopad.packed(build("bert"), max_sequences=11), drawn(0))
    with pytest.raises(
        BatchError, match="12 sequences, and this model was made pack-safe for 3; plan with a smaller depth"
    ):
        nopad.packed(build("bert"), max_sequences=3)(**drawn(0))
    long = nopad.PackedBatch.from_sequences([[5] * 79], form=nopad.Rows(80))
    with pytest.raises(BatchError, match="sequence 0 has 79 tokens, and RobertaModel has 78 positions"):
        static_inputs(nopad.packed(build("roberta")), long)
    for most in (0, 2.5, "3"):
        with pytest.raises(OptionError, match=f"max_sequences must be an integer from 1 .*, got {most!r}"):
            nopad.packed(build("bert"), max_sequences=most)


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=pytest.mark.slow), False], ids=["compiled", "as it is"])
@pytest.mark.parametrize(
    ("kind", "head", "names"),
    [
        ("bert", "base", ["pooler_output"]),
        ("bert", "sequence classification", ["logits"]),
        ("bert", "next sentence", ["logits"]),
        ("roberta", "sequence classification", ["logits"]),
        ("modernbert", "sequence classification", ["logits"]),
        ("distilbert", "sequence classification", ["logits"]),
        ("llama", "sequence classification", ["logits"]),
        ("gpt2", "sequence classification", ["logits"]),
        ("bert", "question answering", ["start_logits", "end_logits"]),
        ("qwen3", "question answering", ["start_logits", "end_logits"]),
    ],
)
def test_heads_per_sequence_have_static_shapes(kind, head, names, compiled, counters):
    model = nopad.packed(build(kind, head), backend="mask", max_sequences=15)
    run = torch.compile(model, fullgraph=True, backend="eager") if compiled else model
    for seed in range(6):
        batch = drawn(seed)
        wanted, found = model(**batch), run(**static_inputs(model, batch))
        for name in names:
            assert found[name].shape[0] == 15
            got = found[name][: batch.layout.sequences]
            if head == "question answering":
                assert torch.isneginf(got[:, batch.layout.max_seqlen :]).all()
                got = got[:, : batch.layout.max_seqlen]
            torch.testing.assert_close(got, wanted[name], atol=1e-12, rtol=0)
    if compiled:  # what a row's head cannot be handed is gathered behind the model, in a small graph of its own
        behind = head == "question answering" or kind in ("llama", "gpt2")
        assert counters["stats"]["unique_graphs"] == 1 + behind
        assert not counters["graph_break"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "deberta-v2"])
def test_layers_compiled_one_by_one(kind):
    model = nopad.packed(build(kind, "sequence classification"), backend="mask")
    wanted = [model(**drawn(seed)).logits for seed in range(3)]
    base = getattr(model, model.base_model_prefix)
    for layer in base.encoder.layer:
        layer.compile(backend="eager")
    for seed in range(3):
        assert torch.allclose(model(**drawn(seed)).logits, wanted[seed], atol=1e-12)
