from __future__ import annotations

import asyncio
import copy
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tests.serving.gate import WAIT, Gate
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    LlamaConfig,
    LlamaModel,
)
from transformers.models.bert.modeling_bert import BertLayer

import nopad
from nopad.errors import (
    BatchError,
    DeadlineError,
    LengthError,
    OptionError,
    QueueFullError,
    RequestError,
    RunnerClosedError,
)
from nopad.model import linear
from nopad.serving import Batching

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
CONFIG = {**SIZES, "vocab_size": 120, "max_position_embeddings": 64, "num_labels": 2}
POISON = 13

BATCHINGS = [
    None,
    Batching(capacity=64, rows=2, policy="first_fit"),
    Batching(capacity=64, rows=3, policy="look_ahead"),
    Batching(capacity=64, rows=2, policy="end_to_end", max_sequences=5),
    Batching(capacity=128, accumulate=True, wait_s=0.002),
]


def a_model(kind=BertModel, dtype=torch.float64):
    torch.manual_seed(0)
    return kind(BertConfig(**CONFIG)).to(dtype).eval()


def some_ids(n, seed=0, longest=40):
    draw = random.Random(seed)
    return [[draw.randint(20, 119) for _ in range(draw.randint(1, longest))] for _ in range(n)]


def alone(model, ids, types=None):
    given = {"input_ids": torch.tensor([ids])}
    if types is not None:
        given["token_type_ids"] = torch.tensor([types])
    with torch.no_grad():
        return {name: value[0] for name, value in model(**given).items()}


