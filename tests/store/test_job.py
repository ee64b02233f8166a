from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nopad
from nopad.corpus import IterableSource, open_source
from nopad.store import Manifest, build
from nopad.store.shards import write_shards

CLS, SEP = 1, 2


def expected(records, room: int, over_long: str, *, special: bool = False):
    """{(record, start): tokens}, the slow and obvious way."""
    out = {}
    for number, ids in enumerate(records):
        if len(ids) > room and over_long == "drop":
            continue
        for start in range(0, len(ids), room) if over_long == "split" else [0][: len(ids)]:
            piece = ids[start : start + room]
            out[number, start] = [CLS, *piece, SEP] if special else piece
    return out


def check_manifest(manifest: Manifest, records, wanted, room: int, over_long: str) -> None:
    over = [len(ids) for ids in records if len(ids) > room]
    lost = {"truncate": sum(over) - room * len(over), "drop": sum(over)}.get(over_long, 0)
    assert manifest.sequences == len(wanted) == sum(shard.sequences for shard in manifest.shards)
    assert manifest.tokens == sum(map(len, wanted.values())) == sum(shard.tokens for shard in manifest.shards)
    assert manifest.packs == sum(shard.packs for shard in manifest.shards)
    assert manifest.source["records"] == len(records)
    assert manifest.counts == {
        "records": len(records),
        "sequences": manifest.sequences,
        "tokens": manifest.tokens,
        "truncated": len(over) * (over_long == "truncate"),
        "truncated_tokens": lost * (over_long == "truncate"),
        "split": len(over) * (over_long == "split"),
        "dropped": len(over) * (over_long == "drop"),
        "dropped_tokens": lost * (over_long == "drop"),
        "empty_skipped": sum(not ids for ids in records),
        "bad_skipped": 0,
        "stripped": 0,
        "stripped_tokens": 0,
        "other_split": 0,
        "other_split_tokens": 0,
        "documents": 0,
        "documents_empty": 0,
        "long_sentences": 0,
        "long_sentences_tokens": 0,
        "random_next": 0,
        "trimmed_tokens": 0,
    }


@pytest.mark.parametrize("over_long", ["error", "truncate", "split", "drop"])
def test_ids_end_to_end(tmp_path, small_groups, pack, make_records, read_back, over_long):
    records = make_records(150, low=0, high=16 if over_long == "error" else 40)
    source = IterableSource(records, block_records=4)
    manifest = pack(source, tmp_path / "out", over_long=over_long)
    wanted = expected(records, 16, over_long)
    assert read_back(tmp_path / "out") == wanted
    check_manifest(manifest, records, wanted, 16, over_long)
    assert manifest == Manifest.load(tmp_path / "out")
    assert len(manifest.shards) > 2
    assert ("seq_start" in manifest.columns) == (over_long == "split")
    assert nopad.verify(tmp_path / "out", source=source) == []


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("over_long", ["truncate", "split", "drop"])
def test_text_end_to_end(tmp_path, small_groups, pack, make_records, read_back, words, over_long, special):
    records = [[3 + i % 40 for i in ids] for ids in make_records(100, low=0, high=30)]
    source = IterableSource([" ".join(f"w{i - 3}" for i in ids) for ids in records], block_records=4)
    options = {"tokenizer": words, "over_long": over_long, "special_tokens": special}
    manifest = pack(source, tmp_path / "out", **options)
    room = 14 if special else 16
    wanted = expected(records, room, over_long, special=special)
    assert read_back(tmp_path / "out") == wanted
    check_manifest(manifest, records, wanted, room, over_long)
    assert manifest.tokenizer == {"sha256": words.fingerprint, "vocab_size": 43, "prefix": [CLS], "suffix": [SEP]}
    assert nopad.verify(tmp_path / "out", source=source, tokenizer=words) == []


def test_what_is_skipped_keeps_its_record_number(tmp_path, pack, read_back):
    lines = [{"input_ids": [5, 6]}, {"input_ids": []}, "broken", {"input_ids": [7] * 17}, {"input_ids": [8]}]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    options = {"over_long": "drop", "on_bad_record": "skip"}
    manifest = pack(open_source(path), tmp_path / "out", **options)
    assert read_back(tmp_path / "out") == {(0, 0): [5, 6], (4, 0): [8]}
    counts = {name: count for name, count in manifest.counts.items() if count}
    assert counts == {
        "records": 5,
        "sequences": 2,
        "tokens": 3,
        "dropped": 1,
        "dropped_tokens": 17,
        "empty_skipped": 1,
        "bad_skipped": 1,
    }
    assert manifest.source["files"] == 1
    assert nopad.verify(tmp_path / "out", source=open_source(path)) == []


