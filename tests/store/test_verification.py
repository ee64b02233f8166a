from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nopad
from nopad.errors import CorruptError, FormatError, NopadError
from nopad.files import sha256_file
from nopad.store import Manifest

CHECKSUM = "the packs hold other sequences than were packed: checksum "
PLAN_LENGTHS = "the lengths in the packs are not those that plan.json covers"


def test_a_whole_dataset_has_no_problems(either, source):
    assert nopad.verify(either) == []
    assert nopad.verify(either, source=source) == []


def test_every_byte_of_a_shard_counts(dataset, first_shard, only):
    path = first_shard(dataset)
    whole = path.read_bytes()
    for at in (0, 4, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        expected = Manifest.load(dataset).shards[0].sha256
        name = f"shards/{path.name}"
        digest = sha256_file(path)
        assert only(nopad.verify(dataset)) == f"{name} is damaged: SHA-256 {digest}, expected {expected}"


def test_every_byte_of_an_index_counts(tmp_path, pack, source, only):
    pack(source, tmp_path / "out", over_long="split", index_only=True)
    for name in ("packs.arrow", "sequences.arrow"):
        path = tmp_path / "out" / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:])
        assert only(nopad.verify(tmp_path / "out")).startswith(f"{name} is damaged: SHA-256 ")
        path.unlink()
        assert only(nopad.verify(tmp_path / "out")) == f"{name} is missing"
        path.write_bytes(whole)


def test_a_shortened_shard(dataset, first_shard, only):
    path = first_shard(dataset)
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    name = f"shards/{path.name}"
    assert only(nopad.verify(dataset)) == f"{name} has {len(whole) - 7:,} bytes, expected {len(whole):,}"


def test_missing_and_foreign_files(dataset, first_shard):
    path = first_shard(dataset)
    path.rename(path.with_name("z.parquet"))
    assert nopad.verify(dataset) == [
        "shards/z.parquet does not belong to this dataset",
        f"shards/{path.name} is missing",
    ]


