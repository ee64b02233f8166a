"""Sequences and models as for `tests/model`."""

from tests.model.conftest import _quiet, sequences

__all__ = ["_quiet", "sequences"]