def close(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name].shape == value.shape
        assert torch.allclose(ours[name], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize(
    "kind", [BertModel, BertForSequenceClassification, BertForTokenClassification, BertForQuestionAnswering]
)
def test_every_result_is_that_of_the_request_alone(kind, batching):
    plain, model = a_model(kind), nopad.packed(a_model(kind))
    sequences = some_ids(60)
    with nopad.PackRunner(model, batching) as runner:
        found = runner({"input_ids": ids} for ids in sequences)
        seen = runner.statistics
    for ids, result in zip(sequences, found, strict=True):
        close(result, alone(plain, ids))
    assert (seen.answered, seen.failed, seen.packer.arrived) == (60, 0, 60)
    assert seen.us_per_token > 0
    assert seen.packer.batches < 60


def test_padding_is_removed_and_types_are_used():
    plain, model = a_model(), nopad.packed(a_model())
    with nopad.PackRunner(model) as runner:
        typed = runner.submit(
            {"input_ids": np.array([5, 6, 7, 0]), "attention_mask": [1, 1, 1, 0], "token_type_ids": [0, 1, 1, 0]}
        )
        left = runner.submit({"input_ids": torch.tensor([0, 0, 8, 9]), "attention_mask": torch.tensor([0, 0, 1, 1])})
        close(typed.result(WAIT), alone(plain, [5, 6, 7], [0, 1, 1]))
        close(left.result(WAIT), alone(plain, [8, 9]))


def test_widths():
    model = nopad.packed(a_model(BertForQuestionAnswering))
    padded = {"input_ids": [0, 8, 9, 0, 0], "attention_mask": [0, 1, 1, 0, 0]}
    infinite = float("-inf")
    with nopad.PackRunner(model) as runner:
        own = runner(padded)["start_logits"]
    with nopad.PackRunner(model, widths="given") as runner:
        given = runner(padded)["start_logits"]
    with nopad.PackRunner(model, widths=3) as runner:
        fixed = runner(padded)["start_logits"]
        with pytest.raises(LengthError, match="a request has 4 tokens, and results are 3 wide"):
            runner({"input_ids": [1, 2, 3, 4]})
    assert given.tolist() == [infinite, *own.tolist(), infinite, infinite]
    assert fixed.tolist() == [*own.tolist(), infinite]
    base = nopad.packed(a_model())
    with nopad.PackRunner(base, widths="given") as runner:
        result = runner(padded)
    assert result["last_hidden_state"].shape == (5, 16)
    assert result["pooler_output"].shape == (16,)
    assert result["last_hidden_state"].abs().sum(dim=1).gt(0).tolist() == [False, True, True, False, False]


def a_poisoned_model(how):
    """A model that raises an error for every batch with the id `POISON`, or returns NaN for it."""
    model = a_model()
    if how == "nan":
        with torch.no_grad():
            model.embeddings.word_embeddings.weight[POISON] = float("nan")
        return model

    def poisoned(module, arguments, named):
        if (named["input_ids"] == POISON).any():
            raise ValueError("poison")

    model.register_forward_pre_hook(poisoned, with_kwargs=True)
    return model


@pytest.mark.parametrize("how", ["raises", "nan"])
@pytest.mark.parametrize("batching", BATCHINGS)
def test_one_poisoned_request_among_a_hundred(how, batching):
    plain, model = a_model(), nopad.packed(a_poisoned_model(how))
    gate = Gate(model)
    sequences = some_ids(100)
    sequences[37][0] = POISON
    with nopad.PackRunner(model, batching, warm_up=False) as runner:
        futures = [runner.submit({"input_ids": ids}) for ids in sequences]
        gate.open.set()
        for n, (ids, future) in enumerate(zip(sequences, futures, strict=True)):
            if n == 37:
                said = "ValueError: poison" if how == "raises" else "the model gives NaN for this request, in last_"
                with pytest.raises(RequestError, match=said):
                    future.result(WAIT)
            else:
                close(future.result(WAIT), alone(plain, ids))
        assert runner.drain(WAIT)
        assert (runner.statistics.answered, runner.statistics.failed) == (99, 1)
        assert runner.healthy


@pytest.mark.parametrize("how", ["raises", "nan"])
def test_one_poisoned_request_among_a_thousand(how):
    plain, sequences = a_model(), some_ids(1000)
    sequences[437][0] = POISON
    poisoned = nopad.packed(a_poisoned_model(how))
    with nopad.PackRunner(poisoned, Batching(capacity=1024), warm_up=False) as runner:
        futures = [runner.submit({"input_ids": ids}) for ids in sequences]
        errors = {n: future.exception(WAIT) for n, future in enumerate(futures)}
        assert [n for n, error in errors.items() if error is not None] == [437]
        assert type(errors.pop(437)) is RequestError
        for n in errors:
            close(futures[n].result(), alone(plain, sequences[n]))
        assert runner.drain(WAIT)
        assert (runner.statistics.answered, runner.statistics.failed) == (999, 1)


def test_a_full_queue_raises_if_told_so():
    model = nopad.packed(a_model())
    gate = Gate(model)
    with nopad.PackRunner(
        model, Batching(capacity=64, max_waiting_tokens=20), when_full="raise", warm_up=False
    ) as runner:
        first = runner.submit({"input_ids": [20] * 20})
        assert gate.entered.wait(WAIT)
        futures = [runner.submit({"input_ids": [20] * 10}) for _ in range(2)]
        with pytest.raises(QueueFullError, match="20 tokens wait already"):
            runner.submit({"input_ids": [20]})
        gate.open.set()
        assert all(future.result(WAIT) for future in [first, *futures])
        assert runner.submit({"input_ids": [20] * 20}).result(WAIT)


def test_a_list_that_does_not_fit_leaves_nothing_in_the_queue():
    model = nopad.packed(a_model())
    gate = Gate(model)
    batching = Batching(capacity=64, max_waiting_tokens=20)
    with nopad.PackRunner(model, batching, when_full="raise", warm_up=False) as runner:
        first = runner.submit({"input_ids": [20] * 20})
        assert gate.entered.wait(WAIT)
        with pytest.raises(QueueFullError, match="20 tokens wait already"):
            runner([{"input_ids": [20] * 10}] * 5)
        assert runner.statistics.packer.waiting == 0
        gate.open.set()
        assert first.result(WAIT)
        assert runner.drain(WAIT)
        seen = runner.statistics
    assert (seen.answered, seen.failed, seen.packer.cancelled) == (1, 0, 2)


def test_deadlines():
    model = nopad.packed(a_model())
    gate = Gate(model)
    with nopad.PackRunner(model, warm_up=False) as runner:
        first = runner.submit({"input_ids": [20]})
        assert gate.entered.wait(WAIT)
        late = runner.submit({"input_ids": [21]}, deadline_s=0.01)
        kept = runner.submit({"input_ids": [22]}, deadline_s=1000)
        time.sleep(0.02)
        gate.open.set()
        with pytest.raises(DeadlineError, match="the deadline passed before the request ran"):
            late.result(WAIT)
        assert kept.result(WAIT)
        assert first.result(WAIT)
        for seconds in (0, -1, 1e-9):
            with pytest.raises(DeadlineError, match="the deadline has passed already; deadline_s counts from now"):
                runner.submit({"input_ids": [20]}, deadline_s=seconds)
        assert runner.statistics.packer.expired == 1
        assert runner.statistics.late == 3
        said = str(runner.statistics)
        assert "requests  2 answered, 3 refused (too late)\n" in said
        assert "sequences 1 expired\n" in said


def test_a_deadline_that_recent_batches_cannot_meet():
    model = nopad.packed(a_model())
    hook = model.register_forward_pre_hook(lambda *_: time.sleep(0.2))
    with nopad.PackRunner(model, Batching(capacity=8), warm_up=False) as runner:
        runner({"input_ids": [20] * 8})
        gate = Gate(model)
        first = runner.submit({"input_ids": [20]})
        assert gate.entered.wait(WAIT)
        said = (
            "are left until the deadline, and at the speed of recent batches an answer takes about .* ms; give it more"
        )
        waiting = []
        with pytest.raises(DeadlineError, match=said):
            waiting.extend(runner.submit({"input_ids": [20] * 8}, deadline_s=3) for _ in range(20))  # 4 s
        hook.remove()
        gate.open.set()
        assert all(one.result(WAIT) for one in (first, *waiting))
        assert (runner.statistics.answered, runner.statistics.late) == (2 + len(waiting), 1)
        assert len(waiting) < 15


def test_closing_while_much_waits():
    model = nopad.packed(a_model())
    gate = Gate(model)
    for drain in (True, False):
        gate.open.clear()
        gate.entered.clear()
        runner = nopad.PackRunner(model, Batching(capacity=16, max_waiting_tokens=100), warm_up=False)
        futures = [runner.submit({"input_ids": [20] * 10}) for _ in range(10)]
        assert gate.entered.wait(WAIT)
        with ThreadPoolExecutor(2) as pool:
            blocked = pool.submit(lambda runner=runner: [runner.submit({"input_ids": [20] * 10}) for _ in range(9)])
            closing = pool.submit(runner.close, drain=drain)
            while runner.healthy:
                time.sleep(0.001)
            gate.open.set()
            closing.result(WAIT)
            with pytest.raises(RunnerClosedError, match="the runner is closed"):
                blocked.result(WAIT)
        assert all(future.done() for future in futures)
        answered = [future for future in futures if future.exception() is None]
        assert len(answered) == (10 if drain else 1)
        assert all("closed before" in str(future.exception()) for future in futures if future not in answered)
        with pytest.raises(RunnerClosedError, match="the runner is closed"):
            runner.submit({"input_ids": [20]})
        runner.close()


def test_a_worker_that_dies_leaves_nobody_waiting(caplog):
    model = nopad.packed(a_model())
    gate = Gate(model)

    def die(module, arguments):
        raise SystemExit("gone")

    model.register_forward_pre_hook(die)
    runner = nopad.PackRunner(model, Batching(capacity=16), warm_up=False)
    futures = [runner.submit({"input_ids": [20] * 10}) for _ in range(5)]
    gate.open.set()
    for future in futures:
        with pytest.raises(RunnerClosedError, match="the runner's worker died: SystemExit: gone"):
            future.result(WAIT)
    with pytest.raises(RunnerClosedError, match="worker died"):
        runner({"input_ids": [20]})
    assert not runner.healthy
    assert "the worker of a PackRunner died" in caplog.text
    runner.close()


def test_two_runners_on_one_model():
    plain, model = a_model(), nopad.packed(a_model())
    sequences = some_ids(80)
    with nopad.PackRunner(model) as one, nopad.PackRunner(model, Batching(capacity=64, rows=2)) as two:
        futures = [(one, two)[n % 2].submit({"input_ids": ids}) for n, ids in enumerate(sequences)]
        for ids, future in zip(sequences, futures, strict=True):
            close(future.result(WAIT), alone(plain, ids))


def test_another_process_is_told():
    model = nopad.packed(a_model())
    with nopad.PackRunner(model) as runner:
        runner({"input_ids": [20]})
        read, write = os.pipe()
        child = os.fork()
        if not child:
            said = []
            for call in (lambda: runner.submit({"input_ids": [20]}), lambda: runner.statistics, runner.drain):
                try:
                    call()
                except RunnerClosedError as error:
                    said.append(str(error))
            os.write(write, f"{len(said)} {runner.healthy} {said[0]}".encode())
            os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        with os.fdopen(read) as pipe:
            assert pipe.read().startswith("3 False this runner was started in another process")
        assert runner({"input_ids": [20]})


def test_await_and_callbacks():
    model = nopad.packed(a_model())

    async def ask(runner):
        return await asyncio.wrap_future(runner.submit({"input_ids": [20, 21]}))

    with nopad.PackRunner(model) as runner:
        assert asyncio.run(ask(runner))["last_hidden_state"].shape == (2, 16)
        done = threading.Event()
        first = runner.submit({"input_ids": [20]})
        first.add_done_callback(lambda _: runner.submit({"input_ids": [21]}).add_done_callback(lambda _: done.set()))
        assert done.wait(WAIT)


def test_results_share_no_memory_and_may_be_trained_on():
    model = nopad.packed(a_model())
    gate = Gate(model)
    with nopad.PackRunner(model, warm_up=False) as runner:
        futures = [runner.submit({"input_ids": [20, 21]}) for _ in range(3)]
        gate.open.set()
        one, two, three = [future.result(WAIT)["last_hidden_state"] for future in futures]
    one.zero_()
    assert torch.allclose(two, three, rtol=0, atol=1e-12)  # of other batches, so they may differ by rounding
    assert two.abs().sum() > 0
    (torch.ones(16, dtype=torch.float64, requires_grad=True) * two).sum().backward()


@pytest.mark.parametrize(
    ("error", "given", "message"),
    [
        (BatchError, [1, 2], "a request is of type list; expected a dict with input_ids"),
        (BatchError, {"ids": [1]}, "a request has input_ids, and may have attention_mask, token_type_ids; this has"),
        (BatchError, {"input_ids": [1], "labels": [1]}, "this has input_ids, labels"),
        (BatchError, {"input_ids": [[[1, 2], [3, 4]]]}, r"this has the shape \[1, 2, 2\]; submit each by"),
        (BatchError, {"input_ids": [[1], [1, 2]]}, "the rows of a request have different lengths"),
        (BatchError, {"input_ids": 5}, r"has the shape \[\]"),
        (BatchError, {"input_ids": [1.5]}, "input_ids"),
        (BatchError, {"input_ids": ["a"]}, "input_ids"),
        (BatchError, {"input_ids": torch.ones(2, dtype=torch.long, device="meta")}, "input_ids .*meta"),
        (
            BatchError,
            {"input_ids": torch.ones(1, 2, dtype=torch.long, device="meta")},
            "input_ids of a request is no list of numbers .*meta",
        ),
        (
            BatchError,
            {"input_ids": [1, 2], "attention_mask": torch.ones(2, device="meta").long()},
            "attention_mask .*meta",
        ),
        (BatchError, {"input_ids": [1, 2], "token_type_ids": torch.ones(2, device="meta").long()}, "meta"),
        (BatchError, {"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}, "attention_mask"),
        (BatchError, {"input_ids": [1, 2, 3], "attention_mask": [1, 1]}, "2"),
        (BatchError, {"input_ids": [1, 2], "token_type_ids": [1]}, "token_type_ids has 1 values, and input_ids has 2"),
        (LengthError, {"input_ids": []}, "a request has no tokens"),
        (LengthError, {"input_ids": [1, 2], "attention_mask": [0, 0]}, "attention_mask"),
        (LengthError, {"input_ids": [20] * 65}, "a request has 65 tokens, and the model has positions for 64"),
        (OptionError, {"input_ids": [20, 120]}, "input_ids: token 1 has the value 120, and this model's are from 0 to"),
        (OptionError, {"input_ids": [-1]}, "input_ids: token 0 has the value -1"),
        (OptionError, {"input_ids": [1], "token_type_ids": [2]}, "token_type_ids: token 0 has the value 2"),
    ],
)
def test_requests_that_are_refused(error, given, message):
    with nopad.PackRunner(nopad.packed(a_model())) as runner:
        with pytest.raises(error, match=message):
            runner.submit(given)
        assert runner.statistics.packer.arrived == 0


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"batching": 5}, "batching is of type int; expected nopad.serving.Batching"),
        ({"when_full": "drop"}, "when_full is 'drop'; it is 'block' or 'raise'"),
        ({"widths": "wide"}, "widths is 'wide'; it is 'own' or 'given'"),
        ({"widths": 0}, "widths must be an integer from 1"),
        ({"batching": Batching(capacity=8, separator=1)}, "separator is of no use here"),
    ],
)
def test_runners_that_are_refused(how, message):
    with pytest.raises(OptionError, match=message):
        nopad.PackRunner(nopad.packed(a_model()), **how)


