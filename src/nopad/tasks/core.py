"""The synchronous core of `Embedder`, `Predictor` and `nopad.PackRunner`: requests become sequences, batches, answers.

A core works in three steps. `Core.prepare` tokenises requests, in the thread of whoever asks. `Core.run_batch` runs the
model on one packed batch, and returns one result per sequence. `Core.finish` makes the answer to a request from the
results of its sequences, which may have been in different batches. `Embedder.encode` and `Predictor.forward` do this
for a list; `nopad.PackRunner` does it for requests as they arrive. So a request gets the same answer from all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nopad.batch import PackedBatch
from nopad.errors import OptionError
from nopad.model.admission import device_of
from nopad.model.linear import fast_linear, is_worth_it
from nopad.model.precision import Precision, lowered
from nopad.model.safety import bare, is_packed, packed
from nopad.sequences import Sequences

__all__ = ["Core", "Prepared", "of_length"]

WORTH_TOKENS = 2048  # below this, reordering weights costs more than the faster kernel saves


@dataclass(frozen=True, eq=False)
class Prepared:
    """A request as sequences of tokens.

    Attributes:
        sequences: the request's sequences, concatenated; there may be none, if the task leaves the request out.
        details: what `Core.finish` needs to know besides the results.
    """

    sequences: Sequences
    details: Any = None

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each sequence."""
        lengths: list[int] = self.sequences.seq_lengths.tolist()
        return lengths


class Core(ABC):
    """Base class of what turns requests into answers with a pack-safe model.

    Attributes:
        model: the pack-safe model.
        fast: whether float32 linear layers run with a faster kernel on CPUs (`nopad.model.fast_linear`).
        precision: the precision to which the model was lowered here (`nopad.model.lowered`); None: it was not.
        longest: most tokens of a sequence; None: unlimited.
    """

    model: Any
    fast: bool
    longest: int | None

    def __init__(self, model: Any, fast: bool | None = None, precision: Precision | None = None) -> None:
        if fast not in (None, True, False):
            raise OptionError(f"fast is {fast!r}; it is True, False or None")
        self.precision = precision
        if precision is not None:
            model = lowered(model, precision)
        self.model = (model if is_packed(model) else packed(model)).eval()
        self.fast = is_worth_it(bare(self.model)) if fast is None else fast

    @abstractmethod
    def is_one(self, given: Any) -> bool:
        """Return whether `given` is a single request, and not several."""

    @abstractmethod
    def prepare(self, requests: Sequence[Any], **how: Any) -> tuple[list[Prepared], Mapping[str, int]]:
        """Turn requests into sequences; return them with the number of requests cut or left out, by reason.

        Threads may call this at the same time.

        Raises:
            InputError: a request is not valid; the message gives its number.
        """

    @abstractmethod
    def results_of(self, batch: PackedBatch) -> list[Any]:
        """Run the model on a batch, and return a result for each of its sequences, in the order of the batch.

        No two results share memory. The result is a RequestError for a sequence for which the model returns NaN.
        """

    @abstractmethod
    def finish(self, prepared: Prepared, results: Sequence[Any]) -> Any:
        """Return the answer to a request, given the results of its sequences, in order."""

    def gathered(self, answers: list[Any]) -> Any:
        """Return the answers to several requests in the form in which the caller gets them: as the list, by default."""
        return answers

    @property
    def shape(self) -> tuple[int, int | None]:
        """Slots of a row, and number of rows, of the batches that suit the model; with None, batches are flat."""
        return 4096, None

    def joined(self, parts: Sequence[Sequences]) -> Sequences:
        """Return sequences of several requests as one, in order."""
        return Sequences.joined(parts)

    def run_batch(self, batch: PackedBatch) -> list[Any]:
        """Return `results_of` a batch, moved to the model's device, without gradients."""
        with torch.inference_mode():
            return self.results_of(batch.to(device_of(self.model)))

    def try_batch(self, batch: PackedBatch) -> None:
        """Run the model on a batch of `of_length`, for what it prepares at its first run."""
        with torch.inference_mode():
            self.model(**batch.to(device_of(self.model)))

    def kernels(self, tokens: int | None = None) -> AbstractContextManager[None]:
        """Return a context in which batches run with the faster kernel, if there is one.

        None: for as long as the context is open. A number: for as many tokens, unless they are too few to be worth it.
        """
        return fast_linear(self.model) if self.fast and (tokens is None or tokens >= WORTH_TOKENS) else nullcontext()

    @property
    def training(self) -> bool:
        """Whether a part of the model is in training mode, in which results depend on chance or on the whole batch."""
        return any(module.training for module in self.model.modules())


def of_length(lengths: Sequence[int]) -> Sequences:
    """Return sequences of these lengths, of the token 1, for a first run of a model."""
    found = np.array(lengths, np.int32)
    return Sequences(seq_lengths=found, tokens={"input_ids": np.ones(int(found.sum()), np.int64)})
