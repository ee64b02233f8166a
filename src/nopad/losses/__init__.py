"""Losses and metrics of packed batches that equal those of the unpacked sequences.

They are also exact over several batches (gradient accumulation) and several ranks.
"""

from nopad.errors import MissingExtraError, install

try:
    import torch  # noqa: F401
except ImportError as error:
    raise MissingExtraError(f"computing losses needs {error.name}; {install('torch')}") from error

from nopad.losses.means import (
    over_ranks,
    sequence_denominator,
    sequence_loss,
    span_denominator,
    span_loss,
    token_denominator,
    token_loss,
)
from nopad.losses.metrics import Accuracy, Confusion, Spans, best_spans
from nopad.losses.preferences import PreferenceLoss, label_logprobs, preference_loss, reward_loss

__all__ = [
    "Accuracy",
    "Confusion",
    "PreferenceLoss",
    "Spans",
    "best_spans",
    "label_logprobs",
    "over_ranks",
    "preference_loss",
    "reward_loss",
    "sequence_denominator",
    "sequence_loss",
    "span_denominator",
    "span_loss",
    "token_denominator",
    "token_loss",
]
