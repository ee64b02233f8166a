"""Find out which loss the user's own class computes from labels, and prove that packs give the same loss.

The class is that of a wrapper (the user's own module around one transformers model, its base) or of a transformers
model. A loss from labels per token is admitted if it is the mean cross entropy of all labels, shifted by one token or
not. So is a wrapper's loss from labels per sequence. Any other loss of a transformers model is admitted if a pack gives
what a batch of the same sequences gives, one sequence in each row.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nopad.admitting.local import Run, crossing, varying
from nopad.admitting.modes import NoDropout, in_mode
from nopad.admitting.small import uncached
from nopad.admitting.substitute import Substitute
from nopad.batch import Flat, PackedBatch, Rows
from nopad.batch.guard import PackedMask
from nopad.errors import NopadError, UnsupportedModelError
from nopad.model.arguments import classes_of
from nopad.model.calls import parameters, takes
from nopad.model.wrapper_parts import Admitted, label_names, leaves_of
from nopad.sequences import IGNORED

__all__ = ["Losses", "check_numbers", "why_no_labels", "with_labels"]

CLOSE = 1e-5  # relative; losses are often computed in float32
LENGTHS = (7, 12, 5)
EQUAL = (4, 7)  # sequences, and tokens of each, so that a batch of them has no padding
ITEMS = "num_items_in_batch"
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
    kinds: list[str] = []

    def tried() -> None:
        losses = Losses(exact)
        kind = losses.kind()
        if kind is None:
            raise UnsupportedModelError("it gives no loss")
        losses.check(safe_with(replace(admitted, labels=kind)), kind)
        _check_always(runs, kind)
        kinds.append(kind)

    why = _why(tried)
    return replace(admitted, labels=None if why else kinds[0], why=why)


def why_no_labels(exact: Any, head: str, make: Callable[[Any], Any]) -> str:
    """Return the reason why labels of a transformers model of the user's own class are refused; "": they are not.

    Args:
        exact: the small copy of the model in float64, not pack-safe; it is not run.
        head: the kind of head: "tokens", "causal", "classification" or "answers".
        make: function that makes a copy of `exact` pack-safe, in place, and returns it.
    """
    if not all(takes(exact, name) for name in label_names(head)):
        return "it takes none"

    def tried() -> None:
        with NoDropout():
            if head not in KINDS[3]:
                taken, raised = _check_per_sequence(exact, head, make)
                if raised:  # perhaps since its loss has weights in float32
                    taken += _check_per_sequence(copy.deepcopy(exact).float(), head, make)[0]
                if not taken:
                    raise raised[0]
                return
            losses = Losses(copy.deepcopy(exact))
            kind = losses.kind()
            if kind not in (None, head):
                raise UnsupportedModelError(f"its loss is of the kind {kind!r}, and its head was said to be {head!r}")
            if kind is not None:
                losses.check(make(copy.deepcopy(exact)), kind)

    return _why(tried)


def check_numbers(exact: Any, make: Callable[[Any], Any]) -> None:
    """Check that single numbers in a model's output, such as a loss, are on packs what they are on a batch of rows.

    The model is one of the user's own class, and gets no labels. Such numbers are of a whole batch, so sequences of
    equal length are tried, one in each row, and then packed into one row. The arguments are as for `why_no_labels`.

    Raises:
        UnsupportedModelError: a number, or its gradient, differs; the message names it.
    """
    ids = _equal_ids(exact)
    with NoDropout():
        stock = copy.deepcopy(exact)
        if not _numbers(_made(stock, input_ids=ids)):
            return
        safe = make(copy.deepcopy(exact))
        batch = PackedBatch.from_sequences(ids.tolist(), form=Flat())
        for training in (False, True):
            with in_mode(stock, training), in_mode(safe, training), torch.enable_grad():
                wanted, found = (_numbers(one) for one in (_made(stock, input_ids=ids), _made(safe, **batch)))
                for name, value in wanted.items():
                    if name not in found or not _same_slopes(found[name], safe, value, stock):
                        raise UnsupportedModelError(
                            f"{name} of {type(exact).__name__} is one number of the whole batch, and on packs it is "
                            "not that of the same sequences in rows of their own: it crosses the borders of "
                            "sequences; leave it out of the forward method, and compute it from outputs, such as by "
                            "nopad.losses.token_loss"
                        )


def _why(tried: Callable[[], None]) -> str:
    """Run `tried`; return the message of the error that it raises, in one line, or "" if it raises none."""
    try:
        tried()
    except NopadError as error:
        return str(error)
    except Exception as error:  # the user's code may raise anything
        said = (str(error).strip().splitlines() or ["no message"])[0]
        return f"with labels, it raises {type(error).__name__}: {said}"
    return ""


class Losses:
    """Tries which loss is computed, on three random sequences with labels, some of which are -100.

    Attributes:
        model: the small copy of the wrapper or of the transformers model; it is run.
        sequences: token ids of each sequence, int64 ``[length]``.
        labels: labels of each sequence: classes or -100, int64 ``[length]``, or ``[1]`` if there is one per sequence.
            The method `kind` sets them.
        scores: name of the output from which the loss is computed; the method `kind` sets it.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        size = model.config.get_text_config().vocab_size
        generator = torch.Generator().manual_seed(2)
        self.sequences = [torch.randint(min(5, size - 2), size, (n,), generator=generator) for n in LENGTHS]
        self.labels: list[Tensor] = []
        self.scores = ""

    def kind(self) -> str | None:
        """Return the kind of loss that is computed for a sequence alone, and set `labels` and `scores`.

        The kind is "tokens" (mean cross entropy of one label per token), "causal" (the same, with labels shifted by one
        token) or "classification" (one label per sequence). None: there is no loss, whether in training or not.

        Raises:
            UnsupportedModelError: there are several losses, or a loss in one mode only (evaluation or training); the
                loss is none of these; or the other outputs change if labels are given.
        """
        for scores, value in _made(self.model, input_ids=self.sequences[0][None]).items():
            per_token = tuple(value.shape[:2]) == (1, LENGTHS[0])
            if value.dim() != 2 + per_token or value.shape[0] != 1 or value.shape[-1] < 2:
                continue
            classes = value.shape[-1]
            if not isinstance(self.model, Substitute):  # packed calls refuse other labels
                classes = min(classes, classes_of(self.model))
            self.scores, self.labels = scores, list(self._drawn(classes, per_token))
            kinds = self._kinds(per_token, set(KINDS[value.dim()]))
            if kinds is None:
                return None
            if len(kinds) == 1:
                return kinds.pop()
        raise UnsupportedModelError(
            "its loss is not the mean cross entropy of one label per token (shifted by one token or not) or per "
            "sequence, of one of its outputs, so nopad cannot tell what it would be on packs"
        )

    def _kinds(self, per_token: bool, kinds: set[str]) -> set[str] | None:
        """Return those of `kinds` that the loss is of, by `labels` and `scores`; None: there is no loss."""
        losses: list[Tensor | None] = []
        for training in (False, True):
            with in_mode(self.model, training), torch.enable_grad():
                for ids, labels in zip(self.sequences, self.labels, strict=True):
                    before = _made(self.model, input_ids=ids[None])
                    try:
                        after = _made(self.model, input_ids=ids[None], labels=labels[None] if per_token else labels)
                    except (IndexError, RuntimeError):  # more classes than those of its loss
                        return set()
                    loss = _loss_of(before, after)
                    losses.append(loss)
                    if loss is not None:
                        kinds = {one for one in kinds if _same(loss, _wanted(before[self.scores], labels, one))}
        if any(one is None for one in losses):
            if any(one is not None for one in losses):
                raise UnsupportedModelError("with labels, it gives a loss in training or in evaluation mode only")
            return None
        return kinds

    def check(self, safe: Any, kind: str) -> None:
        """Compare the loss of packs, and its gradients, with the mean cross entropy of all labels.

        This is done for flat batches and rows, in evaluation mode and in training mode without dropout. `safe` is a
        pack-safe copy of `model`, and `kind` the kind of loss that the method `kind` returned.

        Raises:
            UnsupportedModelError: a loss or a gradient differs, labels change another output, or there are several
                losses.
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
                    before = _made(safe, **plain)
                    loss = _loss_of(before, _made(safe, **batch))
                    wanted = _wanted(before[self.scores], labels, kind)
                    alike = loss is not None and _same_slopes(loss, safe, wanted, safe)
                    alike = alike and self._divided(safe, before, {**batch, "labels": labels}, wanted)
                if not alike:
                    raise UnsupportedModelError(
                        "its loss on packs is not the mean cross entropy of all labels, as on the padded batch"
                    )

    def _divided(self, safe: Any, before: dict[str, Tensor], given: dict[str, Any], wanted: Tensor) -> bool:
        """Return whether a loss that a trainer divides by a number of labels (``num_items_in_batch``) is right.

        It is right if it is divided by this number, or is the mean `wanted` as without it. True also if a call with
        this argument raises an error, or if `safe` is a wrapper, which is never given it. `before` are the outputs
        without labels, and `given` are the arguments with labels.
        """
        if isinstance(safe, Substitute) or not takes(safe, ITEMS):
            return True
        count = (given["labels"] != IGNORED).sum()
        try:
            loss = _loss_of(before, _made(safe, **given, **{ITEMS: 2 * count}))
        except Exception:  # so does the user's call
            return True
        return loss is not None and any(_same_slopes(loss, safe, one, safe) for one in (wanted / 2, wanted))

    def _drawn(self, classes: int, per_token: bool) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(3)
        for length in LENGTHS:
            if not per_token:
                yield torch.randint(classes, (1,), generator=generator)
                continue
            labels = torch.randint(classes, (length,), generator=generator)
            labels[[length // 2, length - 2]] = IGNORED
            yield labels


def _check_per_sequence(exact: Any, head: str, make: Callable[[Any], Any]) -> tuple[int, list[Exception]]:
    """Check that a pack gives the loss, and its gradients, that a batch of the same sequences gives, one in each row.

    Sequences have equal lengths. Labels are those of a head of the kind `head`, "classification" or "answers". Of the
    forms that labels for classification have, those are tried that the model takes. The result is the number of these,
    and the errors that the model raised for others. The arguments are as for `why_no_labels`.

    Raises:
        UnsupportedModelError: a loss or a gradient differs, labels change another output, or there are several losses.
    """
    ids = _equal_ids(exact)
    taken, raised = 0, list[Exception]()
    for given in _labels_per_sequence(head, _made(copy.deepcopy(exact), input_ids=ids[:1])):
        stock = copy.deepcopy(exact)  # it may keep which form of labels it got
        if getattr(stock.config.get_text_config(), "pad_token_id", None) is None:
            stock.config.get_text_config().pad_token_id = 0  # without one, some classifiers refuse several rows
        safe = make(copy.deepcopy(stock))
        try:
            _made(stock, input_ids=ids, **given)
        except Exception as error:  # labels of another form
            raised.append(error)
            continue
        taken += 1
        columns = {name: value.numpy() for name, value in given.items()}
        for training in (False, True):
            with in_mode(stock, training), in_mode(safe, training), torch.enable_grad():
                wanted = _loss_of(_made(stock, input_ids=ids), _made(stock, input_ids=ids, **given))
                for form in (Flat(), Rows(2 * EQUAL[1] + 2)):
                    plain = PackedBatch.from_sequences(ids.tolist(), form=form)
                    batch = PackedBatch.from_sequences(ids.tolist(), form=form, sequence_columns=columns)
                    loss = _loss_of(_made(safe, **plain), _made(safe, **batch))
                    if wanted is not None and (loss is None or not _same_slopes(loss, safe, wanted, stock)):
                        raise UnsupportedModelError(
                            "its loss on packs is not that of a batch of the same sequences, one in each row (for some "
                            "heads, nopad computes the loss, and takes that of transformers' own class)"
                        )
    return taken, raised


def _labels_per_sequence(head: str, made: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Yield labels for the sequences of `_equal_ids`, as arguments by name, in each form that a head may take.

    `made` are the outputs of the model for one sequence.
    """
    count, length = EQUAL
    generator = torch.Generator().manual_seed(3)
    if head == "answers":
        yield {name: torch.randint(length, (count,), generator=generator) for name in label_names(head)}
        return
    logits = made["logits"] if "logits" in made else next(iter(made.values()))
    classes = int(logits.shape[-1])
    if classes > 1:
        yield {"labels": torch.randint(classes, (count,), generator=generator)}
    floats = torch.rand((count, classes), generator=generator, dtype=torch.float64).to(logits.dtype)
    yield {"labels": floats.round() if classes > 1 else floats[:, 0]}


