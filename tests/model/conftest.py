"""Sequences and ways to put them together; models come from `zoo`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent))

from zoo import LENGTHS


@pytest.fixture(autouse=True, scope="session")
def _quiet():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@pytest.fixture(scope="session")
def sequences() -> list[torch.Tensor]:
    """Token ids, none of them special: 8 sequences of 1 to 30 tokens."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, 99, (n,), generator=generator) for n in LENGTHS]
