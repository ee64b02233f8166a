from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nopad
from nopad import Flat, PackedLoader, Rows
from nopad.balance import METHODS, Attention, Balance
from nopad.errors import FormatError, LengthError, OptionError, PlanMismatchError

LENGTHS = np.random.default_rng(0).integers(1, 40, size=300)
DATA = [np.full(length, number, dtype=np.int32) for number, length in enumerate(LENGTHS)]  # each token tells whose
DRAWN = sorted(name for name, method in METHODS.items() if method.draw != "stratified")  # strata need 4 units a rank
STEPS = [{"capacity": 40, "rows": 2}, {"tokens": 64}, {"sequences": 3}, {"capacity": 64, "rows": 1, "form": Flat()}]


def check_batches(fleet, batches, capacity):
    """Every sequence whole and by itself, rows within the capacity."""
    for ranks in batches:
        for batch in ranks:
            ids, place = batch["input_ids"].numpy(), batch.sequence_ids
            for number, index in enumerate(fleet.sequences_of(batch), start=1):
                assert (ids[place == number] == index).all()
                assert (place == number).sum() == LENGTHS[index]
            assert batch.layout.shape[1] <= max(capacity, batch.layout.tokens)
            if batch.layout.form == "rows":
                assert (place > 0).sum(axis=1).max() <= capacity


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("method", DRAWN)
def test_every_sequence_once_an_epoch_whatever_the_step_and_the_balance(fleet, step, method):
    run = fleet(DATA, 4, node_size=2, accumulation=2, last="fill", balance=method, **step)
    for epoch in range(2):
        assert run.loaders[0].epoch == epoch
        batches = run.take()
        assert fleet.counts(batches) == dict.fromkeys(range(300), 1)
        assert len(batches) == len(run.loaders[0])
        check_batches(fleet, batches, step.get("capacity", 64))
        run.begin()


@pytest.mark.parametrize("method", ["stratified", "local_presort", "local_presort_raster"])
def test_strata_leave_no_sequence_out(fleet, method):
    balance = Balance.named(method, edges=(10, 20, 30), quotas=(2, 2, 2, 2))
    run = fleet(DATA, 4, node_size=2, sequences=8, last="fill", balance=balance)
    batches = run.take()
    assert fleet.counts(batches) == dict.fromkeys(range(300), 1)
    strata = [np.digitize(batch.seq_lengths, [11, 21, 31]) for batch in batches[0]]
    if method == "stratified":
        assert all(np.bincount(found).tolist() == [2, 2, 2, 2] for found in strata)


def test_epochs_differ_and_are_the_same_again_by_seed(fleet):
    first, again, other = fleet(DATA, 2, capacity=40, rows=2), fleet(DATA, 2, capacity=40, rows=2), None
    one = fleet.contents(first.take())
    assert one == fleet.contents(again.take())
    first.begin()
    assert one != fleet.contents(first.take())
    other = fleet(DATA, 2, capacity=40, rows=2, seed=1)
    assert one != fleet.contents(other.take())