def _equal_ids(model: Any) -> Tensor:
    """Return token ids of sequences of equal length, int64 ``[sequences, length]``; none is the pad id."""
    config = model.config.get_text_config()
    low, generator = min(5, config.vocab_size - 2), torch.Generator().manual_seed(2)
    ids = torch.randint(low, config.vocab_size, EQUAL, generator=generator)
    pad = getattr(config, "pad_token_id", None)
    return ids if pad is None else ids.masked_fill(ids == pad, low + (pad == low))


def _made(model: Any, **given: Any) -> dict[str, Tensor]:
    """Call a model, and return the tensors in its output by name, converted to floats if they are not.

    Two calls draw the same random numbers. If the batch is not packed, a model of transformers gets a mask of ones, if
    it takes one, and returns no cache.
    """
    if not isinstance(given.get("attention_mask"), PackedMask) and not isinstance(model, Substitute):
        if "attention_mask" in parameters(type(model).forward):
            given["attention_mask"] = torch.ones_like(given["input_ids"])
        given |= uncached(model)
    torch.default_generator.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as of numbers that are read out of tensors with gradients
        values = {name: one for name, one in leaves_of(model(**given)) if isinstance(one, Tensor)}
    return {n: one if one.is_floating_point() else one.to(torch.get_default_dtype()) for n, one in values.items()}


