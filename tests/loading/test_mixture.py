from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopad import PackedLoader
from nopad.errors import LengthError, OptionError, PlanMismatchError
from nopad.loading import Mixture

RNG = np.random.default_rng(0)
SOURCES = {
    name: [np.full(length, 1000 * place + number) for number, length in enumerate(RNG.integers(1, 20, size=count))]
    for place, (name, count) in enumerate({"text": 300, "code": 60, "chat": 20}.items())
}
TOKENS = {name: sum(map(len, sequences)) for name, sequences in SOURCES.items()}


def taken(batches):
    """How often each sequence came, by its token, and the tokens of each source in each batch."""
    seen, shares = Counter(), []
    for batch in batches:
        if not batch.weight:
            continue
        firsts = [int(ids[0]) for ids in batch.unpack_tokens(batch["input_ids"])]
        for first, number, source in zip(firsts, batch.records["seq_index"], batch.records["seq_source"], strict=True):
            assert first == 1000 * source + number
        seen.update(firsts)
        of = np.array(firsts) // 1000
        shares.append(np.bincount(of, weights=batch.seq_lengths, minlength=3))
    return seen, np.array(shares)


def whole(sequence_counts, name):
    """How often each sequence of a source came."""
    place = list(SOURCES).index(name)
    return [sequence_counts[1000 * place + number] for number in range(len(SOURCES[name]))]


STEPS = [{"capacity": 32, "rows": 2}, {"sequences": 5}, {"tokens": 40}]


@pytest.mark.parametrize("step", STEPS)
def test_without_weights_every_sequence_comes_once(step):
    loader = PackedLoader(Mixture(SOURCES), last="fill", **step)
    for _ in range(2):
        seen, _ = taken(loader)
        assert set(seen.values()) == {1}
        assert len(seen) == 380


@pytest.mark.parametrize("step", STEPS)
def test_repeat_ends_when_every_source_was_read_and_keeps_the_shares(step):
    data = Mixture(SOURCES, {"text": 2, "code": 1, "chat": 1}, exhausted="repeat")
    loader, in_all = PackedLoader(data, last="fill", **step), Counter()
    for _ in range(3):
        seen, shares = taken(loader)
        in_all.update(seen)
        assert whole(seen, "text") == [1] * 300
        assert min(whole(seen, "code")) >= 1
        np.testing.assert_allclose(shares.sum(axis=0) / shares.sum(), [0.5, 0.25, 0.25], atol=0.01)
        repeats = whole(in_all, "chat")  # over all epochs nobody is two passes ahead
        assert max(repeats) - min(repeats) <= 1


