"""What type checkers see: `packed` and `unpacked` give back a model of the type that they got."""

from __future__ import annotations

import typing

import pytest

import nopad


@pytest.mark.parametrize("function", [nopad.packed, nopad.unpacked])
def test_the_type_of_a_model_is_kept(function):
    found = typing.get_type_hints(function)
    assert isinstance(found["return"], typing.TypeVar)
    assert found["return"] is found["model"]
    assert found["return"].__bound__ is None
