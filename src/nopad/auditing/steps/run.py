"""`audit_step`: compare one real training step of a user's model, collator and loss with its sequences run alone.

Cost: each sequence runs forward and backward twice (alone, and in the step) in float64, and twice in the model's own
dtype. If the step differs, the diagnosis makes the audit up to four times as expensive. A float64 copy of the model
takes 8 bytes per parameter, and 16 with its gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from nopad.auditing.failure import ModelFailedError
from nopad.auditing.steps.examples import examples_of, predicts_next, shifts_labels
from nopad.auditing.steps.judged import Plan, failed, judged
from nopad.auditing.steps.loop import Collate, Loop, Loss, as_trainer, collated, made_of
from nopad.auditing.steps.quiet import inner
from nopad.auditing.steps.truth import Alone
from nopad.auditing.steps.verdict import StepVerdict
from nopad.batch import PackedBatch
from nopad.errors import OptionError
from nopad.losses.checks import check_per
from nopad.options import Option

__all__ = ["audit_step"]

_RANKS = Option(default=2, low=1, high=64, help="ranks of the step")
_ACCUMULATION = Option(default=2, low=1, high=1024, help="micro-batches of a rank")
MOST = 4096  # sequences


def audit_step(
    model: Any = None,
    sequences: Sequence[Mapping[str, Any]] | None = None,
    collate: Collate | None = None,
    loss: Loss | None = None,
    *,
    trainer: Any = None,
    alone: Alone | None = None,
    accumulation: int | None = None,
    ranks: int = 2,
    per: str = "token",
    causal: bool | None = None,
    seed: int = 0,
) -> StepVerdict:
    """Audit one training step: compare its loss, denominator and gradients with those of the same sequences run alone.

    The step runs on copies of the model, in float64 (casts to narrower floats give float64 too) and in the model's own
    dtype, in training mode with dropout off. Ranks are simulated: they take turns in this process, where
    `torch.distributed`'s get_world_size, all_reduce and all_gather return what they would return on real ranks.
    Gradients are averaged over ranks, as DDP does.

    Args:
        model: the model that you train: pack-safe or not, also inside PEFT. At least one parameter must be trainable.
        sequences: the examples, one dict per sequence, as the dataset holds them (``input_ids``, ``labels``, ...). Give
            at least one per micro-batch, better three, and at most 4096. Micro-batches get unequal numbers of them.
        collate: ``collate(examples)`` takes a list of these dicts and returns a batch; None:
            ``nopad.PackedBatch.from_features``.
        loss: ``loss(model, batch, step)`` or ``loss(model, batch)`` returns the scalar on which the training loop calls
            ``backward()``, already divided by `accumulation` and multiplied by `ranks` if the loop does that. `step` is
            a `nopad.auditing.Step`. None: the loss that transformers' Trainer computes.
        trainer: a transformers Trainer (also TRL's or nopad's), in place of `model`, `sequences`, `collate` and `loss`.
            Its own collator, data, ``get_batch_samples`` and ``training_step`` are called for one step; the trainer
            itself is left unchanged.
        alone: ``alone(model, inputs)`` returns the right losses of one sequence's labelled items, ``[n]``, if the
            model's own loss does not give them. `inputs` are those columns of the example that the model's forward
            method takes, as tensors ``[1, ...]`` (images: as the processor gives them). ``use_cache`` is added as False
            if the model knows it. If the loss is a sum of means, `alone` returns a tuple with one tensor ``[n]`` per
            mean. None: for a nopad trainer, the function of its objective if it has one; else the model's own loss.
        accumulation: number of micro-batches on each rank; None: the trainer's, or 2 without a trainer.
        ranks: number of ranks, up to 64; 1: nothing is simulated.
        per: which mean is right: "token": over all labelled items of the step; "sequence": over the items of each
            sequence, then over the sequences.
        causal: whether a label is predicted by the token before it; None: as in the model's own loss.
        seed: seed of torch's random numbers, such as those that the model draws (dropout is off).

    Returns:
        A `nopad.auditing.StepVerdict`. An exception in the model, collator, loss or trainer is reported in it.

    Raises:
        OptionError: arguments are missing, of a wrong type, out of range or contradict each other, there are too few or
            too many sequences, no sequence has a label, a dict holds several sequences (``seq_lengths``), no parameter
            of the model is trained, a copy of the model trains the model itself (for example through a hook), the
            trainer runs on several processes, or its data have too few batches or do not say which sequence an image is
            of.
        BatchError: a sequence is not a dict with ``input_ids``, the model gives no loss for a sequence alone, or
            `alone` returns something other than losses.
        LengthError: a sequence has no tokens, or the ``seq_lengths`` of a dict do not add up to its number of tokens.
        UnsupportedModelError: PEFT adds tokens to the model's input (prompt or prefix tuning).

    >>> import nopad
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = nopad.packed(LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes)))
    >>> rows = [{"input_ids": list(range(3, 3 + n)), "labels": list(range(3, 3 + n))} for n in (7, 3, 12, 5, 9, 4, 15)]
    >>> def collate(features):
    ...     return nopad.PackedBatch.from_features(features, causal=True)
    >>> nopad.audit_step(model, rows, collate).passed
    True
    >>> def mean_of_means(model, batch, step):
    ...     return model(**batch).loss / step.accumulation
    >>> nopad.audit_step(model, rows, collate, mean_of_means).findings[0].kind
    'mean of means'
    """
    ranks = _RANKS.check("ranks", ranks)
    check_per(per)
    _check_functions({"alone": alone})
    how = _How(alone, ranks, per, seed)
    if trainer is None:
        _check_given(model, sequences, {"collate": collate, "loss": loss})
        assert sequences is not None
        accumulation = _ACCUMULATION.check("accumulation", 2 if accumulation is None else accumulation)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return _of_parts(model, list(sequences), collate, loss, accumulation, causal, how)
    for name, value in {"model": model, "sequences": sequences, "collate": collate, "loss": loss}.items():
        if value is not None:
            raise OptionError(f"{name} and trainer are given; the trainer has its own: leave {name} out")
    if not hasattr(trainer, "training_step") or not hasattr(trainer, "get_batch_samples"):
        raise OptionError(f"trainer is {type(trainer).__name__}; give a Trainer of transformers, or one made of it")
    if accumulation not in (None, trainer.args.gradient_accumulation_steps):
        raise OptionError(
            f"accumulation is {accumulation}, and the trainer's gradient_accumulation_steps is "
            f"{trainer.args.gradient_accumulation_steps}; leave accumulation out"
        )
    with torch.random.fork_rng():
        return _of_trainer(trainer, causal, how)


class _How(NamedTuple):
    """Those options of `audit_step` that are used with and without a trainer.

    Attributes:
        alone: the user's function for the losses of one sequence alone; None: not given.
        ranks: number of ranks.
        per: which mean is right: "token" or "sequence".
        seed: seed of torch's random numbers.
    """

    alone: Alone | None
    ranks: int
    per: str
    seed: int


def _of_parts(
    model: Any,
    features: list[Any],
    collate: Collate | None,
    loss: Loss | None,
    accumulation: int,
    causal: bool | None,
    how: _How,
) -> StepVerdict:
    """Audit a step that is made of the user's own collate and loss functions; return the verdict.

    `features` are the sequences as dicts. `collate` and `loss` may be None: then nopad's batches are used, and the loss
    of transformers' Trainer. `accumulation` is the number of micro-batches per rank. `causal`: whether a label is
    predicted by the token before it; None: as in the model's own loss. All arguments are already checked.

    Raises:
        OptionError: a dict holds several sequences, there are too few sequences, no sequence has a label, no parameter
            of the model is trained, or a copy of the model trains the model itself.
        BatchError: a sequence is not a dict with ``input_ids``, the model gives no loss for a sequence alone, or
            ``how.alone`` returns something other than losses.
        LengthError: a sequence has no tokens, or the ``seq_lengths`` of a dict do not add up to its number of tokens.
    """
    examples = examples_of(features)
    if len(examples) != len(features):
        raise OptionError("a dict has seq_lengths, so it holds several sequences; give one dict per sequence")
    causal = predicts_next(model, examples) if causal is None else causal
    collate = collate or _nopad(causal)
    said = made_of([collate, loss or "as a Trainer"], how.ranks, accumulation)
    try:
        micros = collated(features, examples, collate, how.ranks, accumulation)
    except ModelFailedError as error:
        return failed(model, said, how.per, error, [])
    loop = Loop(micros, loss or as_trainer, how.ranks, accumulation, shifts_labels(model))
    return judged(Plan(model, micros, loop, how.alone, how.ranks, accumulation, how.per, causal, how.seed, said, []))


def _of_trainer(trainer: Any, causal: bool | None, how: _How) -> StepVerdict:
    """Audit a step of a transformers Trainer; return the verdict.

    `causal`: whether a label is predicted by the token before it; None: as in the model's own loss.

    Raises:
        OptionError: the trainer runs on several processes, its data have too few batches or do not say which sequence
            an image is of, no sequence has a label, no parameter of the model is trained, or a copy of the model trains
            the model itself.
        BatchError: the model gives no loss for a sequence alone, or `alone` returns something other than losses.
    """
    from nopad.auditing.steps.trainer import opened

    model, accumulation = inner(trainer.model), int(trainer.args.gradient_accumulation_steps)
    how = how._replace(alone=how.alone or getattr(getattr(trainer, "objective", None), "alone", None))
    try:
        with opened(trainer, how.ranks) as (micros, taker, said, notes):
            if causal is None:
                causal = predicts_next(model, [one for micro in micros for one in micro.examples])
            step = Plan(
                model, micros, taker, how.alone, how.ranks, accumulation, how.per, causal, how.seed, said, notes
            )
            end = getattr(getattr(trainer, "processing_class", None), "eos_token_id", None)
            step.ends = frozenset() if end is None else frozenset([end])
            return judged(step)
    except ModelFailedError as error:
        said = made_of([type(trainer)], how.ranks, accumulation)
        return failed(model, said, how.per, error, [])


def _check_given(model: Any, sequences: Any, functions: Mapping[str, Any]) -> None:
    """Refuse arguments of `audit_step` that cannot be audited, before anything runs.

    `functions` has the arguments that must be functions or None, such as `collate`, by name.

    Raises:
        OptionError: the model or the sequences are missing or of a wrong type, the model has no parameters, there are
            more than 4096 sequences, or one of `functions` cannot be called.
    """
    if model is None or sequences is None:
        raise OptionError("give a model and sequences, or a trainer")
    if not isinstance(model, torch.nn.Module) or next(model.parameters(), None) is None:
        raise OptionError(f"model is {type(model).__name__}; give a torch module with parameters, as it is trained")
    if isinstance(sequences, str | Mapping) or not hasattr(sequences, "__len__") or not hasattr(sequences, "__iter__"):
        raise OptionError(f"sequences are {type(sequences).__name__}; give a list of dicts, one per sequence")
    if len(sequences) > MOST:
        raise OptionError(f"{len(sequences)} sequences are more than a step; give at most {MOST}, such as the first 16")
    _check_functions(functions)


def _check_functions(functions: Mapping[str, Any]) -> None:
    for name, value in functions.items():
        if value is not None and not callable(value):
            raise OptionError(f"{name} is {type(value).__name__}, which cannot be called; give a function")


def _nopad(causal: bool) -> Collate:
    def from_features(features: list[Any]) -> PackedBatch:
        return PackedBatch.from_features(features, causal=causal)

    return from_features
