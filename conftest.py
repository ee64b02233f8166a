"""What examples in docstrings may use without saying where it comes from: a tokenizer (`tests` has all else).

And which of all tests count for coverage.
"""

from __future__ import annotations

import sys

import pytest

ROOMS = ("tasks", "training")
PAGES = ("README.md", "training.md", "hyper-parameters.md")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Run slow tests, and pages, without coverage's tracer, which makes Python take twice as long: others count."""
    coverage = sys.modules.get("coverage")
    tracing = coverage and coverage.Coverage.current()
    if not tracing or not (item.get_closest_marker("slow") or item.path.suffix == ".md"):
        return (yield)
    tracing.stop()
    try:
        return (yield)
    finally:
        tracing.start()


@pytest.fixture(autouse=True)
def _tokenizer(request, doctest_namespace):
    """Give the examples of tasks a tokenizer whose tokens are words."""
    path = request.node.path
    if path.parent.name in ROOMS or path.name in PAGES:
        from tests.tasks.tiny import tokenizer

        doctest_namespace["tokenizer"] = tokenizer()
