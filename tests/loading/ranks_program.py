"""One rank of a real run: gloo on the CPU, an all_reduce per step. Started by test_processes.py, once per rank."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from nopad import PackedLoader
from nopad.corpus import IterableSource


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        given = json.load(file)
    torch.set_num_threads(1)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(given["store"], world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=25))
    mine = given["by_rank"].get(str(rank), {})
    options = {**given["options"], **mine.get("options", {})}
    if given["mesh"]:
        mesh = init_device_mesh("cpu", tuple(given["mesh"]), mesh_dim_names=("dp", "tp"))
        options["group"] = mesh["dp"]
    data = [torch.full((length,), number).numpy() for number, length in enumerate(given["lengths"])]
    if "exhausted" in options:
        data = IterableSource(data, block_records=20)
    loader = PackedLoader(data, **options)
    if given.get("state"):
        loader.load_state_dict(given["state"])
    seen, steps, begin = [], 0, time.monotonic()
    try:
        for batch in loader:
            if steps == mine.get("dies_at"):
                os.kill(os.getpid(), signal.SIGKILL)
            total = torch.tensor([batch.layout.tokens * batch.weight])
            dist.all_reduce(total)
            steps += 1
            seen += batch.records["seq_index"].tolist() if batch.weight else []
            print(json.dumps({"seen": seen, "steps": steps, "state": loader.state_dict()}), flush=True)
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}", "after": time.monotonic() - begin}), flush=True)
        os._exit(3)  # like a crash: no clean-up waits for the others
    print(json.dumps({"done": True, "epoch": loader.epoch}), flush=True)
    os._exit(0)  # no clean-up of gloo waits for, or stumbles over, a rank that has left already


if __name__ == "__main__":
    main()
