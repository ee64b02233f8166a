"""Correct hyper-parameters for packing, which changes their meaning: take fewer micro-steps, or other betas.

With p sequences per pack, a step with the same number of rows sees p times as many sequences, and an epoch has 1/p of
the steps. The correction "accumulation" keeps the number of sequences per step: it divides the number of micro-steps by
p. Every other hyper-parameter then keeps its meaning, except as far as the quotient has to be rounded. The correction
"betas" makes the moments of Adam and LAMB forget as much per sequence as without packs: it raises the betas to the
power of p, which is exact if gradients are constant. Neither changes the learning rate: the paper found that training
converges more slowly if the rate is scaled with the batch.

Source: Krell et al., arXiv 2107.02027, section 3.3 and supplement E, whose example 0.81^2 = 0.66 is rounded (0.6561).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, Literal

from nopad.errors import OptionError
from nopad.loading import PackedLoader
from nopad.loading.summary import Summary
from nopad.options import check_choice, shown
from nopad.packs import Packs
from nopad.planning.plan import Plan

__all__ = ["How", "Scaled", "factor_of", "scale_for_packing"]

How = Literal["accumulation", "betas", "none"]

_ACCUMULATION = ("gradient_accumulation_steps", "accumulation")
_ROWS = ("per_device_train_batch_size", "rows")
_BETAS = (("adam_beta1", "adam_beta2"), ("beta1", "beta2"), ("betas",))
_LENGTHS = ("warmup_steps", "max_steps")
_ABOUT_ONE = 1.05  # a factor up to which a step is the same for practical purposes


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """Hyper-parameters for training with packs; print it to read what was changed, and why.

    Attributes:
        hparams: the new hyper-parameters, a copy of the same type as the given ones, which are left unchanged.
        factor: average number of sequences per pack.
        how: the correction that was made.
        changed: ``(before, after)`` of each changed hyper-parameter, by name.
        lines: lines of text that say what was changed and why.

    >>> from nopad.training import scale_for_packing
    >>> made = scale_for_packing({"accumulation": 8, "rows": 4}, 4.0, "accumulation")
    >>> made.hparams, made.changed
    ({'accumulation': 2, 'rows': 4}, {'accumulation': (8, 2)})
    """

    hparams: Any
    factor: float
    how: How
    changed: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return what was changed and why."""
        return "\n".join(self.lines)


def factor_of(measured: Any) -> float:
    """Return the packing factor: how many sequences a pack holds on average.

    Args:
        measured: a `PackedLoader` of packs or its `summary()`, a `Plan`, `Packs`, an opened packed dataset or its
            manifest; or the number itself.

    Raises:
        OptionError: `measured` is none of these; has no packs, and is no `Plan` (an empty one gives 1.0); is a loader
            whose steps are not rows; is a stream, which cannot be measured before it is read; or is a number that is
            below 1 or not finite.

    >>> import nopad
    >>> factor_of(nopad.pack([5, 3, 4, 2, 2], capacity=8)), factor_of(1.913)
    (2.5, 1.913)
    """
    if isinstance(measured, PackedLoader):
        if measured.is_stream:
            raise OptionError("a packing factor cannot be measured from a stream before it was read; give the number")
        measured = measured.summary()
    if isinstance(measured, Summary):
        return _of_summary(measured)
    if isinstance(measured, Plan):
        return measured.packing_factor
    if isinstance(measured, Packs):
        return _divided(measured.sequences, len(measured))
    manifest = getattr(measured, "manifest", measured)
    if hasattr(manifest, "packs") and hasattr(manifest, "sequences") and isinstance(manifest.packs, int):
        return _divided(manifest.sequences, manifest.packs)
    if isinstance(measured, bool) or not isinstance(measured, int | float):
        raise OptionError(
            f"a packing factor cannot be measured from a {type(measured).__name__}; give a PackedLoader, a Plan, "
            "Packs, a packed dataset, or the number of sequences per pack"
        )
    if not 1 <= measured < math.inf:
        raise OptionError(f"the packing factor is {shown(measured)}; it is sequences per pack, a finite number from 1")
    return float(measured)


def _of_summary(summary: Summary) -> float:
    if summary.unit != "pack" or summary.steps_not_packed is None:
        raise OptionError(
            "the packing factor is not known: this loader's steps are not rows that would hold one sequence each; give "
            "the number"
        )
    left, sequences, _ = summary.left_out
    packs = summary.steps * summary.shape.per_step - summary.empty + left
    return _divided(summary.sequences + sequences, packs)


