"""Packed against alone: outputs and gradients, every kind of model, head and backend.

It writes the table of docs/internals/equality.md.

Outputs: largest difference over all of them. Gradients: per tensor, largest difference over largest value; tensors
whose gradient is zero in truth (key biases, poolers that nothing reads) are compared with the largest of all.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch
from zoo import AUTO, CONFIGS, FORMS, build, has_head

import nopad

PAGE = Path(__file__).resolve().parents[2] / "docs" / "internals" / "equality.md"
MUST = ("bert", "roberta", "deberta", "deberta-v2", "modernbert", "llama", "qwen3")
SMOKE = ("base", "sequence classification", "masked LM", "causal LM")
NOT_THERE = {"t5": set(AUTO) - {"base"}, "bart": set(AUTO)}
WAYS = [("segments", "flat"), ("segments", "rows"), ("mask", "rows"), ("repack", "rows"), ("repack", "end to end")]
# These compute norms or softmax in float32 whatever their own dtype is.
PARTLY_SINGLE = {"gemma": 1e-6}
LIMITS = {torch.float64: 1e-12, torch.float32: 1e-5}


def combinations() -> list[tuple[str, str]]:
    found = []
    for kind in CONFIGS:
        for head in AUTO if kind in MUST else SMOKE:
            if head in NOT_THERE.get(kind, ()) or (head == "pre-training" and kind != "bert"):
                continue
            if has_head(kind, head):
                found.append((kind, head))
    return found


COMBINATIONS = combinations()
MEASURED: dict[tuple[str, str], dict[str, float]] = {}


def objective(outputs: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    """One number of all outputs, each weighed at random, so that every gradient counts."""
    total = torch.zeros((), dtype=torch.float64)
    for number, output in enumerate(outputs):
        generator = torch.Generator().manual_seed(number)
        for value in output.values():
            weights = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            total = total + (value.double() * weights).sum()
    return total


def gradients(model, outputs) -> dict[str, torch.Tensor]:
    model.zero_grad()
    objective(outputs).backward()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}


def alone(model, sequences) -> list[dict[str, torch.Tensor]]:
    found = []
    for sequence in sequences:
        output = model(input_ids=sequence[None])
        found.append({n: v[0] for n, v in output.items() if torch.is_tensor(v)})
    return found


def packs(model, sequences, form, names) -> list[dict[str, torch.Tensor]]:
    batch = nopad.PackedBatch.from_sequences(sequences, pad_id=model.config.pad_token_id or 0, **FORMS[form])
    output = model(**batch)
    parts = {}
    for name in names:
        per_token = tuple(output[name].shape[:2]) == batch.layout.shape
        parts[name] = (batch.unpack_tokens if per_token else batch.unpack_sequences)(output[name])
    cut = {name: name in ("start_logits", "end_logits") for name in names}
    return [
        {name: parts[name][n][: sequence.numel()] if cut[name] else parts[name][n] for name in names}
        for n, sequence in enumerate(sequences)
    ]


@pytest.mark.parametrize(("kind", "head"), COMBINATIONS, ids=lambda value: value.replace(" ", "-"))
def test_packed_equals_alone(kind, head, sequences):
    measured = MEASURED.setdefault((kind, head), {})
    zero: set[str] = set()
    for dtype, limit in LIMITS.items():
        model = build(kind, head, dtype=dtype)
        wanted = alone(model, sequences)
        wanted_gradients = gradients(model, wanted)
        largest = max(float(g.abs().max()) for g in wanted_gradients.values())
        if dtype == torch.float64:
            zero = {n for n, g in wanted_gradients.items() if float(g.abs().max()) <= 1e-9 * largest}
        limit = max(limit, PARTLY_SINGLE.get(kind, 0))
        for backend, form in WAYS:
            if kind == "t5" and form == "end to end":
                continue
            nopad.packed(model, backend=backend)
            found = packs(model, sequences, form, list(wanted[0]))
            found_gradients = gradients(model, found)
            nopad.unpacked(model)
            scale = max(float(v.detach().abs().max()) for output in wanted for v in output.values())
            worst = max(
                float((found[n][name] - value).detach().abs().max()) / max(scale, 1.0)
                for n, output in enumerate(wanted)
                for name, value in output.items()
            )
            name = f"{str(dtype).removeprefix('torch.')} {backend} {form}"
            assert worst <= limit, name
            sloped = 0.0
            for parameter, value in wanted_gradients.items():
                size = float(value.abs().max())
                difference = float((found_gradients[parameter] - value).abs().max())
                sloped = max(sloped, difference / (largest if parameter in zero else size))
            assert sloped <= limit, (name, sloped)
            assert all(torch.isfinite(value).all() for output in found for value in output.values())
            key = f"{str(dtype).removeprefix('torch.')} {backend}"
            measured[key] = max(measured.get(key, 0), worst)
            measured[f"{key} gradients"] = max(measured.get(f"{key} gradients", 0), sloped)


def test_the_page_has_these_rows_and_no_other():
    """With NOPAD_WRITE_DOCS=1 the table is written; else it must name the same models and heads, within the limits."""
    text = PAGE.read_text()
    begin, end = text.index("| model |"), text.index("\n\n", text.index("| model |"))
    if os.environ.get("NOPAD_WRITE_DOCS"):
        assert len(MEASURED) == len(COMBINATIONS), (
            "the table is written of all of this file's tests in one process: -n 0"
        )
        PAGE.write_text(text[:begin] + table() + text[end:])
        text = PAGE.read_text()
        end = text.index("\n\n", begin)
    rows = [line.split("|")[1:-1] for line in text[begin:end].splitlines()[2:]]
    assert [(row[0].strip(), row[1].strip()) for row in rows] == COMBINATIONS
    for row in rows:
        limit = max(1e-12, PARTLY_SINGLE.get(row[0].strip(), 0))
        for cell in row[2:5]:
            assert all(float(number) <= limit for number in re.findall(r"\d\S*", cell)), row


def table() -> str:
    lines = ["| model | head | segments | mask | repack | float32 |", "|---|---|---|---|---|---|"]
    for (kind, head), measured in MEASURED.items():
        cells = [
            f"{measured[f'float64 {backend}']:.0e} / {measured[f'float64 {backend} gradients']:.0e}"
            for backend in ("segments", "mask", "repack")
        ]
        single = max(value for name, value in measured.items() if name.startswith("float32"))
        lines.append(f"| {kind} | {head} | {' | '.join(cells)} | {single:.0e} |")
    return "\n".join(lines)
