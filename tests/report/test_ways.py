"""What an epoch takes: each number against arithmetic written out here."""

from __future__ import annotations

import pytest

import nopad
from nopad.errors import OptionError
from nopad.report.settings import Settings
from nopad.report.ways import formulas, money, savings, ways_of

LENGTHS = [9, 1, 1, 8, 2, 2, 2, 5]
GIVEN = Settings(
    batch_size=4, rows_per_step=3, tokens_per_second=0.5, price_per_hour=2.5, currency="$", watts=700, gpus=8
)


@pytest.fixture
def ways():
    return ways_of(nopad.plan(LENGTHS, 10), GIVEN)


def test_slots_and_rows(ways):
    fixed, dynamic, by_length, packed = ways
    assert [way.rows for way in ways] == [8, 8, 8, 3]
    assert fixed.slots == 80
    assert by_length.slots == 4 * 9 + 4 * 2
    assert 4 * 9 + 4 * 2 <= dynamic.slots <= 4 * 9 + 4 * 8
    assert packed.slots == 3 * 10
    assert [way.padding for way in ways] == [pytest.approx(1 - 30 / way.slots) for way in ways]
    assert [way.packed for way in ways] == [False, False, False, True]


def test_steps_hours_money_energy(ways):
    assert [way.steps for way in ways] == [3, 3, 3, 1]
    for way in ways:
        hours = way.slots / 0.5 / 3600
        assert way.gpu_hours == pytest.approx(hours)
        assert way.hours == pytest.approx(hours / 8)
        assert way.money == pytest.approx(hours * 2.5)
        assert way.energy == pytest.approx(hours * 0.7)


def test_what_is_not_given_is_not_invented():
    for way in ways_of(nopad.plan(LENGTHS, 10), Settings()):
        assert (way.steps, way.gpu_hours, way.hours, way.money, way.energy) == (None,) * 5
    assert formulas(Settings()) == []
    assert savings(ways_of(nopad.plan(LENGTHS, 10), Settings()), Settings()) == ""


def test_formulas_name_what_was_given():
    told = " ".join(formulas(GIVEN))
    for part in ("3 rows per step", "÷ 0.5 per second", "÷ 8 GPUs", "× $2.50 per GPU-hour", "× 700 W"):
        assert part in told


def test_savings(ways):
    said = savings(ways, GIVEN)
    hours = (80 - 30) / 0.5 / 3600
    assert (
        f"{hours:.3g} GPU-hours, {money(hours * 2.5, '$')} and {hours * 0.7:.3g} kWh against rows padded to 10" in said
    )
    assert said.endswith("against batches sorted by length.")


def test_where_packing_takes_more_it_says_so():
    settings = Settings(tokens_per_second=1)
    said = savings(ways_of(nopad.plan([3, 3], 8, depth=1), settings), settings)
    assert "takes 0.00278 GPU-hours more than dynamic padding" in said  # 16 slots instead of 6
    assert "An epoch saves nothing against rows padded to 8" in said


def test_money():
    assert [money(1e6, "€"), money(3, "EUR"), money(3, " US$"), money(0.001, "$")] == [
        "€1,000,000.00",
        "3.00 EUR",
        " US$3.00",
        "$0.001",
    ]


def test_epochs_and_a_sample():
    plan = nopad.plan(LENGTHS, 10)
    one = ways_of(plan, Settings(rows_per_step=3, tokens_per_second=0.5))
    many = ways_of(plan, given := Settings(rows_per_step=3, tokens_per_second=0.5, epochs=4, of_tokens=70))
    for a, b in zip(one, many, strict=True):
        rows, slots = -(-a.rows * 70 // 30), -(-a.slots * 70 // 30)  # 30 tokens, rounded up
        assert (b.rows, b.slots, b.tokens, b.padding) == (rows * 4, slots * 4, 280, a.padding)
        assert b.steps == -(-rows // 3) * 4
        assert b.gpu_hours == pytest.approx(slots * 4 / 0.5 / 3600)
    assert savings(many, given).startswith("4 epochs of 70 tokens (extrapolated) save ")
    told = " ".join(formulas(given))
    assert "Extrapolated: the input is taken as a sample of 70 tokens with the same lengths" in told
    assert "those of 4 epochs." in told
    with pytest.raises(OptionError, match="of_tokens is 29, and this input has 30 tokens"):
        ways_of(plan, Settings(of_tokens=29))


def test_the_formula_of_steps_gives_the_steps():
    given = Settings(rows_per_step=4, epochs=3)
    packed = ways_of(nopad.plan([8] * 10, 8), given)[-1]
    assert (packed.rows, packed.steps) == (30, 9)  # 10 rows in an epoch, so 3 steps
    assert "Optimiser steps = rows of an epoch ÷ 4 rows per step, rounded up, × 3 epochs." in formulas(given)
    assert formulas(Settings(rows_per_step=4)) == ["Optimiser steps = rows ÷ 4 rows per step, rounded up."]


def test_savings_that_round_to_nothing_are_left_out():
    plan = nopad.plan(LENGTHS, 10)
    dynamic = ways_of(plan, Settings())[1].slots - 30
    few, none = Settings(tokens_per_second=dynamic / 0.36 * 1.001), Settings(tokens_per_second=1e9)
    said = savings(ways_of(plan, few), few)
    assert "against rows padded to 10" in said
    assert "dynamic" not in said
    assert "under" not in said
    assert savings(ways_of(plan, none), none) == "An epoch saves under 0.0001 GPU-hours against each other way."


def test_a_price_without_a_currency_is_called_a_cost():
    given = Settings(tokens_per_second=0.5, price_per_hour=2.5)
    cost = money((80 - 30) / 0.5 / 3600 * 2.5, "")
    assert f"GPU-hours and a cost of {cost} against rows padded to 10" in savings(
        ways_of(nopad.plan(LENGTHS, 10), given), given
    )
