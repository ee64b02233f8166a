"""Damage that every checksum and total in the manifest agrees with, and damage that only the source shows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nopad
from nopad.corpus import DictSource, IterableSource, LengthsFile
from nopad.errors import OptionError
from nopad.files import sha256_file
from nopad.store import Manifest

CHECKSUM = "the packs hold other sequences than were packed: checksum "
PLAN_LENGTHS = "the lengths in the packs are not those that plan.json covers"


def same_length(rows):
    """Two places (row, slot) of different sequences of equal length."""
    places: dict[int, tuple[int, int]] = {}
    for at, row in enumerate(rows):
        for slot, (_, _, tokens) in enumerate(row):
            if len(tokens) in places:
                return places[len(tokens)], (at, slot)
            places[len(tokens)] = at, slot
    raise AssertionError("no two of equal length")


def test_a_sequence_twice_and_another_lost(dataset, rewrite_shard):
    seen = []

    def change(rows):
        (a, i), (b, j) = same_length(rows)
        rows[b][j] = rows[a][i]
        seen.extend(rows[a][i][:2])

    rewrite_shard(dataset, change)
    problems = nopad.verify(dataset)
    assert f"record {seen[0]}, piece from token {seen[1]}: more than once" in problems
    assert any(problem.startswith(CHECKSUM) for problem in problems)


def test_a_lost_sequence(dataset, rewrite_shard):
    before = Manifest.load(dataset).sequences
    rewrite_shard(dataset, lambda rows: next(row for row in rows if len(row) > 1).pop())
    problems = nopad.verify(dataset)
    assert f"nopad.json states sequences {before - 1}, plan.json has {before}" in problems
    assert PLAN_LENGTHS in problems
    assert any(problem.startswith(CHECKSUM) for problem in problems)


def test_a_pack_above_capacity(dataset, rewrite_shard):
    def change(rows):
        giver, taker = [row for row in rows if len(row) == 2][:2]
        taker.append(giver.pop())
        held.append((rows.index(taker), sum(len(tokens) for _, _, tokens in taker)))

    held: list[tuple[int, int]] = []
    rewrite_shard(dataset, change)
    [(at, tokens)] = held
    assert tokens > 16
    assert nopad.verify(dataset) == [f"pack {at} holds {tokens} tokens, above the capacity of 16"]


def test_a_pack_above_depth(dataset, rewrite_shard):
    """Cut the sequences of a pack into single tokens, so that depth is the only limit that the pack breaks."""

    def change(rows):
        row = rows[0]
        rows[0] = [(record, start + i, [t]) for record, start, tokens in row for i, t in enumerate(tokens)]

    rewrite_shard(dataset, change)
    problems = nopad.verify(dataset)
    assert any("sequences, above the depth of 3" in problem for problem in problems)
    assert not any("above the capacity" in problem for problem in problems)


def test_an_empty_pack_and_an_empty_sequence(dataset, rewrite_shard):
    rewrite_shard(dataset, lambda rows: rows[1].clear())
    assert "a pack from 0 on is empty, or a sequence in it is" in nopad.verify(dataset)
    rewrite_shard(dataset, lambda rows: rows[1].append((0, 0, [])))
    assert "a pack from 0 on is empty, or a sequence in it is" in nopad.verify(dataset)


def test_pieces_with_a_gap(dataset, rewrite_shard):
    moved = []

    def change(rows):
        at, slot = next((a, s) for a, row in enumerate(rows) for s, piece in enumerate(row) if piece[1] > 0)
        record, start, tokens = rows[at][slot]
        rows[at][slot] = record, start + 1, tokens
        moved.extend([record, start])

    rewrite_shard(dataset, change)
    problems = nopad.verify(dataset)
    record, start = moved
    assert f"record {record}: a piece begins at token {start + 1}, the one before ends at {start}" in problems


def test_a_record_from_nowhere(dataset, rewrite_shard):
    def change(rows):
        _, start, tokens = rows[0][0]
        rows[0][0] = 1000, start, tokens

    rewrite_shard(dataset, change)
    problems = nopad.verify(dataset)
    assert any(problem.startswith(CHECKSUM) for problem in problems)
    assert any("the source had 100" in problem or "a piece begins" in problem for problem in problems)


@pytest.fixture
def change_table(first_shard, edit_manifest):
    """Replace the first shard's table, and make its size and checksum in the manifest true again."""

    def replace(out, change, **layout) -> None:
        path = first_shard(out)
        pq.write_table(change(pq.read_table(path)), path, **{"row_group_size": 12, **layout})
        true = {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        edit_manifest(out, shards=lambda shards: [{**shards[0], **true}, *shards[1:]])

    return replace


def test_lengths_that_do_not_add_up_to_the_tokens(dataset, change_table, source):
    def change(table):
        lens = table["seq_lengths"].to_pylist()
        lens[2][0] += 10_000
        return table.set_column(0, table.schema.field(0), pa.array(lens, type=table.schema.field(0).type))

    change_table(dataset, change)
    problems = nopad.verify(dataset, source=source)
    assert problems[0].startswith("pack 2: seq_lengths add up to 100")
    assert PLAN_LENGTHS in problems


def test_packs_behind_the_last_one(dataset, change_table, first_shard):
    change_table(dataset, lambda table: pa.concat_tables([table, table]))
    name = f"shards/{first_shard(dataset).name}"
    assert f"nopad.json states 12 packs in {name}, it holds 24" in nopad.verify(dataset)


def test_other_row_groups(dataset, change_table, first_shard):
    change_table(dataset, lambda table: table, row_group_size=5)
    name = f"shards/{first_shard(dataset).name}"
    assert f"{name} has row groups of other than 12 packs" in nopad.verify(dataset)


@pytest.mark.parametrize("change", [lambda t: t.drop_columns("input_ids"), lambda t: t.rename_columns([*"abcd"])])
def test_other_columns(dataset, change_table, change, only):
    change_table(dataset, change)
    assert " has the columns " in only(nopad.verify(dataset))


def test_no_parquet_file_at_all(dataset, edit_manifest, first_shard, only):
    path = first_shard(dataset)
    path.write_bytes(b"PAR1 but not really PAR1")
    true = {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
    edit_manifest(dataset, shards=lambda shards: [{**shards[0], **true}, *shards[1:]])
    assert only(nopad.verify(dataset)).startswith(f"shards/{path.name} cannot be read: ")


# Deep: with the source at hand.


def test_swapped_tokens_are_found_only_with_the_source(dataset, source, rewrite_shard, only):
    swapped = []

    def change(rows):
        (a, i), (b, j) = same_length(rows)
        (ra, sa, ta), (rb, sb, tb) = rows[a][i], rows[b][j]
        rows[a][i], rows[b][j] = (ra, sa, tb), (rb, sb, ta)
        swapped.extend([(ra, sa), (rb, sb)])

    rewrite_shard(dataset, change)
    assert nopad.verify(dataset) == []
    record, start = min(swapped)
    assert only(nopad.verify(dataset, source=source)) == (
        f"record {record}, piece from token {start}: not the tokens that this source gives"
    )


def test_a_changed_token_in_the_source(either, make_records, only):
    records = make_records(100, high=40)
    records[41][-1] += 1
    problems = nopad.verify(either, source=IterableSource(records))
    if either.name == "packed":
        assert only(problems).startswith("record 41, piece from token ")
    else:
        assert only(problems).startswith("this is not the source that was packed: fingerprint ")


def test_a_longer_and_a_shorter_source(either, make_records, only):
    records, held = make_records(100, high=40), Manifest.load(either).sequences
    longer = nopad.verify(either, source=IterableSource([*records, [1, 2]]))
    assert only(longer) == "record 100, piece from token 0: not the tokens that this source gives"
    shorter = nopad.verify(either, source=IterableSource(records[:99]))
    gone = -(-len(records[99]) // 16)
    assert shorter[0] == f"the source gives {held - gone:,} sequences, the packs hold {held:,}"
    assert shorter[1].startswith("this is not the source that was packed: fingerprint ")


def test_a_source_cut_into_other_blocks_is_another_source(either, make_records, only):
    source = IterableSource(make_records(100, high=40), block_records=7)
    problem = only(nopad.verify(either, source=source))
    same = "every sequence agrees, but files have other names, or are stored otherwise: "
    assert problem.removeprefix(same).startswith("this is not the source that was packed: fingerprint ")
    assert problem.startswith(same) == (either.name == "packed")


def test_a_source_that_can_no_longer_be_packed(tmp_path, pack, make_records):
    records = make_records(20)
    pack(IterableSource(records), tmp_path)
    problems = nopad.verify(tmp_path, source=IterableSource([*records, [1] * 17]))
    assert "this is not the source that was packed: memory, line 21: 17 tokens" in problems[0]


def test_another_tokenizer(tmp_path, pack, words, only):
    source = IterableSource(["w1 w2", "w3"])
    pack(source, tmp_path / "out", tokenizer=words)
    assert nopad.verify(tmp_path / "out", source=source, tokenizer=words) == []
    inner = type(words)(words._inner.from_str(words._inner.to_str().replace('"w9"', '"v9"')))
    assert only(nopad.verify(tmp_path / "out", source=source, tokenizer=inner)) == (
        f"packed with another tokenizer than the tokenizer: SHA-256 {words.fingerprint}, this one has "
        f"{inner.fingerprint}; give the one it was packed with (tokenizer=)"
    )
    with pytest.raises(OptionError, match="no tokenizer was given"):
        nopad.verify(tmp_path / "out", source=source)


def test_lengths(tmp_path, pack, only):
    np.save(tmp_path / "a.npy", np.arange(1, 15))
    np.save(tmp_path / "b.npy", np.arange(14, 0, -1))
    pack(LengthsFile(tmp_path / "a.npy"), tmp_path / "out", index_only=True)
    assert nopad.verify(tmp_path / "out") == []
    assert nopad.verify(tmp_path / "out", source=LengthsFile(tmp_path / "a.npy")) == []
    assert only(nopad.verify(tmp_path / "out", source=LengthsFile(tmp_path / "b.npy"))) == (
        "the lengths in the packs are not those of the source"
    )


def test_too_few_lengths_to_hold_out_a_share(tmp_path, pack, only):
    """An error was raised instead of a returned problem."""
    np.save(tmp_path / "a.npy", np.arange(1, 15))
    np.save(tmp_path / "b.npy", np.array([3]))
    pack(LengthsFile(tmp_path / "a.npy"), tmp_path / "out", index_only=True, validation=0.5)
    problem = only(nopad.verify(tmp_path / "out" / "train", source=LengthsFile(tmp_path / "b.npy")))
    assert problem.startswith("this is not the source that was packed: holding out 50.000% of 1 records leaves none")


@pytest.mark.parametrize("name", ["records", "sequences", "tokens", "truncated", "split", "dropped", "empty_skipped"])
def test_with_the_source_all_counts_are_proven(dataset, source, edit_manifest, name):
    number = Manifest.load(dataset).counts[name]
    edit_manifest(dataset, counts=lambda counts: {**counts, name: number + 1})
    problems = nopad.verify(dataset, source=source)
    assert any(f"{number + 1:,}" in problem for problem in problems), problems


def test_with_the_source_its_size_is_proven(dataset, source, edit_manifest, only):
    edit_manifest(dataset, source=lambda stated: {**stated, "bytes": 7})
    assert only(nopad.verify(dataset, source=source)) == (
        f"nopad.json states 7 bytes, the source gives {source.total_bytes:,}"
    )


@pytest.mark.parametrize("changes", [{"seed": 1}, {"order": "source"}, {"order": "sideways"}])
def test_another_seed_or_order_than_the_packs_were_dealt_with(dataset, edit_manifest, changes):
    edit_manifest(dataset, **changes)
    stated = {"seed": 0, "order": "random", **changes}
    how = f"auto, seed {stated['seed']} and order {stated['order']}"
    assert nopad.verify(dataset) == [f"these are not the packs that {how} give for these sequences"]


@pytest.mark.parametrize(("packed", "now"), [(("a",), ("a", "b")), (("a", "b"), ("a",)), ((), ("a",))])
def test_a_source_of_which_other_columns_ride_along(tmp_path, pack, only, packed, now):
    """A column that came to the source after packing was a KeyError."""
    rows = [{"input_ids": [i], "a": i, "b": [i]} for i in range(5)]

    def source(names):
        return DictSource([{name: row[name] for name in ("input_ids", *names)} for row in rows])

    pack(source(packed), tmp_path / "out")
    problem = only(nopad.verify(tmp_path / "out", source=source(now)))
    assert problem.startswith("other columns were carried when it was packed: ")
    assert nopad.verify(tmp_path / "out", source=source(packed)) == []
