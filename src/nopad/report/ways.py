"""Compute what epochs take, packed and in three ways without packing: rows, slots, steps, hours, money, energy."""

from __future__ import annotations

from dataclasses import dataclass

from nopad.errors import OptionError
from nopad.planning import Plan
from nopad.planning.baselines import padded
from nopad.report.settings import Settings
from nopad.report.wording import quantity
from nopad.wording import counted

__all__ = ["Way", "formulas", "money", "savings", "ways_of"]

_LEAST = 0.0001  # a smaller amount of money is shown as "under" this amount, as `quantity` does for hours and energy


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to make batches, and what the epochs of a report take.

    Attributes:
        name: name of this way, for display.
        rows: number of rows in all epochs. If `Settings.of_tokens` is given, this number and all numbers below except
            `padding` are extrapolated to that many tokens.
        slots: number of slots in these rows, tokens and padding.
        tokens: number of tokens in these rows.
        padding: share of the slots that is padding, from 0 to 1.
        steps: number of optimiser steps, rounded up in each epoch; None: `Settings.rows_per_step` is not given.
        gpu_hours: hours that one GPU would take; None: `Settings.tokens_per_second` is not given.
        hours: hours that all GPUs take, working at the same time; None: `Settings.tokens_per_second` is not given.
        money: price of the GPU-hours; None: `Settings.price_per_hour` is not given.
        energy: energy of the GPU-hours, in kWh; None: `Settings.watts` is not given.
        packed: whether this is the packed way.
    """

    name: str
    rows: int
    slots: int
    tokens: int
    padding: float
    steps: int | None
    gpu_hours: float | None
    hours: float | None
    money: float | None
    energy: float | None
    packed: bool


def ways_of(plan: Plan, settings: Settings) -> list[Way]:
    """Return what epochs take in four ways to make batches.

    The ways are padding to the capacity, dynamic padding, dynamic padding of batches sorted by length, and packing by
    `plan`, in this order.

    Raises:
        OptionError: `settings.of_tokens` is below the number of tokens in the plan.

    In the example, one slot takes one second. So the last number of a line, the seconds, equals its number of slots:

    >>> import nopad
    >>> for way in ways_of(nopad.plan([6, 2, 6, 2], capacity=8), Settings(batch_size=2, tokens_per_second=1)):
    ...     print(way.name, way.rows, way.slots, way.padding, way.gpu_hours * 3600)
    padded to 8 4 32 0.5 32.0
    dynamic padding, batches of 2 4 21 0.23809523809523808 21.0
    sorted by length, batches of 2 4 16 0.0 16.0
    packed 2 16 0.0 16.0
    """
    if settings.of_tokens is not None and settings.of_tokens < plan.tokens:
        raise OptionError(
            f"of_tokens is {settings.of_tokens:,}, and this input has {plan.tokens:,} tokens; give the number of "
            "tokens of the whole corpus, of which the input is a sample"
        )
    found = padded(plan.histogram, plan.capacity, settings.batch_size)
    batch = f"{settings.batch_size:,}"
    numbers = [
        (f"padded to {plan.capacity:,}", plan.sequences, found.fixed),
        (f"dynamic padding, batches of {batch}", plan.sequences, found.dynamic),
        (f"sorted by length, batches of {batch}", plan.sequences, found.by_length),
        ("packed", plan.packs, plan.slots),
    ]
    return [_way(name, rows, slots, plan.tokens, settings) for name, rows, slots in numbers]


def formulas(settings: Settings) -> list[str]:
    """Return sentences that say how the numbers of a report are computed.

    There is one for each of steps, GPU-hours, hours, money and energy whose setting is given. There are also sentences
    if `of_tokens` is given (numbers are extrapolated), if there are several `epochs`, and if `tokens_per_second` is
    given (what the computation leaves out). The list may be empty.
    """
    given = []
    if settings.rows_per_step is not None:
        of, times = ("", "") if settings.epochs == 1 else (" of an epoch", f", × {settings.epochs:,} epochs")
        given.append(f"Optimiser steps = rows{of} ÷ {settings.rows_per_step:,} rows per step, rounded up{times}.")
    rate, gpus, price, watts = settings.tokens_per_second, settings.gpus, settings.price_per_hour, settings.watts
    if settings.of_tokens is not None:
        given.append(
            f"Extrapolated: the input is taken as a sample of {settings.of_tokens:,} tokens with the same lengths, so "
            "rows and slots grow with the number of tokens."
        )
    if settings.epochs != 1:
        given.append(f"Rows, slots and all that follows are those of {settings.epochs:,} epochs.")
    if rate is not None:
        given.append(f"GPU-hours = slots ÷ {rate:,.12g} per second and GPU (measured, as given) ÷ 3,600.")
    if gpus is not None:
        given.append(f"Hours = GPU-hours ÷ {counted(gpus, 'GPU')}, all of them busy all the time.")
    if price is not None:
        given.append(f"Cost = GPU-hours × {money(price, settings.currency)} per GPU-hour (as given).")
    if watts is not None:
        given.append(f"Energy in kWh = GPU-hours × {watts:,.12g} W per GPU (as given) ÷ 1,000.")
    if rate is not None:
        given.append(
            "A slot, token or padding, is taken to cost the same time everywhere. Attention over longer rows costs "
            "more, and batches of few tokens use a GPU less well."
        )
    return given


def savings(ways: list[Way], settings: Settings) -> str:
    """Return a sentence on what packing saves, compared with each other way; "" if there is no `tokens_per_second`.

    `ways` is the result of `ways_of` with the same `settings`. For a way with as many slots as packing, the sentence
    says that nothing is saved; for one with fewer, how much more packing takes. A way with more or fewer slots is left
    out if it differs by less than 0.0001 GPU-hours. If all ways are left out, the sentence says that less than this is
    saved.

    >>> import nopad
    >>> ways = ways_of(nopad.plan([6, 2, 6, 2], capacity=8), settings := Settings(tokens_per_second=1e-3))
    >>> savings(ways, settings).partition(";")[0]
    'An epoch saves 4.44 GPU-hours against rows padded to 8'
    """
    if settings.tokens_per_second is None:
        return ""
    *others, packed = ways
    said = []
    for way, name in zip(others, (f"rows {ways[0].name}", "dynamic padding", "batches sorted by length"), strict=True):
        if way.slots == packed.slots:
            said.append(f"nothing against {name}")
            continue
        assert way.gpu_hours is not None
        assert packed.gpu_hours is not None
        if abs(way.gpu_hours - packed.gpu_hours) < _LEAST:
            continue
        more = way.slots < packed.slots
        parts = [f"{_apart(way.gpu_hours, packed.gpu_hours)} GPU-hours"]
        if way.money is not None and packed.money is not None:
            cost = money(abs(way.money - packed.money), settings.currency)
            parts.append(cost if settings.currency else f"a cost of {cost}")
        if way.energy is not None:
            parts.append(f"{_apart(way.energy, packed.energy)} kWh")
        listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
        said.append(f"takes {listed} more than {name}" if more else f"{listed} against {name}")
    span = f"{settings.span[0].upper()}{settings.span[1:]} {'saves' if settings.epochs == 1 else 'save'}"
    return f"{span} {'; '.join(said) or f'under {_LEAST} GPU-hours against each other way'}."


def money(amount: float, currency: str) -> str:
    """Return an amount with its currency: a sign such as "$" before it, a word such as "EUR" after it.

    >>> money(1234.5, "$"), money(0.25, "EUR"), money(0.0004, ""), money(2e-5, "$")
    ('$1,234.50', '0.25 EUR', '0.0004', 'under $0.0001')
    """
    if 0 < amount < _LEAST:
        return f"under {money(_LEAST, currency)}"
    text = f"{amount:,.2f}" if amount >= 0.1 or amount == 0 else f"{amount:.2g}"
    if currency[-1:].isalpha():
        return f"{text} {currency}"
    return f"{currency}{text}"


def _apart(a: float | None, b: float | None) -> str:
    """Return the difference of two amounts as text; neither is None, since all ways have the same settings."""
    assert a is not None
    assert b is not None
    return quantity(abs(a - b))


def _way(name: str, rows: int, slots: int, tokens: int, settings: Settings) -> Way:
    rate, price, watts = settings.tokens_per_second, settings.price_per_hour, settings.watts
    whole = tokens if settings.of_tokens is None else settings.of_tokens
    padding = (slots - tokens) / slots
    rows, slots = (-(-one * whole // tokens) for one in (rows, slots))
    steps = None if settings.rows_per_step is None else -(-rows // settings.rows_per_step) * settings.epochs
    rows, slots, tokens = (one * settings.epochs for one in (rows, slots, whole))
    gpu_hours = None if rate is None else slots / rate / 3600
    return Way(
        name=name,
        rows=rows,
        slots=slots,
        tokens=tokens,
        padding=padding,
        steps=steps,
        gpu_hours=gpu_hours,
        hours=None if gpu_hours is None else gpu_hours / (settings.gpus or 1),
        money=None if gpu_hours is None or price is None else gpu_hours * price,
        energy=None if gpu_hours is None or watts is None else gpu_hours * watts / 1000,
        packed=name == "packed",
    )
