from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad.errors import LengthError, OptionError, QueueFullError
from nopad.serving import Batching, OnlinePacker
from nopad.serving.batching import POLICIES, REASONS

GREEDY = [policy for policy in POLICIES if policy != "look_ahead"]


def published(rows, capacity):
    """PopRT's workload: 100 batches' worth of requests, as its examples draw them."""
    mean = capacity / 2
    drawn = np.random.RandomState(2023).normal(mean, mean, 100 * rows)
    return np.clip(drawn.astype(int), 1, capacity).tolist()


def saturated(lengths, batching, waiting=None):
    """The batches of a device that is never idle for long: up to `waiting` requests wait when it asks."""
    packer, batches, at = OnlinePacker(batching), [], 0
    while at < len(lengths) or len(packer):
        while at < len(lengths) and (waiting is None or len(packer) < waiting):
            packer.add(lengths[at], now_ns=at)
            at += 1
        batches.append(packer.poll(now_ns=at).batch)
    return batches


@pytest.mark.parametrize(
    ("policy", "batches", "reduction"),
    [("end_to_end", 52, 1.923), ("first_fit", 56, 1.786), ("next_fit", 65, 1.538), ("best_fit", 56, 1.786)],
)
def test_the_published_workload_in_order_of_arrival(policy, batches, reduction):
    lengths = published(16, 256)
    assert round(len(lengths) * 256 / sum(lengths), 3) == 2.003  # the best possible
    made = saturated(lengths, Batching(capacity=256, rows=16, max_sequences=40, policy=policy))
    assert len(made) == batches
    assert round(len(lengths) / 16 / len(made), 3) == reduction
    assert [n for batch in made for n in batch.numbers.tolist()] == list(range(len(lengths)))


@pytest.mark.parametrize("window", [1, 64, 128])
def test_looking_ahead_over_64_waiting_requests(window):
    made = saturated(published(16, 256), Batching(capacity=256, rows=16, max_sequences=40, window=window), waiting=64)
    assert 100 / len(made) >= 1.95
    assert sorted(n for batch in made for n in batch.numbers.tolist()) == list(range(1600))


def test_looking_ahead_while_it_may_wait():
    """Requests come one by one, and the packer itself decides when there are enough to choose from."""
    batching = Batching(capacity=256, rows=16, max_sequences=40, window=64, accumulate=True, wait_s=1)
    packer, batches, most = OnlinePacker(batching), [], 0
    for at, length in enumerate(published(16, 256)):
        packer.add(length, now_ns=at)
        most = max(most, len(packer))
        batches += [batch for batch in [packer.poll(now_ns=at).batch] if batch]
    while len(packer):
        batches.append(packer.poll(now_ns=1600, draining=True).batch)
    assert most <= 64
    assert 100 / len(batches) >= 1.92
    assert {batch.reason for batch in batches[:40]} <= {"full", "count"}


@pytest.mark.parametrize(
    ("grid", "expected"),
    [
        ({"capacity": 128, "rows": 8, "max_sequences": 16, "separator": 1}, (59, 66, 59)),
        ({"capacity": 128, "rows": 16, "max_sequences": 40}, (56, 65, 56)),
        ({"capacity": 384, "rows": 4, "max_sequences": 64}, (58, 64, 58)),
    ],
)
def test_the_other_published_grids(grid, expected):
    lengths = published(grid["rows"], grid["capacity"])
    counts = [
        len(saturated(lengths, Batching(**grid, policy=policy))) for policy in ("first_fit", "next_fit", "best_fit")
    ]
    assert tuple(counts) == expected


