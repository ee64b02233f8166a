"""`PackedBatch`: several sequences in rows or in one stream, and all that a model needs to keep them apart.

Built from sequences, from rows of a packed dataset, or from the features that Hugging Face loops collect; NumPy until
it is moved to a device, torch from then on. It is a mapping, so ``model(**batch)`` works, and its ``attention_mask`` is
a guard (`nopad.batch.guard`): a model that was not made pack-safe fails at first touch. O(tokens) to build, without a
loop over tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from nopad.batch.columns import Columns, from_features, from_rows, per_sequence
from nopad.batch.guard import PackedMask, layout_of, mark
from nopad.batch.layout import Form, Layout
from nopad.errors import BatchError, OptionError

if TYPE_CHECKING:
    from nopad.packs import Packs
    from nopad.store.reader import PackedRow

__all__ = ["PackedBatch"]

MASK = "attention_mask"
MARKED = ("input_ids", "inputs_embeds", "position_ids", "decoder_input_ids")  # what a model must not get without it
FLASH_KEYS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


class PackedBatch(MutableMapping[str, Any]):
    """S sequences with T tokens in R rows of L slots.

    As a mapping it holds what `model(**batch)` gets: ``input_ids`` and ``position_ids`` ``[R, L]``, every column that
    was given (``[R, L]`` where it has a value per token, ``[S]`` where it has one per sequence), and the guard as
    ``attention_mask``. Values are torch tensors when read as items, whatever they are stored as. What is per sequence
    is in the order given, for rows of a packed dataset in the order of the rows and within them.

    Attributes:
        layout: where everything lies (`Layout`).
        seq_lengths: lengths in the order given; int32 ``[S]``, on the host.
        cu_seqlens: where sequences begin in the stream without padding, row after row; int32 ``[S + 1]``, on the host.
        max_seqlen: the longest length.
        records: where each sequence of a packed dataset comes from: ``seq_index``, and ``seq_start`` and
            ``seq_source`` when there; ``[S]`` each, on the host. No column, so no model is given them.
        position_ids, sequence_ids: of each slot, see `Layout`.

    >>> batch = PackedBatch.from_sequences([[7, 8, 9], [5], [1, 2]], capacity=4, form="rows")
    >>> batch.input_ids.tolist(), batch.position_ids.tolist(), batch.sequence_ids.tolist()
    ([[7, 8, 9, 5], [1, 2, 0, 0]], [[0, 1, 2, 0], [0, 1, 0, 0]], [[1, 1, 1, 2], [3, 3, 0, 0]])
    >>> [ids.tolist() for ids in batch.unpack(batch.input_ids)]
    [[7, 8, 9], [5], [1, 2]]
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        """Take the fields of another batch, perhaps changed; see `from_sequences` for a new one."""
        mask = fields.get(MASK)
        if not isinstance(mask, PackedMask):
            raise BatchError("a PackedBatch is made of the fields of another one; build it with from_sequences")
        self._fields = dict(fields)
        self.layout = layout_of(mask)

    @classmethod
    def from_sequences(
        cls,
        sequences: Sequence[Any],
        *,
        form: Form = "flat",
        capacity: int | None = None,
        depth: int | None = None,
        packs: Packs | None = None,
        rows: int | None = None,
        end_to_end: bool = False,
        columns: Mapping[str, Any] | None = None,
        sequence_columns: Mapping[str, Any] | None = None,
        pad_id: int = 0,
        fill: Mapping[str, Any] | None = None,
    ) -> PackedBatch:
        """Build a batch of sequences of ids.

        Args:
            sequences: ids of each sequence; n lists or integer arrays ``[length]``.
            form: "flat", one stream without padding, or "rows" of `capacity` slots.
            capacity: slots a row.
            depth: most sequences a row; None = unlimited.
            packs: which sequences share a row, in which order; None: best fit decreasing decides.
            rows: this many rows, with empty ones at the end; None: as many as it takes.
            end_to_end: fill every row to its end; a sequence may go on in the next one.
            columns: further columns by name: n lists of one value a token, or n single values.
            sequence_columns: columns of n values a sequence that are arrays themselves, all of one shape: ``[n, C]``
                labels of several classes.
            pad_id: of the padding in ``input_ids``.
            fill: value of the padding in other per-token columns; default 0, and -100 in those named ``labels``.

        Raises:
            LengthError: a sequence is empty or above the capacity.
            OptionError: rows without a capacity, or options of rows for a flat batch.
            BatchError: a column of other lengths, or one that the layout itself gives (attention_mask, position_ids).
        """
        for name in (*(columns or ()), *(sequence_columns or ())):
            if name == "input_ids":
                raise BatchError("input_ids are the sequences themselves, and no column of them")
            if name in (MASK, "position_ids"):
                raise BatchError(
                    f"{name} is the layout's, and is no column: give sequences without padding, or dicts with an "
                    "attention_mask to from_features"
                )
        stacked = Columns.of_sequences(sequences, columns or {})
        count = stacked.seq_lengths.size
        arrays = {name: per_sequence(name, given, count) for name, given in (sequence_columns or {}).items()}
        stacked = replace(stacked, values={**stacked.values, **arrays})
        return cls._laid_out(stacked, form, capacity, depth, packs, rows, end_to_end, pad_id, fill)

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[PackedRow],
        *,
        form: Form = "rows",
        capacity: int | None = None,
        pad_id: int = 0,
        fill: Mapping[str, Any] | None = None,
    ) -> PackedBatch:
        """Build a batch of rows of a packed dataset (`nopad.open_packed`), which stay the rows they are.

        `capacity` is that of the dataset; `pad_id` and `fill` as in `from_sequences`.
        """
        stacked, per_row = from_rows(rows)
        if form == "flat":
            layout = Layout.flat(stacked.seq_lengths)
        elif capacity is None:
            raise OptionError("rows need their width: give capacity=dataset.capacity")
        else:
            layout = Layout.rows(stacked.seq_lengths, per_row, capacity)
        return cls._filled(stacked, stacked.tokens, layout, pad_id, fill)

    @classmethod
    def from_features(cls, features: Sequence[Mapping[str, Any]], *, causal: bool = False, **how: Any) -> PackedBatch:
        """Build a batch of dicts, one a sequence, as Hugging Face datasets give them; `how` as in `from_sequences`.

        Padding is cut off by ``attention_mask``; rows of a packed dataset (with ``seq_lengths``) are taken apart.
        `causal`: for causal language models: ``labels`` of first tokens become -100, since nothing predicts them, and
        loops count the others.
        """
        known = {"form": "flat", "capacity": None, "depth": None, "packs": None, "rows": None, "end_to_end": False}
        odd = how.keys() - {*known, "pad_id", "fill"}
        if odd:
            raise OptionError(f"unknown option {', '.join(sorted(odd))}; there are {', '.join(known)}, pad_id, fill")
        how = known | how
        stacked = from_features(features)
        if causal and "labels" in stacked.tokens:
            stacked.tokens["labels"][np.cumsum(stacked.seq_lengths) - stacked.seq_lengths] = -100
        pad_id, fill = how.pop("pad_id", 0), how.pop("fill", None)
        return cls._laid_out(stacked, **how, pad_id=pad_id, fill=fill)

    @classmethod
    def _laid_out(
        cls,
        stacked: Columns,
        form: Form,
        capacity: int | None,
        depth: int | None,
        packs: Packs | None,
        rows: int | None,
        end_to_end: bool,
        pad_id: int,
        fill: Mapping[str, Any] | None,
    ) -> PackedBatch:
        if form == "flat":
            asked = {"capacity": capacity, "depth": depth, "packs": packs, "rows": rows, "end_to_end": end_to_end}
            of_rows = [name for name, value in asked.items() if value is not None and value is not False]
            if of_rows:
                raise OptionError(f"a flat batch has no rows, so no {' or '.join(of_rows)}; give form='rows' too")
            return cls._filled(stacked, stacked.tokens, Layout.flat(stacked.seq_lengths), pad_id, fill)
        if form != "rows":
            raise OptionError(f"form is {form!r}; it must be 'rows' or 'flat'")
        if packs is not None:
            if depth is not None or end_to_end:
                raise OptionError("packs say what lies in each row; depth and end_to_end do not go with them")
            if capacity not in (None, packs.capacity):
                raise OptionError(f"capacity is {capacity}, and the packs are of {packs.capacity}; leave it out")
            capacity = packs.capacity
        if end_to_end and depth is not None:
            raise OptionError("rows filled end to end have no depth; leave one of the two out")
        if capacity is None:
            raise OptionError("rows need their width: give a capacity")
        if end_to_end:
            layout = Layout.end_to_end(stacked.seq_lengths, capacity, rows)
            return cls._filled(stacked, stacked.tokens, layout, pad_id, fill)
        if packs is None:
            from nopad.assignment import pack

            packs = pack(stacked.seq_lengths, capacity, depth=depth, algorithm="bfd", order="source")
        elif packs.sequences != stacked.seq_lengths.size:
            raise OptionError(f"packs hold {packs.sequences} sequences, and {stacked.seq_lengths.size} are given")
        per_row = np.diff(packs.indptr)
        if rows is not None:
            if rows < per_row.size:
                raise OptionError(f"these sequences take {per_row.size} rows of {capacity}, and {rows} are given")
            per_row = np.concatenate([per_row, np.zeros(rows - per_row.size, dtype=per_row.dtype)])
        order = packs.sequence.astype(np.int64)
        layout = Layout.rows(stacked.seq_lengths, per_row, capacity, order)
        return cls._filled(stacked, stacked.streams(order), layout, pad_id, fill)

    @classmethod
    def _filled(
        cls,
        stacked: Columns,
        streams: Mapping[str, NDArray[Any]],
        layout: Layout,
        pad_id: int,
        fill: Mapping[str, Any] | None,
    ) -> PackedBatch:
        """Lay columns out; `streams`: those per token, in stream order."""
        for name in fill or ():
            if name not in stacked.tokens:
                raise OptionError(f"fill names {name!r}; columns with a value a token are {', '.join(stacked.tokens)}")
        fills = {"input_ids": pad_id, **{n: -100 for n in stacked.tokens if n.endswith("labels")}, **(fill or {})}
        fields: dict[str, Any] = {name: layout.scatter(column, fills.get(name, 0)) for name, column in streams.items()}
        layout = replace(layout, records=stacked.records) if stacked.records else layout
        fields["position_ids"] = layout.position_ids
        return cls({**fields, **stacked.values, MASK: PackedMask(layout)})

    def __getitem__(self, name: str) -> Any:
        """Return a field as the model gets it: a torch tensor where it is numbers."""
        value = self._fields[name]
        if isinstance(value, np.ndarray) and value.dtype != object:
            import torch

            value = self._fields[name] = torch.from_numpy(np.ascontiguousarray(value))
        if name in MARKED and not isinstance(value, np.ndarray) and not self._one_alone:
            mark(value)
        return value

    def __setitem__(self, name: str, value: Any) -> None:
        if name == MASK and value is not self._fields[MASK]:
            raise BatchError("the attention_mask of a packed batch is its layout, and is not set")
        self._fields[name] = value

    def __delitem__(self, name: str) -> None:
        if name in (MASK, f"decoder_{MASK}"):
            raise BatchError(
                f"the {name} of a packed batch says where its sequences end, and is not taken out; a model without it "
                "would let them see each other. batch.as_flash_kwargs() is for models on flash attention"
            )
        del self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        at = self.layout
        return (
            f"PackedBatch({at.sequences} sequences, {at.tokens} tokens in {at.shape[0]} x {at.shape[1]} slots: "
            f"{', '.join(name for name in self._fields if name != MASK)})"
        )

    @property
    def _one_alone(self) -> bool:
        """Whether this is one sequence without padding, which any model may run as it is."""
        return self.layout.sequences == 1 and self.layout.tokens == self.layout.slots == self.layout.shape[1]

    @property
    def input_ids(self) -> Any:
        """Ids ``[R, L]``, as stored: int64 NumPy, or torch."""
        return self._fields["input_ids"]

    @property
    def position_ids(self) -> Any:
        """Position of each token in its sequence, from 0 ``[R, L]``; models that count from elsewhere are served."""
        return self._fields["position_ids"]

    @property
    def sequence_ids(self) -> NDArray[np.int32]:
        """Number of each slot's sequence in the order given, from 1, 0 in padding; int32 ``[R, L]``, on the host."""
        return self.layout.sequence_ids

    @property
    def seq_lengths(self) -> NDArray[np.int32]:
        """Lengths in the order given; int32 ``[S]``, on the host."""
        return self.layout.seq_lengths

    @property
    def cu_seqlens(self) -> NDArray[np.int32]:
        """Where sequences begin in the stream without padding, row after row; int32 ``[S + 1]``, on the host."""
        return self.layout.cu_seqlens

    @property
    def records(self) -> Mapping[str, NDArray[Any]]:
        """Where each sequence of a packed dataset comes from, in the order given; ``[S]`` each, on the host."""
        return self.layout.records

    @property
    def max_seqlen(self) -> int:
        """The longest length."""
        return self.layout.max_seqlen

    def to(self, device: Any, non_blocking: bool = False) -> PackedBatch:
        """Return this batch on a torch device.

        Raises:
            OptionError: `device` is a dtype: ids and labels keep theirs.
        """
        import torch

        if isinstance(device, torch.dtype):
            raise OptionError(f"a batch keeps its dtypes; .to takes a device, not {device}")
        return self._mapped(lambda value: value.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> PackedBatch:
        """Return this batch in page-locked memory."""
        return self._mapped(lambda value: value.pin_memory())

    def _mapped(self, function: Any) -> PackedBatch:
        import torch

        return PackedBatch({n: function(self[n]) if isinstance(self[n], torch.Tensor) else self[n] for n in self})

    def unpack(self, values: Any, per: Literal["token", "sequence"] | None = None) -> list[Any]:
        """Split values into one per sequence, in the order in which the sequences were given.

        Args:
            values: NumPy or torch, ``[R, L, ...]``, one for each slot; or ``[S, ...]``, one for each sequence.
            per: which of the two; None: by the shape.

        Raises:
            BatchError: neither, or real numbers of a shape that is both, and `per` does not say which.
            OptionError: another `per`.
        """
        at = self.layout
        if per not in (None, "token", "sequence"):
            raise OptionError(f"unknown per {per!r}; it is 'token' or 'sequence'")
        if per is None and _is_either(values, at):
            raise BatchError(
                f"values of shape {tuple(values.shape)} may be one a slot or one a sequence of this batch; say which: "
                "unpack(values, per='token') or per='sequence'"
            )
        if values.shape[:2] == at.shape and per != "sequence":
            stream = values.reshape(at.slots, *values.shape[2:])
            if at.form != "flat":
                stream = stream[_index_like(stream, at.index)]
            out: list[Any] = [None] * at.sequences
            for number, (begin, end) in zip(at.order.tolist(), pairwise(at.cu_seqlens.tolist()), strict=True):
                out[number] = stream[begin:end]
            return out
        if values.shape[:1] != (at.sequences,) or per == "token":
            raise BatchError(
                f"cannot unpack values of shape {tuple(values.shape)}; wanted [{at.shape[0]}, {at.shape[1]}, ...] for "
                f"tokens, or [{at.sequences}, ...] for sequences"
            )
        return list(values)

    def with_decoder(self, targets: Sequence[Any], start_id: int, **how: Any) -> PackedBatch:
        """Return this batch with targets for an encoder-decoder model, one for each sequence, in the order given.

        The decoder gets each target shifted by one place, with `start_id` first; ``labels`` are the targets. Decoder
        sequences are packed by themselves: flat, or in rows by `how` as in `from_sequences`. With the backend `mask` a
        sequence and its target must be in the same row.

        Raises:
            BatchError: another number of targets than of sequences.
        """
        if len(targets) != self.layout.sequences:
            raise BatchError(f"{len(targets)} targets for {self.layout.sequences} sequences; one for each is wanted")
        arrays = [np.asarray(target) for target in targets]
        shifted = [np.concatenate([[start_id], target[:-1]]) for target in arrays]
        decoder = PackedBatch.from_sequences(shifted, columns={"labels": arrays}, **how)
        added = {"decoder_input_ids": decoder["input_ids"], "labels": decoder["labels"]}
        return PackedBatch({**self._fields, **added, "decoder_attention_mask": decoder._fields[MASK]})

    def as_flash_kwargs(self) -> dict[str, Any]:
        """Return the arguments with which transformers' own flash attention keeps sequences apart, and no mask.

        Only for the flat form, and only for models on flash attention: others take these arguments in silence and let
        sequences see each other.

        Raises:
            BatchError: the batch is in rows.
        """
        if self.layout.form != "flat":
            raise BatchError("transformers' flash attention takes one stream; build the batch with form='flat'")
        import torch

        device = self["input_ids"].device
        ends = torch.from_numpy(self.cu_seqlens).to(device)
        fields = {name: self[name] for name in self if name != MASK}
        return {**fields, **dict(zip(FLASH_KEYS, (ends, ends, self.max_seqlen, self.max_seqlen), strict=True))}


def _index_like(stream: Any, index: NDArray[np.int64]) -> Any:
    """An index of the same library, on the same device."""
    if isinstance(stream, np.ndarray):
        return index
    import torch

    return torch.from_numpy(index).to(stream.device)


def _is_either(values: Any, at: Layout) -> bool:
    """Whether ``[R, L]`` may as well be ``[S, H]``, and it makes a difference; whole numbers are ids or labels."""
    same = values.ndim == 2 and tuple(values.shape) == at.shape and at.shape[0] == at.sequences
    real = values.dtype.kind == "f" if isinstance(values, np.ndarray) else values.is_floating_point()
    return bool(same and real and at.tokens < at.slots)
