"""TRL's `SFTTrainer` and `RewardTrainer` on packs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nopad.errors import OptionError
from nopad.tasks import OfTokens
from nopad.training.mixin import PackedMixin

if TYPE_CHECKING:  # all that is used of TRL's classes here is also in transformers'
    from transformers import Trainer as _Reward
    from transformers import Trainer as _SFT
else:
    from trl import RewardTrainer as _Reward
    from trl import SFTTrainer as _SFT

__all__ = ["PackedRewardTrainer", "PackedSFTTrainer"]

# What TRL does to its own training data, and never to ours
_PREPARES = ("packing", "padding_free", "assistant_only_loss", "completion_only_loss")


class PackedSFTTrainer(PackedMixin, _SFT):
    """TRL's `SFTTrainer`, which trains, evaluates and predicts on packs (`PackedMixin`).

    The sequences are trained on as the task or the loader gives them: TRL applies no chat template, cuts nothing
    (`max_length`), and chooses no labels; that is `nopad.tasks.Chat`, or the loader's `collate`. The loss of a training
    step is TRL's own (fused, or ``loss_type="dft"``), over the same labels and the same denominator.

    Raises:
        OptionError: the configuration asks TRL to pack, or to choose labels; or as `PackedMixin`.
    """

    @property
    def _loss_is_theirs(self) -> bool:
        return isinstance(self.objective, OfTokens) and self.objective.causal and self.objective.per == "token"

    def _make_safe(self) -> None:
        asked = [name for name in _PREPARES if getattr(self.args, name, None)]
        if asked:
            raise OptionError(
                f"{asked[0]} is of TRL's own data; nopad packs, and nopad.tasks.Chat chooses labels: leave it out"
            )
        super()._make_safe()
        if self._loss_is_theirs and self.args.world_size > 1 and not self.args.average_tokens_across_devices:
            raise OptionError(
                "average_tokens_across_devices=False is a mean over ranks of means, and a step has one denominator; "
                "leave it out"
            )


class PackedRewardTrainer(PackedMixin, _Reward):
    """TRL's `RewardTrainer`, which trains, evaluates and predicts on packs of pairs (`PackedMixin`).

    Give it the task `nopad.tasks.Pairs`, whose loss is TRL's, by pairs over one denominator.

    Raises:
        OptionError: there is no task, or as `PackedMixin`.
    """

    def placeholder(self) -> Any:
        """Return a dataset of one pair: TRL looks at the columns of what it gets."""
        import datasets

        return datasets.Dataset.from_dict({"chosen_ids": [[0]], "rejected_ids": [[0]]})

    def _make_safe(self) -> None:
        if self.objective is None:
            raise OptionError("rewards are learned from pairs; give task=nopad.tasks.Pairs(tokenizer)")
        super()._make_safe()