def one_batch(lengths, capacity, rows, policy, separator, most):
    """How many of the first requests a batch takes, and where: by the policy's definition, request by request."""
    used, places = [[] for _ in range(rows)], []
    end, current = 0, 0
    for length in lengths[:most]:
        if policy == "end_to_end":
            begin = end + (separator if places else 0)
            if begin + length > rows * capacity:
                break
            end = begin + length
            places.append((begin // capacity, begin % capacity))
            continue
        free = [capacity - (sum(row) + separator * len(row) if row else 0) for row in used]
        fits = [at for at in range(rows) if free[at] >= length]
        if policy == "next_fit":
            fits = [at for at in fits if current <= at <= current + 1][:1]
        if not fits:
            break
        chosen = min(fits, key=lambda at: (free[at], at)) if policy == "best_fit" else fits[0]
        current = chosen
        places.append((chosen, capacity - free[chosen]))
        used[chosen].append(length)
    return places


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=60),
    st.sampled_from(GREEDY),
    st.integers(1, 5),
    st.sampled_from([0, 1, 3]),
    st.sampled_from([None, 1, 4, 100]),
)
def test_policies_in_order_are_what_they_say(lengths, policy, rows, separator, most):
    batching = Batching(capacity=12, rows=rows, policy=policy, separator=separator, max_sequences=most)
    at = 0
    for batch in saturated(lengths, batching):
        places = one_batch(lengths[at:], 12, rows, policy, separator, most)
        assert batch.numbers.tolist() == list(range(at, at + len(places)))
        assert list(zip(batch.rows.tolist(), batch.starts.tolist(), strict=True)) == places
        at += len(places)
    assert at == len(lengths)


def check_places(batch, batching):
    """No slot is used twice, nothing is outside, and separators are between all entries."""
    capacity, rows = batching.capacity, batching.rows or 1
    assert len(batch) <= (batching.max_sequences or math.inf)
    assert batch.numbers.tolist() == sorted(batch.numbers.tolist())
    flat = batching.rows is None
    spans = {}
    for length, row, start in zip(batch.lengths.tolist(), batch.rows.tolist(), batch.starts.tolist(), strict=True):
        assert 0 <= row < rows
        assert 0 <= start < capacity
        begin = row * capacity + start
        key = 0 if flat or batching.policy == "end_to_end" else row
        spans.setdefault(key, []).append((begin, begin + length))
        if not flat and batching.policy != "end_to_end":
            assert start + length <= capacity
    for key, found in spans.items():
        found.sort()
        assert found[0][0] == key * capacity
        for (_, end), (begin, _) in itertools.pairwise(found):
            assert begin == end + batching.separator
        if not (flat and len(batch) == 1):
            assert found[-1][1] <= rows * capacity


def widest_left(batch, batching):
    """The longest request that would still fit, by what is in each row; less than 1: none would."""
    capacity, rows = batching.capacity, batching.rows or 1
    crossing = batching.rows is None or batching.policy == "end_to_end"
    room, filled = (capacity * rows, [0]) if crossing else (capacity, [0] * rows)
    for length, row, start in zip(batch.lengths.tolist(), batch.rows.tolist(), batch.starts.tolist(), strict=True):
        at, end = (0, row * capacity + start + length) if crossing else (row, start + length)
        filled[at] = max(filled[at], end)
    return max(room - (end + batching.separator if end else 0) for end in filled)


