"""A `PackedLoader` as the training data of TRL's `SFTTrainer`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import datasets

from nopad.errors import OptionError
from nopad.loading.loader import PackedLoader
from nopad.training.trainer import LoaderMixin

if TYPE_CHECKING:  # all that is used of TRL's class here is also in transformers'
    from transformers import Trainer as _Theirs
else:
    from trl import SFTTrainer as _Theirs

__all__ = ["SFTTrainer"]

# What TRL does to its own training data, and never to a loader's.
_PREPARES = ("packing", "padding_free", "assistant_only_loss", "completion_only_loss")


class SFTTrainer(LoaderMixin, _Theirs):
    """TRL's `SFTTrainer`, whose `train_dataset` may be a `PackedLoader` (`LoaderMixin`).

    The loader's sequences are trained on as they are: TRL applies no chat template, cuts nothing (`max_length`), and
    the labels are those of the loader (`nopad.loading.causal`).

    Raises:
        OptionError: the configuration asks TRL to pack, or to choose labels; or as `LoaderMixin`.
    """

    def __init__(self, model: Any, args: Any = None, *more: Any, **kwargs: Any) -> None:
        """Take the arguments of TRL's `SFTTrainer`."""
        if isinstance(kwargs.get("train_dataset", more[1] if len(more) > 1 else None), PackedLoader):
            asked = [name for name in _PREPARES if getattr(args, name, None)]
            if asked:
                raise OptionError(f"{asked[0]} is of TRL's own data; a loader packs and has its labels: leave it out")
        super().__init__(model, args, *more, **kwargs)

    def placeholder(self, loader: PackedLoader) -> Any:
        """Return a dataset of one sequence: TRL looks at the columns of what it gets."""
        return datasets.Dataset.from_dict({"input_ids": [[0]], "labels": [[0]]})
