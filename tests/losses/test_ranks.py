"""Losses and metrics over two real processes, which hold unequal shares: those of one process with all sequences."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from tests.leaving import leave

import nopad
from nopad.losses import Accuracy, over_ranks, token_denominator, token_loss

PER = ("token", "sequence")
SHARES = [[9], [4, 3, 1, 6, 2]]  # lengths of each rank's sequences


def batch_of(lengths, first):
    sequences = [[5 + (first + place) % 50 for place in range(n)] for n in lengths]
    return nopad.PackedBatch.from_sequences(sequences, columns={"labels": sequences})


def model_of_seed_0():
    from tests.model.zoo import build

    return nopad.packed(build("llama", "causal LM").train())


def step(model, batch, per, ranks, accuracy):
    """The loss's share of this batch; gradients as DDP averages them."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    logits, labels = model(**inputs, use_cache=False).logits, batch["labels"]
    whole = over_ranks(token_denominator(labels, batch, per=per, causal=True))
    loss = token_loss(logits, labels, batch, per=per, causal=True, denominator=whole)
    (loss * ranks).backward()
    accuracy.add(logits, labels, batch, causal=True)
    return over_ranks(loss)


def on_rank(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for per in PER:
        inner = model_of_seed_0()
        model = torch.nn.parallel.DistributedDataParallel(inner)
        accuracy = Accuracy(per)
        loss = step(model, batch_of(SHARES[rank], 11 * rank), per, 2, accuracy)
        accuracy.reduce()
        gradients = {name: parameter.grad for name, parameter in inner.named_parameters()}
        torch.save({"loss": loss, "counts": accuracy.counts, "gradients": gradients}, f"{folder}/{per}-{rank}.pt")
    leave(folder, rank)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, on_two_ranks):
    """The folder with what two processes found: each starts once, for both ways to count."""
    folder = tmp_path_factory.mktemp("ranks")
    on_two_ranks(on_rank, folder)
    return folder


@pytest.mark.filterwarnings("ignore")  # of torch about its own process groups
@pytest.mark.parametrize("per", PER)
def test_two_ranks_are_one(per, ranks):
    first, second = (torch.load(ranks / f"{per}-{rank}.pt") for rank in range(2))

    model, accuracy = model_of_seed_0(), Accuracy(per)
    both = [batch_of(lengths, 11 * rank) for rank, lengths in enumerate(SHARES)]
    whole = sum(token_denominator(batch["labels"], batch, per=per, causal=True) for batch in both)
    total = torch.zeros((), dtype=torch.float64)
    for batch in both:
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        logits = model(**inputs, use_cache=False).logits
        loss = token_loss(logits, batch["labels"], batch, per=per, causal=True, denominator=whole)
        loss.backward()
        total += loss.detach()
        accuracy.add(logits, batch["labels"], batch, causal=True)
    for found in (first, second):
        torch.testing.assert_close(found["loss"], total, atol=1e-12, rtol=0)
        torch.testing.assert_close(found["counts"], accuracy.counts)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(found["gradients"][name], parameter.grad, atol=1e-12, rtol=0)
