"""`PackedBatch`: several sequences in rows or in one stream, and all that a model needs to keep them apart.

Built from sequences, from rows of a packed dataset, or from the features that Hugging Face loops collect, in NumPy;
what is read from it is torch. It is a mapping, so ``model(**batch)`` works, and its ``attention_mask`` is
a guard (`nopad.batch.guard`): a model that was not made pack-safe fails at first touch. O(tokens) to build, without a
loop over tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nopad.batch.columns import Records, from_features, from_rows, from_sequences, per_sequence
from nopad.batch.form import Flat, Form, check_form
from nopad.batch.guard import PackedMask, layout_of, mark
from nopad.batch.layout import Layout
from nopad.batch.values import check_fill, index_like, named, shape_of
from nopad.errors import BatchError, OptionError
from nopad.sequences import Sequences

if TYPE_CHECKING:
    from nopad.store.reader import PackedRow

__all__ = ["PackedBatch"]

FLAT = Flat()
MASK = "attention_mask"
TARGETS = ("decoder_input_ids", "labels", f"decoder_{MASK}")
MARKED = ("input_ids", "inputs_embeds", "position_ids", "decoder_input_ids")  # what a model must not get without it
FLASH_KEYS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


class PackedBatch(MutableMapping[str, Any]):
    """S sequences with T tokens in R rows of L slots.

    As a mapping it holds what `model(**batch)` gets: ``input_ids`` and ``position_ids`` ``[R, L]``, every column that
    was given (``[R, L]`` where it has a value per token, ``[S]`` where it has one per sequence), and the guard as
    ``attention_mask``. Values are torch tensors when read as items, whatever they are stored as. What is per sequence
    is in the order given, for rows of a packed dataset in the order of the rows and within them.

    Attributes:
        layout: where everything lies (`Layout`); of the sources, where there are targets too.
        sources, targets: the two sides of a batch for an encoder-decoder model, each as a batch.
        seq_lengths: lengths in the order given; int32 ``[S]``, on the host.
        cu_seqlens: where sequences begin in the stream without padding, row after row, and where the last one ends;
            int32 ``[S + 1]``, on the host.
        max_seqlen: the longest length.
        records: where each sequence of a packed dataset comes from: ``seq_index``, and ``seq_start`` and
            ``seq_source`` when there; ``[S]`` each, on the host. No column, so no model is given them.
        position_ids, sequence_ids: of each slot, see `Layout`.

    >>> from nopad import PackedBatch, Rows
    >>> batch = PackedBatch.from_sequences([[7, 8, 9], [5], [1, 2]], Rows(4))
    >>> batch.input_ids.tolist(), batch.position_ids.tolist(), batch.sequence_ids.tolist()
    ([[7, 8, 9, 5], [1, 2, 0, 0]], [[0, 1, 2, 0], [0, 1, 0, 0]], [[1, 1, 1, 2], [3, 3, 0, 0]])
    >>> [ids.tolist() for ids in batch.unpack_tokens(batch.input_ids)]
    [[7, 8, 9], [5], [1, 2]]
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        """Take the fields of another batch, perhaps changed; see `from_sequences` for a new one."""
        mask = fields.get(MASK) if isinstance(fields, Mapping) else None
        if not isinstance(mask, PackedMask):
            raise BatchError("a PackedBatch is made of the fields of another one; build it with from_sequences")
        self._fields = dict(fields)
        self.layout = layout_of(mask)

    @classmethod
    def from_sequences(
        cls,
        sequences: Sequence[Any],
        form: Form = FLAT,
        *,
        columns: Mapping[str, Any] | None = None,
        sequence_columns: Mapping[str, Any] | None = None,
        pad_id: int = 0,
        fill: Mapping[str, Any] | None = None,
    ) -> PackedBatch:
        """Build a batch of sequences of ids.

        Args:
            sequences: ids of each sequence; n lists or integer arrays ``[length]``.
            form: `nopad.Flat()`, one stream without padding, or `nopad.Rows(capacity)`.
            columns: further columns by name: n lists of one value per token, or n single values.
            sequence_columns: columns of n values per sequence that are arrays themselves, all of one shape: ``[n, C]``
                labels of several classes.
            pad_id: of the padding in ``input_ids``.
            fill: value of the padding in other per-token columns; default 0, and -100 in those named ``labels``.

        Raises:
            LengthError: a sequence is empty or above the capacity.
            OptionError: no form, or one that these sequences do not fit; a `fill` of no column.
            BatchError: a column of other lengths or of no numbers, or one that the layout itself gives
                (attention_mask, position_ids).
        """
        form = check_form(form)
        columns, sequence_columns = named("columns", columns), named("sequence_columns", sequence_columns)
        for name in (*columns, *sequence_columns):
            if name == "input_ids":
                raise BatchError("input_ids are the sequences themselves, and no column of them")
            if name in (MASK, "position_ids"):
                raise BatchError(
                    f"{name} is the layout's, and is no column: give sequences without padding, or dicts with an "
                    "attention_mask to from_features"
                )
        stacked = from_sequences(sequences, columns)
        if sequence_columns:
            arrays = {name: per_sequence(name, given, len(stacked)) for name, given in sequence_columns.items()}
            stacked = replace(stacked, values={**stacked.values, **arrays})
        return cls._filled(stacked, form.layout(stacked.seq_lengths), pad_id, fill)

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[PackedRow],
        form: Form = FLAT,
        *,
        pad_id: int = 0,
        fill: Mapping[str, Any] | None = None,
    ) -> PackedBatch:
        """Build a batch of rows of a packed dataset (`nopad.open_packed`), which stay the rows they are.

        `form`: `nopad.Rows(capacity)`, with the capacity of the dataset, or `nopad.Flat()`; `pad_id` and `fill` as in
        `from_sequences`.

        Raises:
            LengthError: a row is above the capacity.
            OptionError: no form, or one that would move the sequences to other rows; a `fill` of no column.
            BatchError: no row, or rows without tokens (of an index-only dataset).
        """
        form = check_form(form)
        stacked, records, per_row = from_rows(rows)
        return cls._filled(stacked, form.keep(stacked.seq_lengths, per_row), pad_id, fill, records)

    @classmethod
    def from_features(
        cls,
        features: Sequence[Mapping[str, Any]],
        form: Form = FLAT,
        *,
        causal: bool = False,
        pad_id: int = 0,
        fill: Mapping[str, Any] | None = None,
    ) -> PackedBatch:
        """Build a batch of dicts, one per sequence, as Hugging Face datasets give them: a collator.

        Padding is cut off by ``attention_mask``; rows of a packed dataset (with ``seq_lengths``) are taken apart;
        ``label`` and ``label_ids`` become ``labels``. `form`, `pad_id` and `fill` as in `from_sequences`.
        `causal`: for causal language models: ``labels`` of first tokens become -100, since nothing predicts them, and
        loops count the others.

        Raises:
            LengthError: a sequence is empty or above the capacity.
            OptionError: no form, or one that these sequences do not fit; a `fill` of no column.
            BatchError: dicts with other keys than the first, without ``input_ids``, a mask with a hole, other lengths;
                ``position_ids`` that do not count from 0 in each sequence.
        """
        form = check_form(form)
        stacked, records = from_features(features)
        layout = form.layout(stacked.seq_lengths)
        if causal:
            layout = replace(layout, causal=True)
            if "labels" in stacked.tokens:
                stacked.tokens["labels"][stacked.begins] = -100
        return cls._filled(stacked, layout, pad_id, fill, records)

    @classmethod
    def _filled(
        cls,
        stacked: Sequences,
        layout: Layout,
        pad_id: int,
        fill: Mapping[str, Any] | None,
        records: Records | None = None,
    ) -> PackedBatch:
        """Lay columns out."""
        fills = {"input_ids": pad_id, **named("fill", fill)}
        for name, value in fills.items():
            if name not in stacked.tokens:
                per_token = ", ".join(stacked.tokens)
                raise OptionError(f"fill names {name!r}; columns with a value per token are {per_token}")
            check_fill(name, value, stacked.tokens[name].dtype)
        fields: dict[str, Any] = {
            name: layout.scatter(column, fills.get(name, -100 if name.endswith("labels") else 0))
            for name, column in stacked.tokens.items()
        }
        layout = replace(layout, records=records) if records else layout
        fields["position_ids"] = layout.position_ids
        return cls({**fields, **stacked.values, MASK: PackedMask(layout)})

    def __getitem__(self, name: str) -> Any:
        """Return a field as the model gets it: a torch tensor where it is numbers."""
        value = self._fields[name]
        if isinstance(value, np.ndarray) and value.dtype != object:
            import torch

            from nopad.batch.device import lasting

            with lasting():
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
        """Ids ``[R, L]``; int64, torch, as ``batch["input_ids"]``."""
        return self["input_ids"]

    @property
    def position_ids(self) -> Any:
        """Position of each token in its sequence, from 0; int64 ``[R, L]``, torch. 0 in padding."""
        return self["position_ids"]

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
        """Where sequences begin in the stream without padding, and the last ends; int32 ``[S + 1]``, on the host."""
        return self.layout.cu_seqlens

    @property
    def records(self) -> Mapping[str, NDArray[Any]]:
        """Where each sequence of a packed dataset comes from, in the order given; ``[S]`` each, on the host."""
        return self.layout.records

    @property
    def max_seqlen(self) -> int:
        """The longest length."""
        return self.layout.max_seqlen

    @property
    def sources(self) -> PackedBatch:
        """This batch without its targets (`with_decoder`): what the encoder gets, and how its results are laid out."""
        return PackedBatch({name: value for name, value in self._fields.items() if name not in TARGETS})

    @property
    def targets(self) -> PackedBatch:
        """The targets (`with_decoder`) as a batch: what the decoder gets, and how its results are laid out.

        Raises:
            BatchError: there are none.
        """
        ids, labels, mask = (self._fields.get(name) for name in TARGETS)
        if mask is None:
            raise BatchError("this batch has no targets; batch.with_decoder(targets, start_id) adds them")
        fields = {"input_ids": ids, "labels": labels, "position_ids": layout_of(mask).position_ids, MASK: mask}
        return PackedBatch({name: value for name, value in fields.items() if value is not None})

    def to(self, device: Any, non_blocking: bool = False) -> PackedBatch:
        """Return this batch on a torch device.

        Raises:
            OptionError: `device` is no torch device, or is a dtype: ids and labels keep theirs.
        """
        import torch

        if isinstance(device, torch.dtype):
            raise OptionError(f"a batch keeps its dtypes; .to takes a device, not {device}")
        try:
            device = torch.device(device)
        except (RuntimeError, TypeError, ValueError) as error:
            raise OptionError(f"{device!r} is no torch device, such as 'cpu' or 'cuda:0'") from error
        return self._mapped(lambda value: value.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> PackedBatch:
        """Return this batch in page-locked memory."""
        return self._mapped(lambda value: value.pin_memory())

    def _mapped(self, function: Any) -> PackedBatch:
        import torch

        return PackedBatch({n: function(self[n]) if isinstance(self[n], torch.Tensor) else self[n] for n in self})

    def unpack_tokens(self, values: Any) -> list[Any]:
        """Split values per token into those of each sequence, in the order in which the sequences were given.

        Args:
            values: ``[R, L, ...]``, one for each slot; NumPy or torch.

        Returns:
            ``[length, ...]`` for each sequence.

        Raises:
            BatchError: another shape, or no array; or nobody can tell whether they are of sources or of targets.
        """
        at = self.layout
        given, target = tuple(shape_of(values)[:2]), self._fields.get(f"decoder_{MASK}")
        aimed = None if target is None or given != layout_of(target).shape else layout_of(target)
        if aimed is not None and not (given == at.shape and at.same_places(aimed)):
            raise BatchError(
                "these values have the shape of the targets; give them to batch.targets.unpack_tokens, or to "
                "batch.sources.unpack_tokens where they are the encoder's"
            )
        if given != at.shape:
            raise BatchError(
                f"values per token have the shape {list(values.shape)}; wanted [{at.shape[0]}, {at.shape[1]}, ...]"
            )
        stream = values.reshape(at.slots, *values.shape[2:])
        if at.form != "flat":
            stream = stream[index_like(stream, at.index)]
        out: list[Any] = [None] * at.sequences
        for number, (begin, end) in zip(at.order.tolist(), pairwise(at.cu_seqlens.tolist()), strict=True):
            out[number] = stream[begin:end]
        return out

    def unpack_sequences(self, values: Any) -> list[Any]:
        """Split values per sequence into a list, in the order in which the sequences were given.

        Args:
            values: ``[S, ...]``, one for each sequence; NumPy or torch.

        Raises:
            BatchError: another shape, or no array.
        """
        if tuple(shape_of(values)[:1]) != (self.layout.sequences,):
            raise BatchError(
                f"values per sequence have the shape {list(values.shape)}; wanted [{self.layout.sequences}, ...]"
            )
        return list(values)

    def with_decoder(self, targets: Sequence[Any], start_id: int, form: Form = FLAT, *, pad_id: int = 0) -> PackedBatch:
        """Return this batch with targets for an encoder-decoder model, one for each sequence, in the order given.

        The decoder gets each target shifted by one place, with `start_id` first; ``labels`` are the targets. Decoder
        sequences are packed by themselves, as `form` says. `batch.targets` is their batch, which splits what the
        decoder gives and goes to losses; `batch.sources` is that of the encoder. With the backend `mask` a sequence and
        its target must be in the same row.

        Raises:
            BatchError: another number of targets than of sequences, or a target that is no list of ids or has padding.
            LengthError: a target is empty or above the capacity.
            OptionError: `start_id` is no token, or `form` no form that these targets fit.
        """
        stacked = from_sequences(targets, {}, name="targets")
        lens = stacked.seq_lengths
        if lens.size != self.layout.sequences:
            raise BatchError(f"{lens.size} targets for {self.layout.sequences} sequences; one for each is wanted")
        labels = stacked.tokens["input_ids"]
        if labels.min() < 0:
            at = int(labels.argmin())
            number = int(np.searchsorted(np.cumsum(lens), at, side="right"))
            raise BatchError(
                f"target {number} holds {labels[at]}, which is no token: give targets without padding, and set "
                "batch['labels'] to -100 afterwards where nothing is to be learnt"
            )
        if isinstance(start_id, bool) or not isinstance(start_id, int | np.integer) or not 0 <= start_id < 2**31:
            raise OptionError(f"start_id is {start_id!r}; it is a token, mostly model.config.decoder_start_token_id")
        shifted = np.roll(labels, 1)
        shifted[stacked.begins] = start_id
        both = replace(stacked, tokens={"input_ids": shifted, "labels": labels})
        decoder = PackedBatch._filled(both, check_form(form).layout(lens), pad_id, None)
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
            raise BatchError("transformers' flash attention takes one stream; build the batch with nopad.Flat()")
        import torch

        device = self["input_ids"].device
        ends = torch.from_numpy(self.cu_seqlens).to(device)
        fields = {name: self[name] for name in self if name != MASK}
        return {**fields, **dict(zip(FLASH_KEYS, (ends, ends, self.max_seqlen, self.max_seqlen), strict=True))}
