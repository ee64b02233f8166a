"""Sequences and ways to put them together; models come from `zoo`."""

from __future__ import annotations

import shutil
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


@pytest.fixture(scope="session")
def inductor(tmp_path_factory):
    """PyTorch's compiler to C++, in this process and with files of its own: other processes write to the usual ones.

    It gives g++ the path of PyTorch without quotes. Where that holds a space, the tests are skipped for what g++ says.
    """
    if not shutil.which("g++"):
        pytest.skip("no C++ compiler")
    import torch._inductor.config
    from torch._inductor.exc import InductorError

    with pytest.MonkeyPatch.context() as patch, torch._inductor.config.patch(compile_threads=1):
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        if " " in torch.__file__:
            try:
                torch.compile(torch.sin)(torch.ones(2))
            except InductorError as error:
                said = [line for line in str(error).splitlines() if "cannot find" in line or "No such file" in line]
                pytest.skip(f"PyTorch cannot compile from {torch.__path__[0]!r}: {'; '.join(said)}")
        yield
