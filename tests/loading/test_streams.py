"""Streams: every sequence once per pass on whatever ranks, the same batches after resuming, ends, errors, refusals."""

from __future__ import annotations

import base64
import copy
import itertools
import json
import subprocess
import sys
import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nopad
from nopad import Flat, PackedLoader, ReaderOptions
from nopad.corpus import IterableSource
from nopad.errors import FormatError, OptionError, PlanMismatchError, RecordError, SourceError
from nopad.loading.streams import reading
from nopad.loading.streams import state as state_module
from nopad.loading.streams.deal import Deal

N = 150
LENGTHS = np.random.default_rng(0).integers(1, 40, size=N)
IDS = [[number] * int(length) for number, length in enumerate(LENGTHS)]  # each token tells whose
STEPS = [{"capacity": 40, "rows": 2}, {"tokens": 64}, {"sequences": 3}, {"capacity": 48, "rows": 1, "form": Flat()}]
WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "padding",
    "is",
    "waste",
    "a",
    "pack",
    "holds",
    "some",
    "sequences",
    "with",
    "their",
    "tokens",
]


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    """Groups of a few records, so that they end everywhere in blocks and passes."""
    monkeypatch.setattr(reading, "GROUP_BYTES", 300)


@pytest.fixture(autouse=True)
def no_thread_stays():
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def source(block_records=17):
    return IterableSource(IDS, block_records=block_records)


class Talk:
    """What ranks in threads exchange."""

    def __init__(self, world_size):
        self.barrier, self.said = threading.Barrier(world_size, timeout=30), [None] * world_size

    def of(self, rank):
        def exchange(mine):
            self.said[rank] = mine
            self.barrier.wait()
            everyone = list(self.said)
            self.barrier.wait()
            return everyone

        return exchange


@pytest.fixture
def talking(monkeypatch):
    """Let loaders of one process exchange what torch.distributed would."""
    talks = {}

    def exchange_of(ranks):
        if ranks.world_size == 1:
            return None
        return talks.setdefault(ranks.world_size, Talk(ranks.world_size)).of(ranks.rank)

    monkeypatch.setattr("nopad.loading.streams.supply.exchange_of", exchange_of)
    return talks


class Streams:
    """All ranks of a run over a stream, each in its own thread while it takes batches."""

    def __init__(self, world_size, states=None, data=None, **options):
        options = {"buffer": 6, "exhausted": "repeat", **STEPS[0], **options}
        if "sequences" in options or "tokens" in options:
            options = {name: value for name, value in options.items() if name not in ("capacity", "rows")}
        if "sequences" in options:
            del options["buffer"]
        self.loaders = [
            PackedLoader(source() if data is None else data, rank=rank, world_size=world_size, **options)
            for rank in range(world_size)
        ]
        if states is not None:
            for loader in self.loaders:
                loader.load_state_dict(json.loads(json.dumps(states)))

    def take(self, batches=None):
        """Return the next batches of each rank, ``[rank][batches]``; None: up to where they stop."""
        out, errors = [[] for _ in self.loaders], []

        def one(rank):
            try:
                iterator = iter(self.loaders[rank])
                out[rank] = list(iterator if batches is None else itertools.islice(iterator, batches))
                iterator.close()
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(self.loaders))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return out

    def states(self):
        return [loader.state_dict() for loader in self.loaders]


def contents(ranks):
    return [[(batch["input_ids"].tolist(), batch.weight) for batch in batches] for batches in ranks]


def given_by(ranks):
    """How often each sequence is in these batches; each of them whole and by itself."""
    found = Counter()
    for batch in itertools.chain(*ranks):
        if not batch.weight:
            continue
        ids, place = batch["input_ids"].numpy(), batch.sequence_ids
        for at, index in enumerate(batch.records["seq_index"].tolist(), start=1):
            assert (ids[place == at] == index).all()
            assert (place == at).sum() == LENGTHS[index]
            found[index] += 1
        if batch.layout.form == "rows":
            assert (place > 0).sum(axis=1).max() <= batch.layout.shape[1]
    return found


