"""Check a Trainer before it trains: refuse options that contradict packs, and ranks that do not average gradients.

`check_options` refuses options that would break packed batches or have no effect on them, in training or evaluation;
`check_step` compares the Trainer's training step with the loader's; `check_schedule` refuses a second learning-rate
schedule; `check_whole` refuses an evaluation that leaves sequences out; `check_ranks` checks that gradients are
averaged over ranks.
"""

from __future__ import annotations

from typing import Any

import torch

from nopad.errors import OptionError
from nopad.loading import PackedLoader
from nopad.tasks.fit import check_rows

__all__ = [
    "check_arguments",
    "check_options",
    "check_ranks",
    "check_schedule",
    "check_step",
    "check_whole",
    "forget_evaluation",
    "is_split_stream",
]

_PREPARED = "_is_accelerate_prepared"


def check_options(trainer: Any) -> None:
    """Refuse options of a Trainer that would break packed batches, or have no effect on them.

    Raises:
        OptionError: such an option is set; the message names it.
    """
    if trainer.get_cp_size() * trainer.get_sp_size() > 1:
        raise OptionError("context and sequence parallelism would cut packed batches; leave them out")
    check_arguments(trainer.args)


def check_arguments(args: Any) -> None:
    """Refuse `transformers.TrainingArguments` that would break packed batches, or have no effect on them.

    Raises:
        OptionError: such an argument is set; the message names it.
    """
    if args.n_gpu > 1:
        raise OptionError(
            f"DataParallel would cut each batch into {args.n_gpu} pieces; start one process per GPU with torchrun"
        )
    for name, usual, whose in (
        ("auto_find_batch_size", False, "the loader's business"),
        ("dataloader_drop_last", False, "the loader's business"),
        ("train_sampling_strategy", "random", "the loader's business"),
        ("batch_eval_metrics", False, "not for packs, whose metrics get all predictions at once"),
        ("eval_do_concat_batches", True, "not for packs, whose predictions come in the order of the input"),
    ):
        if getattr(args, name, usual) != usual:
            raise OptionError(f"{name} is {whose}; leave it out")
    if args.torch_compile:
        raise OptionError(
            "torch_compile compiles calls of one shape as a whole, and packed batches carry a layout that is looked at "
            "in Python: leave it out, and compile the layers before you make the trainer (layer.compile() for each of "
            "them), or the whole model in a loop of your own on nopad.model.static_inputs"
        )


def is_split_stream(loader: PackedLoader) -> bool:
    """Return whether each rank reads its own part of a stream, and so does not know what all ranks have seen."""
    return loader.is_stream and loader.ranks.world_size > 1


def check_step(trainer: Any, loader: PackedLoader) -> None:
    """Refuse a Trainer whose training step differs from the loader's, in micro-steps, rows (or sequences) or ranks.

    Options that `check_options` refuses are refused here, too.

    Raises:
        OptionError: the steps differ in a number, which the message names; `check_options` refuses an option; the
            loader is a stream on several ranks; or the loader's batches have several rows, and the model can run only
            one (`check_rows`).
    """
    args = trainer.args
    if is_split_stream(loader):
        raise OptionError(
            "checkpoints of the Trainer hold one state, and on several ranks every rank of a stream has its own; "
            "pack the source first (`nopad pack`), or save each rank's loader.state_dict() in a loop of your own"
        )
    ranks = args.world_size // trainer.get_tp_size()
    same = {
        "gradient_accumulation_steps": (args.gradient_accumulation_steps, "accumulation", loader.accumulation),
        "per_device_train_batch_size": (
            args.per_device_train_batch_size,
            "number of rows or sequences per rank",
            loader.per_rank,
        ),
        "number of processes with different data": (ranks, "world_size", loader.ranks.world_size),
    }
    if ranks == args.world_size:
        same["process_index"] = (args.process_index, "rank", loader.ranks.rank)
    odd = [
        f"{name} is {theirs}, and the loader's {ours} is {value}"
        for name, (theirs, ours, value) in same.items()
        if theirs != value
    ]
    if odd:
        raise OptionError(f"the Trainer and the loader disagree about a step: {'; '.join(odd)}; give both the same")
    check_options(trainer)
    if trainer.model is not None:  # otherwise, model_init makes a model when training begins
        check_rows(trainer.model, loader.rows, trainer.processing_class)


def check_schedule(trainer: Any, *, packs: bool) -> None:
    """Refuse a `Schedule` if there is another learning-rate schedule too, or if the training data are not packed.

    `packs` says whether the training data are packed. A schedule needs packs: it asks their loader how many sequences
    or tokens were seen.

    Raises:
        OptionError: there is another schedule, which the message names; or `packs` is False.
    """
    args = trainer.args
    name = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    others = {
        "lr_scheduler_type": name if name != "linear" else None,
        "lr_scheduler_kwargs": args.lr_scheduler_kwargs,
        "warmup_steps": args.warmup_steps,
        "warmup_ratio": getattr(args, "warmup_ratio", None),
        "a scheduler in `optimizers`": type(trainer.lr_scheduler).__name__
        if trainer.lr_scheduler is not None
        else None,
    }
    odd = [f"{name} ({value})" for name, value in others.items() if value]
    if odd:
        raise OptionError(
            f"there are two schedules of the learning rate: the given one, and {', '.join(odd)}; leave one out"
        )
    if not packs:
        raise OptionError(
            "a schedule asks the loader what was seen, and the training data are not packed; leave it out"
        )


def check_whole(loader: PackedLoader) -> None:
    """Refuse to evaluate on a loader that leaves sequences out.

    Raises:
        OptionError: the loader leaves out sequences at the end of an epoch, since they do not fill a step.
    """
    _, sequences, _ = getattr(loader.summary(), "left_out", (0, 0, 0))
    if sequences:
        raise OptionError(
            f"an evaluation is of all sequences, and this loader leaves out {sequences} of them, which make no whole "
            "step; make it with last='short'"
        )


def forget_evaluation(trainer: Any) -> None:
    """Make sure that accelerate prepares a model for training even if it was evaluated before.

    Evaluation marks a bare model as prepared, and accelerate does not prepare a marked model again. On several ranks,
    training after an evaluation would then run without DDP, each rank with gradients of its own.
    """
    model = trainer.model_wrapped
    if model is trainer.model and _PREPARED in vars(model):
        delattr(model, _PREPARED)


def check_ranks(trainer: Any, model: Any) -> None:
    """Refuse to train on several ranks with a model whose gradients are not averaged over ranks.

    Only plain data parallelism is checked: not FSDP, DeepSpeed, tensor parallelism, or models that transformers shards.

    Raises:
        OptionError: the model of this training step is not wrapped in DDP.
    """
    kind = trainer.accelerator.distributed_type.name
    if not kind.startswith("MULTI_") or getattr(trainer, "is_distributed_loading_by_transformers", False):
        return
    model = getattr(model, "_orig_mod", model)
    if trainer.get_tp_size() == 1 and not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise OptionError(
            f"there are {trainer.accelerator.num_processes} ranks, and the model of this step is a "
            f"{type(model).__name__} without DDP, so each rank would learn by itself; give the trainer a model that no "
            "other trainer or accelerator has prepared"
        )
