"""TRL's `SFTTrainer` and `RewardTrainer` on packs."""

from __future__ import annotations

import inspect
from copy import copy
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

import transformers
from transformers import PreTrainedTokenizerBase, TrainingArguments
from transformers.trainer_pt_utils import LabelSmoother
from transformers.utils import logging

from nopad.errors import OptionError
from nopad.tasks import Objective, OfTokens
from nopad.training.evaluating import each_dataset
from nopad.training.mixin import PackedMixin

if TYPE_CHECKING:  # all that is used of TRL's classes here is also in transformers'
    from transformers import Trainer as _Reward
    from transformers import Trainer as _SFT
else:
    from trl import RewardTrainer as _Reward
    from trl import SFTTrainer as _SFT

__all__ = ["PackedRewardTrainer", "PackedSFTTrainer"]

logger = logging.get_logger(__name__)

# Whether transformers divides a smoothed loss by the number of items of the whole step, as any other loss
_SMOOTHS_OVER_THE_STEP = "num_items_in_batch" in inspect.signature(LabelSmoother.__call__).parameters

# Options of how TRL prepares its own training data, which would do nothing here
_PACKS = ("packing", "padding_free")
_PREPARES = (*_PACKS, "assistant_only_loss", "completion_only_loss")
# Options of TRL for the model, or for how a step runs: allowed, since they work on packs too
_DOES = frozenset(
    {
        "activation_offloading",
        "dataset_num_proc",
        "disable_dropout",
        "loss_type",
        "model_init_kwargs",
        "router_aux_loss_coef",
        "trust_remote_code",
    }
)
# Options of TRL for its tokenizer: allowed if the task has the same tokenizer
_TOKENIZER = frozenset({"chat_template_path", "eos_token", "pad_token"})


def check_passed_over(trainer: Any, **same: Any) -> None:
    """Refuse options of TRL's configuration that would do nothing on packs, such as how TRL prepares data.

    These options are never refused: those of transformers' `TrainingArguments`; those of TRL that work on packs too
    (`_DOES`); and those of the tokenizer, if there is no task or the task has the trainer's tokenizer. Any other option
    must be None, have its default value, or have the value that `same` gives for it: with this value, the task does
    what the option asks for. A configuration that is not TRL's is not checked.

    Raises:
        OptionError: an option has a value that is not allowed.
    """
    args, task = trainer.args, trainer.task
    kind = next((one for one in type(args).__mro__ if one.__module__.startswith("trl.")), None)
    if kind is None:
        return
    does = _DOES | (_TOKENIZER if task is None or task.tokenizer is trainer.processing_class else frozenset())
    general = {one.name for one in fields(TrainingArguments)}
    for one in fields(kind):
        value = getattr(args, one.name)
        usual = one.default if one.default_factory is MISSING else one.default_factory()
        if one.name in general | does or value in (usual, None) or value == same.get(one.name, MISSING):
            continue
        raise OptionError(
            f"{one.name}={value!r} is about how TRL prepares data or computes its loss, and would do nothing on packs: "
            "leave it out; what it asks for is an option of the task, such as nopad.tasks.Chat(tokenizer, "
            "max_length=..., over_long='truncate'), or of the loader"
        )


