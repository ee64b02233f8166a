from __future__ import annotations

import hashlib
import json
import os
from types import SimpleNamespace

import numpy as np
import pytest

from nopad.corpus import CorpusOptions, Counts, IterableSource, open_source, sequences
from nopad.errors import FormatError, ResumeError, StorageError
from nopad.seal import sealed_line, unsealed
from nopad.store.spool import Progress, Spool

WAY_OUT = "delete the output folder to start over, or put the source back as it was"
FILES = ("tokens", "lengths", "record", "start")


@pytest.fixture
def groups(make_records):
    """Eight groups of two blocks of five records."""
    source = IterableSource(make_records(80, high=9, low=9), block_records=5)
    size = source.total_bytes // 8
    found = list(sequences(source.blocks(), None, CorpusOptions(capacity=4, over_long="split"), group_bytes=size - 50))
    return SimpleNamespace(source=source, groups=found)


def fill(spool: Spool, groups) -> Spool:
    for group in groups:
        spool.append(group.batch, group.counts, group.blocks)
    return spool


@pytest.fixture
def half(tmp_path, groups):
    """A spool that committed half of the groups, one by one, and was then killed."""
    fill(Spool(tmp_path, commit_every_s=0), groups.groups[: len(groups.groups) // 2]).close()
    return tmp_path


def test_a_file_that_is_gone(half):
    spool = Spool(half)
    spool.finish()
    (half / "lengths.bin").unlink()
    with pytest.raises(StorageError, match=r"failed while reading .*/lengths.bin: No such file or directory"):
        spool.sequences(split=True)


def test_progress_lines():
    sources, files = {"a": Counts(records=4)}, {"tokens": (12, "cd")}
    progress = Progress(blocks=3, chain="ab", last="ä", consumed_bytes=9, sources=sources, files=files, complete=True)
    document = json.loads(progress.to_line())
    content = json.dumps({n: v for n, v in document.items() if n != "sha256"}, sort_keys=True, separators=(",", ":"))
    assert document.pop("sha256") == hashlib.sha256(content.encode()).hexdigest()
    assert Progress.from_document(document) == progress
    assert progress.to_line().endswith(b"}\n")


@pytest.mark.parametrize(
    "change", [{"sources": []}, {"sources": {"a": ["records"]}}, {"files": None}, {"files": {"a": 3}}]
)
def test_a_line_that_is_no_progress_ends_what_is_trusted(tmp_path, groups, change):
    """Also one that bears its checksum."""
    fill(Spool(tmp_path, commit_every_s=0), groups.groups).close()
    journal = tmp_path / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:2], sealed_line(unsealed(json.loads(lines[2])) | change), *lines[3:]]))
    assert len(Spool(tmp_path).history) == 2


@pytest.mark.parametrize("counts", [None, ["records"], sorted(Counts().to_dict()), 3])
def test_counts_are_a_dict(counts):
    with pytest.raises(FormatError, match="they must be a dict"):
        Counts.from_dict(counts)


def test_columns_are_the_batches_joined(tmp_path, groups):
    spool = fill(Spool(tmp_path), groups.groups)
    spool.finish()
    columns, plain = spool.sequences(split=True), spool.sequences(split=False)
    for array_of in (
        lambda made: made.tokens["input_ids"],
        lambda made: made.seq_lengths,
        lambda made: made.values["seq_index"],
        lambda made: made.values["seq_start"],
    ):
        found, wanted = array_of(columns), np.concatenate([array_of(group.batch) for group in groups.groups])
        np.testing.assert_array_equal(found, wanted)
        assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(columns.begin, np.cumsum(columns.seq_lengths) - columns.seq_lengths)
    assert list(plain.values) == ["seq_index"]
    assert spool.progress.counts == sum((group.counts for group in groups.groups), Counts())
    assert spool.progress.blocks == len(list(groups.source.blocks()))
    assert spool.progress.consumed_bytes == groups.source.total_bytes


def test_what_was_committed_is_there_again_and_nothing_else(half, groups):
    sizes = {name: (half / f"{name}.bin").stat().st_size for name in FILES}
    again = Spool(half, commit_every_s=1e9)
    done = len(again.history)
    assert done == len(groups.groups) // 2
    assert again.progress.counts == sum((group.counts for group in groups.groups[:done]), Counts())
    fill(again, groups.groups[done : done + 1]).close()  # appended, not committed
    assert (half / "tokens.bin").stat().st_size > sizes["tokens"]
    third = Spool(half)
    assert third.progress == again.history[-1]
    fill(third, groups.groups[done:]).finish()
    np.testing.assert_array_equal(
        third.sequences(split=True).tokens["input_ids"],
        np.concatenate([g.batch.tokens["input_ids"] for g in groups.groups]),
    )


