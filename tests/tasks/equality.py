"""The judge of every task: the same sequences without packs, with losses written out here."""

from __future__ import annotations

import torch

import nopad


def unpacked(model, examples, loss):
    """Loss and gradients of examples, each run alone through the model as transformers made it.

    `loss(outputs, number)` gives (sum, count) of example `number`; the loss of all is the sum of sums over the sum of
    counts.
    """

    def total(outputs):
        sums, counts = zip(*(loss(one, number) for number, one in enumerate(outputs)), strict=True)
        return torch.stack(sums).sum() / sum(counts)

    return jointly(model, examples, total)


def jointly(model, examples, loss):
    """The same with `loss(outputs)`, a scalar of the outputs of all examples: for losses of pairs."""
    model.zero_grad()
    begins = examples.sequences.begins
    outputs = []
    for number, length in enumerate(examples.sequences.seq_lengths.tolist()):
        span = slice(int(begins[number]), int(begins[number]) + length)
        inputs = {
            name: torch.from_numpy(column[span].astype("int64"))[None]
            for name, column in examples.sequences.tokens.items()
            if name in ("input_ids", "token_type_ids")
        }
        outputs.append(model(**inputs))
    total = loss(outputs)
    total.backward()
    return total.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def packed(model, task, examples, capacity=64, *, world_size=1, accumulation=2, rows=1, **options):
    """Loss and gradients of one epoch of a packed loader as one step, on simulated ranks; and the meter."""
    model.zero_grad()
    options = {"last": "fill"} | options
    batches = [
        batch
        for rank in range(world_size)
        for batch in task.loader(
            examples, capacity, rows=rows, rank=rank, world_size=world_size, accumulation=accumulation, **options
        )
    ]
    nopad.packed(model)
    try:
        total = sum(task.objective.count(batch) for batch in batches)
        meter, loss = task.objective.meter(), 0.0
        for batch in batches:
            one, outputs = task.objective.step(model, batch, total)
            one.backward()
            loss += one.item()
            if batch.weight:
                meter.add(outputs, batch)
    finally:
        nopad.unpacked(model)
    return loss, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}, meter


def check_equal(one, other, limit=1e-12):
    """Losses and gradients are the same to `limit`, relative to the largest value of each gradient."""
    assert abs(one[0] - other[0]) <= limit * max(abs(one[0]), 1)
    assert one[1].keys() == other[1].keys()
    most = max(value.abs().max().item() for value in one[1].values())
    for name, value in one[1].items():
        apart = (value - other[1][name]).abs().max().item()
        assert apart <= limit * max(value.abs().max().item(), most * 1e-3), name
