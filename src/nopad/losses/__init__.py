"""Losses and metrics of packed batches that equal those of the sequences by themselves, over batches and ranks."""

from nopad.errors import MissingExtraError

try:
    import torch  # noqa: F401
except ImportError as error:
    raise MissingExtraError(f"computing losses needs {error.name}: pip install 'nopad[torch]'") from error

from nopad.losses.means import items, over_ranks, sequence_items, sequence_loss, span_items, span_loss, token_loss
from nopad.losses.metrics import Accuracy, Confusion, Spans, best_spans

__all__ = [
    "Accuracy",
    "Confusion",
    "Spans",
    "best_spans",
    "items",
    "over_ranks",
    "sequence_items",
    "sequence_loss",
    "span_items",
    "span_loss",
    "token_loss",
]