def test_commits_come_now_and_then(tmp_path, groups, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("nopad.store.spool.time.monotonic", lambda: now[0])
    spool = Spool(tmp_path, commit_every_s=2.0)
    for group in groups.groups[:6]:
        fill(spool, [group])
        now[0] += 0.9
    assert [progress.blocks for progress in spool.history] == [sum(len(g.blocks) for g in groups.groups[:4])]
    spool.finish()
    spool.finish()
    assert [progress.complete for progress in spool.history] == [False, True]
    assert len((tmp_path / "journal.jsonl").read_bytes().splitlines()) == 2


def test_data_is_durable_before_the_journal_says_so(tmp_path, groups, break_at):
    steps = break_at(AssertionError(), at=-2)
    fill(Spool(tmp_path, commit_every_s=0), groups.groups[:1]).close()
    names = [os.path.basename(path) for path in steps]
    assert names == [*(f"{name}.bin" for name in FILES), "journal.jsonl", tmp_path.name]


def test_a_journal_line_torn_anywhere_is_as_if_never_written(half):
    path = half / "journal.jsonl"
    whole = path.read_bytes()
    history = Spool(half).history
    begin = whole.rindex(b"\n", 0, len(whole) - 1) + 1
    for end in range(begin, len(whole)):
        path.write_bytes(whole[:end])
        assert Spool(half).history == history[:-1]
        assert path.read_bytes() == whole[:begin]


@pytest.mark.parametrize("garbage", [b"\0" * 100, b"3\n", b"[]\n", b'{"blocks": 1}\n', b"\xff\xfe\n", b"{}\n{}\n"])
def test_garbage_at_the_end_of_the_journal_is_cut_off(half, garbage):
    path = half / "journal.jsonl"
    whole = path.read_bytes()
    history = Spool(half).history
    path.write_bytes(whole + garbage)
    assert Spool(half).history == history
    assert path.read_bytes() == whole


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["short", "flipped", "missing"])
def test_what_the_files_do_not_bear_out_is_cut_off(half, groups, name, damage):
    """Only what lies before the damage is trusted, and the rest is appended again: the same bytes come out."""
    whole = {name: (half / f"{name}.bin").read_bytes() for name in FILES}
    journal = (half / "journal.jsonl").read_bytes().splitlines(keepends=True)
    before = [json.loads(line)["files"][name][0] for line in journal]
    path, at = half / f"{name}.bin", before[1] + 1  # in what the third commit added
    if damage == "missing":
        path.unlink()
    else:
        content = bytearray(whole[name])
        content[at] ^= 4
        path.write_bytes(content[:at] if damage == "short" else content)
    spool = Spool(half, commit_every_s=0)
    kept = 0 if damage == "missing" else 2
    assert len(spool.history) == kept
    assert (half / "journal.jsonl").read_bytes() == b"".join(journal[:kept])
    fill(spool, groups.groups[kept : len(journal)]).close()
    assert {name: (half / f"{name}.bin").read_bytes() for name in FILES} == whole
    assert (half / "journal.jsonl").read_bytes() == b"".join(journal)


def test_closing_on_a_full_disk_does_not_hide_the_first_error(tmp_path, groups, disk_full):
    class Full:
        def write(self, *_):
            raise disk_full

        close = flush = write

    spool = fill(Spool(tmp_path, commit_every_s=1e9), groups.groups[:1])
    for file in spool._files.values():
        file.close()
    spool._files = {name: Full() for name in FILES}
    with pytest.raises(StorageError, match=r"^no space left while spooling tokens to"):
        fill(spool, groups.groups[1:2])
    spool.close()


# Through a whole job.


@pytest.fixture
def files(tmp_path, make_records, write_jsonl):
    """A folder of two JSONL files, each of several blocks."""
    return write_jsonl(tmp_path / "in", a=make_records(60), b=make_records(60, seed=1))


@pytest.fixture
def reopen(tmp_path):
    return lambda: open_source(tmp_path / "in", block_bytes=500)


