from __future__ import annotations

import copy
import os
import pickle
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import chain

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version
from tests.model.kinds import tiny
from tests.model.zoo import build
from transformers import AutoModel, BertConfig, BertForSequenceClassification, BertModel

import nopad
from nopad.model import fast_linear
from nopad.model.sharing import may_be_shared
from nopad.tasks import lanes
from nopad.tasks.lanes import Lanes, divided

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
CONFIG = {**SIZES, "vocab_size": 120, "max_position_embeddings": 512}
LENGTHS = [300, 200, 7, 250, 400, 1, 90, 260]


@pytest.fixture(autouse=True)
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def always(monkeypatch):
    """Always as many lanes as there may be, without a trial."""
    monkeypatch.setattr(lanes._Trial, "lanes", lambda trial, most: most)


def a_bert(kind=BertModel, **more):
    torch.manual_seed(0)
    return nopad.packed(kind(BertConfig(**CONFIG, **more)).double().eval())


def seen_by(work_of, lengths=LENGTHS):
    """Run `lengths` in these lanes; return the results, and the threads and indices of each call."""
    calls = []

    def work(indices):
        calls.append((threading.current_thread(), indices))
        return [f"{index}" for index in indices]

    return work_of.run(lengths, work), calls


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.data())
def test_parts_have_every_index_once_and_about_the_same_cost(costs, data):
    parts = data.draw(st.integers(1, len(costs)))
    found = divided(costs, parts)
    assert sorted(chain(*found)) == list(range(len(costs)))
    assert all(part == sorted(part) for part in found)
    assert len(found) == parts
    loads = [sum(costs[index] for index in part) for part in found]
    assert max(loads) - min(loads) <= max(costs) * (1 + 1e-9)


@given(st.integers(1, 60), st.integers(1, 60))
def test_no_part_is_empty(parts, more):
    assert all(divided([1.0] * (parts + more), parts))


def test_results_are_in_order_and_of_several_threads(always):
    results, calls = seen_by(Lanes(a_bert()))
    assert results == [str(index) for index in range(len(LENGTHS))]
    assert len(calls) == 2
    assert threading.current_thread() not in {thread for thread, _ in calls}
    assert sorted(chain(*(indices for _, indices in calls))) == list(range(len(LENGTHS)))


@pytest.mark.parametrize("lengths", [[2000], [1000, 1000, 1000], [100] * 5, [1] * 400])
def test_few_sequences_or_tokens_are_one_batch(always, lengths):
    _, calls = seen_by(Lanes(a_bert()), lengths)
    assert calls == [(threading.current_thread(), list(range(len(lengths))))]


def test_classifiers_run_in_several_threads(always):
    """Their forward method stores something of labels, which lanes never have."""
    _, calls = seen_by(Lanes(a_bert(BertForSequenceClassification)))
    assert len(calls) == 2


def test_weights_that_a_module_leaves_out_are_no_code_of_ones_own():
    assert may_be_shared(AutoModel.from_config(tiny("llama")))  # its layers have no bias


@pytest.mark.parametrize("most", [1, 2])
def test_a_call_gets_the_shortest_first(always, most):
    results, calls = seen_by(Lanes(a_bert(), most))
    assert results == [str(index) for index in range(len(LENGTHS))]
    assert len(calls) == most
    for _, indices in calls:
        lengths = [LENGTHS[index] for index in indices]
        assert lengths == sorted(lengths)


class Stateful(torch.nn.Module):
    def forward(self, states):
        self.kept = states
        return self.kept


def in_a_mode():
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    return Mode()


@pytest.mark.parametrize(
    "within",
    [lambda: torch.autocast("cpu"), in_a_mode, lambda: torch.device("cpu")],
    ids=["autocast", "mode", "device"],
)
def test_modes_of_the_thread_are_kept_by_one_lane(always, within):
    with within():
        _, calls = seen_by(Lanes(a_bert()))
    assert [thread for thread, _ in calls] == [threading.current_thread()]


def test_modules_of_the_users_own_run_in_one_lane(always):
    model = a_bert()
    model.encoder.layer[0].output.dropout = Stateful()
    _, calls = seen_by(Lanes(model))
    assert [thread for thread, _ in calls] == [threading.current_thread()]


def a_hook(model, _):
    model.encoder.layer[0].register_forward_hook(lambda module, args, output: None)


