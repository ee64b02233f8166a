"""Runners on compiled models: one graph for all batches, and every result that of the request alone."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from tests.serving.test_runner import a_model, alone, close, some_ids
from tests.serving.test_tasks import KINDS, an_embedder, same, texts
from tests.serving.test_tasks import alone as alone_by
from transformers import (
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    DebertaConfig,
    DebertaModel,
    DistilBertConfig,
    DistilBertModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    MambaConfig,
    MambaModel,
)

import nopad
from nopad.errors import OptionError, RequestError, UnsupportedModelError
from nopad.serving import Batching
from nopad.serving.batching import POLICIES
from nopad.tasks import Predictor

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler's own, of torch's internals

MOST = 9
POISON = 119
HEADS = (BertForSequenceClassification, BertForTokenClassification, BertForQuestionAnswering)
ROWS = Batching(capacity=64, rows=2, max_sequences=MOST)


@pytest.fixture(autouse=True)
def counters():
    """What the compiler counts, from nothing; it is imported here because that takes seconds."""
    import torch._dynamo
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    return counters


def compiled(model, backend="eager", most=MOST):
    return torch.compile(nopad.packed(model, max_sequences=most), backend=backend, fullgraph=True)


def a_llama(kind=LlamaForCausalLM):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return kind(LlamaConfig(**sizes, vocab_size=120, num_key_value_heads=1, pad_token_id=0)).double().eval()


class Replays:
    """A backend of torch.compile that gives its outputs as a CUDA graph does: each call in the same memory."""

    def __init__(self):
        self.shapes = set()

    def __call__(self, graph, inputs):
        kept = []

        def run(*args):
            self.shapes.add(tuple(tuple(one.shape) for one in args if isinstance(one, torch.Tensor)))
            found = graph(*args)
            if not kept:
                kept.extend(one.clone() for one in found)
            for mine, one in zip(kept, found, strict=True):
                mine.copy_(one)
            return tuple(kept)

        return run


def fussy(graph, inputs):
    """A backend whose graphs fail for a token."""

    def run(*args):
        if any(one.dtype == torch.int64 and bool((one == POISON).any()) for one in args):
            raise ValueError("poison")
        return graph(*args)

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "policies"),
    [
        (BertModel, [policy for policy in POLICIES if policy != "end_to_end"]),  # one graph for them all
        (BertModel, ["end_to_end"]),
        *product(HEADS, (["look_ahead"], ["end_to_end"])),
    ],
)
def test_every_result_is_that_of_the_request_alone(kind, policies, counters):
    plain, sequences, backend = a_model(kind), some_ids(60), Replays()
    model, expected = compiled(a_model(kind), backend), [alone(plain, ids) for ids in sequences]
    for policy in policies:
        batching = Batching(capacity=64, rows=2, policy=policy, max_sequences=MOST)
        with nopad.PackRunner(model, batching) as runner:
            graphs = counters["stats"]["unique_graphs"]
            found = runner({"input_ids": ids} for ids in sequences)
            single = runner({"input_ids": sequences[0]})
            typed = runner({"input_ids": [5, 6, 7], "token_type_ids": [0, 1, 1]})
            seen = runner.statistics
        for result, wanted in zip([*found, single], [*expected, expected[0]], strict=True):
            close(result, wanted)
        close(typed, alone(plain, [5, 6, 7], [0, 1, 1]))
        assert (seen.answered, seen.failed) == (62, 0)
        assert seen.packer.batches < 40
        # Question answering reads its logits behind the model, in a small graph of its own. The warm-up made them all.
        made = 1 + (kind is BertForQuestionAnswering)
        assert counters["stats"]["unique_graphs"] == graphs == len(backend.shapes) == made
        assert not counters["graph_break"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [LlamaForCausalLM, LlamaForSequenceClassification])
def test_causal_models(kind, counters):
    plain, sequences = a_llama(kind), some_ids(40)
    with nopad.PackRunner(compiled(a_llama(kind), Replays()), ROWS) as runner:
        found = runner({"input_ids": ids} for ids in sequences)
    for ids, result in zip(sequences, found, strict=True):
        with torch.no_grad():
            logits = plain(input_ids=torch.tensor([ids])).logits[0]
        assert torch.allclose(result["logits"], logits, rtol=0, atol=1e-12)
    assert counters["stats"]["unique_graphs"] == 1 + (kind is LlamaForSequenceClassification)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "within"),
    [pytest.param(a_model, 1e-12, marks=pytest.mark.soak), (a_llama, 1e-6)],  # Llama's norms are float32
)
def test_inductor(make, within, inductor, counters):
    """What a user writes, with PyTorch's own compiler: one compilation, before the runner is ready."""
    plain, sequences = make(), some_ids(30)
    model = nopad.packed(make(), max_sequences=MOST)
    with torch._dynamo.config.patch(error_on_recompile=True), nopad.PackRunner(model, ROWS, compile=True) as runner:
        assert counters["stats"]["unique_graphs"] == 1
        found = runner({"input_ids": ids} for ids in sequences)
    for ids, result in zip(sequences, found, strict=True):
        with torch.no_grad():
            wanted = plain(input_ids=torch.tensor([ids]))
        for name in result:
            assert torch.allclose(result[name], wanted[name][0], rtol=0, atol=within)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classify", "windows of tokens", "answers", "fill", "logprob", "embed"])