@pytest.mark.parametrize("name", ["journal.jsonl", "finished.jsonl"])
@pytest.mark.parametrize("tear", [1, 20, 0])
def test_a_job_goes_on_behind_a_torn_journal(tmp_path, small_groups, files, pack, interrupt, tree, name, tear):
    pack(files, tmp_path / "whole")
    interrupt(files, tmp_path / "out", at=5, match=name)
    path = tmp_path / "out" / ".work" / name
    lines = path.read_bytes()
    assert lines.count(b"{") >= 5
    path.write_bytes(lines[:-tear] if tear else lines + b'{"torn')
    pack(files, tmp_path / "out")
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_a_torn_journal_of_shards_does_not_spoil_the_lines_behind_it(
    tmp_path, small_groups, files, pack, interrupt, tree
):
    """Once the shards are in place, their journal is all that is known of them."""
    out = tmp_path / "out"
    pack(files, tmp_path / "whole")
    interrupt(files, out, at=2, match="finished.jsonl")
    os.truncate(out / ".work" / "finished.jsonl", (out / ".work" / "finished.jsonl").stat().st_size - 5)
    interrupt(files, out, match="out/plan.json")
    assert (out / "shards").is_dir()
    pack(files, out)
    assert tree(out) == tree(tmp_path / "whole")


def test_shards_whose_journal_is_lost_are_written_again(tmp_path, files, pack, interrupt, tree):
    out = tmp_path / "out"
    pack(files, tmp_path / "whole")
    interrupt(files, out, match="out/plan.json")
    os.truncate(out / ".work" / "finished.jsonl", 20)
    pack(files, out)
    assert tree(out) == tree(tmp_path / "whole")


def test_garbage_behind_the_committed_part_of_the_spool(tmp_path, small_groups, files, pack, interrupt, tree):
    pack(files, tmp_path / "whole")
    interrupt(files, tmp_path / "out", at=5, match="journal.jsonl")
    for name in FILES:
        with open(tmp_path / "out" / ".work" / f"{name}.bin", "ab") as file:
            file.write(b"garbage" * 100)
    pack(files, tmp_path / "out")
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_a_lost_part_of_a_complete_spool_is_made_again(tmp_path, small_groups, files, pack, interrupt, tree):
    out = tmp_path / "out"
    pack(files, tmp_path / "whole")
    interrupt(files, out, match="plan.json")  # the spool is complete
    os.truncate(out / ".work" / "tokens.bin", 100)
    pack(files, out)
    assert tree(out) == tree(tmp_path / "whole")


def replace_in(path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(("stop", "at"), [("journal.jsonl", 5), ("plan.json", 0), ("finished.jsonl", 2)])
def test_changed_content_is_refused(tmp_path, small_groups, files, pack, interrupt, stop, at, reopen):
    interrupt(files, tmp_path / "out", at=at, match=stop)
    path = tmp_path / "in" / "a.jsonl"
    first = json.loads(path.read_text().splitlines()[0])["input_ids"][0]
    replace_in(path, str(first), str(first + 1))
    with pytest.raises(ResumeError) as caught:
        pack(reopen(), tmp_path / "out")
    assert str(caught.value) == f"the source changed since this job started: a.jsonl; {WAY_OUT}"


def test_a_change_somewhere_between_two_commits(tmp_path, files, pack, interrupt, reopen):
    interrupt(files, tmp_path / "out", match="plan.json")  # all blocks were one group, and one commit
    lines = (tmp_path / "in" / "a.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "in" / "a.jsonl").write_text("".join(reversed(lines)))
    with pytest.raises(ResumeError) as caught:
        pack(reopen(), tmp_path / "out")
    assert str(caught.value) == f"the source changed since this job started: between a.jsonl and b.jsonl; {WAY_OUT}"


def test_a_change_that_was_not_read_yet_is_simply_read(tmp_path, small_groups, files, pack, interrupt, tree, reopen):
    interrupt(files, tmp_path / "out", at=3, match="journal.jsonl")
    lines = (tmp_path / "in" / "b.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "in" / "b.jsonl").write_text("".join(reversed(lines)))
    pack(reopen(), tmp_path / "whole")
    pack(reopen(), tmp_path / "out")
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda folder: (folder / "b.jsonl").unlink(), "b.jsonl is gone"),
        (lambda folder: (folder / "b.jsonl").rename(folder / "c.jsonl"), "b.jsonl is gone"),
        (lambda folder: (folder / "aa.jsonl").write_text('{"input_ids": [1]}'), "aa.jsonl is new"),
        (lambda folder: replace_in(folder / "b.jsonl", "[", "[1, "), "b.jsonl changed its size"),
    ],
)
def test_changed_files_are_named(tmp_path, small_groups, files, pack, interrupt, tree, change, says, reopen):
    out = tmp_path / "out"
    interrupt(files, out, at=3, match="journal.jsonl")
    before = tree(out)
    change(tmp_path / "in")
    with pytest.raises(ResumeError) as caught:
        pack(reopen(), out)
    assert str(caught.value) == (
        f"the source changed since the job in {out} started: {says}; "
        "put it back as it was, or delete the folder to start over"
    )
    assert tree(out) == before
