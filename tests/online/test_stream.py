from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nopad
from nopad.errors import FormatError, LengthError, OptionError
from nopad.online.stream import StreamPacker, stream_pack
from nopad.packs import Packs

lengths_lists = st.one_of(
    st.lists(st.integers(1, 50), max_size=120),
    st.lists(st.sampled_from([3, 17, 49, 50]), max_size=120),
    st.lists(st.integers(1, 6), max_size=120),
)
options = st.fixed_dictionaries(
    {
        "depth": st.sampled_from([None, 1, 2, 3, 5, 1000]),
        "buffer": st.sampled_from([1, 2, 3, 8, 40]),
        "patience": st.sampled_from([None, 1, 5, 30]),
        "buffer_tokens": st.sampled_from([None, 1, 60, 300]),
    }
)


def joined(parts: list[Packs]) -> list[list[int]]:
    return [pack.tolist() for packs in parts for pack in packs]


def packed(lengths, capacity=50, **options):
    packer = StreamPacker(capacity, **options)
    return joined([packer.push(lengths), packer.finish()])


def as_packs(packs: list[list[int]], capacity, depth) -> Packs:
    indptr = np.concatenate([[0], np.cumsum([len(pack) for pack in packs], dtype=np.int64)]).astype(np.int64)
    return Packs(capacity, depth, indptr, np.array([n for pack in packs for n in pack], dtype=np.int64))


@given(lengths_lists, options)
def test_each_sequence_is_in_exactly_one_pack(lengths, options):
    packs = packed(lengths, **options)
    as_packs(packs, 50, options["depth"]).check(lengths)
    assert all(pack == sorted(pack) for pack in packs)
    assert packs == packed(lengths, **options)


@given(lengths_lists, options, st.data())
def test_chunks_of_any_size_give_the_same_packs(lengths, options, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(lengths)), max_size=6)))
    packer = StreamPacker(50, **options)
    parts = [packer.push(lengths[a:b]) for a, b in itertools.pairwise([0, *cuts, len(lengths)])]
    assert joined([*parts, packer.finish()]) == packed(lengths, **options)


@given(lengths_lists, options)
def test_no_more_than_the_buffer_is_held_and_nothing_longer_than_patience(lengths, options):
    packer = StreamPacker(50, **options)
    out = 0
    for i, length in enumerate(lengths):
        out += packer.push([length]).sequences
        assert packer.arrived == i + 1
        assert packer.held == i + 1 - out < max(options["buffer"], 2)
        state = packer.state_dict()
        assert all(i - number < packer.patience for number in state["numbers"])
        assert sum(state["lengths"]) < (options["buffer_tokens"] or 2**62)
    out += packer.finish().sequences
    assert (out, packer.held) == (len(lengths), 0)


@given(lengths_lists, options, st.data())
def test_a_state_continues_exactly(lengths, options, data):
    cut = data.draw(st.integers(0, len(lengths)))
    packer, twin = StreamPacker(50, **options), StreamPacker(50, **options)
    packer.push(lengths[:cut])
    twin.push(data.draw(lengths_lists))  # must be forgotten
    text = json.dumps(packer.state_dict())
    twin.load_state_dict(json.loads(text))
    assert json.dumps(twin.state_dict()) == text
    for method in (lambda p: p.push(lengths[cut:]), StreamPacker.finish):
        ours, theirs = method(packer), method(twin)
        assert ours == theirs
        assert ours.indptr.tobytes() + ours.sequence.tobytes() == theirs.indptr.tobytes() + theirs.sequence.tobytes()
    assert packer.state_dict() == twin.state_dict()


@given(lengths_lists, lengths_lists)
def test_pushing_goes_on_after_finish(first, second):
    packer = StreamPacker(50, buffer=8)
    parts = [packer.push(first), packer.finish(), packer.finish()]
    assert len(parts[2]) == packer.held == 0
    offset = [[n + len(first) for n in pack] for pack in packed(second, buffer=8)]
    assert joined([packer.push(second), packer.finish()]) == offset
    assert packer.arrived == len(first) + len(second)


