"""A job that is stopped at any moment, by anything, leaves what an equal call finishes with the same bytes."""

from __future__ import annotations

import json
import random
import re
import runpy
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from tests.warm import Forked, WarmParent

import nopad
from nopad.corpus import IterableSource
from nopad.errors import (
    CorruptError,
    InterruptedJobError,
    StorageError,
)
from nopad.store import Manifest, workspace

FREE_SOME = r"\(No space left on device\); free some space and run the same command again"
KILLS = {"tokenising": 7, "planning": 3, "writing": 7, "publishing": 3}

# Runs one job, and says on stdout what it is about to do; each line takes it 1 ms, so that a kill can aim.
CHILD = """
import os, sys, tempfile, time
from functools import partial
from pathlib import Path
from nopad.corpus import CorpusOptions, open_source, sequences
from nopad.errors import NopadError
from nopad.store import PackOptions, job

def run(corpus, out, monitor=None):
    job.sequences = partial(sequences, group_bytes=20_000)
    try:
        return job.pack_corpus(
            open_source(corpus, block_bytes=10_000),
            out,
            CorpusOptions(capacity=64, over_long="split"),
            packing=PackOptions(shard_tokens=5_000),
            monitor=monitor,
            commit_every_s=0.0,
        )
    finally:
        job.sequences = sequences

def warm(corpus):
    "Import and compile what a job does."
    with tempfile.TemporaryDirectory() as folder:
        run(corpus, Path(folder) / "out")

def tell(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
    time.sleep(0.001)

class Telling:
    def stage(self, name, total, unit):
        tell("stage", name)
    def advance(self, units, tokens=0):
        tell("advance", units)

def told(name, real):
    def call(target, *rest):
        path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else target
        tell(name, Path(path).name)
        real(target, *rest)
    return call

def main(corpus, out):
    os.fsync, os.replace = told("fsync", os.fsync), told("replace", os.replace)
    try:
        run(corpus, out, Telling())
    except NopadError as error:
        tell(type(error).__name__, error)
        sys.exit(error.exit_code)
"""


@pytest.fixture(scope="module")
def child(tmp_path_factory):
    path = tmp_path_factory.mktemp("child") / "child.py"
    path.write_text(CHILD)
    return path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, make_records):
    path = tmp_path_factory.mktemp("corpus") / "a.jsonl"
    path.write_text("".join(json.dumps({"input_ids": ids}) + "\n" for ids in make_records(900, high=100)))
    return path


@pytest.fixture(scope="module")
def run(child):
    """The child's job, in this process and unhindered."""
    return runpy.run_path(str(child))["run"]


@pytest.fixture(scope="module")
def start(child, corpus):
    with WarmParent(child, corpus) as begin:
        yield lambda out: begin(corpus, out)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, corpus, run, tree):
    out = tmp_path_factory.mktemp("whole") / "out"
    assert len(run(corpus, out).shards) > 8
    return tree(out)


def phases(lines: list[str]) -> dict[str, range]:
    """Which lines the child says in which phase; publishing begins when the finished shards are moved."""
    begins = [lines.index(f"stage {name}") for name in ("tokenising", "planning", "writing")]
    begins.append(lines.index("replace shards"))
    return {name: range(a, b) for name, a, b in zip(KILLS, begins, [*begins[1:], len(lines)], strict=True)}


@pytest.fixture(scope="module")
def draw(tmp_path_factory, start):
    """A function from a seed to 20 moments of the job, (line, seconds after it): some in each phase, in order."""
    with start(tmp_path_factory.mktemp("timed") / "out") as process:
        lines = process.stdout.read().splitlines()
    assert process.returncode == 0
    assert len(lines) > 150
    found = phases(lines)

    def moments(seed: int) -> list[tuple[int, float]]:
        rng = random.Random(seed)
        return [(rng.choice(found[name]), rng.uniform(0, 0.003)) for name, n in KILLS.items() for _ in range(n)]

    return moments


@pytest.fixture(scope="module")
def moments(draw) -> list[tuple[int, float]]:
    return draw(0)


def kill_at(process: Forked, line: int, delay_s: float, *, with_signal: int = signal.SIGKILL) -> list[str]:
    """Kill the child `delay_s` after it said line number `line`; return all that it said."""
    with process:
        said = [process.stdout.readline().strip() for _ in range(line + 1)]
        time.sleep(delay_s)
        process.send_signal(with_signal)
        return said + process.stdout.read().splitlines()


def check_unfinished(out) -> bool:
    """Whether the manifest is not there yet; then nothing takes the folder for a dataset."""
    if (out / "nopad.json").exists():
        return False
    for reader in (nopad.open_packed, Manifest.load):
        with pytest.raises(CorruptError, match=r"holds an unfinished packing job; run the same `nopad pack` again"):
            reader(out)
    assert len(nopad.verify(out)) == 1
    return True


def phase_of(said: list[str]) -> str:
    """In which phase a child said its last."""
    markers = {f"stage {name}": name for name in KILLS} | {"replace shards": "publishing"}
    return [markers[line] for line in said if line in markers][-1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 21))])
