"""Describe, before training begins, what packing changes: steps, sequences per step, learning rate and warm-up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nopad.loading import PackedLoader
from nopad.loading.summary import Summary
from nopad.training.counted import whole
from nopad.training.scaling import Scaled
from nopad.training.schedules import Schedule
from nopad.wording import counted

__all__ = ["effects", "length_of"]

_WORTH_SAYING = 1.05  # below this many times as many sequences per step, nothing is said
_NEAR = 0.8  # least share of the sequences per step without packs that a proposed change must reach


def effects(
    summary: Summary,
    args: Any,
    schedule: Schedule | None = None,
    total: int | None = None,
    scaled: Scaled | None = None,
    routers: float | None = None,
    usual: int | None = None,
) -> str:
    """Return lines of text: the loader's summary, what packing changes, what corrects these changes, and the schedule.

    Args:
        summary: the loader's summary of the epoch in which training begins.
        args: `transformers.TrainingArguments`.
        schedule: the learning-rate schedule; None: the Trainer's own.
        total: length of training, in the unit that the schedule counts.
        scaled: the correction of hyper-parameters that was made; None: no correction was asked for.
        routers: coefficient of the loss that balances experts (`nopad.tasks.routing`); None: this loss is not learned.
        usual: number of sequences that a rank would take in a micro-step without packs; None: one for each row.
    """
    own = usual is not None and summary.steps_not_packed is not None  # then batches of `usual` are what to compare with
    shown = replace(summary, steps_not_packed=None) if own else summary
    lines = [str(shown), *_changes(summary, args, schedule, scaled, usual)]
    if routers is not None:
        lines.append(
            f"experts  {routers:g} times the loss that balances them (aux_loss) is learned too: of each micro-batch by "
            "itself, averaged over a step; eval_loss leaves it out"
        )
    if schedule is not None and total is not None:
        lines.append(f"schedule {schedule.described(total)}")
    return "\n".join(lines)


def length_of(schedule: Schedule, loader: PackedLoader, args: Any) -> int:
    """Return the length of training in the unit that a schedule counts, as it is known before training begins.

    `args` are `transformers.TrainingArguments`.

    Raises:
        OptionError: the length is not known, or shorter than the warm-up.
    """
    total = whole(
        schedule,
        loader,
        epochs=args.num_train_epochs,
        steps=args.max_steps if args.max_steps > 0 else None,
    )
    schedule.checked(total)
    return total


def _changes(
    summary: Summary, args: Any, schedule: Schedule | None, scaled: Scaled | None, usual: int | None
) -> list[str]:
    """Return lines of text about what packing changes, and what corrects these changes.

    The arguments are those of `effects`. The lines, in this order, are about:

    1. the number of steps without packs, if `usual` is given
    2. the learning rate
    3. the correction `scaled`; if it is None, advice on having as many sequences per step as without packs
    4. the warm-up, if it is given in steps and there is no `schedule`
    5. the length of training, if ``max_steps`` is given

    If packing changes little, the result has only line 1 and the lines of `scaled` (none if it is None). It has only
    the lines of `scaled` if the correction is "accumulation", which keeps the number of sequences per step, or if the
    number of steps, with or without packs, is 0 or not known.
    """
    before, after = summary.steps_not_packed, summary.steps
    corrected = list(scaled.lines) if scaled is not None else []
    if (scaled is not None and scaled.how == "accumulation") or not before or not after:
        return corrected
    shape = summary.shape
    each = usual * shape.world_size * shape.accumulation if usual else 0
    factor = summary.sequences / after / each if each else before / after
    without = []
    if each:
        without = [
            f"         without packs, batches of {usual:,} sequences (transformers' per_device_train_batch_size) would "
            f"take {-(-summary.sequences // each):,} steps"
        ]
    if factor < _WORTH_SAYING:
        return [*without, *corrected]
    per_step = summary.sequences / after
    lines = [
        *without,
        f"rate     {args.learning_rate:g} stays as it is, and an optimiser step averages over {_shown(per_step)} "
        f"sequences instead of {_shown(per_step / factor)}; single steps vary",
    ]
    lines += corrected if scaled is not None else [f"         {_way_back(summary, args, factor)}"]
    warmup = 0 if schedule is not None else _warmup(args)
    if warmup:
        lines.append(f"warm-up  {warmup} steps see {warmup * per_step:,.0f} sequences, {factor:.2f} times as many")
    if args.max_steps > 0:
        lines.append(
            f"length   max_steps={args.max_steps} are {args.max_steps / after:.2f} epochs; without packs they would be "
            f"{args.max_steps / (after * factor):.2f}"
        )
    return lines


def _shown(number: float) -> str:
    """Return a mean as text: rounded to one decimal if it is below 10, else to an integer; ".0" is left out."""
    return f"{number:.1f}".removesuffix(".0") if number < 10 else f"{number:,.0f}"


def _way_back(summary: Summary, args: Any, factor: float) -> str:
    """Return advice in words: how a step with packs can have about as many sequences as a step without packs.

    If no setting does this, the words say so. `factor` is the number of sequences in a step with packs, divided by the
    number in a step without.
    """
    accumulation, rows = args.gradient_accumulation_steps, args.per_device_train_batch_size
    micro_steps = round(accumulation / factor)
    if 1 <= micro_steps < accumulation and micro_steps * factor / accumulation > _NEAR:
        return f"gradient_accumulation_steps={micro_steps} would make it about as many as without packs"
    was = rows * accumulation
    fewer = round(was / factor)
    if 1 <= fewer < was:
        rows = counted(fewer, "row")
        return f"{rows} per rank and step, in place of {was}, would make it about as many as without packs"
    if fewer == was:
        return (
            f"no smaller number of rows comes nearer to {_shown(summary.sequences / summary.steps / factor)} sequences"
        )
    held = summary.sequences / summary.steps / was / summary.shape.world_size
    return f"no number of rows makes it as few as without packs: one row holds about {held:,.0f} sequences already"


def _warmup(args: Any) -> int:
    """Return the number of warm-up steps; 0 if the warm-up is not given in steps."""
    steps = getattr(args, "warmup_steps", 0) or 0
    return int(steps) if steps >= 1 else 0