class Judge:
    """What a user may rely on, checked from outside: it sees only the calls and their results."""

    def __init__(self, batching):
        self.batching, self.packer = batching, OnlinePacker(batching)
        self.waiting, self.now, self.batches, self.gone = {}, 0, 0, dict.fromkeys(("packed", "expired", "cancelled"), 0)
        self.reasons = dict.fromkeys(REASONS, 0)
        self.refused = 0

    def add(self, length, deadline, lead, priority):
        full = sum(w["length"] for w in self.waiting.values()) + length > self.batching.max_waiting_tokens
        times = {} if deadline is None else {"deadline_ns": self.now + deadline, "lead_ns": lead}
        if full:
            with pytest.raises(QueueFullError):
                self.packer.add(length, self.now, **times, priority=priority)
            self.refused += 1
            return
        number = self.packer.add(length, self.now, **times, priority=priority)
        assert number == sum(self.gone.values()) + len(self.waiting)
        end = math.inf if deadline is None else self.now + deadline
        self.waiting[number] = {
            "length": length, "arrived": self.now, "deadline": end, "due": max(end - lead, 0),
            "ahead": len(self.waiting), "batches": self.batches,
        }  # fmt: skip

    def cancel(self, number):
        assert self.packer.cancel(number) == (number in self.waiting)
        self.gone["cancelled"] += self.waiting.pop(number, None) is not None

    def poll(self, now, idle, draining):
        self.now = max(self.now, now)
        decision = self.packer.poll(now, idle=idle, draining=draining)
        late = {number for number, one in self.waiting.items() if one["deadline"] <= self.now}
        assert set(decision.expired.tolist()) == late
        assert len(decision.expired) == len(late)
        for number in late:
            del self.waiting[number]
        self.gone["expired"] += len(late)
        if decision.batch is not None:
            self.left(decision.batch, idle, draining)
        else:
            self.stayed(idle, draining, decision.wake_ns)
        assert len(self.packer) == len(self.waiting)
        return decision

    def left(self, batch, idle, draining):
        check_places(batch, self.batching)
        numbers = batch.numbers.tolist()
        oldest, due = min(self.waiting), [n for n, one in self.waiting.items() if one["due"] <= self.now]
        timeout = self.timed_out(oldest)
        assert numbers
        assert oldest in numbers
        assert len(set(numbers)) == len(numbers)
        assert batch.lengths.tolist() == [self.waiting[n]["length"] for n in numbers]
        if self.batching.keep_order:
            assert numbers == sorted(self.waiting)[: len(numbers)]
        everything = len(numbers) == len(self.waiting)
        counted = len(numbers) == self.batching.max_sequences
        widest = 0 if counted else widest_left(batch, self.batching)
        if self.batching.policy != "next_fit":  # which does not go back to earlier rows
            left = [one["length"] for number, one in sorted(self.waiting.items()) if number not in numbers]
            assert all(length > widest for length in (left[:1] if self.batching.keep_order else left))
        allowed = {
            "count": counted,
            "full": not counted and (not everything or widest < 1),
            "timeout": timeout,
            "deadline": bool(due),
            "idle": idle and not self.batching.accumulate and everything,
            "drain": draining and everything,
        }
        assert allowed[batch.reason]
        self.batches += 1
        self.reasons[batch.reason] += 1
        for n in numbers:
            one = self.waiting.pop(n)
            assert self.batches - one["batches"] <= one["ahead"] + 1  # it does not starve
        self.gone["packed"] += len(numbers)

    def timed_out(self, oldest):
        wait = self.batching.wait_s
        return wait is not None and self.now - self.waiting[oldest]["arrived"] >= round(wait * 1e9)

    def stayed(self, idle, draining, wake):
        if not self.waiting:
            assert wake is None
            return
        assert not draining
        assert not idle or self.batching.accumulate
        assert not self.timed_out(min(self.waiting))
        assert all(one["due"] > self.now for one in self.waiting.values())
        assert wake is None or wake > self.now
        last = min(min(one["due"], one["deadline"]) for one in self.waiting.values())
        if self.batching.wait_s is not None:
            last = min(last, self.waiting[min(self.waiting)]["arrived"] + round(self.batching.wait_s * 1e9))
        assert (math.inf if wake is None else wake) <= last

    def finish(self):
        while self.waiting:
            assert self.poll(self.now, True, True).batch is not None or not self.waiting
        seen = self.packer.statistics
        assert (seen.waiting, seen.waiting_tokens) == (0, 0)
        assert {name: getattr(seen, name) for name in self.gone} == self.gone
        assert seen.arrived == sum(self.gone.values())
        assert seen.refused == self.refused
        assert seen.flushes == self.reasons
        assert seen.batches == self.batches == sum(self.reasons.values())


