"""What examples in docstrings may use without saying where it comes from: a tokenizer (`tests` has all else)."""

from __future__ import annotations

import pytest

ROOMS = ("serving", "tasks", "training")


@pytest.fixture(autouse=True)
def _tokenizer(request, doctest_namespace):
    """Give the examples of tasks a tokenizer whose tokens are words."""
    path = request.node.path
    if path.parent.name in ROOMS:
        from tests.tasks.tiny import tokenizer

        doctest_namespace["tokenizer"] = tokenizer()


@pytest.fixture(autouse=True, scope="session")
def _proofs_elsewhere(tmp_path_factory):
    """Keep proofs of models (`nopad.admitting.memory`) out of the home of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
