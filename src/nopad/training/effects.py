"""What packing changes in a training run, said before it begins: steps, sequences per step, learning rate, warm-up."""

from __future__ import annotations

from typing import Any

from nopad.loading.summary import Summary

__all__ = ["effects"]

_WORTH_SAYING = 1.05  # times as many sequences per step


def effects(summary: Summary, args: Any) -> str:
    """Return a few lines for people.

    Args:
        summary: of the epoch in which training begins.
        args: the arguments of transformers' Trainer.
    """
    lines = [str(summary)]
    before, after = summary.steps_not_packed, summary.steps
    if not before or not after or before / after < _WORTH_SAYING:
        return "\n".join(lines)
    factor = before / after
    per_step = summary.sequences / after
    lines.append(
        f"rate     {args.learning_rate:g} stays as it is, and an optimiser step averages over {per_step:,.0f} "
        f"sequences instead of {per_step / factor:,.0f}"
    )
    accumulation = args.gradient_accumulation_steps
    fewer = round(accumulation / factor)
    if fewer >= 1 and fewer < accumulation:
        way = f"gradient_accumulation_steps={fewer}"
    else:
        rows = max(round(args.per_device_train_batch_size * accumulation / factor), 1)
        way = f"{rows} rows per rank and step"
    lines.append(f"         {way} would make steps of about as many sequences as without packs")
    warmup = _warmup(args)
    if warmup:
        lines.append(f"warm-up  {warmup} steps see {warmup * per_step:,.0f} sequences, {factor:.2f} times as many")
    if args.max_steps > 0:
        lines.append(
            f"length   max_steps={args.max_steps} are {args.max_steps / after:.2f} epochs; without packs they would be "
            f"{args.max_steps / before:.2f}"
        )
    return "\n".join(lines)


def _warmup(args: Any) -> int:
    """Return the number of steps of warm-up, if they are counted in steps."""
    steps = getattr(args, "warmup_steps", 0) or 0
    return int(steps) if steps >= 1 else 0