CAPACITY = 20
times = st.one_of(st.just(0), st.integers(1, 40))
batchings = st.builds(
    lambda policy, keep, accumulate, wait, **more: Batching(
        capacity=CAPACITY,
        policy=policy,
        keep_order=keep,
        accumulate=accumulate,
        wait_s=1e-9 * wait if wait is not None else 30e-9 if accumulate else None,
        age_step_s=1e-6,
        **more,
    ),
    policy=st.sampled_from(POLICIES),
    keep=st.sampled_from([None, True, False]),
    accumulate=st.booleans(),
    wait=st.sampled_from([None, 0, 10, 100]),
    rows=st.sampled_from([None, 1, 2, 5]),
    separator=st.sampled_from([0, 0, 1, 3]),
    max_sequences=st.sampled_from([None, None, 1, 3, 20]),
    window=st.sampled_from([1, 5, 128]),
    max_waiting_tokens=st.sampled_from([20, 150, 1 << 20]),
)


@given(st.data(), batchings)
def test_no_request_is_lost_or_taken_twice_or_starves(data, batching):
    judge = Judge(batching)
    ranked = batching.policy == "look_ahead" and not batching.keep_order
    lengths = st.integers(1, CAPACITY if batching.rows else min(batching.max_waiting_tokens, 2 * CAPACITY))
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["add", "add", "poll", "cancel", "back"])):
            case "add":
                for _ in range(data.draw(st.sampled_from([1, 1, 3, 20]))):
                    deadline = data.draw(st.none() | times)
                    priority = data.draw(st.sampled_from([0, 0, 5, -5])) if ranked else 0
                    judge.add(data.draw(lengths), deadline, data.draw(times), priority)
            case "poll":
                judge.poll(judge.now + data.draw(times), data.draw(st.booleans()), data.draw(st.booleans()))
            case "cancel":
                judge.cancel(data.draw(st.sampled_from([*judge.waiting, 10**6, -1])))
            case "back":
                judge.poll(max(judge.now - data.draw(times), 0), data.draw(st.booleans()), False)
    judge.finish()


@pytest.mark.parametrize("seed", range(12))
def test_hundreds_wait_and_some_cancel(seed):
    """Few of those that wait are short enough for what is left of a batch, and they wait far behind the others."""
    draw = np.random.default_rng(seed)
    rows = [None, 1, 3][seed % 3]
    judge = Judge(Batching(capacity=20, rows=rows, window=8, age_step_s=1e-6, separator=seed % 2))
    for _ in range(12):
        lengths = np.where(draw.random(80) < 0.03, draw.integers(1, 3, 80), draw.integers(7, 21, 80))
        for length in lengths.tolist():
            ranked = seed % 4 > 1 and draw.random() < 0.05
            judge.add(length, int(draw.integers(1, 900)) if ranked else None, 5, int(draw.integers(-2, 3)) * ranked)
        for number in draw.choice(list(judge.waiting), 10, replace=False).tolist():
            judge.cancel(number)
        for _ in range(15):
            judge.poll(judge.now + int(draw.integers(0, 30)), True, False)
    judge.finish()


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(-3, 3)), min_size=1, max_size=80), st.sampled_from([2, 128]))
def test_the_same_calls_give_the_same_batches(requests, window):
    def run():
        packer = OnlinePacker(Batching(capacity=20, rows=2, window=window))
        for at, (length, priority) in enumerate(requests):
            packer.add(length, at, priority=priority)
        made = []
        while len(packer):
            batch = packer.poll(100).batch
            made.append([array.tolist() for array in (batch.numbers, batch.lengths, batch.rows, batch.starts)])
        return made

    assert run() == run()


def test_what_is_urgent_leaves_first_wherever_it_waits():
    packer = OnlinePacker(Batching(capacity=10, rows=2, window=2))
    for _ in range(500):
        packer.add(10, 0)
    urgent = packer.add(10, 0, priority=3)
    due = packer.add(10, 0, deadline_ns=1000, lead_ns=990)
    assert packer.poll(5).batch.numbers.tolist() == [0, urgent]
    assert packer.poll(10).batch.numbers.tolist() == [1, due]
    assert packer.poll(11).batch.numbers.tolist() == [2, 3]


