"""`PackedTrainer`: transformers' `Trainer` on packs."""

from __future__ import annotations

import transformers

from nopad.training.mixin import PackedMixin

__all__ = ["PackedTrainer"]


class PackedTrainer(PackedMixin, transformers.Trainer):
    """transformers' `Trainer`, which trains, evaluates and predicts on packs (`PackedMixin`).

    >>> from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
    >>> from nopad.tasks import Classification
    >>> from nopad.training import PackedTrainer
    >>> task = Classification(tokenizer, ["no", "yes"])
    >>> records = [{"text": "is it ?", "label": "yes"}, {"text": "the red house sleeps", "label": "no"}] * 8
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), **sizes))
    >>> how = TrainingArguments("runs/doc", report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no")
    >>> trainer = PackedTrainer(model, how, task=task, train_dataset=records, capacity=64, eval_dataset=records)
    >>> found = trainer.evaluate()
    {'eval_loss': ..., 'eval_accuracy': ...}

    The Trainer itself prints the metrics, since `disable_tqdm` is set.
    """
