"""No rank's micro-step above the cap, whatever the ranks, the balance and the groups; every sequence once an epoch."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopad import Flat, PackedBatch, PackedLoader, Rows
from nopad.balance import METHODS, Attention, Balance
from nopad.errors import FormatError, LengthError, OptionError
from nopad.loading import Mixture

LENGTHS = np.random.default_rng(0).integers(1, 40, size=150)
DATA = [np.full(length, number, dtype=np.int32) for number, length in enumerate(LENGTHS)]  # each token tells whose
DRAWN = sorted(name for name, method in METHODS.items() if method.draw != "stratified")  # strata need 4 units a rank


def most_tokens(batches):
    """The fullest of all batches but stand-ins, counted from its ids; each id has all its tokens there."""
    most = 0
    for batch in (batch for ranks in batches for batch in ranks if batch.weight):
        ids = batch["input_ids"].numpy().reshape(-1)
        assert batch["input_ids"].shape == (1, ids.size)
        assert np.bincount(ids, minlength=LENGTHS.size)[ids].tolist() == LENGTHS[ids].tolist()
        most = max(most, ids.size)
    return most


@settings(max_examples=40)
@given(
    cap=st.integers(78, 300),
    sequences=st.sampled_from([2, 6, 12]),
    method=st.sampled_from(DRAWN),
    wait=st.sampled_from(["step", "micro"]),
    worlds=st.lists(st.sampled_from([1, 3, 8, 2]), min_size=2, max_size=4),
    accumulations=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    taken=st.lists(st.integers(0, 9), min_size=3, max_size=3),
    groups=st.sampled_from([{}, {"groups": 2}, {"groups": 2, "together": "step"}]),
    other_cap=st.sampled_from([0, 0, 50]),
)
def test_an_epoch_keeps_to_the_cap_and_goes_on_with_what_is_left_on_other_ranks(
    fleet, cap, sequences, method, wait, worlds, accumulations, taken, groups, other_cap
):
    options = {"sequences": sequences, "last": "fill", "balance": Balance.named(method, wait=wait), **groups}
    caps = [cap + place % 2 * other_cap for place in range(4)]
    seen, leg, state = [], [], None
    for place, shape in enumerate(zip(worlds, accumulations, caps, strict=False)):
        world, accumulation, limit = shape
        run = fleet(DATA, world, accumulation=accumulation, token_cap=limit, node_size=1, state=state, **options)
        last = place == len(worlds) - 1
        found = run.take(None if last else taken[place])
        assert most_tokens(found) <= limit
        leg += found
        state = run.state()
        if state["epoch"]:
            break
        if (worlds[place + 1], accumulations[place + 1], caps[place + 1]) != shape:
            # Other ranks take a step that was not finished again: its gradient was never applied.
            seen, leg = seen + leg[: len(leg) - len(leg) % accumulation], []
    assert fleet.counts(seen + leg) == dict.fromkeys(range(150), 1)
    assert state["epoch"] == 1


def test_a_stand_in_is_a_sequence_of_its_step(fleet):
    data = [np.full(8, number) for number in range(24)]
    steps = fleet(data, 4, sequences=3, groups=3, together="step", token_cap=8).take()
    assert len(steps) == 7  # each takes the three sequences of a group
    for ranks in steps:
        assert sorted(batch.weight for batch in ranks) == [0, 1, 1, 1]
        assert len({int(batch["input_ids"].max()) // 3 for batch in ranks}) == 1


@pytest.mark.parametrize("groups", [{}, {"groups": 2}, {"groups": 2, "together": "step"}])
@pytest.mark.parametrize("taken", [0, 1, 5, 6])
def test_on_the_same_ranks_the_next_batch_is_the_one_that_would_have_come(fleet, taken, groups):
    options = {"accumulation": 3, "cost": Attention(hidden_size=8), "sequences": 6, "token_cap": 110, **groups}
    whole = fleet(DATA, 2, **options)
    expected = whole.take()
    cut = fleet(DATA, 2, **options)
    cut.take(taken)
    resumed = fleet(DATA, 2, state=cut.state(), **options)
    assert fleet.contents(resumed.take()) == fleet.contents(expected[taken:])
    assert resumed.state() == whole.state()
    assert (whole.loaders[0].tokens_seen, whole.loaders[0].steps_seen) == (
        sum(batch.layout.tokens for ranks in expected for batch in ranks),
        len(expected) // 3,
    )


def test_a_cap_that_nothing_reaches_changes_nothing(fleet):
    with_cap = fleet(DATA, 2, sequences=6, accumulation=2, token_cap=6 * 40)
    without = fleet(DATA, 2, sequences=6, accumulation=2)
    assert fleet.contents(with_cap.take()) == fleet.contents(without.take())
    assert with_cap.loaders[0].summary().cut_short == 0


def test_groups_share_a_rank_or_a_step_under_a_cap(fleet):
    for together, most in (("rank", 1), ("step", 2)):
        run = fleet(DATA, 3, sequences=6, groups=2, together=together, accumulation=2, token_cap=100, last="fill")
        steps, ranks = {}, {}
        for number, batches in enumerate(run.take()):
            for rank, batch in enumerate(batches):
                for index in fleet.sequences_of(batch):
                    steps.setdefault(index // 2, set()).add(number // 2)
                    ranks.setdefault(index // 2, set()).add((number, rank))
        assert len(steps) == 75
        assert max(map(len, steps.values())) == 1
        assert max(map(len, ranks.values())) == most


def test_steps_are_nearly_full_under_a_tight_cap(fleet):
    run = fleet(DATA, 4, sequences=30, token_cap=120)
    batches = run.take()
    tokens = [[batch.layout.tokens for batch in ranks] for ranks in batches]
    assert max(map(max, tokens)) <= 120
    assert np.mean(tokens) > 0.85 * 120
    summary = run.loaders[0].summary()
    assert summary.most_tokens <= 120
    assert summary.left_out[1] + summary.sequences == 150
    assert f"{len(batches):,} of {len(batches):,} steps take fewer sequences for it" in str(summary)
    assert "30 sequences (120 tokens at most)" in repr(run.loaders[0])


def test_every_source_of_a_mixture_is_under_the_cap(fleet):
    mixture = Mixture({"one": DATA[:50], "two": DATA[50:]}, weights={"one": 1, "two": 1})
    run = fleet(mixture, 3, sequences=6, token_cap=90, last="fill")
    lengths = [run.loaders[0].steps_in(epoch) for epoch in range(3)]
    for epoch in range(3):
        batches = run.take()
        assert len(batches) == lengths[epoch]
        assert max(batch.layout.tokens for ranks in batches for batch in ranks) <= 90
        run.begin()


def test_epochs_have_the_steps_that_were_told_before():
    loader = PackedLoader(DATA, sequences=6, token_cap=45, rank=0, world_size=2)
    told = [loader.steps_in(epoch) for epoch in range(6)]
    assert told == [sum(1 for _ in loader) for _ in range(6)]
    assert len(set(told)) > 1


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"token_cap": 30},
            LengthError,
            r"34 of 150 sequences have more tokens than token_cap=30, the first: sequence 0 has 34",
        ),
        ({"token_cap": 60, "groups": 2}, LengthError, r"groups have more .* group \d+ has \d+ tokens \(sequences \d+"),
        (
            {"token_cap": 90, "groups": 6, "together": "step"},
            LengthError,
            r"does not fit into one step, of 1 micro-steps of ranks with at most token_cap=90",
        ),
        ({"token_cap": 0}, OptionError, "token_cap must be an integer from 1"),
        ({"token_cap": 50, "sequences": None, "tokens": 50}, OptionError, "tokens=, are a limit themselves"),
        ({"token_cap": 50, "form": Rows(50)}, OptionError, "adds padding"),
        ({"token_cap": 50, "exhausted": "stop"}, OptionError, "of a stream, tokens=50 takes at most"),
        ({"token_cap": 40, "last": "refuse"}, OptionError, "would be left over"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_work(options, error, message):
    with pytest.raises(error, match=message):
        PackedLoader(DATA, **{"sequences": 6, "rank": 0, "world_size": 1} | options)


def test_a_batch_that_is_made_larger_is_refused():
    def longer(sequences, form, per_row):
        return PackedBatch.from_sequences([[0] * 60, [1] * 60], Flat())

    with pytest.raises(OptionError, match=r"collate made a batch of 120 tokens .* above token_cap=100"):
        next(iter(PackedLoader(DATA, sequences=2, token_cap=100, collate=longer)))


@pytest.mark.parametrize("change", [{"token_cap": 39, "steps": 30}, {"token_cap": 5}, {"token_cap": 0}])
def test_a_state_whose_cap_cannot_be_is_refused(change):
    loader = PackedLoader(DATA, sequences=6, token_cap=100, rank=0, world_size=2)
    state = json.loads(json.dumps(loader.state_dict()))
    leg = {**state["legs"][0], "steps": 2} | change
    state |= {"legs": [leg, state["legs"][0]], "steps_seen": 90, "sequences_seen": 900, "tokens_seen": 9000}
    if change.get("steps"):
        state["legs"][0]["steps"] = 900
        state |= {"steps_seen": 900}
    with pytest.raises(FormatError, match=r"cap"):
        loader.load_state_dict(state)