def test_of_equal_urgency_several_share_rows_before_others_do():
    packer = OnlinePacker(Batching(capacity=10, rows=2))
    first = packer.add(10, 0)
    for _ in range(4):
        packer.add(5, 0)
    urgent = [packer.add(5, 0, priority=1) for _ in range(2)]
    assert packer.poll(0).batch.numbers.tolist() == [first, *urgent]


def test_a_batch_of_few_requests_is_filled_to_their_number():
    """Rows of three each: the second row leaves in part, so that no place of the five is empty."""
    packer = OnlinePacker(Batching(capacity=9, rows=2, max_sequences=5))
    for _ in range(9):
        packer.add(3, 0)
    batch = packer.poll(0).batch
    assert (batch.reason, batch.numbers.tolist(), batch.rows.tolist()) == ("count", [0, 1, 2, 3, 4], [0, 0, 0, 1, 1])


def test_what_is_urgent_is_not_left_for_what_shares_the_oldest_row():
    packer = OnlinePacker(Batching(capacity=10, rows=2, max_sequences=2))
    oldest = packer.add(6, 0)
    packer.add(4, 0)
    urgent = packer.add(7, 0, priority=1)
    assert packer.poll(0).batch.numbers.tolist() == [oldest, urgent]


def test_a_count_of_requests_is_enough_to_choose_from():
    """With two requests in a batch, four are those of two batches: none waits for a window of 128."""
    packer = OnlinePacker(Batching(capacity=10, rows=2, max_sequences=2, accumulate=True, wait_s=10))
    for _ in range(3):
        packer.add(1, 0)
    assert packer.poll(0).batch is None
    packer.add(1, 0)
    assert packer.poll(0).batch.reason == "count"


@pytest.mark.parametrize(("policy", "rows"), [("look_ahead", 1), ("look_ahead", None), ("best_fit", 2)])
def test_what_waits_beyond_the_window_fills_what_is_left(policy, rows):
    packer = OnlinePacker(Batching(capacity=10, rows=rows, policy=policy, keep_order=False, window=1))
    numbers = [packer.add(length, 0) for length in (6, 6, 6, 6, 6, 6, 4)]
    assert numbers[-1] in packer.poll(0).batch.numbers


@pytest.mark.parametrize("policy", POLICIES)
def test_a_batch_in_which_not_one_token_would_fit_is_full(policy):
    packer = OnlinePacker(Batching(capacity=10, rows=1, policy=policy, separator=3))
    packer.add(7, 0)
    batch = packer.poll(0, idle=False).batch
    assert (batch.reason, batch.tokens) == ("full", 7)


def test_in_order_the_most_that_fits_is_found_without_trying_each_number():
    """Three of 171 fit into no row of 512, so only 2,048 of 3,065 requests can leave."""
    packer = OnlinePacker(Batching(capacity=512, rows=1024, policy="look_ahead", keep_order=True))
    for _ in range(4000):
        packer.add(171, 0)
    assert packer.poll(0).batch.numbers.tolist() == list(range(2048))
    spaced = OnlinePacker(Batching(capacity=4096, rows=16, separator=1, policy="look_ahead", keep_order=True))
    for _ in range(65_536):
        spaced.add(1, 0)
    assert len(spaced.poll(0).batch) == 2048 * 16


def test_in_order_what_fits_beside_a_worse_arrangement_leaves_too():
    """Whatever best-fit decreasing makes of one more: the next request leaves if there is room for it."""
    rng = np.random.default_rng(3)
    batching = Batching(capacity=12, rows=3, policy="look_ahead", keep_order=True)
    for _ in range(400):
        judge = Judge(batching)
        for length in rng.integers(1, 8, 20).tolist():
            judge.add(length, None, 0, 0)
        judge.finish()


