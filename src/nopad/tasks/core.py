"""`Core`: base class of `Embedder` and `Predictor`; turns requests into sequences, and model results into answers.

A core works in three steps. `Core.prepare` tokenises requests, in the caller's thread. `Core.run_batch` runs the model
on one packed batch, and returns one result per sequence. `Core.finish` makes the answer to a request from the results
of its sequences, which may have been in different batches. `nopad.PackRunner` takes these steps for requests as they
arrive. `Embedder.encode` and `Predictor.run` compute the same answers for a list of requests.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nopad.admitting import packed
from nopad.batch import Flat, PackedBatch
from nopad.errors import OptionError
from nopad.model.admission import device_of
from nopad.model.layouts import laid_out
from nopad.model.linear import fast_linear, is_worth_it
from nopad.model.modes import to_evaluation
from nopad.model.precision import Precision, agreement, lowered
from nopad.model.safety import bare, facts_of, is_packed
from nopad.options import shown
from nopad.sequences import Sequences
from nopad.tasks.lanes import Lanes

__all__ = ["Core", "Prepared", "by_length", "odd_rows", "of_length"]

log = logging.getLogger("nopad")

WORTH_TOKENS = 2048  # below this, reordering weights costs more than the faster kernel saves
# Up to so many tokens, the width of a batch is a multiple of this; it adds 2 % on average, and at most 3 slots to 64
MULTIPLES = ((64, 4), (128, 8), (512, 16), (1024, 32), (float("inf"), 64))


@dataclass(frozen=True, eq=False)
class Prepared:
    """A request, turned into sequences of tokens.

    Attributes:
        sequences: the request's sequences, concatenated; there may be none, if the task leaves the request out.
        details: what `Core.finish` needs besides the results; set by the subclass of `Core`.
    """

    sequences: Sequences
    details: Any = None

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each sequence."""
        lengths: list[int] = self.sequences.seq_lengths.tolist()
        return lengths