def held_by(states):
    """How often each sequence is held, read from the states alone."""
    found = Counter()
    for one in itertools.chain(*((state["held"], state["waiting"]) for state in states)):
        column = one["values"].get("seq_index")
        if column:
            raw = base64.b64decode(column["data"])
            found.update(np.frombuffer(raw, dtype=column["stored"]).tolist())
    return found


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    step=st.sampled_from(STEPS),
    world=st.integers(1, 3),
    accumulation=st.integers(1, 3),
    buffer=st.integers(1, 20),
    shuffle=st.sampled_from([None, 1, 20, 300]),
    depth=st.sampled_from([None, 2]),
    block=st.sampled_from([1, 7, 60, 400]),
    taken=st.integers(0, 30),
    prefetch=st.integers(0, 2),
)
def test_resumed_at_any_batch_it_gives_what_an_uninterrupted_run_gives(
    step, world, accumulation, buffer, shuffle, depth, block, taken, prefetch
):
    options = {"accumulation": accumulation, "shuffle_buffer": shuffle, "seed": 5 if shuffle else 0, **step}
    if "sequences" not in step:
        options |= {"buffer": buffer, "depth": depth}
    expected = Streams(world, data=source(block), **options, prefetch=0)
    whole = expected.take(taken + 8)
    first = Streams(world, data=source(block), **options, prefetch=prefetch)
    assert contents(first.take(taken)) == contents([batches[:taken] for batches in whole])
    states = first.states()
    for together in (True, False):  # the list of all, or to each rank its own
        resumed = Streams(world, states if together else None, data=source(block), **options, prefetch=prefetch)
        if not together:
            for loader, state in zip(resumed.loaders, states, strict=True):
                loader.load_state_dict(json.loads(json.dumps(state)))
        assert resumed.states() == states
        assert contents(resumed.take(8)) == contents([batches[taken:] for batches in whole])
        assert resumed.states() == expected.states()
    assert contents(first.take(8)) == contents([batches[taken:] for batches in whole])  # the same loader goes on


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    step=st.sampled_from(STEPS),
    worlds=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    accumulations=st.lists(st.integers(1, 3), min_size=5, max_size=5),
    steps=st.lists(st.integers(0, 12), min_size=5, max_size=5),
    more=st.lists(st.integers(0, 2), min_size=5, max_size=5),
    block=st.sampled_from([1, 17, 400]),
    shuffle=st.sampled_from([None, 1, 40]),
)
def test_on_changing_ranks_every_sequence_comes_once_per_pass(step, worlds, accumulations, steps, more, block, shuffle):
    states, seen, step = None, Counter(), {**step, "shuffle_buffer": shuffle}
    for world, accumulation, whole, extra in zip(worlds, accumulations, steps, more, strict=False):
        run = Streams(world, states, data=source(block), accumulation=accumulation, **step)
        batches = run.take(whole * accumulation + min(extra, accumulation - 1))
        # A step that was not finished is taken again on other ranks; here also on the same, to keep the count simple.
        seen += given_by([one[: whole * accumulation] for one in batches])
        states = run.states()
        for state in states:
            state["batches"] = 0
    run = Streams(1, states, data=source(block), accumulation=1, **step)
    while run.loaders[0].state_dict()["cursor"]["deal"]["before"]:  # until what earlier ranks had read is behind
        seen += given_by(run.take(1))
    (last,) = run.states()
    passes, record = last["cursor"]["passes"], last["cursor"]["record"]
    assert seen + held_by([last]) == Counter({n: passes + (n < record) for n in range(N) if passes + (n < record)})
    assert sum(state["sequences_here"] for state in [last]) == sum(seen.values())


@settings(max_examples=25, deadline=None)
@given(
    step=st.sampled_from(STEPS),
    worlds=st.lists(st.sampled_from([1, 3, 8, 2]), min_size=1, max_size=4),
    steps=st.lists(st.integers(0, 6), min_size=4, max_size=4),
    shuffle=st.sampled_from([None, 30, 1000]),
)
def test_a_stream_that_ends_is_given_whole_and_ranks_stop_together(step, worlds, steps, shuffle):
    step = {**step, "shuffle_buffer": shuffle}
    with pytest.MonkeyPatch.context() as patch:
        talks = {}

        def exchange_of(ranks):
            talk = talks.setdefault(ranks.world_size, Talk(ranks.world_size))
            return None if ranks.world_size == 1 else talk.of(ranks.rank)

        patch.setattr("nopad.loading.streams.supply.exchange_of", exchange_of)
        states, seen = None, Counter()
        for world, taken in zip(worlds[:-1], steps, strict=False):
            run = Streams(world, states, exhausted="stop", last="fill", **step)
            batches = run.take(taken)
            seen += given_by(batches)
            states = run.states()
            if run.loaders[0].epoch:
                break
        run = (
            run
            if states and states[0]["cursor"]["passes"]
            else Streams(worlds[-1], states, exhausted="stop", last="fill", **step)
        )
        if not run.loaders[0].epoch:
            batches = run.take()
            seen += given_by(batches)
            assert len({len(one) for one in batches}) == 1
        assert seen == dict.fromkeys(range(N), 1)
        assert all(loader.epoch == 1 for loader in run.loaders)
        again = run.take()
        assert given_by(again) == dict.fromkeys(range(N), 1)


def order_of(shuffle, size=60, passes=1, **options):
    """The numbers of the sequences in the order in which a stream of single ones gives them."""
    loader = PackedLoader(
        lambda: iter({"input_ids": [1] * (1 + n % 7), "n": n} for n in range(size)),
        sequences=1,
        exhausted="stop",
        shuffle_buffer=shuffle,
        rank=0,
        world_size=1,
        **options,
    )
    return [int(batch["n"][0]) for _ in range(passes) for batch in loader]