@pytest.mark.slow
@settings(max_examples=60)
@given(
    step=st.sampled_from(STEPS),
    method=st.sampled_from(DRAWN),
    worlds=st.lists(st.sampled_from([1, 3, 8, 2]), min_size=2, max_size=4),
    accumulations=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    taken=st.lists(st.integers(0, 9), min_size=3, max_size=3),
    groups=st.sampled_from([None, "pairs"]),
)
def test_an_epoch_goes_on_with_exactly_what_is_left_on_other_ranks(
    fleet, step, method, worlds, accumulations, taken, groups
):
    options = {"last": "fill", "balance": method, **step}
    if groups and step.get("sequences", 2) % 2 == 0:
        options["groups"] = 2
        options |= {"capacity": 80} if "capacity" in step else {"tokens": 80} if "tokens" in step else {}
    seen, leg, state = [], [], None
    for place, shape in enumerate(zip(worlds, accumulations, strict=False)):
        run = fleet(DATA, shape[0], accumulation=shape[1], node_size=1, state=state, **options)
        last = place == len(worlds) - 1
        leg += run.take(None if last else taken[place])
        state = run.state()
        if state["epoch"]:
            break
        if (worlds[place + 1], accumulations[place + 1]) != shape:
            # Other ranks take a step that was not finished again: its gradient was never applied.
            seen, leg = seen + leg[: len(leg) - len(leg) % shape[1]], []
    assert fleet.counts(seen + leg) == dict.fromkeys(range(300), 1)
    assert state["epoch"] == 1


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("taken", [0, 1, 5, 6])
def test_on_the_same_ranks_the_next_batch_is_the_one_that_would_have_come(fleet, step, taken):
    options = {"accumulation": 3, "cost": Attention(hidden_size=8), **step}
    whole = fleet(DATA, 3, **options)
    expected = whole.take()
    cut = fleet(DATA, 3, **options)
    cut.take(taken)
    resumed = fleet(DATA, 3, state=cut.state(), **options)
    assert fleet.contents(resumed.take()) == fleet.contents(expected[taken:])
    assert resumed.state() == whole.state()


def test_what_was_seen_counts_over_changes_of_ranks(fleet):
    first = fleet(DATA, 3, capacity=40, rows=2)
    first.take(4)
    second = fleet(DATA, 2, capacity=40, rows=2, last="fill", state=first.state())
    second.take()
    loader = second.loaders[1]
    assert (loader.sequences_seen, loader.tokens_seen, loader.epoch) == (300, int(LENGTHS.sum()), 1)


def test_a_state_may_be_asked_for_ahead(fleet):
    run = fleet(DATA, 2, capacity=40, rows=2, accumulation=2)
    ahead = run.loaders[0].state_dict(batches=5)
    run.take(5)
    assert run.state() == ahead
    with pytest.raises(OptionError, match="no batch after"):
        run.loaders[0].state_dict(batches=10_000)


def test_last_drop_counts_and_refuse_refuses():
    loader = PackedLoader(DATA, sequences=7, rank=0, world_size=2)
    assert loader.summary().left_out[:2] == (300 % 14, 300 % 14)
    assert len(list(loader)) == 300 // 14
    with pytest.raises(OptionError, match="do not make whole steps of 14: 6 would be left over"):
        PackedLoader(DATA, sequences=7, rank=0, world_size=2, last="refuse")
    assert len(PackedLoader(DATA, sequences=5, rank=0, world_size=2, last="refuse")) == 30


def test_a_rank_without_a_sequence_gets_a_stand_in_of_weight_0(fleet):
    data = [{"input_ids": [n, n], "labels": [n, n], "score": 0.5} for n in range(5)]
    run = fleet(data, 4, sequences=1, last="fill")
    (first, last) = run.take()
    assert [batch.weight for batch in first] == [1] * 4
    assert sorted(batch.weight for batch in last) == [0, 0, 0, 1]
    for batch in last:
        assert batch["input_ids"].shape == (1, 2)
        assert (batch["labels"] == -100).all() == (not batch.weight)
    assert fleet.counts([first, last]) == dict.fromkeys(range(5), 1)


