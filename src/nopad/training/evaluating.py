"""Evaluation and prediction over packs, in the Trainer's own loop."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import torch
from transformers.trainer_utils import EvalPrediction
from transformers.utils import logging

from nopad.batch import PackedBatch
from nopad.errors import OptionError
from nopad.loading import PackedLoader
from nopad.tasks.fit import check_rows
from nopad.tasks.objective import Objective
from nopad.training.checks import check_whole
from nopad.training.data import fingerprint_of
from nopad.training.evaluation import Evaluation
from nopad.training.feeding import FedLoader
from nopad.training.preparing import PreparingMixin
from nopad.training.trouble import enough_memory

__all__ = ["EvaluatingMixin", "each_dataset"]

logger = logging.get_logger(__name__)


class EvaluatingMixin(PreparingMixin):
    """The part of `PackedMixin` that evaluates and predicts."""

    _evaluation: Evaluation | None
    _evaluated: list[tuple[Any, str | None, PackedLoader]]  # data, their fingerprint then, their loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return a DataLoader of an evaluation dataset's packs, or the Trainer's own if the dataset is not packed.

        `eval_dataset` is a dataset; the name of one, if the Trainer has several; or None for the Trainer's only one.

        Raises:
            OptionError: the data are a stream; their loader leaves sequences out; the loader has several rows, and the
                model can run only one; an option of the Trainer does not fit packs; or the model does not fit the task
                or the objective.
            InputError: the data cannot be read, encoded or packed.
            UnsupportedModelError: the model cannot keep sequences apart.
        """
        named = self.eval_dataset[eval_dataset] if isinstance(eval_dataset, str) else eval_dataset
        return self._packs_of(named) or super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return a DataLoader of a dataset's packs, or the Trainer's own if the dataset is not packed.

        Raises:
            OptionError: the data are a stream; their loader leaves sequences out; the loader has several rows, and the
                model can run only one; an option of the Trainer does not fit packs; or the model does not fit the task
                or the objective.
            InputError: the data cannot be read, encoded or packed.
            UnsupportedModelError: the model cannot keep sequences apart.
        """
        return self._packs_of(test_dataset) or super().get_test_dataloader(test_dataset)

    def _packs_of(self, data: Any) -> FedLoader | None:
        """Return a DataLoader that begins at a dataset's first pack; None if the dataset is not packed.

        If `data` is None, the dataset is the Trainer's `eval_dataset`.

        Raises:
            OptionError: the data are a stream; their loader leaves sequences out; the loader has several rows, and the
                model can run only one; an option of the Trainer does not fit packs; or the model does not fit the task
                or the objective.
            InputError: the data cannot be read, encoded or packed.
            UnsupportedModelError: the model cannot keep sequences apart.
        """
        data = self.eval_dataset if data is None else data
        if not self._packs(data):
            if isinstance(self.train_dataset, PackedLoader) and data is not None:
                logger.warning_once(
                    "evaluation is not packed, since a data_collator was given: its loss is transformers' mean over "
                    "batches, whatever they hold, and no loss of the same sequences in packs"
                )
            return None
        self._get_ready()
        loader = copy(self._loader_of(data))  # a copy, so that a loader given by the user does not move
        if loader.is_stream:
            raise OptionError("an evaluation needs data that end, and a stream may not; give a dataset")
        loader.rewind()
        check_whole(loader)
        check_rows(self.model, loader.rows)
        return self._fed(loader)

    def _loader_of(self, data: Any) -> PackedLoader:
        """Return the loader of evaluation data.

        The loader of a dataset in `eval_dataset` is kept and used again, as long as the fingerprint of the dataset's
        content is known and stays the same.
        """
        mine = each_dataset(self.eval_dataset)
        self._evaluated = [one for one in self._evaluated if any(one[0] is other for other in mine)]
        if isinstance(data, PackedLoader) or not any(data is one for one in mine):
            return self._loader(data, training=False)
        now = fingerprint_of(data)
        for given, before, kept in self._evaluated:
            if given is data and before == now is not None:
                return kept
        loader = self._loader(data, training=False)
        self._evaluated = [one for one in self._evaluated if one[0] is not data] + [(data, now, loader)]
        return loader

    def evaluated_objective(self) -> Objective:
        """Return the objective whose loss an evaluation computes; by default, that of training."""
        assert self.objective is not None
        return self.objective

    def num_examples(self, dataloader: Any) -> int:
        """Return the number of sequences in an epoch of packs, or the Trainer's own number for other data."""
        if isinstance(dataloader, FedLoader):
            return dataloader.summary.sequences
        return int(super().num_examples(dataloader))

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate a packed batch of an `evaluation_loop`, and return ``(loss, None, None)``.

        For any other batch, do what the Trainer does.

        ``loss`` is the sum of the batch's losses, not divided by a denominator: `evaluation_loop` divides the sum over
        all batches.

        Raises:
            DeviceMemoryError: there is not enough memory for the packed batch.
        """
        if self._evaluation is None or not isinstance(inputs, PackedBatch):
            return super().prediction_step(model, inputs, *args, **kwargs)
        with torch.no_grad(), self.compute_loss_context_manager(), enough_memory(inputs):
            loss = self._evaluation.run(model, inputs.to(self.args.device))
        return loss.detach().float(), None, None

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """Evaluate or predict as the Trainer does, and return an `EvalLoopOutput`.

        Over packs, the loss is the sum of the losses of all batches, divided by one denominator for the whole
        evaluation; predictions are in input order.

        Raises:
            OptionError: the data are packs, and `include_for_metrics` or `compute_loss_func` is set, or
                `preprocess_logits_for_metrics` does not give one entry per sequence.
            DeviceMemoryError: there is not enough memory for a packed batch.
        """
        if not isinstance(dataloader, FedLoader):
            return super().evaluation_loop(
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
        if self.objective is None:
            raise OptionError("an evaluation over packs needs an objective in place of compute_loss_func")
        if self.args.include_for_metrics:
            raise OptionError(
                "include_for_metrics is not for packs, whose metrics get predictions and labels; leave it out"
            )
        only = self.args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
        self._evaluation = Evaluation(
            self.evaluated_objective(), keep=not only, reduced=self.preprocess_logits_for_metrics
        )
        try:
            found = super().evaluation_loop(dataloader, description, True, ignore_keys, metric_key_prefix)
            ours = self._evaluation.finished()
        finally:
            self._evaluation = None
        metrics = {f"{metric_key_prefix}_loss": ours.loss}
        own = dict(ours.metrics)
        if self.compute_metrics is not None and not only:
            own |= self.compute_metrics(EvalPrediction(predictions=ours.predictions, label_ids=ours.labels))
        metrics |= {_prefixed(name, metric_key_prefix): value for name, value in own.items()}
        return found._replace(
            predictions=ours.predictions,
            label_ids=ours.labels,
            metrics={**(found.metrics or {}), **metrics},
            num_samples=ours.sequences,
        )


def each_dataset(datasets: Any) -> list[Any]:
    """Return the evaluation datasets as a list: the values of a dict, the one dataset given, or [] for None."""
    if isinstance(datasets, Mapping):
        return list(datasets.values())
    return [] if datasets is None else [datasets]


def _prefixed(name: str, prefix: str) -> str:
    return name if name.startswith(f"{prefix}_") else f"{prefix}_{name}"