def leaves(value, path=()):
    """Every (path, value) of a JSON document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    for key, inner in items:
        yield from leaves(inner, (*path, key))
    if not isinstance(value, dict | list) or not value:
        yield path, value


def changed(value):
    if isinstance(value, bool) or value is None:
        return 1
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return value[:-1] + ("x" if value[-1] != "x" else "y")
    return [1] if isinstance(value, list) else {"more": 1}


# Not to be known from a dataset alone; `order` and `seed` could be, by dealing the plan out again.
UNPROVEN = {"seed", "order", "tool_versions", "source", "options"}
UNPROVEN_COUNTS = {
    "truncated",
    "truncated_tokens",
    "split",
    "dropped_tokens",
    "stripped",
    "stripped_tokens",
    "other_split_tokens",
    "documents",
    "documents_empty",
    "long_sentences",
    "long_sentences_tokens",
    "random_next",
    "trimmed_tokens",
}


@pytest.mark.parametrize("forged", [False, True], ids=["its checksum left", "its checksum made to fit"])
def test_an_edited_manifest_is_found_out_whatever_was_edited(either, write_manifest, forged):
    path = either / "nopad.json"
    whole = path.read_text()
    missed = set()
    for where, value in list(leaves(json.loads(whole))):
        document = json.loads(whole)
        inner = document
        for key in where[:-1]:
            inner = inner[key]
        inner[where[-1]] = changed(value)
        if where == ("sha256",) or not forged:
            path.write_text(json.dumps(document))
        else:
            write_manifest(path, document)
        try:
            found = nopad.verify(either)
        except FormatError:
            found = ["refused"]
        if not found:
            missed.add(where)
    unproven = {where for where in missed if where[0] in UNPROVEN or where[-1] in UNPROVEN_COUNTS}
    only_for_reading = {("rows_per_group",)} if either.name == "index" else set()
    if not forged:
        assert missed == set()
        return
    assert missed - unproven == only_for_reading
    assert ("source", "records") not in missed


@pytest.mark.parametrize("name", ["packs", "sequences", "tokens"])
def test_edited_totals_name_every_contradiction(dataset, edit_manifest, name):
    true = getattr(Manifest.load(dataset), name)
    edit_manifest(dataset, **{name: true + 1})
    problems = nopad.verify(dataset)
    assert f"nopad.json states {name} {true + 1}, plan.json has {true}" in problems
    assert f"nopad.json states {true + 1:,} {name}, its shards add up to {true:,}" in problems


def test_shards_in_another_order(dataset, edit_manifest):
    edit_manifest(dataset, shards=lambda shards: [shards[0], shards[2], shards[1], *shards[3:]])
    assert "lists other files than such a dataset has, or in another order, from number 1" in nopad.verify(dataset)[0]


def test_a_shard_left_out_of_the_manifest(dataset, edit_manifest):
    edit_manifest(dataset, shards=lambda shards: shards[:-1])
    problems = nopad.verify(dataset)
    assert any(problem.endswith("does not belong to this dataset") for problem in problems)
    assert any("its shards add up to" in problem for problem in problems)


def test_plan_missing(dataset, only):
    (dataset / "plan.json").unlink()
    assert only(nopad.verify(dataset)).startswith(f"cannot read the plan {dataset / 'plan.json'}: ")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"capacity": 16', '"capacity": 17', "plan.json is not the plan that nopad.json names: SHA-256 "),
        ('"capacity": 16', '"capacity": 15', "above the capacity of 15"),
        ('"depth": 3', '"depth": 1', "above the depth of 1"),
        ('"format_version": 1', '"format_version": 99', "has format version 99; this nopad reads 1"),
        ('"count": 1', '"count": 2', "its strategies give"),
        ("{", "", "is not JSON"),
        ("\n}", "\n} ", "plan.json is not the plan that nopad.json names"),
    ],
)
def test_an_edited_plan(dataset, old, new, says):
    path = dataset / "plan.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert any(says in problem for problem in nopad.verify(dataset))


def test_a_plan_file_alone(dataset, tmp_path):
    assert nopad.verify(dataset / "plan.json") == []
    with pytest.raises(FormatError, match="cannot read the plan"):
        nopad.verify(tmp_path / "missing.plan.json")


def test_at_most_twenty_problems_are_listed(dataset):
    for number in range(30):
        (dataset / "shards" / f"z{number}").touch()
    assert len(nopad.verify(dataset)) == 20


def test_half_written(dataset, only):
    (dataset / "nopad.json").unlink()
    (dataset / ".work").mkdir()
    assert "holds an unfinished packing job" in only(nopad.verify(dataset))
    with pytest.raises(CorruptError, match="unfinished"):
        nopad.open_packed(dataset)
    (dataset / ".work").rmdir()
    with pytest.raises(NopadError, match="is no packed dataset"):
        nopad.verify(dataset)


@pytest.mark.parametrize("over_long", ["error", "split"])
@pytest.mark.parametrize("compared", [False, True])
def test_thirty_bytes_a_sequence(tmp_path, pack, over_long, compared):
    """Judged by tracemalloc, which sees every array of NumPy; and beside them a few megabytes whatever the size."""
    high, options = (60, {"capacity": 32}) if over_long == "split" else (12, {"capacity": 64})
    peak = {}
    for n in (200_000, 500_000) if compared else (1_000, 200_000):  # a group of records of the source is in memory too
        lengths = np.random.default_rng(0).integers(1, high, n)
        offsets = pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32))
        ids = pa.ListArray.from_arrays(offsets, pa.array(np.zeros(lengths.sum(), dtype=np.int32)))
        pq.write_table(pa.table({"input_ids": ids}), tmp_path / f"{n}.parquet", row_group_size=20_000)
        options |= {"over_long": over_long, "shard_tokens": 1 << 22, "algorithm": "lpfhp", "commit_every_s": 9}
        made = pack(nopad.open_source(tmp_path / f"{n}.parquet"), tmp_path / str(n), **options)
        against = {"source": nopad.open_source(tmp_path / f"{n}.parquet")} if compared else {}
        assert nopad.verify(tmp_path / str(n), **against) == []  # kernels compiled, modules imported
        tracemalloc.start()
        assert nopad.verify(tmp_path / str(n), **against) == []
        peak[made.sequences] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    (few, small), (many, large) = sorted(peak.items())
    assert large - small <= (30 + 8 * compared) * (many - few) + (4 << 20)
