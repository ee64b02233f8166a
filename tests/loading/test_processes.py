"""Real processes with a real process group: they stop together, or all of them say why they do not."""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

LENGTHS = np.random.default_rng(0).integers(1, 40, size=203).tolist()
OPTIONS = {"capacity": 40, "rows": 2, "last": "fill", "accumulation": 2}
PROGRAM = Path(__file__).with_name("ranks_program.py")


@pytest.fixture
def run(warm_python):
    """Run one process per rank; return each rank's exit status, the lines it printed, and the seconds it all took."""
    warm_python.load("torch.distributed.device_mesh", "nopad.loading", "nopad.corpus")

    def run(folder, world_size, *, options=OPTIONS, by_rank=None, state=None, mesh=None):
        folder.mkdir()
        given = {"options": options, "by_rank": by_rank or {}, "lengths": LENGTHS, "store": str(folder / "store")}
        (folder / "given.json").write_text(json.dumps({**given, "state": state, "mesh": mesh}))
        begin = time.monotonic()
        processes = [
            warm_python(PROGRAM, folder / "given.json", RANK=rank, WORLD_SIZE=world_size, LOCAL_WORLD_SIZE=world_size)
            for rank in range(world_size)
        ]
        try:
            with ThreadPoolExecutor(world_size) as pool:  # all at once: a rank whose output nobody reads would stop
                outputs = list(pool.map(lambda process: process.communicate(timeout=120), processes))
        finally:
            for process in processes:
                process.kill()
        lines = [[json.loads(line) for line in out.splitlines()] for out, _ in outputs]
        return [process.returncode for process in processes], lines, time.monotonic() - begin

    return run


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_run_an_epoch_of_ragged_data_and_stop_together(run, tmp_path, world_size):
    codes, lines, _ = run(tmp_path / "run", world_size)
    assert codes == [0] * world_size
    assert all(printed[-1] == {"done": True, "epoch": 1} for printed in lines)
    assert len({printed[-2]["steps"] for printed in lines}) == 1
    assert Counter(number for printed in lines for number in printed[-2]["seen"]) == dict.fromkeys(range(203), 1)


def test_tensor_parallel_peers_get_the_same_batches(run, tmp_path):
    codes, lines, _ = run(tmp_path / "run", 4, mesh=[2, 2])
    assert codes == [0] * 4
    seen = [printed[-2]["seen"] for printed in lines]
    assert seen[0] == seen[1]
    assert seen[2] == seen[3]
    assert Counter(seen[0] + seen[2]) == dict.fromkeys(range(203), 1)


def test_when_a_rank_is_killed_the_others_stop_and_others_go_on_exactly(run, tmp_path):
    codes, lines, seconds = run(tmp_path / "run", 3, by_rank={"1": {"dies_at": 7}})
    assert codes[1] == -9
    for rank in (0, 2):
        assert codes[rank] == 3
        assert "Connection" in lines[rank][-1]["error"] or "Timed out" in lines[rank][-1]["error"]
        assert lines[rank][-1]["after"] < 30, f"{seconds:.0f} s in all"
    # The last state that all ranks had printed: 6 batches each, so 3 whole steps of two micro-steps.
    printed = [printed[5] for printed in lines]
    assert [one["steps"] for one in printed] == [6, 6, 6]
    assert printed[0]["state"] == printed[1]["state"] == printed[2]["state"]
    codes, rest, _ = run(tmp_path / "again", 2, state=printed[0]["state"])
    assert codes == [0, 0]
    seen = Counter(number for one in (*printed, *(lines[-2] for lines in rest)) for number in one["seen"])
    assert seen == dict.fromkeys(range(203), 1)


@pytest.mark.parametrize(
    ("differs", "message"),
    [
        ({"seed": 1}, "the ranks disagree about seed: 0 on process 0, 1 on process 1"),
        ({"rank": 0, "world_size": 2}, "2 processes have the ranks [0, 0]; expected each of 0 to 1 once"),
    ],
)
def test_ranks_that_disagree_are_told_so_at_the_first_step(run, tmp_path, differs, message):
    codes, lines, _ = run(tmp_path / "run", 2, by_rank={"1": {"options": differs}})
    assert codes == [3, 3]
    for printed in lines:
        assert len(printed) == 1
        assert message in printed[0]["error"]


def test_ranks_of_a_stream_stop_together_at_its_end_and_others_go_on_exactly(run, tmp_path):
    options = {**OPTIONS, "exhausted": "stop", "buffer": 8}
    codes, lines, _ = run(tmp_path / "run", 3, options=options)
    assert codes == [0, 0, 0]
    assert all(printed[-1] == {"done": True, "epoch": 1} for printed in lines)
    assert len({printed[-2]["steps"] for printed in lines}) == 1
    assert Counter(number for printed in lines for number in printed[-2]["seen"]) == dict.fromkeys(range(203), 1)
    printed = [printed[5] for printed in lines]  # 6 batches each, so 3 whole steps of two micro-steps
    codes, rest, _ = run(tmp_path / "again", 2, options=options, state=[one["state"] for one in printed])
    assert codes == [0, 0]
    seen = Counter(number for one in (*printed, *(lines[-2] for lines in rest)) for number in one["seen"])
    assert seen == dict.fromkeys(range(203), 1)


def test_ranks_that_read_other_streams_are_told_so(run, tmp_path):
    options = {**OPTIONS, "exhausted": "repeat"}
    codes, lines, _ = run(tmp_path / "run", 2, options=options, by_rank={"1": {"options": {"buffer": 9}}})
    assert codes == [3, 3]
    assert all("the ranks disagree about buffer: 4096 on process 0, 9 on process 1" in one[0]["error"] for one in lines)