def test_waiting_counts_as_priority():
    packer = OnlinePacker(Batching(capacity=10, rows=2, age_step_s=1e-6))
    numbers = [packer.add(10, 0) for _ in range(3)]
    late = [packer.add(10, 2000, priority=1) for _ in range(2)]
    assert packer.poll(2000).batch.numbers.tolist() == numbers[:2]  # two steps have passed
    assert packer.poll(2000).batch.numbers.tolist() == [numbers[2], late[0]]


def test_one_long_request_delays_short_ones_by_one_batch():
    packer = OnlinePacker(Batching(capacity=512, max_waiting_tokens=100_000))
    for _ in range(20):
        packer.add(10, 0)
    long = packer.add(8000, 0)
    for _ in range(980):
        packer.add(10, 0)
    made = []
    while len(packer):
        made.append(packer.poll(1).batch)
    assert [batch.numbers.tolist() for batch in made if long in batch.numbers] == [[long]]
    others = [batch for batch in made if long not in batch.numbers]
    assert len(others) == math.ceil(1000 / 51)
    assert len(made) == len(others) + 1


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("priority", [0, 5])
def test_a_long_request_leaves_a_full_queue_in_time(policy, priority):
    """Short requests, urgent ones too, fill each place that becomes free; those before the long one leave first."""
    packer = OnlinePacker(Batching(capacity=4096, policy=policy, max_waiting_tokens=40_000))
    priority = priority if policy == "look_ahead" else 0
    now = batches = sent = 0
    while packer.room(10 + 8000):
        packer.add(10, now)
    ahead = packer.waiting_tokens
    long = packer.add(8000, now)
    left = []
    while long not in left:
        while packer.room(10):
            packer.add(10, now, priority=priority if sent % 2 else 0)
            sent += 1
        now += 20_000_000  # each batch takes 20 ms
        left = packer.poll(now).batch.numbers
        batches += 1
    urgent = 2 if priority else 1  # half of what comes later is more urgent than what waits
    assert batches <= urgent * (ahead // 4096 + 1) + 1


@pytest.mark.parametrize(
    ("rows", "lengths", "reason"), [(2, (6, 10), "full"), (3, (6, 5, 10), "full"), (3, (6, 10), None)]
)
def test_rows_that_next_fit_has_left_are_closed(rows, lengths, reason):
    packer = OnlinePacker(Batching(capacity=10, rows=rows, policy="next_fit", wait_s=1.0, accumulate=True))
    for length in lengths:
        packer.add(length, 0)
    batch = packer.poll(0).batch
    assert (batch and batch.reason) == reason


@pytest.mark.parametrize("policy", POLICIES)
def test_each_reason(policy):
    def packer(**more):
        return OnlinePacker(Batching(capacity=10, rows=2, policy=policy, wait_s=1e-6, accumulate=True, **more))

    one = packer()
    one.add(6, 0)
    assert one.poll(999).batch is None
    assert one.poll(999).wake_ns == 1000
    assert one.poll(1000).batch.reason == "timeout"
    one.add(6, 2000, deadline_ns=2500, lead_ns=100)
    assert one.poll(2399).wake_ns == 2400
    assert one.poll(2400).batch.reason == "deadline"
    one.add(6, 3000)
    assert one.poll(3000, draining=True).batch.reason == "drain"
    for _ in range(7):
        one.add(6, 4000)
    assert one.poll(4000).batch.reason == "full"
    for _ in range(2):
        one.add(10, 4000)
    assert one.poll(4000).batch is not None
    two = packer(max_sequences=2, window=1)
    for _ in range(3):
        two.add(1, 0)
    batch = two.poll(0).batch
    assert (batch.reason, batch.numbers.tolist()) == ("count", [0, 1])
    stuck = packer()
    stuck.add(6, 0)
    assert stuck.poll(1, idle=False, stuck=True).batch is None
    assert stuck.poll(1, stuck=True).batch.reason == "full"
    three = OnlinePacker(Batching(capacity=10, rows=2, policy=policy))
    three.add(6, 0)
    assert three.poll(0, idle=False).batch is None
    assert three.poll(0).batch.reason == "idle"
    assert three.statistics.flushes == {reason: int(reason == "idle") for reason in REASONS}


def test_a_deadline_that_has_passed():
    packer = OnlinePacker(Batching(capacity=10, rows=1))
    late, kept = packer.add(3, 10, deadline_ns=5), packer.add(3, 10, deadline_ns=12)
    decision = packer.poll(11)
    assert decision.expired.tolist() == [late]
    assert decision.batch.numbers.tolist() == [kept]
    late = packer.add(3, 11, deadline_ns=30)
    decision = packer.poll(30)
    assert (decision.batch, decision.expired.tolist(), decision.wake_ns) == (None, [late], None)


def test_a_clock_that_is_set_back():
    packer = OnlinePacker(Batching(capacity=10, rows=1, accumulate=True, wait_s=1e-6))
    packer.add(3, 10_000)
    packer.add(3, 5)  # counts as 10,000
    assert packer.poll(7).wake_ns == 11_000
    assert packer.poll(11_000).batch.numbers.tolist() == [0, 1]


def test_the_queue_is_bounded_in_tokens(refuses):
    packer = OnlinePacker(Batching(capacity=10, rows=1, max_waiting_tokens=20))
    for _ in range(2):
        packer.add(10, 0)
    said = "20 tokens wait already, and with 1 more it would be over the limit of 20; try again later, or raise "
    with refuses(QueueFullError, said + "max_waiting_tokens"):
        packer.add(1, 0)
    assert packer.poll(0).batch.numbers.tolist() == [0]
    assert packer.add(10, 0) == 2
    assert (packer.statistics.refused, packer.statistics.arrived) == (1, 3)
    with refuses(LengthError, "a request has from 1 to 20 tokens, got 21"):
        OnlinePacker(Batching(capacity=10, max_waiting_tokens=20)).add(21, 0)


def test_the_queue_grows_and_is_reused():
    packer = OnlinePacker(Batching(capacity=10, rows=1, policy="first_fit"))
    places = []
    for round_ in range(200):
        for _ in range(50):
            packer.add(5, round_)
        while len(packer):
            packer.poll(round_)
        places.append(packer._table.size)
    assert places[-1] == places[0]
    for _ in range(5000):
        packer.add(10, 300)
    left = [packer.poll(300).batch.numbers.tolist() for _ in range(5000)]
    assert left == [[n] for n in range(10_000, 15_000)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy": "fit"}, r"policy is 'fit'; it is 'end_to_end', 'first_fit', 'next_fit', 'best_fit' or"),
        ({"capacity": 0}, r"capacity must be an integer from 1"),
        ({"rows": 0}, r"rows must be an integer from 1 to 1048576 or None, got 0"),
        ({"rows": 2**20, "capacity": 2**20}, r"rows x capacity is at most"),
        ({"separator": -1}, r"separator must be an integer from 0"),
        ({"max_sequences": 0}, r"max_sequences must be"),
        ({"accumulate": True}, r"accumulate=True needs wait_s"),
        ({"accumulate": 1}, r"accumulate must be one of True, False"),
        ({"keep_order": 1}, r"keep_order must be one of"),
        ({"wait_s": -1}, r"wait_s must be from 0 to 1e\+09 seconds, or None, got -1"),
        ({"wait_s": float("nan")}, r"wait_s must be"),
        ({"wait_s": "1"}, r"wait_s must be"),
        ({"wait_s": float("inf")}, r"wait_s must be"),
        ({"wait_s": 10**400}, r"wait_s must be"),
        ({"age_step_s": 10**5000}, r"age_step_s must be .*, got an integer of 16,610 bits"),
        ({"age_step_s": 0}, r"age_step_s must be from 1e-06 to 1e\+09 seconds, got 0"),
        ({"max_waiting_tokens": 0}, r"max_waiting_tokens must be"),
    ],
)
def test_options_that_are_refused(change, message):
    with pytest.raises(OptionError, match=message):
        dataclasses.replace(Batching(capacity=10), **change)