@pytest.mark.parametrize("seconds", ["1", True, float("nan"), float("inf"), -1e300])
def test_deadlines_that_are_no_seconds(seconds):
    said = pytest.raises(OptionError, match="deadline_s must be a number of seconds, got")
    with nopad.PackRunner(nopad.packed(a_model())) as runner, said:
        runner.submit({"input_ids": [20]}, deadline_s=seconds)


@pytest.mark.parametrize("name", ["output_hidden_states", "output_attentions"])
def test_a_model_that_returns_the_states_of_all_layers(name):
    model = a_model()
    model.set_attn_implementation("eager")
    setattr(model.config, name, True)
    with pytest.raises(OptionError, match=name):
        nopad.PackRunner(nopad.packed(model))


def test_a_model_of_limited_batches():
    model = nopad.packed(a_model(), max_sequences=4)
    with pytest.raises(OptionError, match=r"at most 4 sequences in a batch; give Batching\(max_sequences=4\)"):
        nopad.PackRunner(model)
    with nopad.PackRunner(model, Batching(capacity=64, max_sequences=4)) as runner:
        found = runner({"input_ids": ids} for ids in some_ids(10))
    for ids, result in zip(some_ids(10), found, strict=True):
        close(result, alone(a_model(), ids))


def test_urgent_requests_leave_first():
    model = nopad.packed(a_model())
    gate, order = Gate(model), []
    with nopad.PackRunner(model, Batching(capacity=20), warm_up=False) as runner:
        first = runner.submit({"input_ids": [20] * 10})
        assert gate.entered.wait(WAIT)
        for n, priority in enumerate((0, 0, 0, 5)):
            future = runner.submit({"input_ids": [20] * 10}, priority=priority)
            future.add_done_callback(lambda _, n=n: order.append(n))
        gate.open.set()
        assert runner.drain(WAIT)
        assert first.done()
    assert order == [0, 3, 1, 2]


