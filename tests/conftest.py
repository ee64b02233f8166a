"""What several test rooms share: the published histograms, exact messages, hypothesis settings."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from nopad import Histogram

PUBLISHED = Path(__file__).resolve().parents[2] / "shared" / "data"
ABSENT = (
    f"the published histograms are not in {PUBLISHED}; they come from github.com/graphcore/examples "
    "tutorials/blogs_code/packedBERT/histograms.py"
)

settings.register_profile("nopad", deadline=None)  # the first call of a kernel compiles it
settings.load_profile("nopad")

# `st.from_type(Histogram)`: few lengths, small counts, often empty or of one length.
st.register_type_strategy(
    Histogram, st.dictionaries(st.integers(1, 40), st.integers(1, 60), max_size=12).map(Histogram.from_counts)
)


def pytest_collection_modifyitems(items):
    if not PUBLISHED.is_dir():
        for item in items:
            if item.get_closest_marker("shared"):
                item.add_marker(pytest.mark.skip(reason=ABSENT))


@pytest.fixture(scope="session")
def wikipedia() -> Histogram:
    """Wikipedia for BERT, capacity 512; only for tests marked `shared`."""
    return Histogram.load(PUBLISHED / "wikipedia_bert_512.json")


@pytest.fixture(scope="session")
def squad() -> Histogram:
    """SQuAD 1.1 for BERT, capacity 384; only for tests marked `shared`."""
    return Histogram.load(PUBLISHED / "squad_1_1_bert_384.json")


@pytest.fixture(scope="session")
def refuses():
    """Expect exactly this error with exactly this message: `with refuses(LengthError, "..."):`."""

    def refuses(error: type[Exception], message: str):
        return pytest.raises(error, match=rf"\A{re.escape(message)}\Z", check=lambda raised: type(raised) is error)

    return refuses


@pytest.fixture(scope="session")
def write_manifest():
    """Write a `nopad.json`, however wrong, with the checksum of itself that it must have."""

    def write(path: Path, document: dict) -> None:
        content = {name: value for name, value in document.items() if name != "sha256"}
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        path.write_text(json.dumps({**content, "sha256": digest}, indent=2) + "\n")

    return write
