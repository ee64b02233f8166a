"""Texts in, what the task returns for each text alone out; tokenised by the caller, and one core for all of it."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
import torch
from tests.serving.gate import WAIT, Gate
from tests.tasks.tiny import bert, llama, tokenizer, words
from transformers import BertConfig, BertModel

import nopad
from nopad.errors import LengthError, OptionError, RecordError, RequestError
from nopad.serving import Batching
from nopad.tasks import (
    Answers,
    CausalLM,
    Chat,
    Classification,
    Embedder,
    Embedding,
    MaskedLM,
    Predictor,
    Pretraining,
    Regression,
    SeveralLabels,
    Texts,
    TokenClassification,
)

NAMES = ["bad", "fair", "good"]
CUT = {"max_length": 16, "over_long": "split"}
TEMPLATE = "{% for one in messages %}<|{{ one.role }}|> {{ one.content }} [EOS]{% endfor %}"


def texts(n=40, most=20, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [words(generator, k) for k in torch.randint(1, most, (n,), generator=generator).tolist()]


def pairs(n=30):
    return list(zip(texts(n), texts(n, seed=2), strict=True))


def asked(text):
    return f"{text} [MASK] yes [MASK]"


def base(task):
    return bert(task, "BertModel")


def talk(text):
    return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "yes"}]}


def chats():
    made = tokenizer()
    made.chat_template = TEMPLATE
    return Chat(made)


KINDS = {
    "classify": lambda: (Classification(tokenizer(), NAMES), bert, texts()),
    "pairs": lambda: (Classification(tokenizer(), NAMES, pair="pair"), bert, pairs()),
    "tag": lambda: (SeveralLabels(tokenizer(), NAMES), bert, texts()),
    "rerank": lambda: (Regression(tokenizer(), text="query", pair="document"), bert, pairs()),
    "tokens": lambda: (TokenClassification(tokenizer(), ["O", "B-X", "I-X"], text="text"), bert, texts()),
    "windows of tokens": lambda: (
        TokenClassification(tokenizer(), ["O", "B-X", "I-X"], text="text", **CUT),
        bert,
        texts(most=60),
    ),
    "answers": lambda: (Answers(tokenizer(), max_length=24, stride=4), bert, [(q[:30], c) for q, c in pairs()]),
    "fill": lambda: (MaskedLM(tokenizer()), bert, [asked(one) for one in texts()]),
    "logprob": lambda: (CausalLM(tokenizer()), llama, texts()),
    "parts of a long text": lambda: (CausalLM(tokenizer(), **CUT), llama, texts(most=60)),
    "chat": lambda: (chats(), llama, [talk(one) for one in texts()]),
    "embed": lambda: (Embedding(tokenizer()), base, texts()),
}


def same(ours, theirs):
    """Compare predictions: numbers within 1e-9, all else exactly."""
    assert type(ours) is type(theirs)
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            same(ours[name], theirs[name])
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, rel=0, abs=2e-6)  # embeddings are float32
    else:
        assert ours == theirs


@pytest.mark.parametrize("kind", KINDS)
def test_each_task_answers_as_for_the_request_alone(kind):
    task, model, requests = KINDS[kind]()
    predictor = Predictor(task, model(task))
    expected = [predictor.finish(*alone(predictor, one)) for one in requests]
    with nopad.PackRunner(predictor, Batching(capacity=128)) as runner:
        found = runner(requests)
        same(runner.submit(requests[0]).result(WAIT), expected[0])
        seen = runner.statistics
    for one, other in zip(found, expected, strict=True):
        same(one, other)
    assert (seen.answered, seen.failed) == (len(requests) + 1, 0)
    assert seen.packer.batches < seen.packer.packed  # requests did share batches
    windows = seen.packer.packed > len(requests) + 1
    assert windows == (kind in ("windows of tokens", "parts of a long text", "answers"))


def alone(predictor, request):
    """A request, and the results of its sequences, each in a batch of its own."""
    [prepared], _ = predictor.prepare([request])
    one_by_one = [prepared.sequences.part(at, at + 1) for at in range(len(prepared.sequences))]
    return prepared, [predictor.run_batch(nopad.PackedBatch.from_columns(one))[0] for one in one_by_one]


def test_records_are_requests_too_and_rows_can_be_fixed():
    task = Classification(tokenizer(), NAMES, pair="pair")
    predictor = Predictor(task, bert(task))
    records = [{"text": one, "pair": other} for one, other in pairs()]
    expected = predictor(records)
    for batching in (None, Batching(capacity=64, rows=3), Batching(capacity=64, rows=2, policy="end_to_end")):
        with nopad.PackRunner(predictor, batching) as runner:
            for one, other in zip(runner(records), expected, strict=True):
                same(one, other)


def an_embedder(**how):
    task = Embedding(tokenizer())
    return Embedder(base(task), tokenizer(), **how)


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_an_embedder_gives_the_vectors_of_encode(pooling):
    embedder, some = an_embedder(pooling=pooling), texts(150)
    with nopad.PackRunner(embedder, Batching(capacity=64)) as runner:
        found = runner(some)
        one = runner(some[3])
        futures = [runner.submit(text) for text in some[:5]]
        for future, vector in zip(futures, found, strict=False):
            np.testing.assert_allclose(future.result(WAIT), vector, rtol=0, atol=1e-6)
        assert runner([]).shape == (0, 32)
    assert (found.dtype, found.shape, one.shape) == (np.float32, (150, 32), (32,))
    np.testing.assert_allclose(found, np.concatenate([embedder.encode([text]) for text in some]), rtol=0, atol=1e-6)


def test_requests_with_different_prompts_share_a_batch():
    prompts = Texts(prompts={"query": "is it ", "passage": "the a of "}, include_prompt=False)
    embedder = an_embedder(texts=prompts)
    some, names = texts(20), [None, "query", "passage"]
    gate = Gate(embedder.model)
    with nopad.PackRunner(embedder, warm_up=False) as runner:
        first = runner.submit("yes")
        assert gate.entered.wait(WAIT)
        futures = [
            runner.submit(text, **({} if names[n % 3] is None else {"prompt_name": names[n % 3]}))
            for n, text in enumerate(some)
        ]
        gate.open.set()
        assert first.result(WAIT).shape == (32,)
        found = [future.result(WAIT) for future in futures]
        assert runner.statistics.packer.batches == 2
    for n, (text, vector) in enumerate(zip(some, found, strict=True)):
        expected = embedder.encode([text], prompt_name=names[n % 3]) if names[n % 3] else embedder.encode([text])
        np.testing.assert_allclose(vector, expected[0], rtol=0, atol=1e-6)


def test_long_texts_and_what_a_task_leaves_out():
    embedder = an_embedder(max_tokens=8)
    long = " ".join(["yes"] * 20)
    with nopad.PackRunner(embedder) as runner:
        with pytest.raises(LengthError, match="text 0 has 22 tokens, and 8 is the most"):
            runner(long)
        with pytest.raises(LengthError, match="text 70 has 22 tokens"):
            runner(["no"] * 70 + [long])
        cut = runner(["no", long], over_long="truncate")
        assert runner.statistics.counts == {"truncated": 1}
    np.testing.assert_allclose(cut, embedder.encode(["no", long], over_long="truncate"), rtol=0, atol=1e-6)
    task = Classification(tokenizer(), NAMES, max_length=8, over_long="drop")
    with nopad.PackRunner(Predictor(task, bert(task))) as runner:
        assert runner(long) is None
        found = runner([long, "yes", long])
        assert [one is None for one in found] == [True, False, True]
        assert runner.statistics.counts == {"dropped": 3}
        assert runner.statistics.answered == 1


def test_tokenising_is_not_done_by_the_worker(monkeypatch):
    embedder, seen = an_embedder(), set()
    plain = embedder.tokenizer.encode

    def encode(some):
        seen.add(threading.current_thread().name)
        return plain(some)

    monkeypatch.setattr(embedder.tokenizer, "encode", encode)
    with nopad.PackRunner(embedder) as runner:
        runner(texts(100))
        asked = threading.Thread(target=runner, args=("yes",), name="asks")
        asked.start()
        asked.join(WAIT)
    assert seen == {threading.current_thread().name, "asks"}


class Counted:
    """A tokenizer that counts the texts of each call; a call of several texts uses all cores."""

    def __init__(self, inner):
        self.inner, self.calls = inner, []

    def encode_batch_fast(self, some, **how):
        self.calls.append(len(some))
        return self.inner.encode_batch_fast(some, **how)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_texts_are_tokenised_in_the_callers_thread_only_beside_a_model_on_the_cpu(device, monkeypatch):
    embedder, some = an_embedder(), texts(20)
    monkeypatch.setattr("nopad.serving.runner.device_of", lambda _: torch.device(device))
    embedder.tokenizer._inner = counted = Counted(embedder.tokenizer._inner)
    with nopad.PackRunner(embedder, warm_up=False) as runner:
        found = runner(some)
        assert counted.calls == ([1] * 20 if device == "cpu" else [20])
    counted.calls.clear()
    np.testing.assert_allclose(found, embedder.encode(some), rtol=0, atol=1e-6)
    assert counted.calls == [20]


def test_the_first_requests_run_while_the_next_are_tokenised(monkeypatch):
    """The second part of a call is tokenised only once the first one runs: else this waits for ever."""
    embedder, runs = an_embedder(), threading.Event()
    plain, calls = embedder.tokenizer.encode, []

    def encode(some):
        calls.append(len(some))
        assert len(calls) == 1 or runs.wait(WAIT)
        return plain(some)

    with nopad.PackRunner(embedder) as runner:
        embedder.model.register_forward_pre_hook(lambda *_: runs.set())
        monkeypatch.setattr(embedder.tokenizer, "encode", encode)
        assert len(runner(texts(350))) == 350
    assert calls == [64, 286]


def test_awaiting():
    embedder = an_embedder()

    async def ask(runner):
        return await asyncio.gather(*(runner.submit(text) for text in texts(10)))

    with nopad.PackRunner(embedder) as runner:
        found = asyncio.run(ask(runner))
        np.testing.assert_allclose(np.stack(found), embedder.encode(texts(10)), rtol=0, atol=1e-6)


def test_a_poisoned_text_fails_alone():
    embedder = an_embedder()
    poison = int(tokenizer().convert_tokens_to_ids("cat"))
    with torch.no_grad():
        embedder.model.embeddings.word_embeddings.weight[poison] = float("nan")
    some = [text.replace("cat", "dog") for text in texts(100)]
    some[41] = "the cat"
    with nopad.PackRunner(embedder) as runner:
        futures = [runner.submit(text) for text in some]
        with pytest.raises(RequestError, match="the model gives NaN for this text"):
            futures[41].result(WAIT)
        del futures[41]
        assert np.isfinite([future.result(WAIT) for future in futures]).all()
    with pytest.raises(RecordError, match="text 41: the model gives NaN for it"):
        embedder.encode(some)


def test_what_is_no_text():
    with nopad.PackRunner(an_embedder()) as runner:
        for given in (5, None, b"yes", {"a"}):
            with pytest.raises(OptionError, match="expected"):
                runner(given)
        for one in ({"text": "yes"}, 5):
            with pytest.raises(
                OptionError, match=r"of type (dict|int); expected one request \(a text\), or a list of them"
            ):
                runner(one)
        with pytest.raises(OptionError, match="text 0 is of type list; expected a str"):
            runner.submit(["yes"])
        with pytest.raises(OptionError, match="text 65 is of type int; expected a str"):
            runner(["yes"] * 65 + [1])
        with pytest.raises(OptionError, match="there is no option 'out' of a text"):
            runner("yes", out={})
        with pytest.raises(OptionError, match="there is no prompt named 'query'"):
            runner("yes", prompt_name="query")
    task = Classification(tokenizer(), NAMES, pair="pair")
    with nopad.PackRunner(Predictor(task, bert(task))) as runner:
        with pytest.raises(
            RecordError, match="record 1 is 'yes'; the task classify takes a dict of text, pair, or 2 te"
        ):
            runner([("is it", "yes"), "yes"])
        with pytest.raises(OptionError, match="this task has no prompt; give them to the task itself"):
            runner(("is it", "yes"), prompt="a")


def test_what_runners_refuse():
    with pytest.raises(OptionError, match="fast and widths are for models, and a Embedder is given; leave them out"):
        nopad.PackRunner(an_embedder(), widths="given")
    task = Pretraining(tokenizer(), max_length=32)
    with (
        nopad.PackRunner(Predictor(task, bert(task, "BertForPreTraining"))) as runner,
        pytest.raises(OptionError, match="the task pretrain combines records at random, and answers none by itself"),
    ):
        runner.submit("yes")


def test_an_embedder_in_int8_gives_each_text_what_it_gets_alone_to_the_last_bit():
    given, (exact, rough) = texts(30), (Embedder(small(), tokenizer(), precision=one) for one in (None, "int8"))
    alone = np.concatenate([rough.encode([text]) for text in given])
    with nopad.PackRunner(rough, Batching(capacity=100)) as runner:
        found = runner(given)
        assert runner.statistics.packer.batches > 1
    assert np.array_equal(found, alone)
    assert ((found * exact.encode(given)).sum(1) >= 0.99).all()
    assert abs(found - exact.encode(given)).max() > 1e-5  # it did compute in int8


def small():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return BertModel(BertConfig(**sizes), add_pooling_layer=False).eval()