def test_tasks(kind, counters):
    task, model, requests = KINDS[kind]()
    eager = Predictor(task, model(task))
    expected = [eager.finish(*alone_by(eager, one)) for one in requests]
    predictor = Predictor(task, compiled(model(task), Replays()))
    batching = Batching(capacity=128, rows=2, max_sequences=MOST)
    with nopad.PackRunner(predictor, batching) as runner:
        graphs = counters["stats"]["unique_graphs"]
        found = runner(requests)
    for one, other in zip(found, expected, strict=True):
        same(one, other)
    assert counters["stats"]["unique_graphs"] == graphs <= 2


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_embedders_need_no_limit_of_sequences(pooling, counters):
    embedder, some = an_embedder(pooling=pooling), texts(80)
    wanted = embedder.encode(some)
    embedder.model = torch.compile(embedder.model, backend=Replays(), fullgraph=True)
    with nopad.PackRunner(embedder, Batching(capacity=64, rows=3)) as runner:
        found = runner(some)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.slow
def test_an_embedder_still_encodes_beside_its_compiled_runner(inductor):
    embedder, some = an_embedder(), texts(20)
    with nopad.PackRunner(embedder, Batching(capacity=64, rows=2), compile="max-autotune-no-cudagraphs") as runner:
        np.testing.assert_allclose(runner(some), embedder.encode(some), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_model_that_was_compiled_in_place(counters):
    plain, model = a_model(), nopad.packed(a_model(), max_sequences=MOST)
    model.compile(backend="eager", fullgraph=True)
    with nopad.PackRunner(model, ROWS) as runner:
        found = runner({"input_ids": ids} for ids in some_ids(20))
    for ids, result in zip(some_ids(20), found, strict=True):
        close(result, alone(plain, ids))
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.slow
def test_many_runners_in_one_process():
    """PyTorch gives up after a few compilations of one function; each runner has its own."""
    for n in range(12):
        batching = Batching(capacity=40 + n, rows=1, max_sequences=MOST)
        with nopad.PackRunner(compiled(a_model()), batching) as runner:
            close(runner({"input_ids": [5, 6, 7]}), alone(a_model(), [5, 6, 7]))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raises", "nan"])
@pytest.mark.parametrize("policy", ["first_fit", "end_to_end"])
def test_one_poisoned_request_among_a_hundred(how, policy):
    """A dense mask multiplies values of other sequences by 0, so NaN reaches a row's others: they run again."""
    plain, model = a_model(), a_model()
    if how == "nan":
        with torch.no_grad():
            model.embeddings.word_embeddings.weight[POISON] = float("nan")
    sequences = [[min(one, POISON - 1) for one in ids] for ids in some_ids(100)]
    sequences[37][0] = sequences[38][0] = POISON
    batching = Batching(capacity=64, rows=2, policy=policy, max_sequences=MOST, accumulate=True, wait_s=0.05)
    with nopad.PackRunner(compiled(model, fussy if how == "raises" else "eager"), batching) as runner:
        futures = [runner.submit({"input_ids": ids}) for ids in sequences]
        for n, (ids, future) in enumerate(zip(sequences, futures, strict=True)):
            if n in (37, 38):
                with pytest.raises(RequestError, match="poison" if how == "raises" else "the model gives NaN for this"):
                    future.result(60)
            else:
                close(future.result(60), alone(plain, ids))
        assert (runner.statistics.answered, runner.statistics.failed) == (98, 2)
        assert runner.statistics.packer.batches < 80  # requests did share batches


@pytest.mark.slow
def test_padded_rows_widths_and_buffers():
    plain = a_model()
    rows = {"input_ids": torch.tensor([[0, 8, 9, 7], [5, 6, 0, 0]])}
    rows["attention_mask"] = (rows["input_ids"] > 0).long()
    buffer = torch.full((2, 4, 16), torch.nan, dtype=torch.float64)
    model = compiled(a_model(), Replays())
    with nopad.PackRunner(model, ROWS) as runner:
        found = runner(rows, out={"last_hidden_state": buffer})
        runner({"input_ids": [99] * 30})
    assert found["last_hidden_state"] is buffer
    for row, ids, begin in ((0, [8, 9, 7], 1), (1, [5, 6], 0)):
        wanted = alone(plain, ids)
        inside = buffer[row, begin : begin + len(ids)]
        assert torch.allclose(inside, wanted["last_hidden_state"], rtol=0, atol=1e-12)
        assert torch.allclose(found["pooler_output"][row], wanted["pooler_output"], rtol=0, atol=1e-12)
    assert buffer[1, 2:].abs().sum() == 0
    with nopad.PackRunner(model, ROWS, widths=6) as runner:
        assert runner({"input_ids": [5, 6]})["last_hidden_state"].shape == (6, 16)


def small(kind, config, **more):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return nopad.packed(kind(config(**{**sizes, "vocab_size": 120, **more})))


MODELS = {
    "flat": (lambda: nopad.packed(a_model()), {"batching": None}, OptionError, r"rows of one shape, and batches are"),
    "flat batching": (
        lambda: nopad.packed(a_model()),
        {"batching": Batching(capacity=64)},
        OptionError,
        r"give batching=Batching\(capacity=64, rows=8\)",
    ),
    "mode": (lambda: nopad.packed(a_model()), {"compile": "fast"}, OptionError, "compile is 'fast'; it is True, Fal"),
    "number": (lambda: nopad.packed(a_model()), {"compile": 1}, OptionError, "compile is 1; it is True, False, or a"),
    "twice": (lambda: compiled(a_model()), {}, OptionError, "this BertModel is compiled already, .* leave compile out"),
    "fast": (lambda: nopad.packed(a_model(), max_sequences=MOST), {"fast": True}, OptionError, "leave fast or compile"),
    "by sequence": (
        lambda: nopad.packed(a_model(BertForSequenceClassification)),
        {},
        OptionError,
        r"BertForSequenceClassification gives a result per sequence, .* limit: nopad.packed\(model, max_sequences=",
    ),
    "pooler": (
        lambda: nopad.packed(a_model()),
        {},
        OptionError,
        "BertModel gives a result per sequence beside those per token .*; or load the model with add_pooling_layer=Fa",
    ),
    "two heads": (lambda: nopad.packed(a_model(BertForPreTraining)), {}, OptionError, "BertForPreTraining gives a re"),
    "no limit of batches": (
        lambda: nopad.packed(a_model(), max_sequences=4),
        {"batching": Batching(capacity=64, rows=2)},
        OptionError,
        r"give Batching\(max_sequences=4\)",
    ),
    "own attention": (lambda: small(DebertaModel, DebertaConfig), {}, UnsupportedModelError, "DebertaModel is not com"),
    "mixers": (
        lambda: small(MambaModel, MambaConfig),
        {},
        UnsupportedModelError,
        "MambaMixer modules of MambaModel are run sequence by sequence",
    ),
}


@pytest.mark.parametrize("case", MODELS)
def test_runners_that_are_refused(case):
    make, how, error, message = MODELS[case]
    with pytest.raises(error, match=message):
        nopad.PackRunner(make(), **{"batching": ROWS, "compile": True, **how})


def test_outputs_that_are_refused():
    model = nopad.packed(a_model(), max_sequences=MOST)
    model.config.return_dict = False
    with pytest.raises(OptionError, match=r"BertModel returns no named outputs; set config.return_dict = True"):
        nopad.PackRunner(model, ROWS, compile=True)
    moe = a_llama()
    moe.config.output_router_logits = True
    with pytest.raises(OptionError, match=r"asks for the logits of routers .* set model.config.output_router_logi"):
        nopad.PackRunner(nopad.packed(moe), ROWS, compile=True)


def test_a_compiled_model_takes_no_flat_batches():
    with pytest.raises(OptionError, match="a compiled model takes rows of one shape, and batches are flat"):
        nopad.PackRunner(compiled(a_model()), Batching(capacity=64, max_sequences=MOST))


@pytest.mark.slow
def test_a_model_that_does_not_compile_is_refused_before_the_first_request(caplog):
    def fails(graph, inputs):
        raise RuntimeError("no kernel\n  for this")

    with pytest.raises(
        UnsupportedModelError, match=r"BertModel does not run compiled: .*no kernel for this.* leave co"
    ):
        nopad.PackRunner(compiled(a_model(), fails), ROWS)
    assert "worker of a PackRunner died" not in caplog.text
    with nopad.PackRunner(compiled(a_model(), fails), ROWS, warm_up=False) as runner:
        with pytest.raises(RequestError, match="no kernel"):
            runner({"input_ids": [5, 6]})
        assert runner.healthy


@pytest.mark.slow
def test_models_without_a_pooler_need_no_limit(counters):
    sizes = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32, "vocab_size": 120}
    torch.manual_seed(0)
    model = DistilBertModel(DistilBertConfig(**sizes)).double().eval()
    with torch.no_grad():
        wanted = [model(input_ids=torch.tensor([ids])).last_hidden_state[0] for ids in some_ids(30)]
    with nopad.PackRunner(compiled(model, most=None), Batching(capacity=64, rows=2)) as runner:
        found = runner({"input_ids": ids} for ids in some_ids(30))
    for result, one in zip(found, wanted, strict=True):
        assert torch.allclose(result["last_hidden_state"], one, rtol=0, atol=1e-12)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("kind", [BertModel, BertForSequenceClassification, BertForQuestionAnswering])
def test_cuda_graphs_keep_no_result(kind, counters):
    """Results stay what they are while later batches are replayed over the memory in which they were computed."""
    plain, sequences = a_model(kind), some_ids(100)
    model = nopad.packed(a_model(kind).to("cuda"), max_sequences=MOST)
    with nopad.PackRunner(model, ROWS, compile="reduce-overhead") as runner:
        futures = [runner.submit({"input_ids": ids}) for ids in sequences]
        results = [future.result(60) for future in futures]
    assert not counters["inductor"]["cudagraph_skips"]
    for ids, result in zip(sequences, results, strict=True):
        wanted = alone(plain, ids)
        for name, value in wanted.items():
            assert torch.allclose(result[name].cpu(), value, rtol=0, atol=1e-10)