def test_a_tokenizer_that_ready_made_ids_do_not_need_changes_nothing(tmp_path, pack, make_records, words, tree):
    source = IterableSource(make_records(30, high=40))
    pack(source, tmp_path / "with", tokenizer=words, over_long="split")
    pack(source, tmp_path / "without", over_long="split")
    assert nopad.verify(tmp_path / "with", source=source, tokenizer=words) == []
    assert tree(tmp_path / "with") == tree(tmp_path / "without")


@settings(deadline=None, max_examples=settings.default.max_examples * 6 // 10)
@given(
    records=st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=12), min_size=1, max_size=40).filter(any),
    capacity=st.integers(1, 14),
    depth=st.none() | st.integers(1, 4),
    algorithm=st.sampled_from(nopad.ALGORITHMS),
    order=st.sampled_from(["random", "source"]),
    over_long=st.sampled_from(["truncate", "split"]),
    shard_tokens=st.integers(1, 60),
    block_records=st.integers(1, 12),
    seed=st.integers(0, 2**64 - 1),
)
def test_every_sequence_is_in_exactly_one_pack(pack, read_back, records, over_long, block_records, **options):
    source = IterableSource(records, block_records=block_records)
    capacity, depth = options["capacity"], options["depth"]
    with tempfile.TemporaryDirectory() as out:
        manifest = pack(source, Path(out), over_long=over_long, **options)
        wanted = expected(records, capacity, over_long)
        assert read_back(Path(out)) == wanted
        check_manifest(manifest, records, wanted, capacity, over_long)
        for row in nopad.open_packed(out):
            assert 1 <= row.seq_lengths.size <= (depth or row.seq_lengths.size)
            assert row.input_ids.size <= capacity
        assert nopad.verify(out) == []
        assert nopad.verify(out, source=source) == []


@pytest.mark.parametrize("index_only", [False, True])
def test_two_runs_write_the_same_bytes(tmp_path, pack, make_records, tree, index_only):
    records = make_records(120, high=40)
    for name in ("one", "two"):
        pack(IterableSource(records), tmp_path / name, over_long="split", index_only=index_only)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    names = ["nopad.json", "plan.json", *(("packs.arrow", "sequences.arrow") if index_only else ())]
    assert sorted(name for name in tree(tmp_path / "one") if not name.startswith("shards/")) == sorted(names)


@pytest.mark.parametrize("commit_every_s", [0.0, float("inf")])
@pytest.mark.parametrize("threads", [1, 4])
def test_threads_and_commits_do_not_change_the_bytes(
    tmp_path, monkeypatch, small_groups, pack, make_records, tree, threads, commit_every_s
):
    source = IterableSource(make_records(120), block_records=5)
    pack(source, tmp_path / "plain")
    monkeypatch.setattr(build, "write_shards", lambda *args, **kwargs: write_shards(*args, threads=threads, **kwargs))
    pack(source, tmp_path / "other", commit_every_s=commit_every_s)
    assert tree(tmp_path / "plain") == tree(tmp_path / "other")


def test_the_monitor_hears_of_every_byte_and_token(tmp_path, small_groups, pack, make_records):
    class Recorder:
        def __init__(self):
            self.stages = []

        def stage(self, name, total, unit):
            self.stages.append([name, total, unit, 0, 0])

        def advance(self, units, tokens=0):
            self.stages[-1][3] += units
            self.stages[-1][4] += tokens

    source = IterableSource(make_records(100), block_records=5)
    first, again = Recorder(), Recorder()
    manifest = pack(source, tmp_path / "out", monitor=first)
    size, tokens = source.total_bytes, manifest.tokens
    assert first.stages == [
        ["tokenising", size, "bytes", size, tokens],
        ["planning", None, "", 0, 0],
        ["writing", tokens, "tokens", tokens, tokens],
    ]
    pack(source, tmp_path / "out", monitor=again)
    assert again.stages == [["checking the source", size, "bytes", size, 0]]


def test_a_monitor_may_pass_on_all_calls(tmp_path, pack, make_records):
    class Passing:
        def __init__(self):
            self.heard = set()

        def __getattr__(self, name):
            return lambda *args, **named: self.heard.add(name)

    monitor = Passing()
    pack(IterableSource(make_records(10)), tmp_path / "out", monitor=monitor)
    assert monitor.heard == {"stage", "advance"}