@pytest.mark.parametrize(
    ("error", "arguments", "message"),
    [
        (LengthError, {"length": 0}, "a request has from 1 to 10 tokens, got 0"),
        (LengthError, {"length": 11}, "a request has from 1 to 10 tokens, got 11"),
        (LengthError, {"length": 2.0}, "length must be an integer"),
        (LengthError, {"length": True}, "length must be an integer"),
        (LengthError, {"length": 10**5000}, "a request has from 1 to 10 tokens, got an integer of 16,610 bits"),
        (OptionError, {"priority": 10**5000}, "priority must be .*, got an integer of 16,610 bits"),
        (OptionError, {"now_ns": 10**5000}, "now_ns must be .*, got an integer of 16,610 bits"),
        (OptionError, {"now_ns": -1}, "now_ns must be an integer from 0"),
        (OptionError, {"now_ns": 0.5}, "now_ns must be"),
        (OptionError, {"deadline_ns": -1}, "deadline_ns must be"),
        (OptionError, {"deadline_ns": 1, "lead_ns": -1}, "lead_ns must be"),
        (OptionError, {"lead_ns": 0.5}, "lead_ns must be"),
        (OptionError, {"priority": 1001}, "priority must be an integer from -1000 to 1000, got 1001"),
        (OptionError, {"priority": 0.5}, "priority must be"),
    ],
)
def test_requests_that_are_refused(error, arguments, message):
    packer = OnlinePacker(Batching(capacity=10, rows=1))
    with pytest.raises(error, match=message):
        packer.add(**{"length": 5, "now_ns": 0, **arguments})
    assert len(packer) == packer.statistics.arrived == 0


