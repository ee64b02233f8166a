"""Run one batch of requests through a core (`nopad.tasks.core`), and give each request its own results.

A core turns requests into sequences, and results into answers. `Tensors` is the core for a model without a task: a
request is a dict of ids, its answer a dict of tensors. `Tensors` checks an input before it is queued, so an invalid
input raises in the caller's thread and cannot make a batch fail. Padding is removed according to the attention mask,
and added again to results if asked for. `answers` runs a batch. If the batch fails, it is split in halves, again and
again, until each failing sequence is alone; all others get their results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nopad.batch import Flat, PackedBatch, Rows
from nopad.batch.arrays import readable
from nopad.batch.features import from_features
from nopad.batch.form import Form
from nopad.errors import BatchError, InputError, LengthError, OptionError, RequestError
from nopad.model.admission import device_of, positions_of
from nopad.model.embedded import input_embeddings
from nopad.model.postconditions import FREE, declared
from nopad.model.safety import bare, state_of
from nopad.sequences import Sequences
from nopad.serving.batching import Batching
from nopad.serving.buffers import Output, check_buffers, filled
from nopad.tasks.core import Core, Prepared
from nopad.wording import first_line

__all__ = ["Placed", "Tensors", "answers", "batch_of", "check_batching", "form_of"]

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
Placed = tuple[int, Sequences]  # a row of the batch, and one sequence that begins in it
Widths = Literal["own", "given"]


@dataclass(frozen=True, eq=False)
class Request:
    """One sequence without padding, and its place in the padded input.

    Attributes:
        ids, types: token ids and token types; int64 ``[length]``. `types` is None if no types were given; the model
            takes them as 0.
        begin, width: index of the first token in the input, and length of the input, padding included.
    """

    ids: NDArray[np.int64]
    types: NDArray[np.int64] | None
    begin: int
    width: int

    @classmethod
    def of(cls, given: Mapping[str, Any], model: Tensors) -> Request:
        """Check the input of one sequence, and return it as a `Request`, without its padding.

        `given` has arrays of NumPy by name.

        Raises:
            BatchError: a value is not an array of integers ``[width]``; token types or the mask are not as long as the
                ids; or the mask has a value other than 0 and 1, or a gap between tokens.
            LengthError: no token is left after the padding is removed, or there are more tokens than the model has
                positions.
            OptionError: a token id or token type is out of the model's range.
        """
        width = _width(given[IDS])
        if not width:
            raise LengthError("a request has no tokens")
        masked = MASK in given
        kept = from_features([{IDS: given[IDS], **({MASK: given[MASK]} if masked else {})}])[0]
        ids = kept.tokens[IDS].astype(np.int64)
        begin = int(np.flatnonzero(given[MASK])[0]) if masked else 0
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


class _Asked(NamedTuple):
    """How the results of a request are padded, and where they go.

    Attributes:
        begins: for each sequence, the index of its first token in its padded outputs: as in the input, or 0 if
            `Tensors` was given a number as `widths`.
        width: number of tokens to which outputs per token are padded; None: they are not padded.
        rows: whether the input was padded rows ``[B, L]``.
        out: the caller's buffers, by name of output.
    """

    begins: list[int]
    width: int | None
    rows: bool
    out: Mapping[str, Any]


class Tensors(Core):
    """The core of a pack-safe model: a request is a dict of ids, its answer a dict of tensors.

    Args:
        model: the pack-safe model.
        widths: how many tokens the answer's outputs per token have: "own" (the tokens without padding; for padded rows
            ``[B, L]``, L), "given" (as many as the input, padding included), or a number of tokens.
        fast: whether float32 linear layers run with a faster kernel on CPUs; None: measure, and use this kernel only if
            it is faster.

    Attributes:
        longest: maximum number of tokens in a sequence; None: unlimited.
        vocabulary, types: number of token ids and of token types; `types` is 0 if the model has none.
        outputs: form of each of the model's outputs, by name; empty until the model has run once.

    Raises:
        OptionError: the model is not pack-safe, takes no token ids, has both an encoder and a decoder, or is configured
            to return hidden states or attentions; or `fast` is not True, False or None.
    """

    def __init__(self, model: Any, widths: Widths | int = "own", fast: bool | None = None) -> None:
        self._head = state_of(model).head
        super().__init__(model, fast)
        inner = bare(model)
        self.longest = positions_of(inner, state_of(model).family)
        self.vocabulary = int(getattr(input_embeddings(inner), "num_embeddings", 0))
        if not self.vocabulary or getattr(inner.config, "is_encoder_decoder", False):
            what = "has a decoder too" if self.vocabulary else "takes no token ids"
            raise OptionError(f"{type(inner).__name__} {what}, and a runner feeds ids to one stack; run it in batches")
        for name in ("output_hidden_states", "output_attentions"):
            if getattr(inner.config, name, False):
                raise OptionError(f"the model's {name} is on, and a runner answers with its last outputs; turn it off")
        self.types = int(getattr(inner.config, "type_vocab_size", 0) or 0)
        self.widths = widths
        self.outputs: dict[str, Output] = {}

    def is_one(self, given: Any) -> bool:
        """Return whether `given` is a single request: a dict."""
        return isinstance(given, Mapping)

    def prepare(self, requests: Sequence[Any], **how: Any) -> tuple[list[Prepared], Mapping[str, int]]:
        """Check requests and remove their padding; return one `Prepared` per request, in order, and an empty mapping.

        A `Prepared` holds a request's sequences. If there is a single request, `how` may have `out`: a dict of buffers
        (tensors or arrays) by name of output, into which the request's results are written.

        Raises:
            InputError: a request, or `how`, is not valid; if there are several requests, the message has its number.
        """
        if odd := how.keys() - {"out"}:
            raise OptionError(f"there is no option {min(odd)!r} of a request; there is out")
        out = how.get("out")
        if out is not None and len(requests) != 1:
            raise OptionError(f"out has the results of one request, and {len(requests)} are given; submit each one")
        found = []
        for number, one in enumerate(requests):
            try:
                found.append(self._prepared(one, out))
            except InputError as error:
                raise (type(error)(f"request {number}: {error}") if len(requests) > 1 else error) from error
        return found, {}

    def _prepared(self, given: Any, out: Any) -> Prepared:
        if not isinstance(given, Mapping):
            raise BatchError(f"a request is of type {type(given).__name__}; expected a dict with {IDS}")
        known = {IDS, MASK, *([TYPES] if self.types else [])}
        if IDS not in given or not given.keys() <= known:
            names = ", ".join(map(str, given)) or "nothing"
            raise BatchError(f"a request has {IDS}, and may have {', '.join(sorted(known - {IDS}))}; this has {names}")
        given = {name: _array(name, values) for name, values in given.items()}
        rows = given[IDS].ndim == 2
        parts = _rows_of(given, self) if rows else [Request.of(given, self)]
        wide = parts[0].width if rows or self.widths == "given" else None
        if isinstance(self.widths, int):
            wide = self.widths
            longest = max(part.ids.size for part in parts)
            if longest > wide:
                raise LengthError(f"a request has {longest} tokens, and results are {wide} wide")
        begins = [0 if isinstance(self.widths, int) else part.begin for part in parts]
        if out is not None:
            shape = (len(parts),) if rows else ()
            check_buffers(out, self.outputs, shape, wide or parts[0].ids.size)
        tokens = {IDS: np.concatenate([part.ids for part in parts])}
        if any(part.types is not None for part in parts):
            tokens[TYPES] = np.concatenate([_types(part) for part in parts])
        lengths = np.array([part.ids.size for part in parts], np.int32)
        return Prepared(Sequences(seq_lengths=lengths, tokens=tokens), _Asked(begins, wide, rows, out or {}))

    def joined(self, parts: Sequence[Sequences]) -> Sequences:
        """Return the sequences of several requests in one `Sequences`.

        If only some of the requests have token types, those of the others are 0.
        """
        if any(TYPES in part.tokens for part in parts):
            parts = [_with_types(part) for part in parts]
        return super().joined(parts)

    def run_batch(self, batch: PackedBatch, model: Any = None) -> list[Any]:
        """Run the model on a batch, and return for each sequence a dict of outputs by name, without gradients.

        A sequence with NaN in an output gets a RequestError instead. `model` is the compiled model; None: the core's
        own model runs. The results are not made in inference mode, so training can use them.
        """
        with torch.no_grad():
            return self.results_of(batch.to(device_of(self.model)), self.model if model is None else model)

    def try_batch(self, batch: PackedBatch, model: Any = None) -> None:
        """Run the model on a batch without using its results; afterwards, `outputs` is known."""
        self.run_batch(batch, model)

    def results_of(self, batch: PackedBatch, model: Any) -> list[Any]:
        """Run `model` on a batch, and return for each sequence of the batch, in order, a dict of outputs by name.

        Outputs per token are ``[length, ...]``; other outputs are the values of the sequence. All are copies. Outputs
        in `FREE`, such as the loss, are left out, and so is every output that is not a tensor, or has no dimensions. A
        sequence with NaN in an output gets a RequestError in place of the dict. The form of each output is stored in
        `outputs`.

        Raises:
            RequestError: the model returns no named outputs.
            Exception: any error that the model raises.
        """
        output = model(**batch)
        if not isinstance(output, Mapping):
            raise RequestError(f"{type(bare(self.model)).__name__} returns no named outputs; set return_dict=True")
        results: list[dict[str, Tensor]] = [{} for _ in range(batch.layout.sequences)]
        odd: dict[int, list[str]] = {}
        for name, value in output.items():
            if name in FREE or not isinstance(value, Tensor) or value.dim() == 0:
                continue
            per_token = self.per_token(name)
            if declared(self._head, name) == "token":
                parts = batch.unpack_tokens(value)
            else:
                parts = batch.unpack_sequences(value)
                if per_token:
                    parts = [part[:length] for part, length in zip(parts, batch.seq_lengths.tolist(), strict=True)]
            self.outputs.setdefault(name, Output(per_token, parts[0].shape[int(per_token) :], value.dtype))
            # The sum is NaN if any value is; also for infinities of both signs, so each part is then checked
            suspect = value.is_floating_point() and bool(value.sum().isnan())
            for at, (result, part) in enumerate(zip(results, parts, strict=True)):
                result[name] = part.clone()
                if suspect and bool(part.isnan().any()):
                    odd.setdefault(at, []).append(name)
        return [
            RequestError(f"the model gives NaN for this request, in {', '.join(odd[at])}") if at in odd else result
            for at, result in enumerate(results)
        ]

    def finish(self, prepared: Prepared, results: Sequence[Any]) -> dict[str, Any]:
        """Return the outputs of a request, by name, made from the results of its sequences.

        Outputs per token are padded if the request was given as padded rows ``[B, L]``, or if `widths` asks for it. An
        output for which the caller gave a buffer is written to it, and the buffer is returned.
        """
        asked: _Asked = prepared.details
        found: dict[str, Any] = {}
        for name in results[0]:
            parts = [result[name] for result in results]
            if asked.width is not None and self.per_token(name):
                empty = float("-inf") if self.by_place(name) else 0
                parts = [_widened(*one, asked.width, empty) for one in zip(parts, asked.begins, strict=True)]
            value = torch.stack(parts) if asked.rows else parts[0]
            found[name] = filled(asked.out[name], value) if name in asked.out else value
        return found

    def by_place(self, name: str) -> bool:
        """Return whether the output `name` is a score per position for choosing a span, as in question answering."""
        return self._head.name == "answers" and name.endswith("_logits")

    def per_token(self, name: str) -> bool:
        """Return whether the output `name` has one value, or one vector, per token of a request."""
        return declared(self._head, name) == "token" or self.by_place(name)


def form_of(batching: Batching, compiled: bool) -> Form:
    """Return the layout of a runner's batches; `compiled` says whether its model is compiled.

    Compiled attention keeps sequences apart by their numbers within a row, so no sequence may continue in the next row.
    With "end_to_end", a compiled model therefore gets one long row with the slots of all rows.
    """
    if batching.rows is None:
        return Flat()
    if batching.policy != "end_to_end":
        return Rows(batching.capacity, rows=batching.rows)
    return Rows(batching.slots, rows=1) if compiled else Rows(batching.capacity, rows=batching.rows, end_to_end=True)


def check_batching(core: Core, batching: Batching) -> None:
    """Check that a core's model can run batches as `batching` describes them.

    Raises:
        OptionError: a batch may have more sequences than the model was made pack-safe for; it has several rows, and the
            model runs one row at a time; or `batching` has a separator, which is of no use here.
    """
    state, inner = state_of(core.model), bare(core.model)
    if batching.separator:
        raise OptionError("separator is of no use here, since nopad keeps sequences apart without; leave it out")
    most = state.most
    if most is not None and (batching.max_sequences is None or batching.max_sequences > most):
        raise OptionError(
            f"the model was made pack-safe for at most {most} sequences in a batch; give Batching(max_sequences={most})"
        )
    if (batching.rows or 1) > 1 and state.head.one_row:
        raise OptionError(f"{type(inner).__name__} runs one row at a time; leave rows out, for flat batches")


def batch_of(placed: Sequence[Placed], core: Core, form: Form) -> PackedBatch:
    """Return the `PackedBatch` of the sequences in `placed`, which are (row, sequence) pairs, sorted by row.

    `form` is the layout of the runner's batches, as `form_of` returns it. `core` joins the sequences, and chooses the
    width of a flat batch.
    """
    sequences = core.joined([one for _, one in placed])
    if isinstance(form, Flat):
        form = core.flat(int(sequences.seq_lengths.sum()))
    if isinstance(form, Flat) or form.end_to_end:
        return PackedBatch.from_columns(sequences, form)
    rows = [0 if form.rows == 1 else row for row, _ in placed]
    return PackedBatch.from_columns(sequences, form, per_row=np.unique(rows, return_counts=True)[1])


def answers(placed: Sequence[Placed], run: Callable[[Sequence[Placed]], list[Any]]) -> list[Any]:
    """Return the result of each sequence, or an error for each one on which the model fails.

    `placed` are (row, sequence) pairs. `run` runs such pairs as a batch, and returns one result per sequence. A batch
    that fails is split in halves, so f failing sequences among n take about 2 f log2(n) more runs; if all n fail, there
    are 2 n - 1 runs in total.

    If two or more results of a run are errors (NaN), but not all, these sequences run again without the others. If all
    results of several sequences are errors, the sequences are split in halves. The reason: a dense mask, as compiled
    models and GPUs have it, multiplies values of other sequences by 0, and 0 x NaN is NaN.
    """
    try:
        found = run(placed)
    except Exception as error:
        if len(placed) > 1:
            return _halves(placed, run)
        failed = RequestError(f"the model fails for this request: {type(error).__name__}: {error}")
        failed.__cause__ = error
        return [failed]
    odd = [at for at, one in enumerate(found) if isinstance(one, RequestError)]
    if len(odd) < 2:  # a single one has NaN of its own
        return found
    if len(odd) == len(placed):
        return _halves(placed, run)
    for at, one in zip(odd, answers([placed[at] for at in odd], run), strict=True):
        found[at] = one
    return found


def _halves(placed: Sequence[Placed], run: Callable[[Sequence[Placed]], list[Any]]) -> list[Any]:
    middle = len(placed) // 2
    return [*answers(placed[:middle], run), *answers(placed[middle:], run)]


def _rows_of(given: Mapping[str, NDArray[Any]], model: Tensors) -> list[Request]:
    """Return a `Request` for each row of padded arrays ``[B, L]``, without its padding.

    `given` has the arrays by name, such as "input_ids".

    Raises:
        BatchError: the arrays have different shapes, a row does not hold integers, or its mask has a value other than 0
            and 1, or a gap.
        LengthError: there is no row, a row has no token, or it has more tokens than the model has positions.
        OptionError: a token id or token type is out of the model's range.
    """
    if len({array.shape for array in given.values()}) > 1:
        each = ", ".join(f"{name} {list(array.shape)}" for name, array in given.items())
        raise BatchError(f"the arrays of a request have one shape, and these have {each}")
    if not len(given[IDS]):
        raise LengthError("a request has no rows")
    found = []
    for number in range(len(given[IDS])):
        try:
            found.append(Request.of({name: array[number] for name, array in given.items()}, model))
        except InputError as error:
            raise type(error)(f"row {number}: {error}") from error
    return found


def _widened(part: Tensor, begin: int, width: int, empty: float) -> Tensor:
    wide = torch.full((width, *part.shape[1:]), empty, dtype=part.dtype, device=part.device)
    wide[begin : begin + len(part)] = part
    return wide


def _types(request: Request) -> NDArray[np.int64]:
    return np.zeros(request.ids.size, dtype=np.int64) if request.types is None else request.types


def _with_types(part: Sequences) -> Sequences:
    if TYPES in part.tokens:
        return part
    ids = part.tokens[IDS]
    return Sequences(seq_lengths=part.seq_lengths, tokens={IDS: ids, TYPES: np.zeros(ids.size, np.int64)})


def _array(name: str, values: Any) -> NDArray[Any]:
    """Return `values`, a request's entry `name`, as an array of NumPy.

    Raises:
        BatchError: `values` cannot be read, such as a tensor on device "meta", or lists of different lengths; or some
            are masked or null.
    """
    found = readable(values, f"{name} of a request")
    try:
        return np.asarray(found)
    except ValueError as error:  # NumPy's, of lists in a list
        raise BatchError("the rows of a request have different lengths; pad them, or submit each by itself") from error
    except Exception as error:  # of an object of the user's own
        raise BatchError(f"{name} of a request cannot be read ({first_line(error)}); give integers") from error


def _width(values: NDArray[Any]) -> int:
    if values.ndim != 1:
        raise BatchError(
            f"a request is one sequence, or padded rows [B, L], and this has the shape {list(values.shape)}; submit "
            "each by itself"
        )
    return len(values)


def _check_range(name: str, values: NDArray[np.int64], count: int) -> None:
    wrong = np.flatnonzero((values < 0) | (values >= count))
    if wrong.size:
        at = int(wrong[0])
        raise OptionError(f"{name}: token {at} has the value {values[at]}, and this model's are from 0 to {count - 1}")