def test_stop_goes_on_in_the_next_epoch_where_it_stopped():
    data = Mixture(SOURCES, {"text": 2, "code": 1, "chat": 1}, exhausted="stop")
    loader = PackedLoader(data, 32, rows=2, last="fill")
    in_all, epochs = Counter(), 0
    while min(whole(in_all, "text")) == 0:
        seen, shares = taken(loader)
        assert whole(seen, "chat") == [1] * 20
        np.testing.assert_allclose(shares.sum(axis=0) / shares.sum(), [0.5, 0.25, 0.25], atol=0.03)
        in_all.update(seen)
        epochs += 1
        assert max(whole(in_all, "text")) - min(whole(in_all, "text")) <= 1  # nobody twice before everybody once
    assert epochs == -(-TOKENS["text"] // (2 * TOKENS["chat"]))


def test_drop_takes_all_once_and_keeps_the_shares_of_those_left():
    data = Mixture(SOURCES, {"text": 2, "code": 1, "chat": 1}, exhausted="drop")
    loader = PackedLoader(data, 32, rows=1, last="fill")
    seen, shares = taken(loader)
    assert set(seen.values()) == {1}
    assert len(seen) == 380
    before = shares[: int(np.flatnonzero(shares[:, 2])[-1]) + 1].sum(axis=0)
    np.testing.assert_allclose(before / before.sum(), [0.5, 0.25, 0.25], atol=0.05)
    between = shares[int(np.flatnonzero(shares[:, 2])[-1]) + 1 : int(np.flatnonzero(shares[:, 1])[-1]) + 1].sum(axis=0)
    np.testing.assert_allclose(between / between.sum(), [2 / 3, 1 / 3, 0], atol=0.05)
    with pytest.raises(OptionError, match="would mix the phases"):
        PackedLoader(data, 32, rows=1, balance="sorted")


@pytest.mark.slow
@settings(max_examples=30)
@given(
    exhausted=st.sampled_from(["repeat", "drop", "stop"]),
    weights=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    step=st.sampled_from(STEPS),
    worlds=st.sampled_from([(1, 3), (3, 2), (2, 1)]),
    batches=st.integers(0, 8),
)
def test_an_epoch_of_a_mixture_goes_on_on_other_ranks(fleet, exhausted, weights, step, worlds, batches):
    data = Mixture(SOURCES, dict(zip(SOURCES, weights, strict=True)), exhausted=exhausted)

    def seen(ranks):
        found = taken(batch for step in ranks for batch in step)
        return found[0]

    whole_epoch = seen(fleet(data, 1, last="fill", **step).take())
    first = fleet(data, worlds[0], last="fill", **step)
    some = seen(first.take(batches))
    if first.state()["epoch"]:
        assert some == whole_epoch
        return
    rest = seen(fleet(data, worlds[1], last="fill", state=first.state(), **step).take())
    assert some + rest == whole_epoch


def test_the_summary_says_what_each_source_gives():
    loader = PackedLoader(Mixture(SOURCES, {"text": 2, "code": 1, "chat": 1}), 32, rows=2)
    told = str(loader.summary())
    assert f"source   text: 300 sequences, {TOKENS['text']:,} tokens (50.0%), read 1.00 times" in told
    assert f"tokens (25.0%), read {TOKENS['text'] / 2 / TOKENS['chat']:.2f} times" in told
    said = [int(line.split(" sequences, ")[1].split()[0].replace(",", "")) for line in told.splitlines()[-3:]]
    assert sum(said) == loader.summary().tokens + loader.summary().left_out[2]


def test_a_state_of_other_shares_or_sources_is_refused_by_name():
    state = PackedLoader(Mixture(SOURCES), 32, rows=1).state_dict()
    with pytest.raises(PlanMismatchError, match="shares is"):
        PackedLoader(Mixture(SOURCES, dict.fromkeys(SOURCES, 1)), 32, rows=1).load_state_dict(state)
    other = {**SOURCES, "code": SOURCES["code"][::-1]}
    with pytest.raises(PlanMismatchError, match="data of code is"):
        PackedLoader(Mixture(other), 32, rows=1).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sources": {}}, "has its sources by name"),
        ({"sources": [[1, 2]]}, "has its sources by name"),
        ({"weights": {"text": 1}}, "there is no weight for 'code'"),
        ({"weights": {"text": 1, "code": 1, "chat": 1, "web": 1}}, "a weight for 'web', and no such source"),
        ({"weights": {"text": 1, "code": 0, "chat": 1}}, "the weight of 'code' is 0"),
        ({"weights": {"text": 1, "code": float("nan"), "chat": 1}}, "the weight of 'code' is nan"),
        ({"weights": [1, 2, 3]}, "weights are .1, 2, 3.; give a dict with a number for each of text, code, chat"),
        ({"weights": np.ones(3)}, "give a dict with a number for each of"),
        ({"exhausted": "cycle"}, "it is 'repeat', 'drop' or 'stop'"),
        ({"sources": {"a": [[1]], "b": [{"input_ids": [1], "labels": [2]}]}}, "'b' has input_ids per token, labels"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(change, message):
    with pytest.raises(OptionError, match=message):
        Mixture(**{"sources": SOURCES, **change})


def test_what_a_mixture_cannot_do():
    data = Mixture(SOURCES)
    with pytest.raises(LengthError, match="of 380 sequences are longer than the capacity of 10"):
        PackedLoader(data, 10, rows=1)
    with pytest.raises(OptionError, match="without groups"):
        PackedLoader(data, 32, rows=1, groups=2)
    with pytest.raises(OptionError, match="together is 'pack', and is about groups of sequences"):
        PackedLoader(data, sequences=1, together="pack")
    with pytest.raises(OptionError, match="give a capacity"):
        PackedLoader(data, rows=1)
    with pytest.raises(OptionError, match="deepness"):
        PackedLoader(data, 32, rows=1, deepness=3)