def a_hook_of_all(_, monkeypatch):
    monkeypatch.setitem(torch.nn.modules.module._global_forward_hooks, -1, lambda module, args, output: None)


def a_method(model, _):
    inner = model.encoder.layer[0].intermediate.forward
    model.encoder.layer[0].intermediate.forward = lambda states: inner(states)


def a_method_of_a_class(model, monkeypatch):
    kind = type(model.encoder.layer[0].intermediate)
    inner = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, states: inner(self, states))


def a_module(model, _):
    model.encoder.layer[1].output.dropout = Stateful()


class Watched(torch.Tensor):
    """A tensor that runs code of its own in each operation."""


def a_kind_of_weights(model, _):
    layer = model.encoder.layer[0].output.dense
    layer.weight = torch.nn.Parameter(layer.weight.detach().as_subclass(Watched), requires_grad=False)


@pytest.mark.parametrize("change", [a_hook, a_hook_of_all, a_method, a_method_of_a_class, a_module, a_kind_of_weights])
def test_hooks_and_methods_of_the_users_own_run_in_one_lane(always, monkeypatch, change):
    """Also those that come later: what they keep between two modules would be another lane's."""
    model = a_bert()
    both = Lanes(model)
    assert len(seen_by(both)[1]) == 2
    change(model, monkeypatch)
    assert [thread for thread, _ in seen_by(both)[1]] == [threading.current_thread()]


