"""Find out which loss a wrapper computes from labels, and prove that packs give the same loss as a padded batch.

Only the mean cross entropy of all labels is admitted: per token, per token shifted by one, or per sequence. A wrapper
is the user's own module around one transformers model, its base.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nopad.admitting.heads import CLOSE, same_loss
from nopad.admitting.local import Run, crossing, varying
from nopad.admitting.modes import in_mode
from nopad.admitting.substitute import Substitute
from nopad.batch import Flat, PackedBatch, Rows
from nopad.errors import NopadError, UnsupportedModelError
from nopad.model.wrapper_parts import Admitted
from nopad.sequences import IGNORED

__all__ = ["with_labels"]

LENGTHS = (7, 12, 5)
KINDS = {3: ("tokens", "causal"), 2: ("classification",)}  # by the dimensions of the scores


def with_labels(
    admitted: Admitted, exact: Substitute, safe_with: Callable[[Admitted], Substitute], runs: Callable[[str, int], Run]
) -> Admitted:
    """Return `admitted` with the kind of the wrapper's loss as `labels`, or with the reason why labels are refused.

    The kind is "tokens", "causal" or "classification". If labels are refused, `labels` is None, and `why` is the reason
    in words; otherwise `why` is "".

    Args:
        admitted: what the proof of the wrapper found for calls without labels.
        exact: the small copy of the wrapper in float64, not pack-safe.
        safe_with: function that takes an `Admitted`, and returns a pack-safe copy of the wrapper that takes labels as
            the `Admitted` says.
        runs: function that takes a kind of loss and a label, and returns a recorded call of the wrapper in which all
            labels are this label.
    """
    try:
        losses = Losses(exact)
        kind = losses.kind()
        losses.check(safe_with(replace(admitted, labels=kind)), kind)
        _check_always(runs, kind)
    except NopadError as error:
        return replace(admitted, labels=None, why=str(error))
    except Exception as error:  # a wrapper's code may raise anything
        said = (str(error).strip().splitlines() or ["no message"])[0]
        return replace(admitted, labels=None, why=f"with labels, it raises {type(error).__name__}: {said}")
    return replace(admitted, labels=kind, why="")


class Losses:
    """Tries which loss a wrapper computes, on three random sequences with labels.

    Attributes:
        model: the small copy of the wrapper.
        sequences: token ids of each sequence, int64 ``[length]``.
        labels: labels of each sequence: classes or -100, int64 ``[length]``, or ``[1]`` if there is one per sequence.
            The method `kind` sets them.
        scores: name of the output from which the loss is computed; the method `kind` sets it.
    """

    def __init__(self, model: Substitute) -> None:
        self.model = model
        size = model.config.get_text_config().vocab_size
        generator = torch.Generator().manual_seed(2)
        self.sequences = [torch.randint(min(5, size - 2), size, (n,), generator=generator) for n in LENGTHS]
        self.labels: list[Tensor] = []
        self.scores = ""

    def kind(self) -> str:
        """Return the kind of loss that the wrapper computes for a sequence alone, and set `labels` and `scores`.

        The kind is "tokens" (mean cross entropy of one label per token), "causal" (the same, with labels shifted by one
        token) or "classification" (one label per sequence).

        Raises:
            UnsupportedModelError: the wrapper gives no loss or several, the loss is none of these, or the wrapper's
                other outputs change if labels are given.
        """
        name = type(self.model).__name__
        plain = [self.model(input_ids=ids[None]) for ids in self.sequences]
        for scores, value in plain[0].items():
            per_token = tuple(value.shape[:2]) == (1, LENGTHS[0])
            if value.dim() != 2 + per_token or value.shape[0] != 1 or value.shape[-1] < 2:
                continue
            self.scores, self.labels = scores, list(self._drawn(value.shape[-1], per_token))
            kinds = set(KINDS[value.dim()])
            for ids, labels, before in zip(self.sequences, self.labels, plain, strict=True):
                try:
                    after = self.model(input_ids=ids[None], labels=labels[None] if per_token else labels)
                except (IndexError, RuntimeError):  # more classes than those of its loss
                    kinds = set()
                    break
                loss = _loss_of(name, before, after)
                kinds &= {
                    kind for kind in kinds if same_loss(loss.detach(), _wanted(before[scores], labels, kind).detach())
                }
            if len(kinds) == 1:
                return kinds.pop()
        raise UnsupportedModelError(
            "its loss is not the mean cross entropy of one label per token (shifted by one token or not) or per "
            "sequence, of one of its outputs, so nopad cannot tell what it would be on packs"
        )

    def check(self, safe: Substitute, kind: str) -> None:
        """Compare the loss of packs, and its gradients, with the mean cross entropy of all labels.

        This is done for flat batches and rows, in evaluation mode and in training mode without dropout. `safe` is a
        pack-safe copy of the wrapper, and `kind` the kind of loss that the method `kind` returned.

        Raises:
            UnsupportedModelError: a loss or a gradient differs, labels change another output, or there is not exactly
                one loss.
        """
        ids = [one.tolist() for one in self.sequences]
        for form in (Flat(), Rows(max(LENGTHS) + 1)):
            if kind == "classification":
                given: dict[str, Any] = {"sequence_columns": {"labels": torch.cat(self.labels).numpy()}}
            else:
                given = {"columns": {"labels": [one.tolist() for one in self.labels]}}
            batch = PackedBatch.from_sequences(ids, form=form, **given)
            plain, labels = PackedBatch.from_sequences(ids, form=form), batch["labels"]
            if kind == "causal":
                labels = labels.masked_fill(torch.from_numpy(batch.layout.position_ids == 0), IGNORED)
            for training in (False, True):
                with in_mode(safe, training), torch.enable_grad():
                    before = safe(**plain)
                    loss = _loss_of(type(safe).__name__, before, safe(**batch))
                    wanted = _wanted(before[self.scores], labels, kind)
                    slopes = [_slopes(one, safe) for one in (loss, wanted)]
                scale = max(float(one.abs().max()) for one in slopes[1] if one is not None)
                alike = all(_alike(one, two, scale) for one, two in zip(*slopes, strict=True))
                if not same_loss(loss.detach(), wanted.detach()) or not alike:
                    raise UnsupportedModelError(
                        "its loss on packs is not the mean cross entropy of all labels, as on the padded batch"
                    )

    def _drawn(self, classes: int, per_token: bool) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(3)
        for length in LENGTHS:
            if not per_token:
                yield torch.randint(classes, (1,), generator=generator)
                continue
            labels = torch.randint(classes, (length,), generator=generator)
            labels[[length // 2, length - 2]] = IGNORED
            yield labels


def _loss_of(name: str, before: dict[str, Tensor], after: dict[str, Tensor]) -> Tensor:
    """Return the loss: the one number among the outputs with labels, `after`; `before` are the outputs without labels.

    Raises:
        UnsupportedModelError: there is no such number or several, or labels change another output.
    """
    new = [one for key, one in after.items() if key not in before and one.dim() == 0]
    new += [one for key, one in after.items() if one.dim() == 0 and key in before]
    if len(new) != 1:
        raise UnsupportedModelError(f"with labels, it gives {len(new) or 'no'} losses" if new else "it gives no loss")
    values = [one for one in after.values() if one.dim()]
    for value in values:
        same = [one for one in before.values() if one.shape == value.shape]
        if not any(torch.allclose(one, value, 1e-9, 1e-12, equal_nan=True) for one in same):
            raise UnsupportedModelError("with labels, it gives other results than without")
    return new[0]


def _wanted(scores: Tensor, labels: Tensor, kind: str) -> Tensor:
    """Return the mean cross entropy of scores and labels, as transformers computes it; labels of -100 are left out.

    For the `kind` "classification", the shapes are ``[sequences, classes]`` and ``[sequences]``. For "tokens" and
    "causal", they are ``[rows, tokens, classes]`` and ``[rows, tokens]``; for "causal", labels are shifted by one token
    within rows.
    """
    if kind == "classification":
        return cross_entropy(scores, labels, ignore_index=IGNORED)
    labels = labels.reshape(scores.shape[:2])
    if kind == "causal":
        scores, labels = scores[:, :-1], labels[:, 1:]
    return cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def _slopes(loss: Tensor, model: Any) -> list[Tensor | None]:
    return list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))


def _alike(one: Tensor | None, two: Tensor | None, scale: float) -> bool:
    if one is None or two is None:
        return all(value is None or float(value.abs().max()) == 0 for value in (one, two))
    return float((one - two).abs().max()) <= 10 * CLOSE * scale


def _check_always(runs: Callable[[str, int], Run], kind: str) -> None:
    """Check that a wrapper computes its loss in the same way for all numbers of tokens or sequences.

    This is tried with all labels 0, and with all labels 1. ``runs(kind, label)`` returns a recorded call of the wrapper
    in which all labels are `label`. `kind` is the kind of loss: "tokens", "causal" or "classification".

    Raises:
        UnsupportedModelError: code may decide by the values of tensors, for example by a number that ``.item()``
            returns; or, for some number of tokens or sequences, it calls other functions of PyTorch, gives other
            values, or raises an error.
    """
    for fill in (0, 1):
        run = runs(kind, fill)
        if crossing(run, run.given["input_ids"][0].tolist())[1]:
            raise UnsupportedModelError("its loss reads numbers out of tensors, and may decide by them")
        said, _ = varying(run, False, whole=True)
        if said:
            raise UnsupportedModelError(f"with labels, it is not always the same: {said}")
