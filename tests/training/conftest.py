"""Two ranks train once, in every trainer, for all tests that look at what they did."""

from __future__ import annotations

import importlib.util
import json
import socket
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

WORLD_SIZE = 2


@pytest.fixture(scope="session")
def ranks(tmp_path_factory, warm_python):
    """What each rank printed, ``[trainer][rank]``, and the folder in which they trained."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    same = {"WORLD_SIZE": WORLD_SIZE, "LOCAL_WORLD_SIZE": WORLD_SIZE, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    same |= {"GROUP_RANK": 0, "TORCHELASTIC_RUN_ID": "none"}  # Lightning takes these for torchrun's
    warm_python.load("nopad.training", "torch.distributed", "pytest", "transformers.models.llama.modeling_llama")
    for name in ("trl", "lightning"):
        if importlib.util.find_spec(name):
            warm_python.load(name)
    program = Path(__file__).with_name("ranks_program.py")
    processes = [warm_python(program, folder, **same, RANK=n, LOCAL_RANK=n) for n in range(WORLD_SIZE)]
    try:
        outputs = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * WORLD_SIZE, outputs[0][1][-2000:]
    lines = [[json.loads(line) for line in out.splitlines() if line.startswith('{"name"')] for out, _ in outputs]
    return {one[0]["name"]: list(one) for one in zip(*lines, strict=True)}, folder
