"""What users do by mistake or by force, and what must never pass in silence: judged from batches alone."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

import nopad
from nopad import Flat, PackedBatch, PackedLoader, Rows
from nopad.balance import Attention, Balance, CostModel, Tokens
from nopad.errors import (
    BalanceError,
    BatchError,
    CorruptError,
    FormatError,
    LengthError,
    OptionError,
    PlanMismatchError,
)
from nopad.loading import Mixture, Ranks
from nopad.loading.feeds import StoredTokens
from nopad.loading.sources import open_tokens

LENGTHS = np.random.default_rng(0).integers(1, 40, size=300)
DATA = [np.full(length, number) for number, length in enumerate(LENGTHS)]


def test_ranks_of_nodes_of_unlike_sizes_do_not_agree():
    # 8 GPUs on one host, 4 on another: LOCAL_WORLD_SIZE is 8 on some ranks, which does not divide 12, and 4 on others
    one, other = (PackedLoader(DATA, sequences=2, rank=0, world_size=12, node_size=size) for size in (12, 4))
    agreed = [loader._supply.agreed(loader._cursor.at) for loader in (one, other)]
    assert agreed[0].pop("node_size") != agreed[1].pop("node_size")
    assert agreed[0] == agreed[1]


def test_ranks_that_went_on_from_other_legs_do_not_agree(fleet):
    states = []
    for world_size, batches in ((3, 2), (2, 5)):
        run = fleet(DATA, world_size, sequences=2)
        run.take(batches)
        states.append(run.state())
    agreed = []
    for state in states:
        loader = PackedLoader(DATA, sequences=2, rank=0, world_size=4)
        loader.load_state_dict(state)
        agreed.append(loader._supply.agreed(loader._cursor.at))
    assert agreed[0] != agreed[1]


def test_a_state_of_groups_that_were_together_otherwise_is_refused(fleet):
    run = fleet(DATA, 2, sequences=4, groups=2, together="rank", accumulation=2)
    run.take(1)
    with pytest.raises(PlanMismatchError, match="together is step and was rank"):
        fleet(DATA, 2, sequences=4, groups=2, together="step", accumulation=2, state=run.state())


@pytest.mark.parametrize("step", [{"capacity": np.int32(40), "rows": np.int64(2)}, {"tokens": np.int64(64)}])
def test_numbers_of_numpy_are_numbers(step, tmp_path):
    plain = {name: int(value) for name, value in step.items()}
    expected = PackedLoader(DATA, seed=3, **plain)
    loader = PackedLoader(DATA, seed=np.int64(3), host_dir=tmp_path, **step)
    assert json.loads(json.dumps(loader.state_dict())) == expected.state_dict()
    mixture = Mixture({"a": DATA, "b": DATA}, {"a": np.float32(1), "b": np.int64(2)})
    loader = PackedLoader(mixture, 40, rows=2, seed=np.uint8(3), algorithm="lpfhp", depth=np.int64(4))
    plain = Mixture({"a": DATA, "b": DATA}, {"a": 1.0, "b": 2})
    expected = PackedLoader(plain, 40, rows=2, seed=3, depth=4, algorithm="lpfhp")
    assert json.loads(json.dumps(loader.state_dict())) == expected.state_dict()


class Cubes(CostModel):
    def __init__(self, factor):
        self.factor = factor

    def of(self, seq_lengths):
        return self.factor * np.asarray(seq_lengths).astype(np.int64) ** 3


def test_a_state_knows_a_cost_model_by_its_costs(fleet):
    state = fleet(DATA, 2, sequences=2, cost=Cubes(2)).state()
    PackedLoader(DATA, sequences=2, cost=Cubes(2)).load_state_dict(state)
    for other in (Cubes(3), Attention(hidden_size=2), Tokens()):
        with pytest.raises(PlanMismatchError, match="cost is"):
            PackedLoader(DATA, sequences=2, cost=other).load_state_dict(state)


class Given(CostModel):
    def __init__(self, of):
        self.given = of

    def of(self, seq_lengths):
        return self.given(np.asarray(seq_lengths).astype(np.int64))


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (lambda lengths: lengths * 0.01, "float64"),
        (lambda lengths: lengths[:1], r"int64 \[1\]"),
        (lambda lengths: -lengths, "integers of at least 0"),
        (lambda lengths: lengths.astype(np.uint64) + np.uint64(2**63), "64 bits"),
    ],
)
@pytest.mark.parametrize("step", [{"capacity": 40, "rows": 2}, {"sequences": 2}])
def test_costs_that_are_none_are_refused_before_any_work(of, message, step):
    with pytest.raises(BalanceError, match=message):
        PackedLoader(DATA, cost=Given(of), **step)


@pytest.mark.parametrize("cost", ["tokens", Tokens])
def test_what_is_no_cost_model_is_refused(cost):
    with pytest.raises(OptionError, match=r"nopad\.balance\.CostModel"):
        PackedLoader(DATA, 40, rows=1, cost=cost)


def test_groups_of_aligned_sequences_fit_into_their_pack(fleet):
    lengths = np.random.default_rng(1).integers(1, 12, size=90)
    groups = np.arange(90) // 3
    slots = (-(-lengths // 8) * 8).reshape(30, 3).sum(axis=1)
    data = [np.full(length, number) for number, length in enumerate(lengths)]
    assert slots.max() > 24
    batches = fleet(data, 2, capacity=48, rows=2, groups=groups, align=8, last="fill").take()
    assert fleet.counts(batches) == dict.fromkeys(range(90), 1)
    for batch in (batch for ranks in batches for batch in ranks if batch.weight):
        rows = batch.layout.starts // 48
        assert (batch.layout.starts % 8 == 0).all()
        held = {(groups[n], row) for n, row in zip(fleet.sequences_of(batch), rows.tolist(), strict=True)}
        assert len(held) == len({group for group, _ in held})
    with pytest.raises(LengthError, match=f"the longest has {slots.max()} tokens"):
        PackedLoader(data, 24, rows=2, groups=groups, align=8)


def test_a_plan_and_a_form_must_align_as_the_loader_does():
    data = [[1]] * 30
    with pytest.raises(PlanMismatchError, match="make it with align=8"):
        PackedLoader(data, 16, rows=1, plan=nopad.plan([1] * 30, 16), align=8)
    made = nopad.plan([1] * 30, 16, align=8)
    batches = list(PackedLoader(data, 16, rows=1, plan=made, align=8))
    assert [batch.layout.sequences for batch in batches] == [2] * 15
    for form in (Flat(), Rows(64), Rows(64, align=4), Rows(64, align=16)):
        with pytest.raises(OptionError, match="does not align sequences so"):
            PackedLoader(DATA, 64, rows=1, align=8, form=form)
    with pytest.raises(OptionError, match="does not align sequences so"):
        PackedLoader(DATA, 64, rows=1, form=Rows(64, align=8))
    assert all(batch.weight for batch in PackedLoader(DATA, 64, rows=1, align=8, form=Rows(64, align=8)))
    assert all(batch.weight for batch in PackedLoader(DATA, sequences=2, form=Rows(64, align=8)))


def test_the_summary_of_a_filled_step_with_idle_micro_steps():
    loader = PackedLoader(DATA[:9], sequences=2, accumulation=4, last="fill", balance=Balance(wait="micro"))
    summary = loader.summary()
    assert (summary.sequences, summary.steps, summary.empty) == (9, 2, 7)


@pytest.mark.parametrize(
    ("count", "cap", "taken", "says"),
    [
        (10, None, 2, "nopad: 2 sequences are left of epoch 0 and make no step of 4; going on"),
        (9, None, 2, "nopad: 1 sequence is left of epoch 0 and make"),
        (10, 3, 3, "nopad: 1 sequence is left of epoch 0"),
    ],
)
def test_what_is_left_for_no_step_of_another_last_is_told(caplog, count, cap, taken, says):
    size = {"sequences": 4} if cap is None else {"sequences": 4, "token_cap": cap}
    saved = PackedLoader([[1]] * count, **size, last="fill")
    batches = iter(saved)
    for _ in range(taken):
        next(batches)
    loader = PackedLoader([[1]] * count, **size, last="drop")
    loader.load_state_dict(saved.state_dict())
    assert says in caplog.text
    assert loader.epoch == 1


def test_what_is_left_for_no_step_of_other_ranks_is_told(fleet, caplog):
    run = fleet(DATA, 2, sequences=4)
    run.take(36)
    loader = PackedLoader(DATA, sequences=4, rank=0, world_size=5)
    loader.load_state_dict(run.state())
    assert "12 sequences are left of epoch 0 and make no step of 20" in caplog.text
    assert (loader.epoch, len(loader), loader.sequences_seen) == (1, 15, 288)
    assert len(list(loader)) == 15


def test_strata_that_ran_out_do_not_keep_a_run_from_going_on(fleet):
    lengths = [1] * 40 + [9] * 160
    data = [np.full(length, number) for number, length in enumerate(lengths)]
    balance = Balance.named("stratified", edges=(5,), quotas=(1, 1))
    run = fleet(data, 2, sequences=2, balance=balance, last="fill")
    seen = run.take(22)
    rest = fleet(data, 3, sequences=2, balance=balance, last="fill", state=run.state()).take()
    assert fleet.counts(seen + rest) == dict.fromkeys(range(200), 1)


@pytest.mark.parametrize("change", ["past", "empty"])
def test_legs_that_cannot_be_are_refused(fleet, change):
    run = fleet(DATA, 2, sequences=2)
    run.take(5)
    state = json.loads(json.dumps(run.state()))
    first, last = dict(state["legs"][0]), dict(state["legs"][0], steps=0)
    first["steps"] = 80 if change == "past" else 0
    state |= {"legs": [first, last], "steps_seen": 80, "sequences_seen": 320, "tokens_seen": 9000}
    loader = PackedLoader(DATA, sequences=2, rank=0, world_size=2)
    with pytest.raises(FormatError, match="took 320 units of an epoch that has 300" if change == "past" else "no leg"):
        loader.load_state_dict(state)


def test_a_mixture_that_nobody_can_hold_is_refused_at_once():
    for weights in ({"a": 1e-9, "b": 1e9}, {"a": 1e9, "b": 1}):
        with pytest.raises(OptionError, match="until every other source was read once"):
            Mixture({"a": DATA[:50], "b": DATA[50:]}, weights)
    with pytest.raises(OptionError, match="the weight of 'a' is 'much'; it is a number above 0"):
        Mixture({"a": DATA}, {"a": "much"})


def test_a_share_below_a_token_per_epoch_is_read_in_some_epochs():
    mixture = Mixture({"a": [[1]] * 8, "b": [[2]] * 4}, {"a": 32, "b": 1}, exhausted="stop")
    loader = PackedLoader(mixture, sequences=1)
    of_b = [sum(int(batch.records["seq_source"][0]) for batch in loader) for _ in range(16)]
    assert sum(of_b) == 4
    assert max(of_b) == 1


def test_a_mixture_of_single_sequences_goes_on_with_other_ranks(fleet):
    def mixture():
        return Mixture({"a": DATA[:7], "b": DATA[7:9]}, {"a": 1, "b": 9})

    epoch = fleet(mixture(), 1, sequences=1).take()
    assert len(epoch) > 20  # sequences of b come many times, so there are more units than sequences
    run = fleet(mixture(), 2, sequences=2)
    first = run.take(5)
    rest = fleet(mixture(), 3, sequences=1, last="fill", state=run.state()).take()
    assert fleet.counts(first + rest) == fleet.counts(epoch)


def test_numbers_beyond_64_bits_do_not_turn_negative(tmp_path):
    np.save(tmp_path / "ids.npy", np.arange(6))
    np.save(tmp_path / "offsets.npy", np.array([0, 2, 6]))
    np.save(tmp_path / "hash.npy", np.array([1, 2**63 + 1], np.uint64))
    with pytest.raises(BatchError, match="'hash' holds 9223372036854775809, which is beyond 64-bit integers"):
        list(PackedLoader(tmp_path, 6, rows=1))


def test_a_collate_that_makes_no_batch_is_told():
    loader = PackedLoader(DATA, 40, rows=1, collate=lambda sequences, form, per_row: {"ids": sequences})
    with pytest.raises(OptionError, match="collate gave a dict"):
        next(iter(loader))


@pytest.mark.parametrize("form", [None, Flat()])
def test_a_column_of_a_collate_with_too_few_values_is_told(form):
    def collate(sequences, form, per_row):
        tokens = {**sequences.tokens, "labels": sequences.tokens["input_ids"][1:]}
        return PackedBatch.from_columns(replace(sequences, tokens=tokens), form, per_row=per_row)

    loader = PackedLoader([[1, 2, 3], [4]], 4, rows=1, form=form, collate=collate)
    with pytest.raises(BatchError, match=r"column 'labels' is \[3\], and the sequences have 4 tokens"):
        next(iter(loader))


def test_a_loop_that_changes_what_it_got_changes_nothing_else():
    def run(change):
        loader = PackedLoader(DATA, 40, rows=2, rank=0, world_size=1, prefetch=0)
        for batch in loader:
            batch.records["seq_index"][:] = batch.records["seq_index"] if not change else 0
        return loader.sequences_seen, loader.tokens_seen

    assert run(change=True) == run(change=False)


def test_data_that_gives_other_lengths_than_were_dealt_are_refused(monkeypatch):
    gather = StoredTokens.gather

    def shorter(self, taken):
        sequences = gather(self, taken)
        return sequences.part(0, len(sequences) - 1)

    loader = PackedLoader(DATA, 40, rows=2)
    monkeypatch.setattr(StoredTokens, "gather", shorter)
    with pytest.raises(CorruptError, match="sequences are not as long as when they were opened"):
        next(iter(loader))


class Group:
    """A process group, which no other process can have."""

    def rank(self):
        return 0

    def size(self):
        return 1

    def __reduce__(self):
        raise TypeError("cannot pickle a process group")


def test_a_loader_of_a_process_group_goes_to_worker_processes():
    loader = PackedLoader(DATA, 40, rows=2, group=Group())
    assert [b.input_ids.tolist() for b in pickle.loads(pickle.dumps(loader))] == [b.input_ids.tolist() for b in loader]
    assert pickle.loads(pickle.dumps(Ranks(rank=1, world_size=2, group=Group()))) == Ranks(rank=1, world_size=2)


def test_lengths_that_are_freed_meanwhile_are_those_without_empty_sequences():
    source = open_tokens([[1], [], *DATA[1:]], empty="skip")
    expected, stop, interval = source.seq_lengths.tolist(), threading.Event(), sys.getswitchinterval()

    def free():
        while not stop.is_set():
            assert source.seq_lengths.size == len(expected)
            source.release()

    thread = threading.Thread(target=free)
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        end = time.monotonic() + 1
        while time.monotonic() < end:
            assert source.seq_lengths.tolist() == expected
            assert source.gather(np.array([5, 7])).seq_lengths.tolist() == [expected[5], expected[7]]
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()


def _rest(loader, iterator, queue):
    try:
        next(iterator)
    except OptionError as error:
        queue.put((str(error), len(list(loader))))


def test_an_iteration_does_not_go_on_in_a_forked_process():
    loader = PackedLoader(DATA, 40, rows=2)
    batches = iter(loader)
    next(batches)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_rest, args=(loader, batches, queue))
    process.start()
    message, rest = queue.get(timeout=60)
    process.join(60)
    assert "began in another process" in message
    assert rest == len(loader) - 1 == len(list(batches))


def test_a_forked_process_does_not_wait_for_a_thread_that_it_does_not_have(monkeypatch):
    units, here = StoredTokens.units, os.getpid()

    def slow(self, epoch):
        if epoch and os.getpid() == here:
            time.sleep(1)
        return units(self, epoch)

    monkeypatch.setattr(StoredTokens, "units", slow)
    loader = PackedLoader(DATA, 40, rows=2)
    batches = loader.dataloader(num_workers=1, timeout=60)
    assert [sum(batch.layout.sequences for batch in batches) for _ in range(2)] == [sum(1 for _ in DATA)] * 2