def _divided(sequences: int, packs: int) -> float:
    if not packs:
        raise OptionError("the packing factor is not known: there is no pack")
    return sequences / packs


def scale_for_packing(hparams: Any, factor: Any, how: How = "accumulation") -> Scaled:
    """Return hyper-parameters for training with packs, given those for training without packs.

    Args:
        hparams: `transformers.TrainingArguments`, another dataclass, or a dict. To be changed, it must have
            ``gradient_accumulation_steps`` or ``accumulation`` (how="accumulation"); or ``adam_beta1`` and
            ``adam_beta2``, ``beta1`` and ``beta2``, or ``betas`` (how="betas"). ``per_device_train_batch_size`` or
            ``rows``, ``warmup_steps`` and ``max_steps`` are never changed; where packing changes their effect, the
            result's `lines` say so.
        factor: sequences per pack, or anything that `factor_of` measures it from.
        how: "accumulation": divide the number of micro-steps by the factor, and round to the neighbouring integer (at
            least 1) that changes the sequences per step by the smaller ratio; "betas": raise both betas to the power of
            the factor; "none": change nothing.

    Raises:
        OptionError: the factor is below 1, or `factor_of` cannot measure it; `how` is unknown; `hparams` is neither a
            dataclass nor a dict, lacks the value to change, has it under two names, or has an invalid value; or, with
            "accumulation", there is only one micro-step, and the factor is above 1.05.

    >>> print(scale_for_packing({"accumulation": 8, "rows": 4, "betas": (0.81, 0.95)}, 2.0))
    correct  accumulation 8 -> 4: a pack holds 2.00 sequences on average
             a step has 32.0 sequences per rank, and had 32: 1.00 times as many; nothing else changes its meaning
    >>> scale_for_packing({"betas": (0.81, 0.95)}, 2, "betas").hparams["betas"]
    (0.6561000000000001, 0.9025)
    """
    check_choice("how", how, How)
    p = factor_of(factor)
    if how == "accumulation":
        changed, lines = _fewer(hparams, p)
    elif how == "betas":
        changed, lines = _forgetting(hparams, p)
    else:
        changed, lines = {}, [f"correct  nothing, though a step has {p:.2f} times as many sequences"]
    if how != "accumulation":
        lines += _lengths(hparams, p)
    return Scaled(hparams=_with(hparams, changed), factor=p, how=how, changed=changed, lines=tuple(lines))


def _fewer(hparams: Any, p: float) -> tuple[dict[str, tuple[Any, Any]], list[str]]:
    """Divide the number of micro-steps by `p`, the sequences per pack; return the change, and lines that describe it.

    The change is a dict from the name of the number to (before, after); empty if the number stays. `hparams` itself is
    not changed.

    Raises:
        OptionError: the number of micro-steps is missing, is given under two names, or is not an integer of at least 1;
            it is 1 already, and `p` is above 1.05; or the number of rows is given but is not an integer of at least 1.
    """
    name = _one_of(hparams, _ACCUMULATION)
    before = _get(hparams, name)
    if isinstance(before, bool) or not isinstance(before, int) or before < 1:
        raise OptionError(f"{name} is {shown(before)}; it is a number of micro-steps, from 1")
    if before == 1 and p > _ABOUT_ONE:
        raise OptionError(
            f"{name} is 1 already, and a pack holds {p:.2f} sequences: a step cannot have fewer micro-steps. Take "
            'fewer rows per micro-step and more micro-steps, or correct the betas (how="betas")'
        )
    low = max(math.floor(before / p), 1)
    after = min(low, low + 1, key=lambda n: abs(math.log(n * p / before)))
    off = after * p / before
    rows = next((_get(hparams, one) for one in _ROWS if _has(hparams, one)), None)
    if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 1):
        raise OptionError(f"rows per micro-step are {shown(rows)}; they are a whole number from 1")
    if rows is None:
        step = f"a step has {off:.2f} times as many sequences as before"
    else:
        step = (
            f"a step has {after * rows * p:,.1f} sequences per rank, and had {before * rows:,}: {off:.2f} times as many"
        )
    rounded = "" if abs(off - 1) < 0.01 else f" ({before / p:.2f} was rounded to {after})"
    same = max(off, 1 / off) <= _ABOUT_ONE
    rest = "nothing else changes its meaning" if same else "what depends on the batch, or counts steps, changes too"
    said = f"{before} -> {after}{rounded}" if after != before else f"stays {before}{rounded}"
    return {name: (before, after)} if after != before else {}, [
        f"correct  {name} {said}: a pack holds {p:.2f} sequences on average",
        f"         {step}; {rest}",
        *([] if same else _lengths(hparams, off)),
    ]


