"""One of two ranks: LAMB on parameters that FSDP2 shards, and on whole ones; prints how far apart they are."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from nopad.errors import TrainingError
from nopad.training import Lamb


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)).double()


def say(line):
    """Print in one piece: the other rank prints too, and torchrun's processes are not buffered."""
    os.write(1, f"{line}\n".encode())


def main():
    dist.init_process_group("gloo")
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    for foreach in (False, True):
        whole, sharded = network(), network()
        for layer in (sharded[0], sharded[2], sharded):
            fully_shard(layer, mesh=mesh)
        runs = [(model, Lamb(model.parameters(), lr=0.1, foreach=foreach)) for model in (whole, sharded)]
        for step in range(4):
            data = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
            for model, optimizer in runs:
                optimizer.zero_grad()
                (model(data) ** 2).mean().backward()
                optimizer.step()
        pairs = zip(whole.parameters(), sharded.parameters(), strict=True)
        say(f"apart {max((a.detach() - b.detach().full_tensor()).abs().max().item() for a, b in pairs)}")
        if dist.get_rank() == 0:  # one rank's piece; all ranks must stop
            next(sharded.parameters()).grad.to_local()[0, 0] = torch.nan
        try:
            runs[1][1].step()
        except TrainingError:
            say("stopped")
    dist.barrier()
    os._exit(0)  # no clean-up of gloo waits for, or stumbles over, a rank that has left already


if __name__ == "__main__":
    main()
