"""A model in one dtype, and what an audit feeds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from nopad.auditing.probes import Places, draw, find, lengths_for
from nopad.batch import PackedBatch, Rows
from nopad.errors import BatchError
from nopad.model.safety import STATE, bare, part_of

__all__ = ["Collator", "Kinds", "Trial", "kinds_of", "outputs", "per_sequence"]

Collator = Callable[[list[dict[str, Any]]], Mapping[str, Any]]
Kinds = dict[str, Literal["token", "sequence"]]


@dataclass(frozen=True)
class Trial:
    """A model in one dtype, and what it is fed.

    Attributes:
        model: in evaluation mode.
        collator: what it is fed by; None: nopad.
        sequences: ids.
        others: as many, as long, with other ids.
        capacity: of packs.
        seed: of everything that is drawn.
        start: what a decoder's input begins with, where nopad feeds one; None: there is no decoder.
        partly: it computes some of it in float32, even in float64.
    """

    model: Any
    collator: Collator | None
    sequences: list[list[int]]
    others: list[list[int]]
    capacity: int
    seed: int
    start: int | None = None
    partly: bool = False

    @classmethod
    def drawn(cls, model: Any, collator: Collator | None, capacity: int, seed: int, most: int = 6) -> Trial:
        """Draw up to `most` sequences that fit the model."""
        config = bare(model).config.get_text_config()
        limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or capacity
        longest = min(capacity, max(int(limit) - 2, 1)) if limit > 0 else capacity
        avoid = [getattr(config, f"{name}_token_id", None) for name in ("pad", "mask", "bos", "eos", "cls", "sep")]
        flat = [
            token for entry in avoid for token in (entry if isinstance(entry, list) else [entry]) if token is not None
        ]
        lengths = lengths_for(longest, longest)[:most]
        sequences, others = (draw(lengths, config.vocab_size, flat, seed + at) for at in (0, 1))
        start = None if collator is not None or not _has_decoder(model) else _start(config)
        return cls(model, collator, sequences, others, longest, seed, start)

    @property
    def how(self) -> str:
        """What keeps sequences apart, in words."""
        if self.collator is not None:
            name = getattr(self.collator, "__name__", type(self.collator).__name__)
            return f"as it is, with {name}"
        return f"nopad, backend {getattr(bare(self.model), STATE).backend!r}"

    @property
    def forms(self) -> list[tuple[str, Collator]]:
        """The ways in which sequences are put together, by name."""
        if self.collator is not None:
            return [("packed", self.collator)]
        pad = bare(self.model).config.get_text_config().pad_token_id or 0

        def made(features: list[dict[str, Any]], **how: Any) -> PackedBatch:
            batch = PackedBatch.from_features(features, **how)
            if self.start is None:
                return batch
            return batch.with_decoder([feature["input_ids"] for feature in features], self.start, **how)

        return [("flat", made), ("rows", partial(made, form=Rows(self.capacity), pad_id=pad))]

    def alone(self, sequence: Sequence[int]) -> Any:
        """Run one sequence by itself.

        Raises:
            BatchError: the model does not run on ids alone.
        """
        inner = bare(self.model)
        device = next(inner.parameters()).device
        inputs: dict[str, Any] = {"input_ids": torch.tensor([list(sequence)], device=device)}
        if getattr(inner.config, "use_cache", None) is not None:
            inputs["use_cache"] = False
        if self.start is not None:
            inputs["decoder_input_ids"] = torch.tensor([[self.start, *sequence[:-1]]], device=device)
        try:
            return self.model(**inputs)
        except ValueError as error:
            raise BatchError(
                f"{type(inner).__name__} does not run on the input_ids of one sequence ({error}), so there is nothing "
                "to compare; audit it without a collator, or its encoder"
            ) from error

    @staticmethod
    def _without_labels(collate: Collator, features: list[dict[str, Any]]) -> Mapping[str, Any]:
        try:
            return collate([{"input_ids": feature["input_ids"]} for feature in features])
        except Exception as error:
            raise BatchError(
                f"the collator failed on dicts of input_ids and labels, and of input_ids alone: "
                f"{type(error).__name__}: {error}"
            ) from error

    def batch(self, collate: Collator, sequences: Sequence[Sequence[int]]) -> tuple[Mapping[str, Any], Places]:
        """Collate sequences, and find them in the batch."""
        features = [{"input_ids": list(sequence), "labels": list(sequence)} for sequence in sequences]
        try:
            batch = collate([dict(feature) for feature in features])
        except Exception:  # whatever theirs raises on labels
            batch = self._without_labels(collate, features)
        ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
        if not isinstance(batch, PackedBatch) and not (isinstance(ids, Tensor) and ids.dim() == 2):
            raise BatchError(
                f"the collator gave {type(batch).__name__} with {type(ids).__name__} as input_ids; wanted are the "
                "arguments of a forward call by name, input_ids a tensor [R, L] among them"
            )
        places = find(batch, sequences)
        device = next(bare(self.model).parameters()).device
        if isinstance(batch, PackedBatch):
            fields = batch.to(device)
            fields.pop("labels", None)
            return fields, places
        dtype = next(bare(self.model).parameters()).dtype
        moved = {n: _moved(v, device, dtype) for n, v in batch.items() if n != "labels"}
        return moved, places


def outputs(output: Mapping[str, Any]) -> dict[str, Tensor]:
    """What a model gave, by name: real numbers of at least one dimension."""
    return {n: v for n, v in output.items() if isinstance(v, Tensor) and v.is_floating_point() and v.dim() > 0}


def kinds_of(alone: Sequence[Mapping[str, Tensor]], sequences: Sequence[Sequence[int]]) -> Kinds:
    """Which outputs have a value a token; the others have one a sequence. Told by what sequences get alone."""

    def per_token(name: str) -> bool:
        pairs = zip((output[name] for output in alone), sequences, strict=True)
        return all(value.dim() > 1 and value.shape[1] == len(sequence) for value, sequence in pairs)

    return {name: "token" if per_token(name) else "sequence" for name in alone[0]}


def per_sequence(output: Mapping[str, Any], places: Places, kinds: Kinds) -> dict[str, list[Tensor]]:
    """The outputs of which every sequence has a part of its own."""
    split = {name: places.split(value, kinds[name]) for name, value in outputs(output).items() if name in kinds}
    return {name: parts for name, parts in split.items() if parts is not None}


def _moved(value: Any, device: Any, dtype: torch.dtype) -> Any:
    """On the model's device; real numbers, such as masks to be added, in its dtype, as near as it has them."""
    if not isinstance(value, Tensor):
        return value
    if value.is_floating_point():
        most = torch.finfo(dtype).max
        wide = value.double()
        value = torch.where(wide.isinf(), wide, wide.clamp(-most, most)).to(dtype)
    return value.to(device)


def _has_decoder(model: Any) -> bool:
    state = getattr(bare(model), STATE, None)
    return state is not None and state.family.encoder_decoder and part_of(bare(model), "decoder") is not None


def _start(config: Any) -> int:
    start = config.decoder_start_token_id
    return int(config.pad_token_id or 0) if start is None else int(start)