def test_a_buffer_shuffles_by_seed_and_pass():
    assert order_of(None) == list(range(60))
    first, again, other = order_of(16, passes=2, seed=3), order_of(16, passes=2, seed=3), order_of(16, seed=4)
    assert first == again
    one, two = first[:60], first[60:]
    assert sorted(one) == sorted(two) == sorted(other) == list(range(60))
    assert one != two != other != one
    assert all(number <= place + 16 for place, number in enumerate(one))  # nothing comes before it was read
    assert order_of(10**6, seed=3) != list(range(60))


def test_an_epoch_is_shuffled_alike_however_a_loader_comes_to_it():
    run = Streams(1, exhausted="stop", last="fill", shuffle_buffer=30)
    (loader,) = run.loaders
    first, second = contents(run.take()), contents(run.take())
    assert first != second
    for epoch, expected in ((0, first), (1, second), (2**31 - 1, None), (0, first)):
        loader.set_epoch(epoch)
        assert loader.epoch == epoch
        found = contents(run.take())
        assert expected is None or found == expected


@pytest.mark.slow
def test_a_buffer_larger_than_the_stream_shuffles_evenly():
    places = np.array([np.argsort(order_of(100, size=8, seed=seed)) for seed in range(400)])
    # 400 draws of a uniform place from 0 to 7: mean 3.5, standard error 0.115
    assert np.abs(places.mean(axis=0) - 3.5).max() < 0.5
    counts = np.array([np.bincount(places[:, number], minlength=8) for number in range(8)])
    assert counts.min() > 20
    assert counts.max() < 85


def test_what_waits_is_told_and_what_ranks_leave_is_counted(talking):
    run = Streams(3, exhausted="stop", last="drop", accumulation=2, capacity=40, rows=3, shuffle_buffer=25)
    batches = run.take(2)
    told = [str(loader.summary()) for loader in run.loaders]
    held = [len(state["held"]["numbers"]) + len(state["waiting"]["lengths"]) for state in run.states()]
    assert all(len(state["waiting"]["lengths"]) == 25 for state in run.states())
    assert all(f"held     {number} sequences" in text for number, text in zip(held, told, strict=True))
    batches = [one + other for one, other in zip(batches, run.take(), strict=True)]
    left = [state["left_sequences"] for state in run.states()]
    assert any(left)
    assert sum(given_by(batches).values()) + sum(left) <= N


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle_buffer": 0}, "shuffle_buffer must be an integer from 1"),
        ({"shuffle_buffer": "many"}, "shuffle_buffer must be an integer"),
        ({"seed": 1}, "seed say how an epoch is dealt.*goes with shuffle_buffer="),
        ({"shuffle_buffer": 4, "seed": -1}, "seed must be an integer from 0"),
    ],
)
def test_shuffling_that_cannot_be_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        Streams(1, **options)


def test_stored_tokens_have_no_buffer_to_shuffle():
    with pytest.raises(OptionError, match="shuffle_buffer: for streams only"):
        PackedLoader(IDS, 40, rows=1, shuffle_buffer=4)


def test_a_state_of_another_shuffling_is_refused():
    run = Streams(1, shuffle_buffer=9, seed=2)
    run.take(3)
    for other, told in (({"shuffle_buffer": 8, "seed": 2}, "shuffle_buffer is 8 and was 9"), ({}, "seed is None and")):
        with pytest.raises(PlanMismatchError, match=told):
            Streams(1, run.states(), **other)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("shuffle", [None, 30])
def test_whatever_is_built_ahead_the_batches_are_the_same(step, shuffle, monkeypatch):
    expected = None
    for prefetch, ahead, size in ((0, 0, 300), (1, 4, 5000), (5, 1, 40)):
        monkeypatch.setattr(reading, "AHEAD", ahead)
        monkeypatch.setattr(reading, "GROUP_BYTES", size)
        found = contents(Streams(2, prefetch=prefetch, shuffle_buffer=shuffle, **step).take(25))
        expected = expected or found
        assert found == expected


def test_how_full_packs_were_is_known_after_short_steps_and_on_other_ranks(talking):
    first = Streams(3, exhausted="stop", last="short", accumulation=2, capacity=40, rows=3)
    rows = [sum(len(b["input_ids"]) for b in mine if b.weight is None or b.weight > 0) for mine in first.take()]
    assert [loader.summary().slots for loader in first.loaders] == [40 * n for n in rows]
    before = Streams(4)
    slots = sum(batch.layout.slots for batch in itertools.chain(*before.take(6)))
    after = Streams(1, before.states())
    assert after.loaders[0].summary().slots == slots
    slots += sum(batch.layout.slots for batch in after.take(5)[0])
    found = after.loaders[0].summary()
    assert (found.slots, found.tokens <= slots) == (slots, True)