def _numbers(made: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: one for name, one in made.items() if one.dim() == 0}


def _loss_of(before: dict[str, Tensor], after: dict[str, Tensor]) -> Tensor | None:
    """Return the loss: the one number that is new among the outputs with labels, `after`; None: there is none.

    `before` are the outputs without labels.

    Raises:
        UnsupportedModelError: there are several such numbers, or labels change another output.
    """
    new = [one for name, one in _numbers(after).items() if name not in before or not _equal(before[name], one)]
    if len(new) > 1:
        raise UnsupportedModelError(f"with labels, it gives {len(new)} losses")
    values = [one for one in after.values() if one.dim()]
    for value in values:
        if not any(_equal(one, value) for one in before.values()):
            raise UnsupportedModelError("with labels, it gives other results than without")
    return new[0] if new else None


def _equal(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and torch.allclose(one, two, 1e-9, 1e-12, equal_nan=True)


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


def _same(loss: Tensor, wanted: Tensor) -> bool:
    """Return whether a loss is the wanted one, up to rounding in float32."""
    one, two = float(loss.detach()), float(wanted.detach())
    return abs(one - two) <= CLOSE * max(abs(two), 1e-30)


def _same_slopes(loss: Tensor, model: Any, wanted: Tensor, other: Any) -> bool:
    """Return whether a loss of `model` is the wanted one, which is of `other`, and whether their gradients are equal.

    Gradients are those of the parameters of the two models, which are copies of one.
    """
    if not _same(loss, wanted) or loss.requires_grad != wanted.requires_grad:
        return False
    if not loss.requires_grad:
        return True
    slopes = [_slopes(one, of) for one, of in ((loss, model), (wanted, other))]
    scale = max((float(one.abs().max()) for one in slopes[1] if one is not None), default=0.0)
    return all(_alike(one, two, scale) for one, two in zip(*slopes, strict=True))


def _slopes(loss: Tensor, model: Any) -> list[Tensor | None]:
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, retain_graph=True)
    return [one.to_dense() if one is not None and one.is_sparse else one for one in found]  # of tables of embeddings


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
