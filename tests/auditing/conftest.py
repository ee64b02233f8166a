from __future__ import annotations

import sys
from pathlib import Path

import pytest
import transformers

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "model"), str(Path(__file__).parent)]


@pytest.fixture(autouse=True, scope="session")
def _quiet():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