@pytest.mark.parametrize("last", ["drop", "fill", "short", "refuse"])
def test_the_end_in_the_middle_of_a_step(talking, last):
    run = Streams(3, exhausted="stop", last=last, accumulation=2, capacity=40, rows=3)
    if last == "refuse":
        with pytest.raises(
            OptionError, match=r"ended in the middle of a step: the ranks have \d to \d of 6 units left"
        ):
            run.take()
        return
    batches = run.take()
    assert len({len(one) for one in batches}) == 1
    left = [state["left_sequences"] for state in run.states()]
    assert sum(given_by(batches).values()) + sum(left) <= N
    assert all(
        str(loader.summary()).count("left out") == bool(out) for loader, out in zip(run.loaders, left, strict=True)
    )
    weights = [batch.weight for batch in itertools.chain(*batches)]
    if last in ("fill", "short"):
        rows = [batch["input_ids"].shape[0] for batch in itertools.chain(*batches)]
        assert set(rows) == {3} if last == "fill" else min(rows) < max(rows) == 3
        assert left == [0, 0, 0]
        assert given_by(batches) == dict.fromkeys(range(N), 1)
    else:
        assert any(left)
        assert all(weights)
        assert all(batch["input_ids"].shape == (3, 40) for batch in itertools.chain(*batches))


def test_every_sequence_that_one_rank_read_is_given_or_counted_as_left_out():
    run = Streams(1, exhausted="stop", last="drop", accumulation=2, capacity=40, rows=3)
    batches = run.take()
    (state,) = run.states()
    assert sum(given_by(batches).values()) + state["left_sequences"] == N
    tokens = sum(batch.layout.tokens for batch in batches[0])
    assert tokens + state["left_tokens"] == LENGTHS.sum()
    assert (state["left_sequences"] > 0, state["cursor"]["passes"], run.loaders[0].epoch) == (True, 1, 1)


def test_a_rank_without_a_sequence_gets_stand_ins_with_all_columns(talking):
    data = [{"input_ids": [n, n], "labels": [n, n], "score": 0.5} for n in range(2)]
    run = Streams(4, data=lambda: iter(data), exhausted="stop", last="fill", sequences=1)
    batches = run.take()
    assert [[batch.weight for batch in one] for one in batches] == [[1], [1], [0], [0]]
    for batch in itertools.chain(*batches):
        assert set(batch) == set(batches[0][0])
        assert batch["score"].dtype == batches[0][0]["score"].dtype
        assert (batch["labels"] == -100).all() == (not batch.weight)
        assert {name: values.size for name, values in batch.records.items()} == dict.fromkeys(
            ("seq_index", "seq_start"), batch.weight
        )


def test_ranks_that_could_not_stop_together_are_refused():
    with pytest.raises(OptionError, match=r"there is no process group: call torch\.distributed"):
        Streams(2, exhausted="stop")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Files of every kind with the same texts, and the texts."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path_factory.mktemp("texts")
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(WORDS, size=rng.integers(1, 30))) for _ in range(120)]
    (folder / "lines").mkdir()
    for part in range(3):
        lines = [json.dumps({"text": text}) for text in texts[part * 40 : part * 40 + 40]]
        (folder / "lines" / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "files").mkdir()
    for number, text in enumerate(texts):
        (folder / "files" / f"{number:03}.txt").write_text(text)
    pq.write_table(pa.table({"text": texts}), folder / "t.parquet", row_group_size=50)
    return folder, texts


def kinds(folder, texts):
    datasets = pytest.importorskip("datasets")
    return {
        "JSON Lines": nopad.open_source(folder / "lines", block_bytes=512),
        "text files": nopad.open_source(folder / "files"),
        "Parquet": nopad.open_source(folder / "t.parquet", block_bytes=1024),
        "a path": folder / "lines",
        "a function": lambda: ({"text": text} for text in texts),
        "a list": [{"text": text} for text in texts],
        "an iterable dataset": datasets.IterableDataset.from_generator(lambda: ({"text": text} for text in texts)),
        "a dataset": datasets.Dataset.from_dict({"text": texts}),
        "a mixture": nopad.open_source({"a": folder / "lines" / "0.jsonl", "b": folder / "files"}),
    }


@pytest.mark.parametrize(
    "kind",
    [
        "JSON Lines",
        "text files",
        "Parquet",
        "a path",
        "a function",
        "a list",
        "a mixture",
        "a dataset",
        "an iterable dataset",
    ],
)
def test_texts_of_any_source_are_tokenised_as_they_are_and_resumed(texts, kind):
    folder, known = texts
    tokenizer = nopad.load_tokenizer()
    known = known[:40] + known if kind == "a mixture" else known
    alone = [[*tokenizer.prefix, *ids, *tokenizer.suffix] for ids in tokenizer.encode(known)]
    run = Streams(2, data=kinds(folder, known[:120])[kind], tokenizer=tokenizer, buffer=10, capacity=64)
    batches = run.take(9)
    states = run.states()
    resumed = Streams(2, states, data=kinds(folder, known[:120])[kind], tokenizer=tokenizer, buffer=10, capacity=64)
    batches = [one + more for one, more in zip(batches, resumed.take(3), strict=True)]
    whole = Streams(2, data=kinds(folder, known[:120])[kind], tokenizer=tokenizer, buffer=10, capacity=64).take(12)
    assert contents(batches) == contents(whole)
    count = Counter()
    for batch in itertools.chain(*batches):
        ids, place = batch["input_ids"].numpy(), batch.sequence_ids
        for at, index in enumerate(batch.records["seq_index"].tolist(), start=1):
            assert ids[place == at].tolist() == alone[index]
            count[index] += 1
    assert max(count.values()) - min(count[n] for n in range(20)) <= 1