def _forgetting(hparams: Any, p: float) -> tuple[dict[str, tuple[Any, Any]], list[str]]:
    """Raise the betas to the power of `p`, the sequences per pack; return the change, and the lines that describe it.

    The change is a dict from the names of the betas to (before, after). `hparams` itself is not changed.

    Raises:
        OptionError: there are no betas, they are given under two names, or they are not two numbers from 0 to below 1.
    """
    forms = [form for form in _BETAS if all(_has(hparams, name) for name in form)]
    if len(forms) != 1:
        names = " or ".join(" and ".join(form) for form in _BETAS)
        raise OptionError(f"the hyper-parameters have {'no' if not forms else 'two forms of'} betas; give {names}")
    form = forms[0]
    before = _get(hparams, "betas") if form == ("betas",) else tuple(_get(hparams, name) for name in form)
    before = tuple(before) if isinstance(before, list) else before
    if (
        not isinstance(before, tuple)
        or len(before) != 2
        or not all(isinstance(b, int | float) and 0 <= b < 1 for b in before)
    ):
        raise OptionError(f"betas are {shown(before)}; they are two numbers from 0 to below 1")
    after = tuple(float(b) ** p for b in before)
    pairs = (
        {"betas": (before, after)}
        if form == ("betas",)
        else dict(zip(form, zip(before, after, strict=True), strict=True))
    )
    said = ", ".join(f"{name} {_shown(old)} -> {_shown(new)}" for name, (old, new) in pairs.items())
    return pairs, [
        f"correct  {said}: to the power of {p:.4g}, the sequences per pack",
        "         moments forget as much per sequence as before; exact where gradients are constant, else the second",
        "         moment is smaller, since a gradient over more sequences has less noise; the learning rate stays",
    ]


def _lengths(hparams: Any, p: float) -> list[str]:
    """Return lines of text about `warmup_steps` and `max_steps`, which no correction changes.

    There is one line: it says that these steps see `p` times as many sequences as before, since each step does. The
    list is empty if neither setting is at least 1.
    """
    there = {name: _get(hparams, name) for name in _LENGTHS if _has(hparams, name)}
    said = [f"{name}={value:g}" for name, value in there.items() if isinstance(value, int | float) and value >= 1]
    if not said:
        return []
    return [
        f"         {' and '.join(said)} see {p:.2f} times as many sequences; count sequences or tokens instead "
        "(nopad.training.Schedule)"
    ]


def _shown(value: Any) -> str:
    return f"({', '.join(map(_shown, value))})" if isinstance(value, tuple) else f"{value:.6g}"


def _one_of(hparams: Any, names: tuple[str, ...]) -> str:
    found = [name for name in names if _has(hparams, name)]
    if len(found) != 1:
        raise OptionError(
            f"the hyper-parameters have {' and '.join(found) or 'neither'}; give one of {', '.join(names)}"
        )
    return found[0]


def _has(hparams: Any, name: str) -> bool:
    return name in hparams if isinstance(hparams, Mapping) else hasattr(hparams, name)


def _get(hparams: Any, name: str) -> Any:
    return hparams[name] if isinstance(hparams, Mapping) else getattr(hparams, name)


def _with(hparams: Any, changed: Mapping[str, tuple[Any, Any]]) -> Any:
    """Return a copy of `hparams` with new values; `changed` has ``(before, after)`` of each one, by name.

    Raises:
        OptionError: `hparams` is neither a dataclass nor a dict.
    """
    new = {name: after for name, (_, after) in changed.items()}
    if isinstance(hparams, Mapping):
        return {**hparams, **new}
    if not is_dataclass(hparams) or isinstance(hparams, type):
        raise OptionError(
            f"hyper-parameters are a {type(hparams).__name__}; give transformers.TrainingArguments, another dataclass, "
            "or a dict"
        )
    if getattr(type(hparams), "__dataclass_params__").frozen:  # noqa: B009
        return replace(hparams, **new)
    made = copy.copy(hparams)  # not `replace`: TrainingArguments would find its devices anew
    for name, value in new.items():
        setattr(made, name, value)
    return made