@pytest.mark.skipif(Version(transformers.__version__) < Version("5.23"), reason="RecurrentGemma runs from 5.23 on")
def test_a_model_that_threads_must_not_share_runs_in_one_at_a_time(always):
    torch.manual_seed(0)
    model = nopad.packed(AutoModel.from_config(tiny("recurrent_gemma")).double().eval())
    assert not may_be_shared(model)
    draw = np.random.default_rng(0)
    rows = [[draw.integers(5, 60, size).tolist() for size in draw.integers(1, 40, count)] for count in (6, 5, 7, 3)]

    def states(sequences, lanes):
        def work(indices):
            batch = nopad.PackedBatch.from_sequences([sequences[index] for index in indices])
            with torch.inference_mode():
                return batch.unpack_tokens(model(**batch)[0])

        return lanes.run(list(map(len, sequences)), work)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        expected = [states(one, Lanes(model)) for one in rows]
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda one: states(one, Lanes(model)), rows * 3))
    finally:
        sys.setswitchinterval(before)
    for some, others in zip(found, expected * 3, strict=True):
        for one, other in zip(some, others, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_models_with_a_module_in_common_take_turns():
    """As a whole and its base, or two heads around one encoder; each pair ran the same modules at the same time."""
    whole = a_bert(BertForSequenceClassification)
    base = nopad.packed(whole.bert)
    second, third = a_bert(), a_bert()
    before = Lanes(second).alone(int), Lanes(third).alone(int)  # with turns of their own by now
    assert before == (0, 0)
    second.encoder = whole.bert.encoder
    second.pooler = third.pooler
    whole.bert.encoder.register_forward_pre_hook(lambda *_: None)
    third.pooler.register_forward_pre_hook(lambda *_: None)
    pairs = [(whole, base), (base, second), (second, whole), (second, third), (third, second)]
    for one, other in pairs:
        for way in ("alone", "in_turn"):
            inside, ended = [], []
            taken, go = threading.Event(), threading.Event()

            def first(one=one, way=way, taken=taken, go=go, ended=ended):
                getattr(Lanes(one), way)(lambda: (taken.set(), go.wait(30), ended.append(True)))

            def then(other=other, way=way, taken=taken, inside=inside, ended=ended):
                taken.wait(30)
                getattr(Lanes(other), way)(lambda: inside.append(list(ended)))

            threads = [threading.Thread(target=first), threading.Thread(target=then)]
            for thread in threads:
                thread.start()
            taken.wait(30)
            threads[1].join(0.02)
            go.set()
            for thread in threads:
                thread.join(30)
            assert inside == [[True]]
    with ThreadPoolExecutor(1) as threads:  # those without one do not
        assert Lanes(whole).alone(lambda: threads.submit(Lanes(third).alone, int).result(30)) == 0


def test_the_lock_of_such_a_model_is_not_inherited_by_a_forked_process():
    model = a_bert()
    a_hook(model, None)
    both = Lanes(model)

    def entered():
        both.alone(lambda: os.write(write, b"1"))

    def forks():
        child = os.fork()
        if not child:
            try:
                threading.Thread(target=entered, daemon=True).start()
                time.sleep(1)
                os.write(write, b"0")
            finally:
                os._exit(0)
        os.waitpid(child, 0)

    read, write = os.pipe()
    both.alone(forks)
    assert os.read(read, 1) == b"1"


@pytest.mark.parametrize("failing", ["start", "submit"])
def test_without_threads_lanes_run_one_after_the_other(always, monkeypatch, failing):
    """As where a container allows no more threads, or while Python ends."""

    def fails(*given, **more):
        raise RuntimeError("can't start new thread")

    both = Lanes(a_bert())
    if failing == "submit":
        assert len(seen_by(both)[1]) == 2
        monkeypatch.setattr(ThreadPoolExecutor, "submit", fails)
    else:
        monkeypatch.setattr(threading.Thread, "start", fails)
    results, calls = seen_by(both)
    assert results == [str(index) for index in range(len(LENGTHS))]
    assert {thread for thread, _ in calls} == {threading.current_thread()}
    assert torch.get_num_threads() == 2


def test_one_thread_is_one_lane(always):
    torch.set_num_threads(1)
    _, calls = seen_by(Lanes(a_bert()))
    assert [thread for thread, _ in calls] == [threading.current_thread()]


def test_a_call_while_lanes_run_takes_its_own_thread(always):
    both, inner = Lanes(a_bert()), []

    def work(indices):
        if not inner:
            inner.append(None)
            inner[0] = seen_by(both)[1]
        return indices

    both.run(LENGTHS, work)
    assert len(inner[0]) == 1


def test_an_error_comes_when_every_lane_has_ended(always):
    begun, ended = threading.Barrier(2, timeout=60), []

    def work(indices):
        begun.wait()
        if 0 in indices:
            raise ValueError("the first sequence")
        ended.append(indices)
        return indices

    both = Lanes(a_bert())
    with pytest.raises(ValueError, match="the first sequence"):
        both.run(LENGTHS, work)
    assert len(ended) == 1
    assert seen_by(both)[0] == [str(index) for index in range(len(LENGTHS))]  # and goes on


def test_an_interrupt_comes_when_every_lane_has_ended(always, monkeypatch):
    """Ctrl-C while the caller waits for its lanes: they still ran the model after `run` had ended."""
    begun, go, ended = threading.Barrier(3, timeout=60), threading.Event(), []

    def work(indices):
        begun.wait()
        assert go.wait(60)
        ended.append(indices)
        return indices

    def interrupted(futures):
        monkeypatch.setattr(lanes, "wait", lambda futures: go.set() or wait(futures))
        begun.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(lanes, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Lanes(a_bert()).run(LENGTHS, work)
    assert len(ended) == 2


def test_the_threads_of_the_caller_and_of_others_stay_as_they_are(always):
    both = Lanes(a_bert())
    found = both.run(LENGTHS, lambda indices: [torch.get_num_threads()] * len(indices))
    assert set(found) == {1}
    assert torch.get_num_threads() == 2
    with ThreadPoolExecutor(1) as new:
        assert new.submit(torch.get_num_threads).result() == 2


def test_a_forked_process_starts_threads_of_its_own(always):
    both = Lanes(a_bert())
    seen_by(both)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        results, calls = seen_by(both)
        os.write(write, b"1" if results == list(map(str, range(8))) and len(calls) == 2 else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"1"


def run_of(trial, cost, batches, most=None):
    """Run batches as the trial says; ``cost(lanes, number)`` is the time per token. Return the numbers of lanes."""
    most = trial.threads if most is None else most
    order = []
    for number in range(batches):
        order.append(trial.lanes(most))
        trial.note(order[-1], most, cost(order[-1], number))
    return order


def test_the_trial_tries_each_way_and_keeps_the_fastest():
    trial = lanes._Trial(6)
    order = run_of(trial, lambda way, _: {1: 3.0, 2: 1.0, 4: 2.0, 6: 5.0}[way], 500)
    assert set(order) == {1, 2, 4, 6}
    assert order[100:].count(2) >= 390
    assert trial.lanes(6) == trial.lanes(2) == 2
    assert trial.lanes(1) == 1


@pytest.mark.parametrize("other", [0.8, 1.25])
@pytest.mark.parametrize("phase", range(7))
def test_drift_and_lone_slow_batches_do_not_decide(phase, other):
    """The time per token grows sevenfold with the lengths, and every seventh batch is slow, whichever way it runs."""

    def cost(way, number):
        return (1 + number / 20) * (other if way == 2 else 1.0) * (2.0 if number % 7 == phase else 1.0)

    trial = lanes._Trial(2)
    run_of(trial, cost, 120)
    assert trial._best == (2 if other < 1 else 1)


def test_a_choice_is_revised_when_the_machine_changes():
    trial = lanes._Trial(2)
    run_of(trial, lambda way, _: float(way), 100)
    assert trial._best == 1
    run_of(trial, lambda way, _: 1 / way, 50 * (lanes.TURNS + 1))
    assert trial._best == 2


def test_equal_ways_are_not_exchanged():
    trial = lanes._Trial(4)
    run_of(trial, lambda way, number: 1.0 + 0.02 * (number % 2), 1000)
    assert trial._best == 1


def test_the_first_batch_of_each_way_does_not_count():
    trial = lanes._Trial(2)
    seen = []

    def cost(way, _):
        seen.append(way)
        return 3.0 if way == 1 else 1000.0 if seen.count(2) == 1 else 2.95

    run_of(trial, cost, 2 * lanes.TURNS)
    assert max(trial._quotients[2]) < 1


@pytest.mark.parametrize(("most", "tried"), [(2, {1, 2}), (3, {1, 2, 3}), (None, {1, 2, 4}), (9, {1, 2, 4})])
def test_with_fewer_lanes_than_threads_each_number_is_tried(most, tried):
    torch.set_num_threads(4)
    some, seen = Lanes(a_bert(), most), set()
    for _ in range(30):
        seen.add(len(seen_by(some)[1]))
    assert seen == tried


def test_another_limit_begins_another_trial():
    torch.set_num_threads(4)
    some = Lanes(a_bert())
    seen_by(some)
    some.most = 2
    assert {len(seen_by(some)[1]) for _ in range(30)} == {1, 2}
    assert set(some._trial._quotients) <= {1, 2}


def test_small_batches_do_not_decide():
    trial = lanes._Trial(4)
    assert set(run_of(trial, lambda way, _: 1.0 / way, 50, most=2)) == {1}
    assert trial._last is None


@pytest.mark.parametrize("fast", [False, True])
def test_vectors_are_those_of_one_lane(monkeypatch, always, fast):
    from nopad.model import linear
    from nopad.tasks import Embedder

    monkeypatch.setattr(linear, "_gain", lambda *sizes: 2.0 if fast else 0.0)
    texts = [" ".join(["packs", "of", "words", str(number)] * (number % 12 + 1)) for number in range(24)]
    several = Embedder.from_folder()
    assert several.fast is fast
    one = Embedder.from_folder()
    one.lanes.most = 1
    ran = []
    monkeypatch.setattr(several, "_vectors_of", lambda *a, real=several._vectors_of: (ran.append(a[-1]), real(*a))[1])
    np.testing.assert_allclose(several.encode(texts), one.encode(texts), atol=1e-6)
    assert len(ran) > 1
    with nopad.PackRunner(several, warm_up=False) as runner:
        np.testing.assert_allclose(runner(texts), one.encode(texts), atol=1e-6)


def test_lanes_share_the_copies_of_weights(monkeypatch):
    from nopad.model import linear

    monkeypatch.setattr(linear, "_gain", lambda *sizes: 2.0)
    laid_out = []
    monkeypatch.setattr(linear, "_lay_out", lambda weight, real=linear._lay_out: (laid_out.append(1), real(weight))[1])
    model = nopad.packed(BertModel(BertConfig(**CONFIG)).eval())
    batch = nopad.PackedBatch.from_sequences([[7] * 20])

    @torch.no_grad()
    def run(_=None):
        return model(**batch).last_hidden_state

    with fast_linear(model):
        first = run()
        copies = len(laid_out)
        mode = linear.active()
        made, here = lanes.Lanes(model), threading.current_thread()
        with ThreadPoolExecutor(1) as other:
            again = other.submit(lambda: made._in_lane(run, [0], mode, here)).result()
    assert copies == len(laid_out) > 0
    assert torch.equal(first, again)
    assert linear.active() is None


def test_a_poisoned_sequence_in_one_lane_fails_alone(always):
    model = a_bert(BertForSequenceClassification)
    with torch.no_grad():
        model.get_input_embeddings().weight[13] = float("nan")
    requests = [{"input_ids": [20 + number] * length} for number, length in enumerate(LENGTHS)]
    requests[3]["input_ids"][5] = 13
    with nopad.PackRunner(model) as runner:
        futures = [runner.submit(one) for one in requests]
        for number, (future, one) in enumerate(zip(futures, requests, strict=True)):
            if number == 3:
                with pytest.raises(nopad.errors.RequestError, match="NaN"):
                    future.result()
                continue
            with torch.no_grad():
                expected = model(input_ids=torch.tensor([one["input_ids"]])).logits[0]
            torch.testing.assert_close(future.result()["logits"], expected, rtol=0, atol=1e-12)


ZOO = ("deberta-v2", "llama", "modernbert", "mpnet", "t5")
MIXED = ("falcon_h1", "lfm2", "mamba")


@pytest.mark.parametrize("kind", [*ZOO, *MIXED])
def test_threads_may_share_a_model(kind):
    """What lanes stand on: packed calls of one model at the same time do not see each other."""
    model = nopad.packed(build(kind) if kind in ZOO else AutoModel.from_config(tiny(kind)).double().eval())
    draw = np.random.default_rng(0)
    batches = [
        nopad.PackedBatch.from_sequences([draw.integers(5, 60, size).tolist() for size in draw.integers(1, 40, 6)])
        for _ in range(6)
    ]

    def states(batch):
        with torch.inference_mode():
            found = model(**batch)
        return found[0]

    expected = [states(batch) for batch in batches]
    with ThreadPoolExecutor(3) as threads:
        for found in threads.map(lambda _: [states(batch) for batch in batches], range(3)):
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda given: pickle.loads(pickle.dumps(given))])
def test_copies_begin_anew(always, way):
    """Locks and threads cannot be copied; predictors and embedders can, with their lanes."""
    both = Lanes(a_bert(), 2)
    assert len(seen_by(both)[1]) == 2
    other = way(both)
    assert other.most == 2
    assert seen_by(other)[0] == [str(index) for index in range(len(LENGTHS))]
    assert len(seen_by(both)[1]) == 2


def interrupted(call, seconds):
    """Call `call` again and again until Ctrl-C; return whether it came."""
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            while True:
                call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return True


@pytest.fixture
def ctrl_c():
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_an_interrupt_at_any_moment_leaves_the_model_to_other_threads(ctrl_c):
    """It was left taken for ever after one interrupt in seven."""
    model = a_bert()
    a_hook(model, None)
    mine, others, draw = Lanes(model), Lanes(model), np.random.default_rng(0)
    for _ in range(200):
        assert interrupted(lambda: mine.alone(int), draw.uniform(2e-5, 3e-4))
        other = threading.Thread(target=others.alone, args=(int,), daemon=True)
        other.start()
        other.join(5)
        assert not other.is_alive()


def test_an_interrupt_at_any_moment_lets_batches_be_divided(monkeypatch, ctrl_c):
    both, draw = Lanes(a_bert()), np.random.default_rng(0)
    monkeypatch.setattr(lanes._Trial, "lanes", lambda trial, most: 1)
    for _ in range(200):
        assert interrupted(lambda: both.run(LENGTHS, lambda indices: indices), draw.uniform(2e-5, 1e-3))
    monkeypatch.setattr(lanes._Trial, "lanes", lambda trial, most: most)
    assert len(seen_by(both)[1]) == 2


def test_an_error_that_somebody_keeps_lets_batches_be_divided(always):
    """Its traceback holds the frames of the call that raised it."""
    both = Lanes(a_bert())
    with pytest.raises(ZeroDivisionError) as kept:
        both.run(LENGTHS, lambda indices: 1 / 0)
    assert len(seen_by(both)[1]) == 2
    del kept


def test_threads_that_may_share_a_model_do_not_wait_for_each_other():
    model = a_bert()
    first, second, begun, go = Lanes(model), Lanes(model), threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as other:
        future = other.submit(first.alone, lambda: (begun.set(), go.wait(30))[1])
        assert begun.wait(30)
        assert second.alone(lambda: 5) == 5
        assert not future.done()
        go.set()
        assert future.result(30)