def test_text_needs_a_tokenizer_and_ids_need_none(texts):
    with pytest.raises(OptionError, match="give the tokenizer of your model"):
        PackedLoader(nopad.open_source(texts[0] / "lines"), 64, rows=1)
    with pytest.raises(OptionError, match="holds ready-made ids"):
        PackedLoader(source(), 64, rows=1, tokenizer=nopad.load_tokenizer())


def test_what_is_too_long_bad_or_empty_follows_the_options_and_is_counted(tmp_path):
    lines = ['{"input_ids": [1, 2, 3]}', "{", '{"input_ids": []}', json.dumps({"input_ids": [7] * 100})] * 30
    (tmp_path / "a.jsonl").write_text("\n".join(lines))

    def loader(**options):
        return PackedLoader(tmp_path / "a.jsonl", 40, rows=1, exhausted="stop", last="fill", buffer=4, **options)

    found = loader(on_bad_record="skip", over_long="split")
    batches = list(found)
    counts = found.summary().counts
    assert (counts.records, counts.bad_skipped, counts.empty_skipped, counts.split) == (120, 30, 30, 30)
    assert sum(batch.layout.tokens for batch in batches) == counts.tokens == 30 * 103
    assert "120 read on this rank, 30 bad, skipped, 30 empty, skipped, 30 split" in str(found.summary())
    found = loader(on_bad_record="skip", over_long="drop")
    assert sum(batch.layout.tokens for batch in found) == 90
    assert found.summary().counts.dropped_tokens == 3000
    with pytest.raises(RecordError, match=r"a.jsonl, line 2: broken JSON"):
        list(loader(over_long="drop"))
    with pytest.raises(RecordError, match=r"line 4: 100 tokens, capacity is 40"):
        list(loader(on_bad_record="skip"))
    with pytest.raises(RecordError, match=r"line 3: an empty document"):
        list(loader(on_bad_record="skip", over_long="drop", empty="error"))


@pytest.mark.parametrize("prefetch", [0, 3])
def test_an_error_comes_after_the_batches_before_it(prefetch):
    def broken():
        yield from ({"input_ids": [n]} for n in range(1500))
        raise RuntimeError("the network is gone")

    got = []
    loader = PackedLoader(broken, sequences=5, exhausted="stop", prefetch=prefetch)
    with pytest.raises(SourceError, match="cannot be read from row 1501 on"):
        got.extend(batch["input_ids"][0].tolist() for batch in loader)
    got = list(itertools.chain(*got))
    assert got == list(range(1000))  # the block of a thousand rows before the one that could not be read


def test_an_error_of_the_collate_function_reaches_the_loop():
    def broken(sequences, form, per_row):
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        next(iter(PackedLoader(source(), 40, rows=1, exhausted="repeat", collate=broken)))


