"""`nopad` on one rank, noting the exact loss of each micro-step in a file. Started by test_train.py."""

from __future__ import annotations

import json
import sys

from nopad.cli import main
from nopad.training.mixin import PackedMixin


def note(path: str) -> None:
    """Append [step, this micro-step's part of the step's loss] for each micro-step."""
    plain = PackedMixin.compute_loss

    def noting(self, *args, **kwargs):
        loss = plain(self, *args, **kwargs)
        with open(path, "a") as file:
            part = float(loss.detach()) / self.accelerator.num_processes
            file.write(json.dumps([self.state.global_step + 1, part]) + "\n")
        return loss

    PackedMixin.compute_loss = noting


if __name__ == "__main__":
    note(sys.argv[1])
    main(sys.argv[2:])