def test_results_are_packs_of_int64():
    packs = StreamPacker(8, depth=3).push([8, 4])
    assert (packs.capacity, packs.depth) == (8, 3)
    assert packs.indptr.dtype == packs.sequence.dtype == np.int64
    assert [pack.tolist() for pack in packs] == [[0]]
    assert len(StreamPacker(8).push([])) == len(StreamPacker(8).finish()) == 0


def test_full_sequences_and_depth_1_pass_through():
    packer = StreamPacker(8, buffer=1000)
    assert joined([packer.push([8, 8, 3])]) == [[0], [1]]
    assert joined([StreamPacker(8, depth=1).push([3, 8, 1])]) == [[0], [1], [2]]


def test_the_most_common_lengths_are_used_first():
    # 60 is completed by 40 or by 25 + 15; 40 is rare.
    packer = StreamPacker(100, buffer=8)
    assert joined([packer.push([60, 40, 25, 15, 25, 15, 25, 15])]) == [[0, 2, 3]]


def test_a_longest_that_nothing_completes_waits_for_a_better_moment():
    packer = StreamPacker(100, buffer=4)
    assert joined([packer.push([90, 70, 30, 20])]) == [[1, 2]]
    assert joined([packer.push([10, 5])]) == [[0, 4]]


def test_patience_lets_nothing_starve():
    packer = StreamPacker(10, buffer=100, patience=3)
    assert joined([packer.push([6, 10, 10])]) == [[1], [2]]
    assert joined([packer.push([10])]) == [[3], [0]]


def test_numbers_go_beyond_32_bits():
    packer = StreamPacker(8, buffer=3)
    state = packer.state_dict()
    packer.load_state_dict({**state, "arrived": 2**40, "numbers": [2**40 - 7], "lengths": [3]})
    assert joined([packer.push([8, 5]), packer.finish()]) == [[2**40], [2**40 - 7, 2**40 + 1]]


@pytest.mark.shared
@pytest.mark.parametrize(
    ("buffer", "depth", "least"),
    [(64, None, 0.999), (1024, None, 0.9995), (4096, None, 0.9995), (4096, 3, 0.995), (4096, 4, 0.9993)],
)
def test_efficiency_on_wikipedia(wikipedia, buffer, depth, least):
    n = 300_000
    rng = np.random.default_rng(1)
    lengths = rng.choice(wikipedia.lengths, n, p=wikipedia.counts / wikipedia.sequences)
    packer = StreamPacker(512, depth=depth, buffer=buffer)
    packs = len(packer.push(lengths)) + len(packer.finish())
    assert lengths.sum() / (packs * 512) >= least


@pytest.mark.parametrize("depth", [4, 16])
def test_efficiency_where_the_depth_is_what_runs_out(depth):
    lengths = np.clip(np.random.default_rng(0).lognormal(np.log(350), 1.1, 60_000).astype(int), 1, 8192)
    packer = StreamPacker(8192, depth=depth)
    packs = len(packer.push(lengths)) + len(packer.finish())
    assert packs <= 1.01 * nopad.plan(lengths, 8192, depth=depth, algorithm="lpfhp").lower_bound


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([3, 0], "length 0 at index 1; every sequence has at least 1 token: leave it out"),
        ([3, -2], "length -2 at index 1; every sequence has at least 1 token: leave it out"),
        ([9], "length 9 at index 0 is above the capacity of 8; cut or remove it, or take a capacity of at "
              "least 9"),
        ([3, 2.5], "lengths must be integers, got 2.5 (float64) at index 1; convert them to an int dtype"),
    ],
)  # fmt: skip
def test_bad_lengths_change_nothing(refuses, lengths, message):
    packer = StreamPacker(8)
    packer.push([5])
    before = packer.state_dict()
    with refuses(LengthError, message):
        packer.push(lengths)
    assert packer.state_dict() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 0}, "capacity must be an integer from 1 to 2147483647, got 0"),
        ({"capacity": 2**24 + 1}, "a stream's capacity is at most 16,777,216, got 16,777,217"),
        ({"depth": 0}, "depth must be an integer from 1 to 2147483647 (None for unlimited), got 0"),
        ({"buffer": 0}, "buffer must be an integer from 1 to 16777216, got 0"),
        ({"buffer": True}, "buffer must be an integer from 1 to 16777216, got True"),
        ({"buffer": 2**24 + 1}, "buffer must be an integer from 1 to 16777216, got 16777217"),
        ({"buffer_tokens": 0}, "buffer_tokens must be an integer from 1 to 4611686018427387904, got 0"),
        ({"patience": 1.5}, "patience must be an integer from 1 to 4611686018427387904, got 1.5"),
    ],
)
def test_options_that_mean_nothing(refuses, options, message):
    with refuses(OptionError, message):
        StreamPacker(**{"capacity": 8, **options})