class Core(ABC):
    """Base class of classes that turn requests into answers with a pack-safe model, such as `Embedder`.

    Attributes:
        model: the pack-safe model.
        fast: whether float32 linear layers run with a faster kernel on CPUs (`nopad.model.fast_linear`). If the
            constructor gets None, a measurement decides.
        precision: "bfloat16" or "int8", if the constructor lowered the model to it (`nopad.model.lowered`); else None.
        agreement: smallest cosine similarity of the lowered model's outputs with those in float32, for a few random
            sequences (`nopad.model.precision.agreement`); NaN if it cannot be measured; None if `precision` is None.
        lanes: runs the sequences of a flat batch (all in one row) as one batch, or as several at the same time if that
            is faster.
        longest: most tokens of a sequence; None: unlimited.
        request: what one request is, for messages.

    Raises:
        OptionError: `fast` is not True, False or None, or the model's precision cannot be lowered.
        UnsupportedModelError: nopad refuses this model; the message gives the reason.
    """

    model: Any
    fast: bool
    precision: Precision | None
    agreement: float | None
    lanes: Lanes
    longest: int | None
    request: str = "a dict with input_ids"

    def __init__(self, model: Any, fast: bool | None = None, precision: Precision | None = None) -> None:
        if fast is not None and not isinstance(fast, bool):
            raise OptionError(f"fast is {shown(fast)}; it is True, False or None")
        self.precision, self.agreement = precision, None
        if precision is not None:
            exact, model = model, lowered(model, precision)
            self.agreement = agreement(exact, model)
            told = (
                "not known: a model gives NaN, or an error, for input_ids alone"
                if isnan(self.agreement)
                else f"{self.agreement:.5f}"
            )
            log.info(
                f"smallest cosine similarity of the outputs of {type(exact).__name__} in {precision} with those in "
                f"float32, of 4 sequences of 32 random tokens: {told}"
            )
        self.model = model if is_packed(model) else packed(model)
        to_evaluation(self.model)
        self.fast = is_worth_it(bare(self.model)) if fast is None else fast
        self.lanes = Lanes(self.model)
        self._narrow = facts_of(self.model).narrow

    @abstractmethod
    def is_one(self, given: Any) -> bool:
        """Return whether `given` is a single request rather than a list of requests."""

    @abstractmethod
    def prepare(self, requests: Sequence[Any], **how: Any) -> tuple[list[Prepared], Mapping[str, int]]:
        """Turn requests into sequences; return one `Prepared` per request, in order, and a mapping of counts.

        The counts say, by name, how many requests were cut or left out. `how` are options that the subclass has for
        these requests. Several threads may call this at the same time.

        Raises:
            InputError: a request is not valid; the message gives its number.
        """

    @abstractmethod
    def results_of(self, batch: PackedBatch, model: Any) -> list[Any]:
        """Run the model on a batch, and return a result for each of its sequences, in the order of the batch.

        `model` is the core's own, or a `nopad.model.compiled.CompiledRows` of it. Results are copies: they share no
        memory with each other or with the model's outputs, which the next call may overwrite (CUDA graphs). If the
        model returns NaN for a sequence, its result is a RequestError.
        """

    @abstractmethod
    def finish(self, prepared: Prepared, results: Sequence[Any]) -> Any:
        """Return the answer to the request `prepared`, given `results`, one for each of its sequences, in order."""

    def gathered(self, answers: list[Any]) -> Any:
        """Combine the answers to several requests into what the caller gets; by default, the list itself."""
        return answers

    @property
    def shape(self) -> tuple[int, int | None]:
        """Size of the batches that a `PackRunner` makes if no `batching` is given to it: (tokens per row, rows).

        If rows are None, batches are flat: all sequences are in one row, of about as many tokens as the first number.
        """
        return 4096, None

    def joined(self, parts: Sequence[Sequences]) -> Sequences:
        """Return the sequences of several requests, concatenated in order."""
        return Sequences.joined(parts)

    def run_batch(self, batch: PackedBatch, model: Any = None) -> list[Any]:
        """Move a batch to the model's device, run it without gradients, and return one result per sequence.

        `model` is the core's own model (None), or a `nopad.model.compiled.CompiledRows` of it. A sequence for which the
        model returns NaN gets a RequestError as its result.
        """
        with torch.inference_mode():
            return self.results_of(batch.to(device_of(self.model)), self.model if model is None else model)

    def try_batch(self, batch: PackedBatch, model: Any = None) -> None:
        """Run the model on a batch of sequences from `of_length`, and ignore the outputs.

        This is a warm-up: a model's first run is its slowest. `model` is the core's own model (None), or a
        `nopad.model.compiled.CompiledRows` of it.
        """
        with torch.inference_mode():
            (self.model if model is None else model)(**batch.to(device_of(self.model)))

    def kernels(self, tokens: int | None = None) -> AbstractContextManager[None]:
        """Return a context manager in which some linear layers run with a faster kernel.

        `tokens` is the number of tokens that will be run in the context; None: it is not known, and counts as large.
        These layers run faster:

        * float32 layers, if `fast` is set and `tokens` is at least 2,048
        * bfloat16 layers that `nopad.model.lowered` made on a CPU with instructions for bfloat16, with any `tokens`

        The weights of the model must not change inside the context.
        """
        if self.fast and (tokens is None or tokens >= WORTH_TOKENS):
            return fast_linear(self.model)
        return laid_out(self.model) if self.lowered else nullcontext()

    def flat(self, tokens: int, total: int | None = None) -> Flat:
        """Return the form of a flat batch of `tokens` tokens: without padding, or with a little at its end.

        There is padding only if oneDNN multiplies the matrices: with the faster kernel of `kernels` for float32 layers
        on CPUs, and for models in lower precision on CPUs. Models whose rows may not be wider than their positions
        never get padding. With padding, the width of the batch is rounded up: to a multiple of 4 up to 64 tokens, of 64
        above 1,024 tokens, and of 8 to 32 in between. This leaves 112 widths up to 4,096 tokens. The reason: oneDNN
        makes and keeps code for each new width and each size of layer, which takes 1 to 3 ms and 0.2 to 6 MB.

        `total` is the number of tokens with which `kernels` was called for this batch; None: it is not known, and
        counts as large.
        """
        fast = self.fast and self._dtype_on_cpu == torch.float32 and (total is None or total >= WORTH_TOKENS)
        if self._narrow or not (fast or self.lowered):
            return Flat()
        return Flat(pad_to_multiple_of=next(multiple for most, multiple in MULTIPLES if tokens <= most))

    @property
    def lowered(self) -> bool:
        """Whether the model is on a CPU and computes in a lower precision than float32: bfloat16, float16 or int8."""
        dtype = self._dtype_on_cpu
        return dtype is not None and (self.precision is not None or dtype in (torch.bfloat16, torch.float16))

    @property
    def _dtype_on_cpu(self) -> torch.dtype | None:
        """The dtype of the model's first parameter; None: there is none, or it is not on a CPU."""
        parameter = next(bare(self.model).parameters(), None)
        return parameter.dtype if parameter is not None and parameter.device.type == "cpu" else None

    @property
    def training(self) -> bool:
        """Whether any module of the model is in training mode.

        In training mode, results may be random, or depend on the other sequences of a batch.
        """
        return any(module.training for module in self.model.modules())


def by_length(lengths: Sequence[int], budget: int, most: int | None = None) -> Iterator[list[int]]:
    """Divide sequences into flat batches, the shortest sequences first; yield the indices of each batch's sequences.

    A batch has at most `most` sequences (None: any number), and at most `budget` tokens. A sequence of more than
    `budget` tokens is a batch by itself. Sequences that are next to each other in a batch have equal or similar
    lengths; attention takes neighbours of one length in one call (`nopad.model.backends.segments`).

    >>> list(by_length([2, 1, 5, 2], budget=4))
    [[1, 0], [3], [2]]

    The first batch has 1 + 2 tokens, the second 2, and the third is the single sequence of 5 tokens.
    """
    part: list[int] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if part and (tokens + lengths[index] > budget or len(part) == most):
            yield part
            part, tokens = [], 0
        part.append(index)
        tokens += lengths[index]
    if part:
        yield part


def of_length(lengths: Sequence[int]) -> Sequences:
    """Return sequences of the given lengths, for a warm-up (`Core.try_batch`); every token has the id 1."""
    found = np.array(lengths, np.int32)
    return Sequences(seq_lengths=found, tokens={"input_ids": np.ones(int(found.sum()), np.int64)})


def odd_rows(vectors: NDArray[np.float32]) -> list[int]:
    """Return the indices of the rows that contain NaN."""
    if not np.isnan(vectors.sum()):
        return []
    found: list[int] = np.flatnonzero(np.isnan(vectors).any(axis=1)).tolist()
    return found