def test_kill_9_at_twenty_random_moments(tmp_path, corpus, start, run, whole, draw, tree, seed):
    moments = draw(seed)

    def kill(number: int, line: int, delay_s: float) -> tuple[list[str], int]:
        process = start(tmp_path / str(number))
        return kill_at(process, line, delay_s), process.returncode

    with ThreadPoolExecutor(2) as pool:
        killed = list(pool.map(kill, *zip(*((i, *moment) for i, moment in enumerate(moments)), strict=True)))
    assert len(killed) == 20
    assert {phase_of(said) for said, _ in killed} == set(KILLS)
    assert sum(code == -signal.SIGKILL for _, code in killed) >= 17  # another may be done before its kill arrives
    unfinished = 0
    for number, (said, _) in enumerate(killed):
        out = tmp_path / str(number)
        unfinished += check_unfinished(out)
        run(corpus, out)
        assert tree(out) == whole, f"killed while {phase_of(said)}, after line {len(said)}: {said[-1]}"
        shutil.rmtree(out)
    assert unfinished >= 17


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 5), *(pytest.param(s, 2, marks=pytest.mark.soak) for s in range(2, 42))]
)
def test_killed_over_and_over_again(tmp_path, corpus, start, run, whole, tree, seed, kills):
    """Each run goes on where the last was killed, so that it gets further before its line comes, or is done before."""
    out, rng = tmp_path / "out", random.Random(seed)
    for at in range(5):
        kill_at(start(out), rng.randrange(40, 80), rng.uniform(0, 0.002))
        if not check_unfinished(out):
            assert at >= kills
            break
    run(corpus, out)
    assert tree(out) == whole


@pytest.mark.slow
@pytest.mark.parametrize("moment", [3, 8, 13])  # one in each of the first three phases
def test_sigint(tmp_path, corpus, start, run, whole, tree, moments, moment):
    out = tmp_path / "out"
    process = start(out)
    said = kill_at(process, moments[moment][0], 0, with_signal=signal.SIGINT)
    assert said[-1] == (
        f"InterruptedJobError stopped; what is done is kept in {out / '.work'}: run the same command again to go on"
    )
    assert process.returncode == InterruptedJobError.exit_code == 130
    assert check_unfinished(out)
    assert not list(out.rglob("*.partial"))
    run(corpus, out)
    assert tree(out) == whole


# Every durable step in turn: what was done before it stays done, it and all behind it do not happen.


class Crash(BaseException):
    """The process ends here."""


@pytest.fixture(params=[{}, {"index_only": True}, {"algorithm": "greedy"}], ids=["packed", "index", "greedy"])
def small(request, tmp_path, small_groups, pack, make_records):
    """Packs into the folder it is given; ``whole`` is what must come out."""
    options = {"over_long": "split", **request.param}
    source = IterableSource(make_records(30, high=30), block_records=5)
    pack(source, tmp_path / "whole", **options)
    return lambda out: pack(source, out, **options)


def failure(break_at, error: BaseException, at: int, call) -> BaseException | None:
    """What a call raises when its durable step `at` fails; None when it has no more steps."""
    break_at(error, at=at)
    try:
        call()
    except (Crash, StorageError) as found:
        return found
    finally:
        break_at.patch.undo()
    return None


def test_a_crash_at_every_step(tmp_path, small, break_at, tree):
    out = tmp_path / "out"
    for at in count():
        if failure(break_at, Crash(), at, lambda: small(out)) is None:
            break
        check_unfinished(out)
        small(out)
        assert tree(out) == tree(tmp_path / "whole")
        shutil.rmtree(out)
    assert at > 25


def test_a_full_disk_at_every_step(tmp_path, small, break_at, disk_full, tree):
    out = tmp_path / "out"
    for at in count():
        error = failure(break_at, disk_full, at, lambda: small(out))
        if error is None:
            break
        assert re.fullmatch(rf"no space left while [a-z ]+ {out}\S* {FREE_SOME}", str(error))
        assert error.exit_code == 3
        check_unfinished(out)
        assert not list(out.rglob("*.partial"))
        small(out)
        assert tree(out) == tree(tmp_path / "whole")
        shutil.rmtree(out)
    assert at > 25


def test_a_disk_that_fills_up_at_every_attempt(tmp_path, small, break_at, disk_full, tree):
    """Each attempt gets a few steps further than the one before."""
    out = tmp_path / "out"
    for attempts in count():
        if failure(break_at, disk_full, 16, lambda: small(out)) is None:
            break
        assert attempts < 30
    assert attempts >= 2
    assert tree(out) == tree(tmp_path / "whole")


@pytest.mark.parametrize("step", ["save", "rmtree"])
def test_a_crash_around_the_manifest(tmp_path, small, monkeypatch, tree, step):
    def crash(*_, **__):
        raise Crash

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(*(Manifest, "save") if step == "save" else (workspace.shutil, "rmtree"), crash)
        with pytest.raises(Crash):
            small(out)
    assert check_unfinished(out) == (step == "save")
    assert (out / ".work").is_dir()
    if step == "rmtree":
        assert tree(out, without=".work") == tree(tmp_path / "whole")
        assert nopad.verify(out) == []
    small(out)
    assert tree(out) == tree(tmp_path / "whole")
