"""What the tests of step audits share: examples of unequal lengths, and a judge of its own."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from unittest import mock

import torch
from torch.nn.functional import cross_entropy

LENGTHS = [7, 3, 12, 5, 9, 4, 15, 6, 8, 11]


def _ids(generator, length):
    return torch.randint(4, 99, (length,), generator=generator).tolist()


def texts(lengths=LENGTHS):
    """Causal examples: labels are the tokens."""
    generator = torch.Generator().manual_seed(3)
    return [{"input_ids": (ids := _ids(generator, length)), "labels": list(ids)} for length in lengths]


def classified(lengths=LENGTHS, classes=3):
    generator = torch.Generator().manual_seed(4)
    return [{"input_ids": _ids(generator, length), "labels": length % classes} for length in lengths]


def tagged(lengths=LENGTHS, classes=5):
    generator = torch.Generator().manual_seed(5)
    tags = lambda length: [at % classes if at % 4 else -100 for at in range(length)]  # noqa: E731
    return [{"input_ids": _ids(generator, length), "labels": tags(length)} for length in lengths]


@contextmanager
def in_double():
    """Llama's norms and rotations compute in float32, whatever the model's dtype; not in here."""
    to = torch.Tensor.to

    def wide(self, *args, **kwargs):
        args = [torch.float64 if one is torch.float32 else one for one in args]
        return to(self, *args, **kwargs)

    with (
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
        mock.patch.object(torch.Tensor, "to", wide),
    ):
        yield


def losses_alone(model, examples, causal=False):
    """The losses of each example's items, in float64, by logits of one unpadded sequence; and the model that ran."""
    single = copy.deepcopy(model).double().eval()
    if single.config._attn_implementation == "eager":
        single.set_attn_implementation("sdpa")
    found = []
    for example in examples:
        logits = single(input_ids=torch.tensor([example["input_ids"]])).logits
        labels = torch.tensor(example["labels"]).reshape(-1)
        logits = logits.reshape(len(labels), -1)
        if causal:
            logits, labels = logits[:-1], labels[1:]
        found.append(cross_entropy(logits, labels, reduction="none", ignore_index=-100)[labels != -100])
    return found, single


def judge(model, examples, causal=False, per="token"):
    """The right loss of a step and its gradients by name."""
    with in_double():
        each, single = losses_alone(model, examples, causal)
    loss = torch.cat(each).mean() if per == "token" else torch.stack([one.mean() for one in each if len(one)]).mean()
    loss.backward()
    return float(loss), {name: value.grad for name, value in single.named_parameters() if value.grad is not None}


def kinds(verdict):
    return [finding.kind for finding in verdict.findings]
