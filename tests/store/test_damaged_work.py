"""Whatever happens to the work folder between a kill and the next run: the same dataset, or an error; never another.

The judge is the dataset of a job that nobody stopped, byte by byte.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nopad.corpus import IterableSource, LengthsFile, open_source
from nopad.errors import NopadError, ResumeError, StorageError

STOPS = {
    "tokenising": {"match": "journal.jsonl", "at": 4},
    "planned": {"match": "finished.jsonl", "at": 1},
    "writing": {"match": "finished.jsonl", "at": 3},
    "publishing": {"match": "out/plan.json"},
    "before the manifest": {"match": "nopad.json.partial"},
}
SOAK = pytest.mark.soak
JOBS = ["carried", "split", "index", "lengths"]


@pytest.fixture(params=JOBS)
def job(request, tmp_path, make_records, monkeypatch):
    """A source and its options: with columns of every width, with a share held out, and those that keep no tokens."""
    records = make_records(60, high=12)
    if request.param == "lengths":
        np.save(tmp_path / "lengths.npy", [len(ids) for ids in records])
        return LengthsFile(tmp_path / "lengths.npy"), {"index_only": True}
    if request.param == "carried":
        rows = {
            "input_ids": records,
            "weight": [[i % 7 / 8 for i in range(len(ids))] for ids in records],
            "name": [f"é{sum(ids)}" for ids in records],
        }
        pq.write_table(pa.table(rows), tmp_path / "in.parquet", row_group_size=6)
        return open_source(tmp_path / "in.parquet"), {"algorithm": "lpfhp"}
    options = {"split": {"validation": 0.2, "over_long": "split", "capacity": 8}, "index": {"index_only": True}}
    return IterableSource(records, block_records=6), options[request.param]


@pytest.fixture
def stopped(job, tmp_path, small_groups, pack, interrupt, tree):
    """Stop the job somewhere; returns (a copy of its folder to damage, run), or None where it never comes there."""
    source, options = job
    pack(source, tmp_path / "whole", **options)
    whole = tree(tmp_path / "whole")

    def at(stop: str):
        left = tmp_path / stop / "out"
        try:
            interrupt(source, left, **STOPS[stop], **options)
        except pytest.fail.Exception:
            return None
        copies = itertools.count()

        def after(damage) -> str:
            """Damage a copy of what was left, run the job on it, and say what came of it."""
            out = tmp_path / f"{stop}-{next(copies)}" / "out"
            shutil.copytree(left, out)
            damage(out / ".work")
            try:
                pack(source, out, **options)
            except NopadError as error:
                refusal = str(error)
            else:
                refusal = ""
            if refusal:
                assert str(out) in refusal
                assert not (out / "nopad.json").exists()
            else:
                assert tree(out) == whole
            shutil.rmtree(out.parent)
            return "refused" if refusal else "made"

        return left / ".work", after

    return at


def write(name: str, content: bytes):
    return lambda work: (work / name).write_bytes(content)


def flip(path: str, at: int, bit: int):
    def damage(work: Path) -> None:
        content = bytearray((work / path).read_bytes())
        content[at] ^= 1 << bit
        (work / path).write_bytes(content)

    return damage


def files(work: Path) -> list[str]:
    return sorted(path.relative_to(work).as_posix() for path in work.rglob("*") if path.is_file())


def flips(work: Path, each: int) -> list:
    """So many flipped bits in each file, at random places."""
    rng = random.Random(0)
    sizes = {name: (work / name).stat().st_size for name in files(work)}
    return [
        flip(name, rng.randrange(size), rng.randrange(8)) for name, size in sizes.items() for _ in range(each) if size
    ]


@pytest.mark.parametrize("stop", STOPS)
def test_flipped_bits(stopped, stop):
    if found := stopped(stop):
        work, after = found
        assert {after(damage) for damage in flips(work, 2)} >= {"made", "refused"}


@pytest.mark.soak
@pytest.mark.parametrize("stop", STOPS)
def test_many_flipped_bits(stopped, stop):
    if found := stopped(stop):
        work, after = found
        assert {after(damage) for damage in flips(work, 60)} == {"made", "refused"}


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("change", ["removed", "cut", *(pytest.param(c, marks=SOAK) for c in ("emptied", "doubled"))])
def test_files_that_are_not_what_they_were(stopped, stop, change):
    if not (found := stopped(stop)):
        return
    work, after = found

    def damage(name: str):
        def change_it(work: Path) -> None:
            path = work / name
            content = path.read_bytes()
            if change == "removed":
                path.unlink()
            else:
                half = content[: len(content) // 2]
                path.write_bytes({"emptied": b"", "cut": half, "doubled": content + content}[change])

        return change_it

    came = {name: after(damage(name)) for name in files(work)}
    assert {name for name, what in came.items() if what == "refused"} <= {"job.json"}


def test_a_line_of_a_journal_in_the_middle(stopped):
    """Removed, repeated, or swapped with its neighbour."""
    found = stopped("writing") or stopped("planned") or stopped("before the manifest")
    work, after = found
    for name in (name for name in files(work) if name.endswith(".jsonl")):
        lines = (work / name).read_bytes().splitlines(keepends=True)
        middle = len(lines) // 2
        changes = [
            lines[:middle] + lines[middle + 1 :],
            lines[: middle + 1] + lines[middle:],
            [*lines[:middle], *lines[middle : middle + 2][::-1], *lines[middle + 2 :]],
        ]
        for changed in changes:
            assert after(write(name, b"".join(changed))) == "made"


def test_a_foreign_shard_is_not_published(stopped):
    found = stopped("writing")
    if not found:
        return
    work, after = found
    for folder in [path.parent for path in work.rglob("plan.json")]:
        at = folder.relative_to(work).as_posix()
        assert after(add_shards(at)) == "made"


def add_shards(at: str):
    def damage(work: Path) -> None:
        shards = work / at / "shards"
        shards.mkdir(exist_ok=True)
        for name in ("00000-of-00001.parquet", "99999-of-00011.parquet", "x.partial"):
            if not (shards / name).exists():
                (shards / name).write_bytes(b"foreign")

    return damage


def test_a_source_that_changed_where_the_spool_was_damaged(
    tmp_path, small_groups, pack, interrupt, write_jsonl, make_records
):
    """What is cut off the spool is read again; plan and shards of what was there before are not mixed with it."""
    source, out = write_jsonl(tmp_path / "in", a=make_records(60), b=make_records(60, seed=1)), tmp_path / "out"
    interrupt(source, out, **STOPS["writing"])
    spool = out / ".work" / "tokens.bin"
    spool.write_bytes(spool.read_bytes()[:-4] + b"\xff\0\0\0")
    lines = (tmp_path / "in" / "b.jsonl").read_text().splitlines()
    (tmp_path / "in" / "b.jsonl").write_text("\n".join([*lines[:-2], lines[-1], lines[-2]]) + "\n")
    with pytest.raises(ResumeError) as caught:
        pack(open_source(tmp_path / "in", block_bytes=500), out)
    assert str(caught.value) == (
        f"the source changed since the job in {out} started; put it back as it was, or delete the folder to start over"
    )


def test_a_job_description_that_cannot_be_read(tmp_path, small_groups, pack, interrupt, make_records):
    source, out = IterableSource(make_records(60), block_records=6), tmp_path / "out"
    interrupt(source, out, **STOPS["planned"])
    path = out / ".work" / "job.json"
    path.unlink()
    path.symlink_to("/proc/self/mem")  # reading fails, for any user
    with pytest.raises(StorageError, match=f"failed while reading {path}: "):
        pack(source, out)


@pytest.mark.parametrize("change", [{"capacity": 17}, {"seed": 1}])
def test_another_job_description_is_found_out_by_its_checksum(
    tmp_path, small_groups, pack, interrupt, make_records, change
):
    """Edited to fit the call that would go on with other settings."""
    source, out = IterableSource(make_records(60), block_records=6), tmp_path / "out"
    interrupt(source, out, **STOPS["planned"])
    path = out / ".work" / "job.json"
    document = json.loads(path.read_text())
    document["settings"].update(change)
    path.write_text(json.dumps(document, indent=2))
    with pytest.raises(ResumeError) as caught:
        pack(source, out, **change)
    assert str(caught.value).startswith(f"{path} is damaged (its content does not have the checksum ")
    assert str(caught.value).endswith(f"; delete {out} to start over")


def test_half_of_a_finished_job_is_checked_before_the_other_half_is_made(
    tmp_path, small_groups, pack, interrupt, make_records
):
    source, out, options = IterableSource(make_records(60), block_records=6), tmp_path / "out", {"validation": 0.2}
    interrupt(source, out, match="validation/plan.json", **options)
    for path in [*sorted((out / "train" / "shards").iterdir())[:1], out / "train" / "plan.json"]:
        content = path.read_bytes()
        path.write_bytes(content[:-5] + bytes([content[-5] ^ 1]) + content[-4:])
        with pytest.raises(NopadError, match=f"^{path} is missing or damaged; delete {out / 'train'} to pack again$"):
            pack(source, out, **options)
        path.write_bytes(content)
    pack(source, out, **options)
