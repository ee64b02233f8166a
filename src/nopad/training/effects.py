"""What packing changes in a training run, said before it begins: steps, sequences per step, learning rate, warm-up."""

from __future__ import annotations

from typing import Any

from nopad.loading.summary import Summary

__all__ = ["effects"]

_WORTH_SAYING = 1.05  # times as many sequences per step


def effects(summary: Summary, args: Any) -> str:
    """Return what packing changes as a few lines of text.

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
    lines.append(f"         {_way_back(args, factor, per_step)}")
    warmup = _warmup(args)
    if warmup:
        lines.append(f"warm-up  {warmup} steps see {warmup * per_step:,.0f} sequences, {factor:.2f} times as many")
    if args.max_steps > 0:
        lines.append(
            f"length   max_steps={args.max_steps} are {args.max_steps / after:.2f} epochs; without packs they would be "
            f"{args.max_steps / before:.2f}"
        )
    return "\n".join(lines)


def _way_back(args: Any, factor: float, per_step: float) -> str:
    """Return how a step would have about as many sequences as without packs."""
    accumulation, rows = args.gradient_accumulation_steps, args.per_device_train_batch_size
    micro_steps = round(accumulation / factor)
    if micro_steps >= 1 and micro_steps * factor / accumulation > 0.8:
        return f"gradient_accumulation_steps={micro_steps} would make it about as many as without packs"
    fewer = round(rows * accumulation / factor)
    if fewer >= 1:
        was = rows * accumulation
        return f"{fewer} rows per rank and step, in place of {was}, would make it about as many as without packs"
    return f"even one row per rank and step holds {per_step / rows / accumulation:,.0f} sequences per rank"


def _warmup(args: Any) -> int:
    """Return the number of steps of warm-up, if they are counted in steps."""
    steps = getattr(args, "warmup_steps", 0) or 0
    return int(steps) if steps >= 1 else 0