@pytest.mark.parametrize("batching", [{"policy": "first_fit"}, {"keep_order": True}])
def test_priorities_need_a_policy_that_has_them(batching):
    with pytest.raises(OptionError, match="only the policy 'look_ahead' without keep_order has priorities"):
        OnlinePacker(Batching(capacity=10, rows=1, **batching)).add(5, 0, priority=1)


@pytest.mark.parametrize("number", [0.0, "0", None, True, 2**70])
def test_no_request_has_such_a_number(number):
    packer = OnlinePacker(Batching(capacity=10))
    packer.add(5, 0)
    with pytest.raises(OptionError, match="number must be an integer"):
        packer.cancel(number)
    assert len(packer) == 1


def test_integers_of_numpy():
    packer = OnlinePacker(Batching(capacity=np.int64(10), rows=np.int32(1)))
    assert packer.add(np.int32(5), np.int64(0), deadline_ns=np.int64(9)) == 0
    assert packer.poll(np.int64(1)).batch.lengths.tolist() == [5]


def test_efficiency():
    packer = OnlinePacker(Batching(capacity=10, rows=2))
    assert packer.statistics.efficiency == 1.0
    packer.add(5, 0)
    packer.poll(0)
    assert packer.statistics.efficiency == 0.25
    flat = OnlinePacker(Batching(capacity=10, separator=1))
    flat.add(4, 0)
    flat.add(4, 0)
    flat.poll(0)
    assert (flat.statistics.tokens, flat.statistics.slots) == (8, 9)


@pytest.mark.parametrize(
    ("lengths", "how", "error"),
    [
        ([3, 9], {}, LengthError),
        ([8, 8, 8], {}, LengthError),
        ([8, 8], {}, QueueFullError),
        ([3, 0], {}, LengthError),
        ([3, 3], {"priority": 5000}, OptionError),
    ],
)
def test_several_are_added_or_none(lengths, how, error):
    packer = OnlinePacker(Batching(capacity=8, rows=2, max_waiting_tokens=20))
    packer.add(5, 0)
    with pytest.raises(error):
        packer.add_all(lengths, 0, **how)
    assert (len(packer), packer.waiting_tokens) == (1, 5)
    assert (packer.room(15), packer.room(16)) == (True, False)
    assert packer.add_all([7, 8], 0) == range(1, 3)
    assert packer.statistics.refused == (error is QueueFullError)
