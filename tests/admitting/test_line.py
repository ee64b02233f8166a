"""Entries of the tables of model families, written as code."""

from __future__ import annotations

from dataclasses import fields

import pytest

from nopad.admitting.deriving import Times
from nopad.admitting.line import line_of
from nopad.model import families
from nopad.model.families import Family


@pytest.mark.parametrize("kind", families.FAMILIES)
def test_the_code_makes_the_entry(kind):
    family = families.FAMILIES[kind]
    made = eval(line_of(family), dict(vars(families)))
    for field in fields(Family):
        if field.name != "refuse":
            assert getattr(made, field.name) == getattr(family, field.name)


def test_a_constant_number():
    made = eval(line_of(Family(mixes=Times(7))), {"Family": Family})
    assert made.mixes(None) == 7
