"""What one sequence can do to its neighbours, bit for bit; and whether nopad's attention ran in every layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nopad.auditing.comparison import apart, largest_finite
from nopad.auditing.limits import named
from nopad.auditing.probes import Places
from nopad.auditing.trial import Kinds, Trial, per_sequence
from nopad.auditing.verdict import Check
from nopad.model.safety import STATE, bare, part_of, state_of

__all__ = ["once_a_layer", "poison"]

SCALE = {torch.float16: 1e3}  # 1e6 is beyond its numbers
ROUNDINGS = 4  # that a neighbour may move by, off the CPU and not in float64
SHARED_NAN = ("segments", "varlen")  # backends of which one sequence's NaN stays its own


def poison(trial: Trial, dtype: torch.dtype, kinds: Kinds) -> list[Check]:
    """Change one sequence, then make it huge, then not a number: what do its neighbours do?

    They may not move by one bit; off the CPU, in other dtypes than float64, by a few roundings of the largest value.
    """
    checks, huge = [], SCALE.get(dtype, 1e6)
    _, collate = trial.forms[-1]
    victim = max(range(len(trial.sequences)), key=lambda n: len(trial.sequences[n]) % trial.capacity)
    others = [
        other if n == victim else mine
        for n, (mine, other) in enumerate(zip(trial.sequences, trial.others, strict=True))
    ]

    def run(sequences: list[list[int]], factor: float | None = None) -> dict[str, list[Tensor]]:
        batch, there = trial.batch(collate, sequences)
        with torch.no_grad(), _scaled(trial, there, victim, factor):
            return per_sequence(trial.model(**batch), there, kinds)

    clean = run(trial.sequences)
    if not clean:
        return []  # nothing is a sequence's own, which the comparison of outputs has told
    backend = getattr(getattr(bare(trial.model), STATE, None), "backend", "")
    backend = "segments" if backend == "auto" else backend
    tries: list[tuple[str, list[list[int]], float | None]] = [
        ("other tokens", others, None),
        (f"embeddings x {huge:.0e}", trial.sequences, huge),
    ]
    if backend in SHARED_NAN and trial.collator is None:
        tries.append(("NaN", trial.sequences, float("nan")))
    exact = dtype == torch.float64 or next(bare(trial.model).parameters()).device.type == "cpu"
    limit = 0.0 if exact else ROUNDINGS * torch.finfo(dtype).eps
    scale = max((largest_finite(part) for parts in clean.values() for part in parts), default=0.0) or 1e-30
    for what, sequences, factor in tries:
        moved = run(sequences, factor)
        worst = 0.0
        for name, parts in clean.items():
            for number, part in enumerate(parts):
                if number != victim:
                    worst = max(worst, apart(part, moved[name][number]))
        worst /= scale
        detail = f"sequence {victim} of {len(trial.sequences[victim])} tokens; its neighbours" + ", bit for bit" * exact
        checks.append(
            Check(name=f"{named(dtype)} poison, {what}", passed=worst <= limit, value=worst, limit=limit, detail=detail)
        )
    return checks


@contextmanager
def _scaled(trial: Trial, places: Places, victim: int, factor: float | None) -> Iterator[None]:
    """Scale the embeddings of one sequence."""
    if factor is None:
        yield
        return
    mask = torch.ones(places.shape[0] * places.shape[1], 1, dtype=torch.float64)
    mask[torch.from_numpy(places.of[victim])] = factor

    def scale(_: nn.Module, args: Any, output: Tensor) -> Tensor:
        if tuple(output.shape[:2]) != places.shape:
            return output
        scaled: Tensor = output * mask.reshape(*places.shape, 1).to(output)
        return scaled

    inner = bare(trial.model)
    owners = [inner, *(part_of(inner, name) for name in ("encoder", "decoder") if trial.start is not None)]
    modules = {id(module): module for module in (owner.get_input_embeddings() for owner in owners)}
    handles = [module.register_forward_hook(scale) for module in modules.values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def once_a_layer(trial: Trial, counts: dict[int, int]) -> Check:
    """Our attention ran once for every layer that attends; `counts` says how often for which."""
    config = bare(trial.model).config.get_text_config()
    layers = int(getattr(config, "num_hidden_layers", 0) or getattr(config, "num_layers", 0) or 0)
    if trial.start is not None:  # each layer of a decoder attends to itself and to the encoder
        layers += 2 * int(getattr(config, "num_decoder_layers", 0) or config.decoder_layers)
    attends = state_of(trial.model).family.attends
    shared = len(counts) < layers  # ALBERT: one layer, again and again
    ran = sum(counts.values())
    wrong = abs(ran - layers * attends)
    if not shared:
        wrong = max(wrong, max((abs(n - attends) for n in counts.values()), default=1))
    return Check(
        name="attention ran once a layer",
        passed=wrong == 0,
        value=wrong,
        limit=0,
        detail=f"{ran} times in {layers} layers",
    )