def test_a_source_that_gives_nothing_is_an_error_and_no_endless_loop(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n{"text": ""}\n')
    with pytest.raises(SourceError, match="gave this rank not one sequence"):
        next(iter(PackedLoader(tmp_path / "a.jsonl", 40, rows=1, tokenizer=nopad.load_tokenizer())))
    with pytest.raises(SourceError, match="has no record"):
        next(iter(PackedLoader(IterableSource([]), 40, rows=1, exhausted="repeat")))


def test_records_that_former_ranks_have_read_are_no_reason_to_stop():
    options = {"capacity": 4, "rows": 1, "exhausted": "repeat", "buffer": 16}
    ranks = [PackedLoader(IterableSource([[1, 2, 3]]), **options, rank=rank, world_size=3) for rank in range(3)]
    for rank in ranks:
        for _ in itertools.islice(rank, 2):
            pass
    alone = PackedLoader(IterableSource([[1, 2, 3]]), **options)
    states = [rank.state_dict() for rank in ranks]
    alone.load_state_dict(states)  # whatever it reads first is a record that the others have read already
    assert [batch.input_ids.tolist() for batch in itertools.islice(alone, 40)] == [[[1, 2, 3, 0]]] * 40


@pytest.mark.parametrize("changed", [[*range(399, 99, -1)], [*range(100, 250), 251, 250, *range(252, 400)]])
def test_a_source_that_changes_is_refused(tmp_path, changed):
    def write(numbers):
        (tmp_path / "a.jsonl").write_text("".join(json.dumps({"input_ids": [n] * 5}) + "\n" for n in numbers))

    def loader():
        return PackedLoader(tmp_path / "a.jsonl", 40, rows=1, exhausted="repeat", buffer=4)

    write(range(100, 400))
    first = loader()
    _ = list(itertools.islice(first, 5))
    state = first.state_dict()
    write(changed)
    second = loader()
    second.load_state_dict(state)
    with pytest.raises(SourceError, match="changed since the state was saved"):
        list(itertools.islice(second, 20))  # what it held is given first
    write(range(100, 401))
    with pytest.raises(PlanMismatchError, match="data is"):
        loader().load_state_dict(state)
    with pytest.raises(SourceError, match=r"changed while the job was running"):
        list(itertools.islice(second, 20))


def test_what_a_stream_cannot_know_it_says():
    loader = Streams(2).loaders[1]
    with pytest.raises(TypeError, match="it never ends; count steps instead"):
        len(loader)
    with pytest.raises(OptionError, match="tokens the other ranks of a stream have seen is not known"):
        _ = loader.tokens_seen
    with pytest.raises(OptionError, match="not known before they are read"):
        loader.state_dict(batches=2)
    with pytest.raises(OptionError, match="no epochs to go to"):
        loader.set_epoch(3)
    loader.set_epoch(0)
    assert "begins again at its end" in str(loader.summary())
    alone = Streams(1)
    batches = alone.take(7)
    assert alone.loaders[0].tokens_seen == sum(batch.layout.tokens for batch in batches[0])
    assert (alone.loaders[0].steps_seen, alone.loaders[0].sequences_seen) == (7, sum(given_by(batches).values()))


def test_worker_processes_are_not_needed_and_refused():
    pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    from nopad.loading.torch import TorchDataset

    loader = Streams(1).loaders[0]
    with pytest.raises(OptionError, match="leave it at 0: texts are tokenised ahead in threads"):
        loader.dataloader(num_workers=2)
    expected = contents(Streams(1).take(6))[0]
    for batches in (loader.dataloader(), DataLoader(TorchDataset(Streams(1).loaders[0]), batch_size=None)):
        iterator = iter(batches)
        found = list(itertools.islice(iterator, 6))
        assert contents([found])[0] == expected
        del iterator


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exhausted": "never"}, "exhausted must be one of 'repeat', 'stop'"),
        ({"exhausted": "repeat", "seed": 1}, "seed say how an epoch is dealt"),
        ({"exhausted": "repeat", "balance": "sorted"}, "balance say how an epoch is dealt"),
        ({"exhausted": "repeat", "groups": 2}, "groups say how an epoch is dealt"),
        ({"exhausted": "repeat", "groups": np.arange(4)}, "groups say how an epoch is dealt"),
        ({"exhausted": "repeat", "over_long": np.array(["drop", "error"])}, "over_long is array"),
        ({"exhausted": "repeat", "algorithm": "lpfhp"}, "algorithm is no option of a stream"),
        ({"exhausted": "repeat", "buffer": 0}, "buffer must be an integer from 1"),
        ({"exhausted": "repeat", "capacity": 0}, "capacity must be an integer from 1"),
        ({"exhausted": "repeat", "capacity": None}, "rows of what capacity"),
        (
            {"exhausted": "repeat", "capacity": None, "rows": None, "sequences": 2, "depth": 2},
            "depth are options of packs",
        ),
        ({"exhausted": "repeat", "over_long": "cut"}, "over_long is 'cut'"),
        ({"exhausted": "repeat", "last": "pad"}, "it is 'drop', 'fill', 'short' or 'refuse'"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(options, message):
    with pytest.raises(OptionError, match=message):
        PackedLoader(source(), **{"capacity": 40, "rows": 1, **options})


@pytest.mark.parametrize("options", [{"over_long": "truncate"}, {"empty": "skip"}, {"buffer": 9}])
def test_an_option_of_streams_does_not_make_stored_tokens_an_endless_stream(options):
    with pytest.raises(OptionError, match=f"{next(iter(options))}: for streams only"):
        PackedLoader([[1, 2], [3]], 40, rows=1, **options)
    assert PackedLoader([[1, 2], [3]], 40, rows=1, exhausted="repeat", **options).is_stream


def test_an_iterator_cannot_be_resumed():
    with pytest.raises(OptionError, match="give a function that returns a new one"):
        PackedLoader(iter([{"input_ids": [1]}]), 40, rows=1)


def test_states_of_something_else_or_of_too_few_ranks_are_refused():
    run = Streams(3)
    run.take(4)
    states = run.states()
    with pytest.raises(
        FormatError, match=r"this is rank 0 of 2, and these are 1 states .*those of ranks 0, 2 are missing"
    ):
        Streams(2).loaders[0].load_state_dict(states[1])
    with pytest.raises(FormatError, match="this is rank 1 of 3, and these are 1 states of ranks 0 of 3"):
        Streams(3).loaders[1].load_state_dict(states[0])
    with pytest.raises(FormatError, match="some are there twice"):
        Streams(2).loaders[0].load_state_dict([*states, states[0]])
    run.loaders[0].load_state_dict(states[0])
    run.take(1)
    with pytest.raises(FormatError, match=r"of steps \[4, 5\], not of one moment"):
        Streams(2).loaders[0].load_state_dict([*states[:2], run.loaders[2].state_dict()])
    with pytest.raises(PlanMismatchError, match="buffer is 9 and was 6"):
        Streams(3, buffer=9).loaders[0].load_state_dict(states[0])
    with pytest.raises(FormatError, match=r"no state of a nopad\.PackedLoader over a stream"):
        Streams(1).loaders[0].load_state_dict(PackedLoader(IDS, 40, rows=1).state_dict())
    with pytest.raises(FormatError, match=r"no state of a nopad\.PackedLoader"):
        PackedLoader(IDS, 40, rows=1).load_state_dict(states[0])


def edited(state, path, value):
    changed = copy.deepcopy(state)
    inside = changed
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["format"], "other"),
        (["format_version"], 1),
        (["more"], 1),
        (["arrived"], 3),
        (["arrived"], -1),
        (["batches"], 1),
        (["rank"], 5),
        (["cursor", "passes"], 1.5),
        (["cursor", "at"], ["a"]),
        (["cursor", "ended"], True),
        (["waiting", "tokens", "input_ids", "type"], "O"),
        (["cursor", "first"], 10**9),
        (["cursor", "ended"], 1),
        (["cursor", "mark"], None),
        (["cursor", "deal", "count"], 7),
        (["cursor", "deal", "before"], [{"world_size": 2, "count": 0, "reached": [1]}]),
        (["held", "lengths"], [1]),
        (["held", "lengths", 0], 0),
        (["held", "numbers", 0], 10**6),
        (["held", "tokens"], {}),
        (["held", "tokens", "input_ids", "data"], "AAAA"),
        (["held", "tokens", "input_ids", "data"], "no base64"),
        (["held", "tokens", "input_ids", "stored"], "O"),
        (["held", "tokens", "input_ids", "stored"], "08"),  # NumPy ends in a SyntaxError
        (["held", "tokens", "input_ids", "stored"], ["i8"]),
        (["held", "values", "seq_index", "type"], "b1"),
        (["held", "values", "seq_index", "type"], "f8"),
        (["held", "values", "seq_index", "type"], "x9"),
        (["drawn"], -1),
        (["waiting", "lengths", 0], 0),
        (["waiting", "lengths", 0], 41),
        (["waiting", "tokens"], {}),
        (["waiting"], None),
        (["ready"], [[10**6]]),
        (["ready"], [[]]),
        (["ready"], 3),
        (["counts"], {}),
        (["cursor"], None),
        (["held"], []),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(path, value):
    run = Streams(1, shuffle_buffer=20)
    run.take(3)
    (state,) = run.states()
    assert state["held"]["numbers"]
    assert state["waiting"]["lengths"]
    with pytest.raises(FormatError):
        run.loaders[0].load_state_dict(edited(state, path, value))
    assert run.states() == [state]


def test_a_state_that_passes_over_records_is_refused(monkeypatch):
    monkeypatch.setattr(reading, "GROUP_BYTES", 100)
    run = Streams(1)
    run.take(3)
    (state,) = run.states()
    assert state["cursor"]["record"] < len(IDS)
    with pytest.raises(SourceError, match="changed since the state was saved"):
        Streams(1, edited(state, ["cursor", "record"], 10**9)).take(100)
    with pytest.raises(FormatError, match="there is no state in this list"):
        run.loaders[0].load_state_dict([])


def test_a_state_is_as_large_as_what_it_holds(texts):
    run = Streams(
        1, data=nopad.open_source(texts[0] / "lines"), tokenizer=nopad.load_tokenizer(), capacity=512, buffer=64
    )
    run.take(2)
    (state,) = run.states()
    tokens = sum(state["held"]["lengths"])
    assert len(json.dumps(state)) < 3 * tokens + 40 * len(state["held"]["lengths"]) + 4000


def test_columns_beside_the_ids_come_along_and_survive_a_resume():
    data = [
        {"input_ids": ids, "labels": [n] * len(ids), "score": n / 2, "good": bool(n % 2), "name": str(n)}
        for n, ids in enumerate(IDS)
    ]
    first = Streams(1, data=lambda: iter(data))
    first.take(4)
    batches = Streams(1, first.states(), data=lambda: iter(data)).take(10)
    for batch in batches[0]:
        index = batch.records["seq_index"]
        assert batch["score"].tolist() == [n / 2 for n in index]
        assert batch["good"].tolist() == [bool(n % 2) for n in index]
        assert (batch["labels"][batch["labels"] >= 0] == batch["input_ids"][batch["labels"] >= 0]).all()
        assert "name" not in batch


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_integers_are_stored_as_integers_as_narrow_as_they_fit(dtype):
    of = np.iinfo(dtype)
    ends = sorted({of.min, max(of.min, -129), max(of.min, -1), 0, 127, 128, 2**32, 2**53 + 1, of.max})
    ends = [number for number in ends if number <= of.max]
    for low, high in itertools.combinations_with_replacement(ends, 2):
        packed = state_module._packed(np.array([low, high], dtype))
        stored = np.dtype(packed["stored"])
        assert stored.kind in "iu"
        assert stored.itemsize == min(
            np.dtype(kind).itemsize for kind in "bBhHiIlL" if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max
        )
        found = state_module._unpacked(packed, "x", 2)
        assert (found.dtype, found.tolist()) == (dtype, [low, high])


def test_large_integers_beside_the_ids_survive_a_resume():
    data = [{"input_ids": ids, "number": 2**53 + n if n % 2 else -1} for n, ids in enumerate(IDS)]
    first = Streams(1, data=lambda: iter(data))
    first.take(3)
    (state,) = json.loads(json.dumps(first.states()))
    assert state["held"]["lengths"]
    for batch in Streams(1, [state], data=lambda: iter(data)).take(6)[0]:
        assert batch["number"].tolist() == [data[n]["number"] for n in batch.records["seq_index"]]


@pytest.mark.parametrize("shuffle", [None, 5])
@pytest.mark.parametrize("group_bytes", [20, 10_000])
def test_named_sources_are_told_apart(tmp_path, talking, monkeypatch, shuffle, group_bytes):
    monkeypatch.setattr(reading, "GROUP_BYTES", group_bytes)
    for name, count in (("b", 7), ("a", 8)):
        lines = [json.dumps({"input_ids": [] if n == 3 else [ord(name)] * (n + 1)}) for n in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    named = nopad.open_source({name: tmp_path / f"{name}.jsonl" for name in "ba"})
    run = Streams(2, data=named, capacity=9, rows=1, exhausted="stop", last="fill", shuffle_buffer=shuffle)
    seen = {}
    for batch in itertools.chain(*run.take()):
        assert set(batch.records) == {"seq_index", "seq_start", "seq_source"}
        ids = [int(one[0]) for one in batch.unpack_tokens(batch["input_ids"])] if batch.weight else []
        for number, origin, token in zip(batch.records["seq_index"], batch.records["seq_source"], ids, strict=True):
            seen[int(number)] = (int(origin), chr(token))
    assert seen == {n: (int(n >= 7), "ba"[n >= 7]) for n in range(15) if n not in (3, 10)}


def test_whole_documents_of_other_ranks_are_not_decoded(tmp_path, monkeypatch):
    from nopad.corpus import text

    decoded = []
    real = text.decode_document
    monkeypatch.setattr(text, "decode_document", lambda data, line: (decoded.append(data), real(data, line))[1])
    for number in range(40):
        (tmp_path / f"{number:02}.txt").write_text(f"padding {number}")
    data = nopad.open_source(tmp_path, ReaderOptions())
    loader = PackedLoader(data, sequences=5, rank=1, world_size=4, tokenizer=nopad.load_tokenizer(), prefetch=0)
    next(iter(loader))
    assert set(decoded) == {f"padding {number}".encode() for number in range(1, 40, 4)}


def test_a_tokenizer_written_in_python_is_called_by_one_thread_at_a_time(monkeypatch):
    inside, most = [0], [0]

    class Slow(nopad.load_tokenizer().__class__):
        threads = False

        def encodings(self, texts):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            found = super().encodings(texts)
            inside[0] -= 1
            return found

    tokenizer = Slow(nopad.load_tokenizer()._inner)
    loader = PackedLoader(IterableSource(WORDS * 300), 64, rows=2, tokenizer=tokenizer, prefetch=0)
    assert len(list(itertools.islice(loader, 40))) == 40
    assert most == [1]


def test_a_process_ends_with_an_iteration_left_open(tmp_path):
    program = """
import nopad
from nopad.corpus import IterableSource
texts = IterableSource(["padding is waste"] * 999)
batches = iter(nopad.PackedLoader(texts, 64, rows=2, tokenizer=nopad.load_tokenizer()))
print(next(batches).layout.sequences)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 10


def test_the_deal_of_records():
    """By hand: two ranks had come to records 5 and 8; three go on."""
    deal = Deal(world_size=2, rank=0)
    _, at = deal.take(0, 5)
    again = [at.again((5, 8), 3, rank) for rank in range(3)]
    # Of 5, 6, 7 the old ranks 1, 0, 1 had 5 and 7 read (rank 1 came to 8), and 6 is left.
    assert [one.take(5, 8)[0].tolist() for one in again] == [[1, 5], [3, 6], [4, 7]]
    for one in again:
        whole, after = one.take(5, 8)
        first, between = one.take(5, 2)
        second, end = between.take(7, 6)
        assert whole.tolist() == [*first.tolist(), *(second + 2).tolist()]
        assert after == end
        assert after.before == ()