class _Packed(PackedMixin):
    def _look_at(self, given: dict[str, Any]) -> None:
        """Give TRL the task's tokenizer if none is given, since TRL would look for one by the model's name."""
        tokenizer = getattr(self.task, "tokenizer", None)
        if given.get("processing_class") is None and isinstance(tokenizer, PreTrainedTokenizerBase):
            given["processing_class"] = tokenizer

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate as TRL's Trainer does, and return the metrics.

        If `eval_dataset` is given and is packed, transformers' Trainer evaluates it, since TRL would tokenise the
        records itself.
        """
        if any(self._packs(one) for one in each_dataset(eval_dataset)):
            return transformers.Trainer.evaluate(self, eval_dataset, *args, **kwargs)
        return super().evaluate(eval_dataset, *args, **kwargs)


class PackedSFTTrainer(_Packed, _SFT):
    """TRL's `SFTTrainer`, which trains, evaluates and predicts on packs (`PackedMixin`).

    Sequences are used as the task (`nopad.tasks.Chat`) or the loader's `collate` makes them: TRL itself applies no chat
    template, does not truncate to `max_length`, and chooses no labels.

    If the objective is the mean over tokens of a causal language model, a training step computes TRL's own loss, with
    TRL's options `loss_type` and `label_smoothing_factor`. Labels and denominator are those of the objective.
    Otherwise, a step computes the objective's loss. An evaluation computes the same loss as training, with one
    denominator for the whole evaluation, but without the router loss of a mixture of experts: this loss depends on
    which sequences share a batch. Without a `processing_class`, the task's tokenizer is used, and saved with the model.

    Raises:
        OptionError: the configuration asks TRL to pack, to choose labels, or to prepare data in another way; it asks
            for a loss without a single denominator for a step; or as for `PackedMixin`.

    >>> import tempfile, transformers
    >>> from trl import SFTConfig
    >>> from nopad.tasks import CausalLM
    >>> from nopad.training import PackedSFTTrainer
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=len(tokenizer), **sizes))
    >>> texts = [{"text": "the cat sleeps in the house"}] * 8
    >>> args = SFTConfig(tempfile.mkdtemp(), report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=None)
    >>> trainer = PackedSFTTrainer(model, args, task=CausalLM(tokenizer), train_dataset=texts, capacity=32, quiet=True)
    >>> len(trainer.get_train_dataloader())
    1
    """

    def __init__(self, *args: Any, formatting_func: Any = None, **kwargs: Any) -> None:
        """Take the arguments of TRL's `SFTTrainer`, and those of `PackedMixin`.

        Raises:
            OptionError: `formatting_func` is given, and data are packed: then a task turns records into sequences; or
                as for the class.
        """
        self._formats = formatting_func is not None
        super().__init__(*args, **kwargs, **({"formatting_func": formatting_func} if self._formats else {}))

    def _look_at(self, given: dict[str, Any]) -> None:
        asked = [name for name in _PREPARES if getattr(given.get("args"), name, None)]
        if asked and asked[0] in _PACKS:
            raise OptionError(
                f"{asked[0]} is about how TRL prepares data, and here nopad packs: leave packing, padding_free and "
                "max_length out, and say how long packs are with capacity="
            )
        if asked:
            raise OptionError(
                f"{asked[0]} is about how TRL prepares data, and here nopad packs and nopad.tasks.Chat chooses labels: "
                "leave it out"
            )
        super()._look_at(given)

    @property
    def _loss_is_theirs(self) -> bool:
        return isinstance(self.objective, OfTokens) and self.objective.causal and self.objective.per == "token"

    def evaluated_objective(self) -> Objective:
        """Return the objective whose loss an evaluation computes.

        If TRL computes the loss of training steps, this is a copy of the trainer's objective, set to TRL's `loss_type`
        and `label_smoothing_factor` (no smoothing with "dft"). Otherwise, it is the trainer's objective itself. An
        evaluation adds no router loss of a mixture of experts, since it runs without gradients.
        """
        made = super().evaluated_objective()
        if not self._loss_is_theirs:
            return made
        made = copy(made)
        assert isinstance(made, OfTokens)
        made.dynamic = getattr(self.args, "loss_type", "nll") == "dft"
        made.smoothing = 0.0 if made.dynamic else self.args.label_smoothing_factor
        return made

    def _make_safe(self) -> None:
        if self._formats:
            raise OptionError(
                "formatting_func is about how TRL prepares data, and here a task turns records into sequences: "
                "leave it out"
            )
        check_passed_over(self, max_length=getattr(self.task, "max_length", None))
        super()._make_safe()
        if self._loss_is_theirs and self.args.world_size > 1 and not self.args.average_tokens_across_devices:
            raise OptionError(
                "average_tokens_across_devices=False is a mean over ranks of means, and a step has one denominator; "
                "leave it out"
            )
        smoothed = getattr(self.evaluated_objective(), "smoothing", 0.0) if self._loss_is_theirs else 0.0
        if smoothed and not _SMOOTHS_OVER_THE_STEP:
            raise OptionError(
                f"label_smoothing_factor: transformers {transformers.__version__} divides a smoothed loss by the "
                "tokens of each micro-batch, and a step has one denominator; use a newer transformers, or "
                "PackedTrainer with the objective OfTokens(causal=True, smoothing=...)"
            )
        if self._loss_is_theirs and getattr(self, "aux_loss_enabled", False):
            self._say_of_routers(smoothed > 0)

    def _say_of_routers(self, smoothed: bool) -> None:
        if smoothed:
            logger.warning(
                "with label_smoothing_factor, TRL leaves out the loss that balances experts (router_aux_loss_coef), "
                "in training too; without TRL, PackedTrainer with the objective OfTokens(causal=True, smoothing=...) "
                "learns both"
            )
            return
        share = getattr(self, "router_aux_loss_coef", 1.0)
        logger.warning(
            f"training adds {share} times the loss that balances experts: of each micro-batch by itself, averaged over "
            "the micro-batches of a step and over ranks; eval_loss leaves it out, since it depends on which sequences "
            "share a batch"
        )


class PackedRewardTrainer(_Packed, _Reward):
    """TRL's `RewardTrainer`, which trains, evaluates and predicts on packs of pairs (`PackedMixin`).

    Give it the task `nopad.tasks.Pairs`. Its loss is TRL's, with the number of pairs as the one denominator.

    Raises:
        OptionError: there is neither a task nor an objective; the configuration sets options of TRL's own data
            preparation or loss; or as for `PackedMixin`.

    >>> import tempfile, transformers
    >>> from trl import RewardConfig
    >>> from nopad.tasks import Pairs
    >>> from nopad.training import PackedRewardTrainer
    >>> task = Pairs(tokenizer)
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> config = transformers.BertConfig(vocab_size=len(tokenizer), **sizes, **task.model_options())
    >>> model = transformers.BertForSequenceClassification(config)
    >>> pairs = [{"prompt": "is it red ?", "chosen": " no", "rejected": " yes"}] * 8
    >>> args = RewardConfig(tempfile.mkdtemp(), report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=None)
    >>> trainer = PackedRewardTrainer(model, args, task=task, train_dataset=pairs, capacity=32, quiet=True)
    >>> len(trainer.get_train_dataloader())
    1
    """

    def placeholder(self) -> Any:
        """Return a dataset of one pair, since TRL inspects the columns of its dataset."""
        import datasets

        return datasets.Dataset.from_dict({"chosen_ids": [[0]], "rejected_ids": [[0]]})

    def _make_safe(self) -> None:
        if self.objective is None:
            raise OptionError("rewards are learned from pairs; give task=nopad.tasks.Pairs(tokenizer)")
        center, longest = getattr(self.objective, "center", None), getattr(self.task, "max_length", None)
        check_passed_over(self, max_length=longest, center_rewards_coefficient=center)
        super()._make_safe()
