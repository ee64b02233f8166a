"""Run one batch of requests through a pack-safe model, and give each request its own results.

`Request.of` checks an input before it is queued, so that an invalid input raises in the caller's thread and cannot make
a batch fail. Padding is removed according to the input's attention mask. `answers` runs a batch. If the batch fails, it
is split in halves, again and again, until each failing request is alone; all others get their results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nopad.batch import Flat, PackedBatch, Rows
from nopad.batch.columns import from_features
from nopad.errors import BatchError, LengthError, OptionError, RequestError
from nopad.model.admission import positions_of
from nopad.model.families import family_of
from nopad.model.postconditions import FREE, declared
from nopad.model.safety import bare, state_of
from nopad.packs import Packs
from nopad.serving.batching import Batching

__all__ = ["Model", "Request", "answers"]

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
Placed = tuple[int, "Request"]  # a request and its row
Result = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Request:
    """One sequence without padding, and its place in the padded input.

    Attributes:
        ids, types: token ids and token types; int64 ``[length]``. If `types` is None, all types are 0, as in the model.
        begin, width: index of the first token in the input, and length of the input, padding included.
    """

    ids: NDArray[np.int64]
    types: NDArray[np.int64] | None
    begin: int
    width: int

    @classmethod
    def of(cls, given: Mapping[str, Any], model: Model) -> Request:
        """Check the input of a request, and remove its padding.

        Raises:
            BatchError: the input is not a dict of integer arrays ``[width]``, has a key that the model does not use, or
                has a mask with a gap between tokens.
            LengthError: no token is left without the padding, or there are more tokens than the model has positions.
            OptionError: a token id or token type is out of the model's range.
        """
        if not isinstance(given, Mapping):
            raise BatchError(f"a request is of type {type(given).__name__}; expected a dict with {IDS}")
        known = {IDS, MASK, *([TYPES] if model.types else [])}
        if IDS not in given or not given.keys() <= known:
            names = ", ".join(map(str, given)) or "nothing"
            raise BatchError(f"a request has {IDS}, and may have {', '.join(sorted(known - {IDS}))}; this has {names}")
        width = _width(given[IDS])
        if not width:
            raise LengthError("a request has no tokens")
        masked = MASK in given
        kept = from_features([{IDS: given[IDS], **({MASK: given[MASK]} if masked else {})}])[0]
        ids = kept.tokens[IDS].astype(np.int64)
        begin = int(np.flatnonzero(np.asarray(given[MASK]))[0]) if masked else 0
        types = None
        if TYPES in given:
            [types] = from_features([{IDS: given[TYPES], **({MASK: given[MASK]} if masked else {})}])[0].tokens.values()
            types = types.astype(np.int64)
            if types.size != ids.size or _width(given[TYPES]) != width:
                raise BatchError(
                    f"{TYPES} has {_width(given[TYPES])} values, and {IDS} has {width}; give one per token"
                )
        if model.longest is not None and ids.size > model.longest:
            raise LengthError(f"a request has {ids.size} tokens, and the model has positions for {model.longest}")
        _check_range(IDS, ids, model.vocabulary)
        if types is not None:
            _check_range(TYPES, types, model.types)
        return cls(ids, types, begin, width)

    def __len__(self) -> int:
        """Return the number of tokens."""
        return self.ids.size


class Model:
    """A pack-safe model, and the limits of the requests that it can run.

    Attributes:
        longest: maximum number of tokens in a request; None: unlimited.
        vocabulary, types: number of token ids and of token types; `types` is 0 if the model has none.

    Raises:
        OptionError: the model is not pack-safe, or cannot run batches as `batching` describes them.
    """

    def __init__(self, model: Any, batching: Batching) -> None:
        """Check that the model can run such batches.

        Raises:
            OptionError: the model is not pack-safe, or the batches are not such that it can run them.
        """
        self._state = state_of(model)
        inner = bare(model)
        self.model, self._head = model.eval(), self._state.head
        self.longest = positions_of(inner, family_of(inner.config))
        self.vocabulary = int(getattr(inner.get_input_embeddings(), "num_embeddings", 0))
        if not self.vocabulary or getattr(inner.config, "is_encoder_decoder", False):
            what = "has a decoder too" if self.vocabulary else "takes no token ids"
            raise OptionError(f"{type(inner).__name__} {what}, and a runner feeds ids to one stack; run it in batches")
        self.types = int(getattr(inner.config, "type_vocab_size", 0) or 0)
        self._device = next(model.parameters()).device
        self._batching = batching
        if batching.separator:
            raise OptionError("separator is of no use here, since nopad keeps sequences apart without; leave it out")
        most = self._state.most
        if most is not None and (batching.max_sequences is None or batching.max_sequences > most):
            raise OptionError(
                f"the model was made pack-safe for at most {most} sequences in a batch; give "
                f"Batching(max_sequences={most})"
            )
        if (batching.rows or 1) > 1 and self._head.one_row:
            raise OptionError(f"{type(inner).__name__} runs one row at a time; leave rows out, for flat batches")

    def run(self, placed: Sequence[Placed]) -> list[Result]:
        """Run requests, each given as (row, request), as one batch; return the results of each, by output name.

        Outputs per token are ``[length, ...]``; other outputs are the values of the sequence. No two results share
        memory.

        Raises:
            RequestError: the model returns no named outputs.
            Exception: any error that the model raises.
        """
        requests = [request for _, request in placed]
        types = self.types > 0 and any(request.types is not None for request in requests)
        columns = {TYPES: [_types(request) for request in requests]} if types else {}
        batch = PackedBatch.from_sequences([request.ids for request in requests], self._form(placed), columns=columns)
        with torch.no_grad():
            output = self.model(**batch.to(self._device))
            if not isinstance(output, Mapping):
                raise RequestError(f"{type(bare(self.model)).__name__} returns no named outputs; set return_dict=True")
            return self._split(output, batch)

    def _form(self, placed: Sequence[Placed]) -> Flat | Rows:
        shape = self._batching
        if shape.rows is None:
            return Flat()
        if shape.policy == "end_to_end":
            return Rows(shape.capacity, rows=shape.rows, end_to_end=True)
        rows = np.array([row for row, _ in placed], dtype=np.int64)
        order = np.argsort(rows, kind="stable")
        counts = np.unique(rows, return_counts=True)[1]
        packs = Packs(shape.capacity, None, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), order)
        return Rows(packs=packs, rows=shape.rows)

    def _split(self, output: Mapping[str, Any], batch: PackedBatch) -> list[Result]:
        results: list[Result] = [{} for _ in range(batch.layout.sequences)]
        for name, value in output.items():
            if name in FREE or not isinstance(value, Tensor) or value.dim() == 0:
                continue
            if declared(self._head, name) == "token":
                parts = batch.unpack_tokens(value)
            else:
                parts = batch.unpack_sequences(value)
                if self.by_place(name):
                    parts = [part[:length] for part, length in zip(parts, batch.seq_lengths.tolist(), strict=True)]
            for result, part in zip(results, parts, strict=True):
                result[name] = part.clone()
        return results

    def by_place(self, name: str) -> bool:
        """Whether an output is a score per position for choosing a span, as the logits of question answering are."""
        return self._head.name == "answers" and name.endswith("_logits")

    def per_token(self, name: str) -> bool:
        """Whether an output has one value, or one vector, per token of a request."""
        return declared(self._head, name) == "token" or self.by_place(name)


def answers(placed: Sequence[Placed], run: Callable[[Sequence[Placed]], list[Result]]) -> list[Result | RequestError]:
    """Return the results of each request, or an error for each one on which the model fails or returns NaN.

    `run` runs a batch. A batch that fails is split in halves, so f failing requests among n take about 2 f log2(n) more
    runs; if all n fail, there are 2 n - 1 runs in total.
    """
    try:
        return [_numbers(result) for result in run(placed)]
    except Exception as error:
        if len(placed) == 1:
            failed = RequestError(f"the model fails for this request: {type(error).__name__}: {error}")
            failed.__cause__ = error
            return [failed]
        middle = len(placed) // 2
        return [*answers(placed[:middle], run), *answers(placed[middle:], run)]


def _numbers(result: Result) -> Result | RequestError:
    """Return a request's results, or an error if one of its values is not a number."""
    odd = [name for name, value in result.items() if value.is_floating_point() and bool(value.isnan().any())]
    return RequestError(f"the model gives NaN for this request, in {', '.join(odd)}") if odd else result


def _types(request: Request) -> NDArray[np.int64]:
    return np.zeros(len(request), dtype=np.int64) if request.types is None else request.types


def _width(values: Any) -> int:
    shape = np.shape(values)
    if len(shape) != 1:
        raise BatchError(f"a request is one sequence, and this has the shape {list(shape)}; submit each by itself")
    return int(shape[0])


def _check_range(name: str, values: NDArray[np.int64], count: int) -> None:
    wrong = np.flatnonzero((values < 0) | (values >= count))
    if wrong.size:
        at = int(wrong[0])
        raise OptionError(f"{name}: token {at} has the value {values[at]}, and this model's are from 0 to {count - 1}")