@pytest.mark.parametrize(
    ("batching", "is_sorted"),
    [
        (None, True),
        (Batching(capacity=256, keep_order=True), False),
        (Batching(capacity=256, policy="first_fit"), False),
        (Batching(capacity=64, rows=2), False),
    ],
)
def test_requests_of_one_call_join_the_queue_shortest_first_where_their_order_is_free(batching, is_sorted):
    model, ids, seen = a_model(), some_ids(150), []
    with nopad.PackRunner(nopad.packed(model), batching=batching, warm_up=False) as runner:
        add = runner._queue.add
        runner._queue.add = lambda some, *how: seen.append([one.tokens for one in some]) or add(some, *how)
        found = runner([{"input_ids": one} for one in ids])
    parts = [[len(one) for one in ids[:64]], [len(one) for one in ids[64:]]]
    assert seen == ([sorted(part) for part in parts] if is_sorted else parts)
    for one, result in zip(ids, found, strict=True):
        close(result, alone(model, one))


def test_a_model_that_is_not_pack_safe():
    with pytest.raises(OptionError, match=r"is not pack-safe; make it so with nopad.packed\(model\)"):
        nopad.PackRunner(a_model())


def test_a_layer_that_is_exchanged_while_the_runner_is_open():
    """PyTorch's words would be about the dtype of a mask, which the new layer does not know."""
    plain, model = a_model(), nopad.packed(a_model())
    with nopad.PackRunner(model) as runner:
        assert runner({"input_ids": [20, 21]})
        model.encoder.layer[0] = copy.deepcopy(plain.encoder.layer[1])
        said = (
            r"has other layers \(BertLayer\) than when the runner was started, .*a configuration of its own.*; "
            r"close the runner, load weights"
        )
        for _ in range(2):
            with pytest.raises(RequestError, match=said):
                runner({"input_ids": [20, 21]})
    model.encoder.layer[0] = BertLayer(model.config).double().eval()  # as the message says
    model.encoder.layer[0].load_state_dict(plain.encoder.layer[1].state_dict())
    plain.encoder.layer[0] = plain.encoder.layer[1]
    with nopad.PackRunner(model) as runner:
        close(runner({"input_ids": [20, 21]}), alone(plain, [20, 21]))