@pytest.mark.parametrize(
    "change",
    [
        {"lengths": [3, 0]},
        {"lengths": [3, 9]},
        {"lengths": [3]},
        {"numbers": [1, 1]},
        {"numbers": [-1, 1]},
        {"numbers": [1, 0]},
        {"numbers": [0, 2]},  # only two have arrived
        {"numbers": "01"},
        {"arrived": "many"},
        {"arrived": None},
        {"arrived": 2**70},
        {"arrived": 2.5},
        {"numbers": list(range(3)), "lengths": [3] * 3, "arrived": 3},  # a buffer of 3 is never full
    ],
)
def test_damaged_states_are_refused_and_change_nothing(change):
    packer = StreamPacker(8, buffer=3)
    packer.push([3, 4])
    before = packer.state_dict()
    with pytest.raises(FormatError, match="the state of the stream packer is damaged: "):
        packer.load_state_dict({**before, **change})
    assert packer.state_dict() == before
    for key in ("arrived", "numbers", "lengths"):
        with pytest.raises(FormatError, match="damaged"):
            packer.load_state_dict({k: v for k, v in before.items() if k != key})


def test_states_of_others_are_refused(refuses):
    packer = StreamPacker(8)
    state = packer.state_dict()
    for other in (None, {}, {**state, "format": "nopad.packs"}, {**state, "version": 2}):
        with refuses(FormatError, "not the state of a stream packer (format nopad.stream, version 1)"):
            packer.load_state_dict(other)
    with refuses(OptionError, "the state is of a packer with depth 3, this one has None"):
        packer.load_state_dict(StreamPacker(8, depth=3).state_dict())


def test_what_a_packer_looks_like():
    packer = StreamPacker(8, buffer=3)
    packer.push([8, 2])
    assert repr(packer) == "StreamPacker(capacity=8, depth=None, buffer=3, patience=192: 2 arrived, 1 held)"


@given(lengths_lists, options)
def test_items_come_out_as_their_numbers_do(lengths, options):
    items = [(number, "x" * length) for number, length in enumerate(lengths)]
    packs = list(stream_pack(items, 50, length=lambda item: len(item[1]), **options))
    assert [[number for number, _ in pack] for pack in packs] == packed(lengths, **options)


def test_endless_items():
    packs = stream_pack(([i] * (1 + i % 7) for i in itertools.count()), 8, buffer=16)
    first = list(itertools.islice(packs, 1000))
    assert sum(map(len, itertools.chain(*first))) / 8000 > 0.99


def test_items_of_bad_length(refuses):
    with refuses(OptionError, "buffer must be an integer from 1 to 16777216, got 0"):
        stream_pack([], 8, buffer=0)  # at once, not at the first item
    packs = stream_pack(itertools.chain(["full size"] * 300, [""]), 9)
    assert len(list(itertools.islice(packs, 256))) == 256
    with refuses(
        LengthError,
        "in items 256 to 300 of the stream: length 0 at index 44; every sequence has at least 1 token: leave it out",
    ):
        next(packs)


def test_a_buffer_of_one_holds_nothing_back_and_no_state_says_that_it_does():
    packer = StreamPacker(8, buffer=1)
    packer.push([3, 4])
    state = packer.state_dict()
    assert state["numbers"] == []
    with pytest.raises(FormatError, match="what it holds does not fit together"):
        StreamPacker(8, buffer=1).load_state_dict({**state, "arrived": 1, "numbers": [0], "lengths": [3]})
