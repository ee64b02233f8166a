"""`PackedBatch`: several sequences in rows or in one stream, with the layout by which a model keeps them apart.

A batch is built in NumPy from sequences, from rows of a packed dataset, or from the features that a Hugging Face
collator gets; reading a column of numbers gives a torch tensor. A batch is a mapping, so ``model(**batch)`` works. Its
``attention_mask`` is a guard (`nopad.batch.guard`): a model that was not made pack-safe raises an error when it uses
the mask. Building takes O(tokens), without a Python loop over tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nopad.batch.columns import from_columns, from_rows, from_sequences, per_sequence, without_computed
from nopad.batch.decoder import shifted
from nopad.batch.exports import flash_kwargs, grain_arrays
from nopad.batch.features import from_features
from nopad.batch.filling import MASK, TARGETS, filled, without_first
from nopad.batch.form import Flat, Form, check_form
from nopad.batch.guard import PackedMask, layout_of
from nopad.batch.images import columns_of_images
from nopad.batch.items import Items
from nopad.batch.splitting import laid_out, split
from nopad.batch.values import check_embeddings, ignored, named, shape_of
from nopad.errors import BatchError, OptionError, load_torch
from nopad.options import shown
from nopad.sequences import Sequences

if TYPE_CHECKING:
    from nopad.store.reader import PackedRow

__all__ = ["PackedBatch"]

FLAT = Flat()


class PackedBatch(Items):
    """A packed batch: S sequences with T tokens, in R rows of L slots; a slot holds a token or padding.

    A batch is a mapping. Its items are the arguments of ``model(**batch)``:

    * ``input_ids`` and ``position_ids``, ``[R, L]``
    * every column that was given: ``[R, L]`` with a value per token, or ``[S, ...]`` with a value per sequence
    * the columns of images and videos, if there are some (`from_features`)
    * a guard as ``attention_mask``: a model that is not pack-safe raises an error when it uses the mask

    Reading a column of numbers gives a torch tensor. Values per sequence are in the order in which the sequences were
    given; for rows of a packed dataset, that is row after row.

    Attributes:
        layout: where the tokens lie (`Layout`); in a batch with targets, the layout of the sources.

    >>> from nopad import PackedBatch, Rows
    >>> batch = PackedBatch.from_sequences([[7, 8, 9], [5], [1, 2]], Rows(4))
    >>> batch.input_ids.tolist(), batch.position_ids.tolist(), batch.sequence_ids.tolist()
    ([[7, 8, 9, 5], [1, 2, 0, 0]], [[0, 1, 2, 0], [0, 1, 0, 0]], [[1, 1, 1, 2], [3, 3, 0, 0]])
    >>> [ids.tolist() for ids in batch.unpack_tokens(batch.input_ids)]
    [[7, 8, 9], [5], [1, 2]]
    """

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
            columns: further columns by name; each is either n lists with one value per token, or n single values, one
                per sequence.
            sequence_columns: columns by name; each has one array per sequence, all of one shape, such as multi-label
                targets ``[n, C]``.
            pad_id: id of the padding in ``input_ids``.
            fill: padding value of each other per-token column, by name; default: -100 for names that end in
                ``labels``, 0 for other names.

        Raises:
            LengthError: a sequence is empty; with `Rows`, a sequence or pack is longer than the capacity, or rows
                filled end to end are too few for the tokens.
            OptionError: an option is invalid; the sequences take more rows than `form` has; the `packs` of `form` hold
                another number of sequences; `fill` names a column that is not per token; or a column cannot hold its
                padding value (`pad_id` or `fill`).
            BatchError: there is no sequence, or ids are not integers; a column has wrong lengths or unusable values; or
                a column is one that the batch provides itself (input_ids, attention_mask, position_ids, cu_seqlens,
                sequence_ids), or is in `columns` and in `sequence_columns`.
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
            if name in columns and name in sequence_columns:
                raise BatchError(f"{name!r} is in columns and in sequence_columns; give it in one of them")
        stacked = from_sequences(sequences, columns)
        if sequence_columns:
            arrays = {name: per_sequence(name, given, len(stacked)) for name, given in sequence_columns.items()}
            stacked = replace(stacked, values={**stacked.values, **arrays})
        return cls(filled(without_computed(stacked), form.layout(stacked.seq_lengths), pad_id, fill))

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[PackedRow],
        form: Form = FLAT,
        *,
        pad_id: int = 0,
        fill: Mapping[str, Any] | None = None,
    ) -> PackedBatch:
        """Build a batch of rows of a packed dataset (`nopad.open_packed`).

        With `Rows`, each row of the dataset is a row of the batch. With `Flat`, the sequences of all rows are in one
        stream, row after row. Columns of float64 become float32.

        Args:
            rows: the rows, as indexing the dataset gives them.
            form: `nopad.Flat()`, one stream, or `nopad.Rows(capacity)` with the capacity of the dataset.
            pad_id: id of the padding in ``input_ids``.
            fill: padding value of each other per-token column, by name; default: -100 for names that end in ``labels``,
                0 for other names.

        Raises:
            LengthError: with `Rows`, the sequences of a row take more slots than the capacity.
            OptionError: `form` is invalid, has fewer rows than are given, or has `depth`, `packs` or `end_to_end`,
                which would move sequences to other rows; or `pad_id` or `fill` is invalid.
            BatchError: one of these:

                * there is no row, or an entry is not a row of `nopad.open_packed`
                * the dataset is index-only: its rows hold no tokens
                * a number does not fit into int64 or float32
                * there are both ``label`` and ``label_ids``, but no ``labels``
                * ``position_ids`` do not count from 0 in each sequence; or a column is called ``cu_seqlens``,
                  ``sequence_ids`` or ``attention_mask``, which the batch computes
        """
        form = check_form(form)
        stacked, records, per_row = from_rows(rows)
        return cls(filled(stacked, form.keep(stacked.seq_lengths, per_row), pad_id, fill, records))

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
        """Build a batch from dicts, as Hugging Face datasets give them; use it as a collator.

        Tokens whose ``attention_mask`` is 0 are padding and are removed. Rows of a packed dataset, which have
        ``seq_lengths``, are split into sequences. A column ``label`` or ``label_ids`` is renamed to ``labels``, unless
        there is a column ``labels`` already.

        A dict may also be what a processor of transformers gives for one text with its images and videos: columns
        ``[1, L]``; ``pixel_values`` (images ``[images, C, height, width]``, or patches ``[patches, size]`` with
        ``image_grid_thw`` ``[images, 3]``); and ``pixel_values_videos`` (patches) with ``video_grid_thw``
        ``[videos, 3]`` and, for Qwen2.5-VL, ``second_per_grid_ts`` ``[videos]``. In the dict of a text without images,
        the keys of images are missing or None; the same goes for videos. The batch holds all images, and all videos, in
        the order in which sequences lie in its rows, as models read them. Its attributes `images` and `videos` are the
        numbers of images and of videos in each sequence.

        Args:
            features: one dict per sequence, or per row of a packed dataset, with ``input_ids``; all have the same keys,
                apart from those of images and videos.
            form: `nopad.Flat()`, one stream without padding, or `nopad.Rows(capacity)`.
            causal: whether the batch is for a causal language model. The label of each sequence's first token then
                becomes -100, since no token of its sequence predicts it, and training loops must not count it.
            pad_id: id of the padding in ``input_ids``.
            fill: padding value of each other per-token column, by name; default: -100 for names that end in ``labels``,
                0 for other names.

        Raises:
            LengthError: a sequence is empty; with `Rows`, a sequence or pack is longer than the capacity, or rows
                filled end to end are too few for the tokens.
            OptionError: `form`, `pad_id` or `fill` is invalid; the sequences take more rows than `form` has; or the
                `packs` of `form` hold another number of sequences.
            BatchError: one of these:

                * `features` are not dicts, or there are none
                * dicts have different keys, or no ``input_ids``; or both ``label`` and ``label_ids``, but no ``labels``
                * a mask has a 0 between ones, or a value other than 0 and 1
                * a list is not as long as its ``input_ids``, the ``seq_lengths`` of a row do not add up to its tokens,
                  or a column has values that cannot be used
                * every sequence of the rows has one token, so a column of numbers may have one value per token or per
                  sequence
                * ``position_ids`` do not count from 0 in each sequence; or a column is called ``cu_seqlens`` or
                  ``sequence_ids``, which the batch computes
                * images are in tiles, with a mask, or in a row of a packed dataset; or images or videos have wrong
                  shapes, do not fit their grid, or cannot be concatenated
        """
        form = check_form(form)
        stacked, records, images = from_features(features)
        layout = form.layout(stacked.seq_lengths)
        stacked, layout = without_first(stacked, layout) if causal else (stacked, layout)
        return cls(filled(stacked, layout, pad_id, fill, records, images))

    @classmethod
    def from_columns(
        cls,
        sequences: Sequences,
        form: Form = FLAT,
        *,
        per_row: NDArray[np.int64] | None = None,
        causal: bool = False,
        pad_id: int = 0,
        fill: Mapping[str, Any] | None = None,
    ) -> PackedBatch:
        """Build a batch of sequences in columns (`Sequences`), as a loader gathers them.

        The batch may share memory with the arrays of `sequences`: with those per sequence in every form, and with those
        per token in the flat form. Building the batch does not change them.

        Args:
            sequences: the sequences; their columns ``seq_index``, ``seq_start`` and ``seq_source`` become the batch's
                `records`. Images and videos are in columns with the names of `from_features`: arrays of objects, with
                an array for each sequence, or None.
            form: `nopad.Flat()`, one stream without padding, or `nopad.Rows(capacity)`.
            per_row: with `Rows`, how many sequences each row takes, int64 ``[R]``, in the order given. None: `form`
                decides. The flat form ignores `per_row`.
            causal: whether the batch is for a causal language model. The label of each sequence's first token then
                becomes -100.
            pad_id: id of the padding in ``input_ids``.
            fill: padding value of each other per-token column, by name; default: -100 for names that end in ``labels``,
                0 for other names.

        Raises:
            LengthError: a sequence is empty; with `Rows`, a row or a sequence takes more slots than the capacity, or
                rows filled end to end are too few for the tokens.
            OptionError: one of these:

                * `form`, `pad_id` or `fill` is invalid
                * the sequences take more rows than `form` has
                * without `per_row`: the `packs` of `form` hold another number of sequences
                * with `per_row` and `Rows`: `per_row` does not add up to the number of sequences, or has a negative
                  number; or `form` has `depth`, `packs` or `end_to_end`, which would move sequences to other rows
            BatchError: one of these:

                * `sequences` are not `Sequences`, hold no sequence, or have no ``input_ids``
                * a column of ``sequences.tokens`` does not have one value per token
                * an integer does not fit into int64
                * a column of Arrow has a null, lists of different lengths, or lists of other values than numbers
                * there are both ``label`` and ``label_ids``, but no ``labels``
                * ``position_ids`` do not count from 0 in each sequence; or a column is called ``cu_seqlens``,
                  ``sequence_ids`` or ``attention_mask``, which the batch computes
                * images or videos have wrong shapes, do not fit their grid, or cannot be concatenated
        """
        form = check_form(form)
        if not isinstance(sequences, Sequences):
            raise BatchError(
                f"sequences are of type {type(sequences).__name__}; expected nopad.sequences.Sequences, or give lists "
                "of ids to PackedBatch.from_sequences"
            )
        sequences, images = columns_of_images(sequences)
        stacked, records = from_columns(sequences)
        lens = stacked.seq_lengths
        layout = form.layout(lens) if per_row is None else form.keep(lens, per_row)
        stacked, layout = without_first(stacked, layout) if causal else (stacked, layout)
        return cls(filled(stacked, layout, pad_id, fill, records, images))

    @classmethod
    def from_embeddings(
        cls,
        embeddings: Sequence[Any],
        form: Form = FLAT,
        *,
        columns: Mapping[str, Any] | None = None,
        sequence_columns: Mapping[str, Any] | None = None,
        fill: Mapping[str, Any] | None = None,
    ) -> PackedBatch:
        """Build a batch of sequences whose tokens are vectors: patches of images, frames of sound, any embeddings.

        The batch has ``inputs_embeds`` ``[R, L, H]`` in place of ``input_ids``, with the embeddings' dtype and device;
        padding is 0. Gradients flow back through ``inputs_embeds`` to the embeddings.

        Args:
            embeddings: n float tensors ``[length, H]``, one per sequence, all of one dtype and on one device.
            form: `nopad.Flat()`, one stream without padding, or `nopad.Rows(capacity)`.
            columns: further columns by name; each is either n lists with one value per token, or n single values, one
                per sequence.
            sequence_columns: columns by name; each has one array per sequence, all of one shape.
            fill: padding value of each other per-token column, by name; default: -100 for names that end in ``labels``,
                0 for other names.

        Raises:
            LengthError: a sequence is empty; with `Rows`, a sequence or pack is longer than the capacity, or rows
                filled end to end are too few for the tokens.
            OptionError: `form` or `fill` is invalid; the sequences take more rows than `form` has; or the `packs` of
                `form` hold another number of sequences.
            MissingExtraError: torch is not installed.
            BatchError: there are no embeddings; they are not all float tensors ``[length, H]`` with the same H, dtype
                and device; or a column has wrong lengths or unusable values, or is one that the batch provides itself
                (input_ids, inputs_embeds, attention_mask, position_ids, cu_seqlens, sequence_ids).
        """
        check_embeddings(embeddings)
        for name in ("input_ids", "inputs_embeds"):
            if name in named("columns", columns) or name in named("sequence_columns", sequence_columns):
                raise BatchError(f"{name} are no column of embeddings, which are a batch's tokens themselves")
        ids = [np.zeros(len(one), dtype=np.int64) for one in embeddings]
        batch = cls.from_sequences(ids, form, columns=columns, sequence_columns=sequence_columns, fill=fill)
        del batch["input_ids"]
        batch = batch.to(embeddings[0].device)
        batch["inputs_embeds"] = batch.pack_tokens(embeddings)
        return batch

    def as_stand_in(self) -> PackedBatch:
        """Return a copy of this batch as a stand-in: with `weight` 0, empty `records`, and labels that losses ignore.

        A rank that has no sequence left runs a stand-in, so that all ranks take part in the step. All columns whose
        names end in ``labels`` become -100 if they are integers or booleans, and otherwise NaN. Labels that were
        booleans or unsigned become int64. A mean over no valid label is NaN, so a loss that forgets `weight` is
        noticed. The targets of `with_decoder` are marked too.
        """

        def marked(name: str, value: Any) -> Any:
            if isinstance(value, PackedMask):  # of the sequences, or of their targets
                layout = layout_of(value)
                records = {key: values[:0] for key, values in layout.records.items()}
                return PackedMask(layout.marked(stand_in=True, records=records))
            return ignored(value) if name.endswith("labels") else value

        return PackedBatch({name: marked(name, value) for name, value in self._fields.items()})

    @property
    def sources(self) -> PackedBatch:
        """The encoder's batch: the items of this batch without the targets of `with_decoder`, and without ``labels``.

        The `unpack_tokens` of the returned batch splits the encoder's outputs into sequences.
        """
        return PackedBatch({name: value for name, value in self._fields.items() if name not in TARGETS})

    @property
    def targets(self) -> PackedBatch:
        """The decoder's batch: this batch's ``decoder_input_ids`` as ``input_ids``, and its ``labels``.

        The returned batch has the layout of the targets of `with_decoder`; its `unpack_tokens` splits the decoder's
        outputs into sequences.

        Raises:
            BatchError: this batch has no targets.
        """
        ids, labels, mask = (self._fields.get(name) for name in TARGETS)
        if mask is None:
            raise BatchError("this batch has no targets; batch.with_decoder(targets, start_id) adds them")
        fields = {"input_ids": ids, "labels": labels, "position_ids": layout_of(mask).position_ids, MASK: mask}
        return PackedBatch({name: value for name, value in fields.items() if value is not None})

    def to(self, device: Any, non_blocking: bool = False) -> PackedBatch:
        """Return a copy of this batch whose tensors are on a torch device; `non_blocking` is that of ``Tensor.to``.

        Raises:
            OptionError: `device` is not a torch device, or it is a dtype: the items keep their dtypes.
            MissingExtraError: torch is not installed.
        """
        torch = load_torch("moving a batch to a device")
        if isinstance(device, torch.dtype):
            raise OptionError(f"a batch keeps its dtypes; .to takes a device, not {device}")
        try:
            device = torch.device(device)
        except (RuntimeError, TypeError, ValueError) as error:
            raise OptionError(f"{shown(device)} is no torch device, such as 'cpu' or 'cuda:0'") from error
        return self._mapped(lambda value: value.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> PackedBatch:
        """Return a copy of this batch whose tensors are in pinned (page-locked) memory.

        Raises:
            MissingExtraError: torch is not installed.
        """
        return self._mapped(lambda value: value.pin_memory())

    def unpack_tokens(self, values: Any) -> list[Any]:
        """Split values per token into one array per sequence, in the order in which the sequences were given.

        Args:
            values: ``[R, L, ...]``, one value per slot; NumPy or torch.

        Returns:
            One array ``[length, ...]`` per sequence.

        Raises:
            BatchError: `values` is not an array; its shape does not begin with ``[R, L]``; or it may belong to the
                batch's targets: it has the shape of the targets, and the targets do not lie where the sequences lie.
                Then call `unpack_tokens` of `targets` or of `sources`.
        """
        target = self._fields.get(f"decoder_{MASK}")
        return split(values, self.layout, None if target is None else layout_of(target))

    def pack_tokens(self, values: Sequence[Any]) -> Any:
        """Put per-token values, one array per sequence, where the batch's tokens lie; the inverse of `unpack_tokens`.

        Args:
            values: one array ``[length, ...]`` per sequence, in the order in which the sequences were given; NumPy or
                torch. Gradients of torch tensors flow through.

        Returns:
            ``[R, L, ...]``, with 0 in padding.

        Raises:
            BatchError: there is not one array for each sequence, an array is not as long as its sequence, or the
                arrays differ in type or in the dimensions after the first.
        """
        return laid_out(values, self.layout)

    def unpack_sequences(self, values: Any) -> list[Any]:
        """Return values per sequence as a list of S entries, in the order in which the sequences were given.

        Args:
            values: ``[S, ...]``, one value per sequence in that order; NumPy or torch.

        Raises:
            BatchError: `values` is not an array, or its shape does not begin with ``[S]``.
        """
        if tuple(shape_of(values)[:1]) != (self.layout.sequences,):
            raise BatchError(
                f"values per sequence have the shape {list(values.shape)}; expected [{self.layout.sequences}, ...]"
            )
        return list(values)

    def with_decoder(self, targets: Sequence[Any], start_id: int, form: Form = FLAT, *, pad_id: int = 0) -> PackedBatch:
        """Return a copy of this batch with targets for an encoder-decoder model, one per sequence, in the order given.

        The item ``decoder_input_ids`` holds the targets shifted right by one token, with `start_id` first. The item
        ``labels`` holds the targets, and replaces other ``labels``. Targets are packed separately from the sequences
        (the sources). The attribute `targets` of the result is the decoder's batch: use it to split the decoder's
        outputs, and give it to losses. The attribute `sources` is the encoder's batch. With the attention backend
        "mask", each target must be in the row with the same index as the row of its source.

        Args:
            targets: ids of each target; S lists or integer arrays ``[length]``.
            start_id: the id that every decoder sequence begins with, mostly ``model.config.decoder_start_token_id``.
            form: how the targets are laid out: `nopad.Flat()` or `nopad.Rows(capacity)`.
            pad_id: id of the padding in ``decoder_input_ids``.

        Raises:
            BatchError: there is not one target per sequence, or a target is not a list of ids or holds a negative id,
                such as -100.
            LengthError: a target is empty; with `Rows`, a target or pack is longer than the capacity, or rows filled
                end to end are too few for the targets.
            OptionError: `start_id` is not an integer from 0 to 2^31 - 1; `pad_id` is not an integer that int64 holds;
                `form` is invalid; the targets take more rows than `form` has; or its `packs` hold another number of
                sequences.
            MissingExtraError: torch is not installed.
        """
        stacked = shifted(targets, self.layout.sequences, start_id)
        decoder = PackedBatch(filled(stacked, check_form(form).layout(stacked.seq_lengths), pad_id, None))
        added = {"decoder_input_ids": decoder["input_ids"], "labels": decoder["labels"]}
        return PackedBatch({**self._fields, **added, f"decoder_{MASK}": decoder._fields[MASK]})

    def as_flash_kwargs(self, *, seq_idx: bool = False) -> dict[str, Any]:
        """Return the arguments with which transformers' own flash attention keeps sequences apart, without a mask.

        They are the batch's items without the mask, and ``cu_seq_lens_q``, ``cu_seq_lens_k`` (both int32 ``[S + 1]``,
        on the batch's device), ``max_length_q`` and ``max_length_k`` (both integers). This works only for the flat form
        without padding, and only for models on flash attention: other attention silently ignores these arguments, and
        lets sequences see each other.

        Args:
            seq_idx: whether to add ``seq_idx``, the number of each token's sequence from 0; int32 ``[1, T]``. The
                convolutions and state spaces of hybrid models (Bamba, Granite) read it.

        Raises:
            BatchError: the batch is in rows or has padding; it has images or videos (a model may then compute the
                positions of tokens itself, along whole rows, as with M-RoPE); or it has targets for a decoder, which
                have lengths of their own.
            MissingExtraError: torch is not installed.
        """
        return flash_kwargs(self, seq_idx=seq_idx)

    def as_grain(self, names: Mapping[str, str] | None = None) -> dict[str, NDArray[Any]]:
        """Return NumPy arrays under the names that Grain's packing gives them, as JAX models read them.

        With each column ``[R, L]`` come two others, both int32 ``[R, L]`` and 0 in padding: ``<column>_segment_ids``,
        the number of each token's sequence within its row, from 1; and ``<column>_positions``, the position of each
        token in its sequence, from 0. Here ``<column>`` is the new name of a column that has one. Other columns, such
        as those per sequence ``[S, ...]``, are returned alone. ``position_ids`` and the mask are left out. Labels lie
        where their tokens lie, not shifted. In a stand-in (`weight` 0), all segment ids are 0, as in padding. Columns
        in bfloat16 become float32. Torch is not imported.

        Args:
            names: new names of columns, by their names in the batch, such as ``{"input_ids": "inputs"}``; columns that
                are not in it keep their names.

        Raises:
            BatchError: rows are filled end to end.
            OptionError: `names` is not a dict, or has a name that is not one of the returned columns; or two columns
                would get the same name.

        >>> from nopad import PackedBatch, Rows
        >>> batch = PackedBatch.from_sequences([[7, 8, 9], [5], [1, 2]], Rows(4))
        >>> {name: array.tolist() for name, array in batch.as_grain({"input_ids": "inputs"}).items()}
        {'inputs': [[7, 8, 9, 5], [1, 2, 0, 0]],
         'inputs_segment_ids': [[1, 1, 1, 2], [1, 1, 0, 0]],
         'inputs_positions': [[0, 1, 2, 0], [0, 1, 0, 0]]}
        """
        return grain_arrays(self, self._fields, named("names", names))