@pytest.mark.parametrize("fast", [False, True])
def test_weights_that_are_loaded_between_two_requests_are_taken_as_a_whole(monkeypatch, fast):
    monkeypatch.setattr(linear, "_gain", lambda inputs, outputs: 2.0)  # as on a CPU on which oneDNN is faster
    dtype = torch.float32 if fast else torch.float64
    old, new = a_model(dtype=dtype), a_model(dtype=dtype)
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.add_(torch.randn_like(parameter) / 10)
    model = nopad.packed(a_model(dtype=dtype))
    within = {"rtol": 0, "atol": 1e-5 if fast else 1e-12}
    with nopad.PackRunner(model, fast=fast) as runner:
        for weights in (old, new, old):
            model.load_state_dict(weights.state_dict())
            for ids in some_ids(5):
                found = runner({"input_ids": ids})
                for name, value in alone(weights, ids).items():
                    torch.testing.assert_close(found[name], value, **within)
    assert (alone(old, [20])["pooler_output"] - alone(new, [20])["pooler_output"]).abs().max() > 0.01


def places(lengths):
    """Run requests of these lengths that wait together; return the number of the batch in which each has run."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    torch.manual_seed(0)
    model = nopad.packed(LlamaModel(LlamaConfig(**sizes, vocab_size=50, max_position_embeddings=8192)).eval())
    gate, found = Gate(model), {}  # of which a hook of the forward pass counts batches: one batch is one call
    with nopad.PackRunner(model, Batching(capacity=800, max_waiting_tokens=10**6), warm_up=False) as runner:
        first = runner.submit({"input_ids": [1]})
        assert gate.entered.wait(WAIT)
        for n, length in enumerate(lengths):
            future = runner.submit({"input_ids": [3] * length})
            future.add_done_callback(lambda _, n=n: found.setdefault(n, gate.calls))
        gate.open.set()
        assert runner.drain(WAIT)
        assert first.done()
        assert runner.statistics.packer.batches == gate.calls
    return found


@pytest.mark.parametrize("at", [0, 500, 999])
def test_a_long_request_delays_a_thousand_short_ones_by_one_batch_at_most(at):
    draw = random.Random(at)
    short = [draw.randint(1, 40) for _ in range(1000)]
    without = places(short)
    found = places([*short[:at], 8000, *short[at:]])
    others = [found[n + (n >= at)] for n in range(1000)]
    later = [one - without[n] for n, one in enumerate(others)]
    assert max(later) <= 1
    assert max(found.values()) == max(without.values()) + 1
    assert found[at] not in others  # it ran by itself