@pytest.mark.parametrize("method", ["none", "karmarkar_karp", "sorted"])
def test_empty_rows_of_a_filled_step_are_spread_over_the_ranks(fleet, method):
    full = [np.full(8, number) for number in range(14)]
    last = fleet(full, 4, capacity=8, rows=2, last="fill", balance=method).take()[-1]
    assert [batch["input_ids"].shape for batch in last] == [(2, 8)] * 4
    assert sorted(batch.layout.sequences for batch in last) == [1, 1, 2, 2]
    last = fleet(full[:10], 4, capacity=8, rows=2, last="fill", balance=method).take()[-1]
    assert sorted(batch.weight for batch in last) == [0, 0, 1, 1]


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_short_last_step_has_no_empty_row(fleet, ranks, accumulation):
    step = {"capacity": 40, "rows": 7, "accumulation": accumulation}
    filled, run = fleet(DATA, ranks, last="fill", **step), fleet(DATA, ranks, last="short", **step)
    batches, others = run.take(), filled.take()
    for mine, theirs in zip(itertools.chain(*batches), itertools.chain(*others), strict=True):
        assert fleet.sequences_of(mine) == fleet.sequences_of(theirs)
    assert fleet.counts(batches) == dict.fromkeys(range(300), 1)
    check_batches(fleet, batches, 40)
    *whole, last = [batches[at : at + accumulation] for at in range(0, len(batches), accumulation)]
    assert {batch["input_ids"].shape for step in whole for ranks in step for batch in ranks} == {(7, 40)}
    rows = [batch for ranks in last for batch in ranks]
    assert sum(batch["input_ids"].shape[0] for batch in rows) < 7 * len(rows)
    for batch in rows:
        used = {int(start) // 40 for start in batch.layout.starts}
        assert len(used) == batch["input_ids"].shape[0] if batch.weight else batch["input_ids"].shape == (1, 40)
    summary, other = run.loaders[0].summary(), filled.loaders[0].summary()
    assert summary.slots == sum(batch["input_ids"].numel() for ranks in batches for batch in ranks) < other.slots
    assert (summary.empty, summary.steps, summary.tokens) == (other.empty, other.steps, other.tokens)
    assert f"short    the last step lacks {summary.empty} of its {summary.shape.per_step} packs" in str(summary)
    assert f"filled   the last step has {other.empty} of its {other.shape.per_step} packs empty" in str(other)


@pytest.mark.parametrize(("together", "ranks"), [("rank", 1), ("step", 2)])
def test_groups_stay_together(fleet, together, ranks):
    run = fleet(DATA, 4, sequences=6, groups=2, together=together, accumulation=2, last="fill")
    step_of, rank_of = {}, {}
    for number, batches in enumerate(run.take()):
        for rank, batch in enumerate(batches):
            for index in fleet.sequences_of(batch):
                step_of.setdefault(index // 2, set()).add(number // 2)
                rank_of.setdefault(index // 2, set()).add(rank)
    assert max(map(len, step_of.values())) == 1
    assert max(map(len, rank_of.values())) == ranks
    assert len(step_of) == 150


def test_groups_of_any_sizes_share_a_pack(fleet):
    groups = np.random.default_rng(1).integers(0, 150, size=300)
    run = fleet(DATA, 2, capacity=300, rows=2, groups=groups, last="fill")
    batches = run.take()
    row_of = {}
    for number, ranks in enumerate(batches):
        for rank, batch in enumerate(ranks):
            for index, start in zip(fleet.sequences_of(batch), batch.layout.starts, strict=False):
                row_of.setdefault(groups[index], set()).add((number, rank, start // 300))
    assert {len(rows) for rows in row_of.values()} == {1}
    assert fleet.counts(batches) == dict.fromkeys(range(300), 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "a step is rows, or tokens, or sequences, per rank; given: none"),
        ({"rows": 2, "tokens": 9}, "given: rows, tokens"),
        ({"rows": 2}, "rows of what capacity"),
        ({"tokens": 64, "capacity": 9}, "leave capacity out"),
        ({"sequences": 2, "depth": 3}, "depth are options of a plan"),
        ({"sequences": 3, "groups": 2}, "a rank takes 3 sequences, and groups have 2"),
        (
            {"sequences": 2, "groups": 7},
            "groups of 7 are given, and there are 300 sequences, which are no multiple",
        ),
        ({"sequences": 2, "groups": [1, 2]}, "expected an integer for each of 300"),
        ({"sequences": 2, "groups": 2, "together": "pack"}, "sequences are not packed"),
        ({"sequences": 2, "together": "step"}, "together is 'step', and is about groups of sequences; give groups"),
        ({"rows": 2, "capacity": 99, "together": "pack"}, "together is 'pack', and is about groups"),
        ({"sequences": 2, "groups": 2, "together": "node"}, "it is 'step', 'rank' or 'pack'"),
        ({"rows": 2, "capacity": 99, "groups": 2, "depth": 3}, "packs are made of whole groups"),
        ({"sequences": 2, "last": "pad"}, "it is 'drop', 'fill', 'short' or 'refuse'"),
        ({"sequences": 2, "rank": 1}, "rank and world_size go together"),
        ({"sequences": 2, "rank": 2, "world_size": 2}, "the last is number 1"),
        ({"sequences": 2, "rank": 0, "world_size": 6, "node_size": 4}, "whole nodes of 4"),
        ({"sequences": 200, "rank": 0, "world_size": 2}, "300 units cannot make a step of 400"),
        ({"sequences": 2, "balance": "even"}, "unknown method of balance 'even'"),
        ({"sequences": 0}, "sequences must be an integer from 1"),
        ({"sequences": 2, "accumulation": 0}, "accumulation must be an integer from 1"),
        ({"sequences": 2, "cost": 0}, "cost is 0; it is a nopad.balance.CostModel"),
        ({"sequences": 2, "cost": np.ones(300)}, "it is a nopad.balance.CostModel"),
        ({"sequences": 2, "collate": False}, "collate is False; it is a function that makes a nopad.PackedBatch"),
        ({"sequences": 2, "collate": [1, 2]}, r"collate is \[1, 2\]; it is a function"),
        ({"rows": 2, "capacity": 99, "plan": [[0, 1]]}, "plan is a list; it is what nopad.plan returns"),
        ({"rows": 2, "capacity": 99, "algorithm": np.array(["auto", "ffd"])}, "unknown algorithm"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(options, message):
    with pytest.raises(OptionError, match=message):
        PackedLoader(DATA, **options)


def test_sequences_and_groups_over_the_capacity_are_counted():
    over = int((LENGTHS > 30).sum())
    with pytest.raises(LengthError, match=f"{over} of 300 sequences are longer than the capacity of 30, the first is"):
        PackedLoader(DATA, 30, rows=1)
    with pytest.raises(LengthError, match="groups are longer than the capacity of 40"):
        PackedLoader(DATA, 40, rows=1, groups=2)


def test_a_state_of_something_else_is_refused_by_name():
    state = PackedLoader(DATA, 40, rows=1).state_dict()
    with pytest.raises(PlanMismatchError, match="seed is 1 and was 0"):
        PackedLoader(DATA, 40, rows=1, seed=1).load_state_dict(state)
    with pytest.raises(PlanMismatchError, match="capacity is 48 and was 40, plan is"):
        PackedLoader(DATA, 48, rows=1).load_state_dict(state)
    with pytest.raises(PlanMismatchError, match="data is"):
        PackedLoader(DATA[::-1], 40, rows=1).load_state_dict(state)
    with pytest.raises(PlanMismatchError, match="cost is Attention"):
        PackedLoader(DATA, 40, rows=1, cost=Attention(hidden_size=4)).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "no state of a nopad.PackedLoader"),
        ({"format_version": 2}, "upgrade nopad"),
        ({"format_version": True}, "upgrade nopad"),
        ({"epoch": -1}, "epoch of this state is -1"),
        ({"epoch": 1.0}, "epoch of this state is 1.0"),
        ({"batches": 1}, "fewer 'batches' than a step has micro-steps"),
        ({"legs": []}, "a list of 'legs'"),
        ({"legs": [{"steps": 3}]}, "leg 0 of this state is no leg"),
        ({"more": 1}, "this one has balance|this one has"),
        ({"steps_seen": 3, "sequences_seen": 2, "tokens_seen": 9}, "this one has 3 steps, 2 sequences, 9 tokens"),
        ({"sequences_seen": 3, "tokens_seen": 2}, "this one has 0 steps, 3 sequences, 2 tokens"),
        ({"same": {1: 2}}, "something else"),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(change, message):
    loader = PackedLoader(DATA, 40, rows=1)
    before = loader.state_dict()
    with pytest.raises((FormatError, PlanMismatchError), match=message):
        loader.load_state_dict({**before, **change})
    assert loader.state_dict() == before


def test_a_state_with_more_steps_than_the_epoch_has_is_refused():
    loader = PackedLoader(DATA, 40, rows=1)
    state = loader.state_dict()
    state["legs"][0]["steps"] = len(loader) + 1
    state |= dict.fromkeys(["steps_seen", "sequences_seen", "tokens_seen"], len(loader) + 1)
    with pytest.raises(FormatError, match="steps of an epoch that has"):
        loader.load_state_dict(state)


def test_a_second_iteration_ends_the_first():
    loader = PackedLoader(DATA, 40, rows=1)
    first = iter(loader)
    next(first)
    second = iter(loader)
    next(second)
    with pytest.raises(OptionError, match="this iteration is over"):
        next(first)
    assert loader.state_dict()["legs"][0]["steps"] == 2


def test_a_copy_moves_by_itself():
    loader = PackedLoader(DATA, capacity=40, rows=2)
    batches = iter(loader)
    next(batches)
    other = copy.copy(loader)
    assert [b.input_ids.tolist() for b in other] == [b.input_ids.tolist() for b in batches]
    assert (other.epoch, loader.epoch) == (1, 1)
    loader.rewind()
    assert (other.epoch, loader.epoch) == (1, 0)


@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_prefetch_changes_nothing(fleet, prefetch):
    expected = fleet(DATA, 2, capacity=40, rows=2)
    run = fleet(DATA, 2, capacity=40, rows=2, prefetch=prefetch)
    for _ in range(2):
        assert fleet.contents(run.take(7)) == fleet.contents(expected.take(7))
        assert run.state() == expected.state()
        assert fleet.contents(run.take()) == fleet.contents(expected.take())
        run.begin()
        expected.begin()


def test_an_error_while_building_reaches_the_loop():
    def broken(sequences, form, per_row):
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        next(iter(PackedLoader(DATA, 40, rows=1, collate=broken)))


def test_ranks_that_wait_at_micro_steps_get_alike_ones():
    cost = Attention(hidden_size=1)
    step = PackedLoader(DATA, sequences=4, accumulation=4, rank=0, world_size=4, cost=cost)
    micro = PackedLoader(
        DATA, sequences=4, accumulation=4, rank=0, world_size=4, cost=cost, balance=Balance(wait="micro")
    )
    waiting = PackedLoader(
        DATA, sequences=4, accumulation=4, rank=0, world_size=4, cost=cost, balance=Balance(wait="micro", deal="none")
    )
    assert step.summary().balanced.waste < 0.01
    assert micro.summary().balanced.waste < waiting.summary().balanced.waste / 3


def test_a_plan_may_be_given_and_must_fit():
    plan = nopad.plan(LENGTHS, 40, algorithm="lpfhp")
    loader = PackedLoader(DATA, 40, rows=1, plan=plan)
    assert len(loader) == plan.packs
    with pytest.raises(PlanMismatchError, match="capacity of 40, and 48"):
        PackedLoader(DATA, 48, rows=1, plan=plan)
    with pytest.raises(PlanMismatchError, match="the plan covers"):
        PackedLoader(DATA[1:], 40, rows=1, plan=plan)
    with pytest.raises(OptionError, match="depth as well"):
        PackedLoader(DATA, 40, rows=1, plan=plan, depth=3)


def test_set_epoch_goes_there_and_stays_where_it_is():
    loader = PackedLoader(DATA, 40, rows=1)
    expected = [[batch.input_ids.tolist() for batch in loader] for _ in range(3)]
    loader = PackedLoader(DATA, 40, rows=1)
    loader.set_epoch(2)
    assert [batch.input_ids.tolist() for batch in loader] == expected[2]
    loader.set_epoch(1)
    batches = iter(loader)
    next(batches)
    loader.set_epoch(1)
    assert [batch.input_ids.tolist() for batch in batches] == expected[1][1:]
    with pytest.raises(OptionError, match="epoch must be an integer from 0"):
        loader.set_epoch(-1)


def test_the_form_of_a_batch_may_be_chosen():
    rows = next(iter(PackedLoader(DATA, 64, rows=2, form=Rows(64, rows=3))))
    assert rows["input_ids"].shape == (3, 64)
    flat = next(iter(PackedLoader(DATA, 64, rows=2, form=Flat())))
    assert flat["input_ids"].shape == (1, flat.layout.tokens)


@pytest.mark.parametrize("groups", [{}, {"groups": 2}, {"groups": 4}, {"groups": 2, "together": "step"}])
def test_rows_is_the_number_of_rows_of_whole_batches(groups):
    for form, rows in ((Rows(200), None), (None, 1), (Flat(), 1)):
        loader = PackedLoader(DATA, sequences=4, form=form, rank=0, world_size=1, **groups)
        assert {batch["input_ids"].shape[0] for batch in loader} == {loader.rows}
        assert rows in (None, loader.rows)


def test_sequences_may_be_aligned_for_context_parallelism(fleet):
    for step in ({"capacity": 64, "rows": 2}, {"tokens": 64}):
        batches = fleet(DATA, 2, align=8, last="fill", **step).take()
        assert fleet.counts(batches) == dict.fromkeys(range(300), 1)
        for batch in (batch for ranks in batches for batch in ranks if batch.weight):
            begins = batch.layout.cu_seqlens_padded
            assert (begins % 8 == 0).all()
            assert (np.diff(begins) >= batch.seq_lengths).all()
            for index, begin in zip(fleet.sequences_of(batch), batch.layout.starts, strict=True):
                assert batch["input_ids"].flatten()[begin : begin + LENGTHS[index]].tolist() == [index] * LENGTHS[index]
    with pytest.raises(OptionError, match="align is for packs that are planned"):
        PackedLoader(DATA, sequences=2, align=8)
    with pytest.raises(OptionError, match="multiple"):
        PackedLoader(DATA, 60, rows=1, align=8)


@pytest.mark.parametrize(
    ("step", "takes"),
    [
        ({"capacity": 64, "rows": 2}, "2 packs"),
        ({"tokens": 64}, "64 tokens"),
        ({"capacity": 64, "rows": 1, "form": Flat()}, "1 pack"),
        ({"sequences": 6}, "6 sequences"),
        ({"sequences": 6, "groups": 3}, "2 groups"),
    ],
)
def test_what_a_rank_takes_is_said_as_it_was_asked_for(step, takes):
    loader = PackedLoader(DATA, accumulation=2, rank=1, world_size=3, **step)
    assert f"step     3 ranks x 2 micro-steps x {takes}: " in str(loader.summary())
    for _ in zip(range(5), loader, strict=False):
        pass
    told = repr(loader)
    assert told.startswith("PackedLoader(300 sequences")
    assert ("% padding" in told) == ("capacity" in step or "tokens" in step)
    assert f"{takes} per rank and micro-step, 2 micro-steps per step; rank 1 of 3; epoch 0, 2 steps seen" in told
    assert "\n" not in told


def test_the_repr_counts_packs_and_padding(tmp_path):
    told = "2 sequences in 1 pack of at most 8 tokens with 37.50% padding, 1 pack per rank and micro-step, 1 micro-step"
    assert told in repr(PackedLoader([[1, 2], [3, 4, 5]], 8, rows=1))
    assert told in repr(PackedLoader(nopad.pack_dataset([[1, 2], [3, 4, 5]], 8), rows=1))
