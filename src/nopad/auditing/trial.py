"""A model in one dtype, and what an audit feeds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nopad.auditing.probes import Places, draw, find, lengths_for
from nopad.batch import PackedBatch
from nopad.errors import BatchError
from nopad.model.safety import STATE, bare

__all__ = ["Collator", "Trial", "outputs", "per_sequence", "run_alone"]

Collator = Callable[[list[dict[str, Any]]], Mapping[str, Any]]


@dataclass(frozen=True)
class Trial:
    """A model in one dtype, and what it is fed."""

    model: Any
    collator: Collator | None
    sequences: list[list[int]]
    others: list[list[int]]
    capacity: int
    seed: int

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
        return cls(model, collator, sequences, others, longest, seed)

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
        rows: dict[str, Any] = {"form": "rows", "capacity": self.capacity, "pad_id": pad}
        return [
            ("flat", lambda features: PackedBatch.from_features(features)),
            ("rows", lambda features: PackedBatch.from_features(features, **rows)),
        ]

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
        moved = {n: v.to(device) if isinstance(v, Tensor) else v for n, v in batch.items() if n != "labels"}
        return moved, places


def outputs(output: Mapping[str, Any]) -> dict[str, Tensor]:
    """What a model gave, by name: real numbers of at least one dimension."""
    return {n: v for n, v in output.items() if isinstance(v, Tensor) and v.is_floating_point() and v.dim() > 0}


def per_sequence(output: Mapping[str, Any], places: Places) -> dict[str, list[Tensor]]:
    """The outputs of which every sequence has a part of its own."""
    split = {name: places.split(value) for name, value in outputs(output).items()}
    return {name: parts for name, parts in split.items() if parts is not None}


def run_alone(model: Any, sequence: Sequence[int]) -> Any:
    """Run one sequence by itself."""
    inner = bare(model)
    no_cache = {"use_cache": False} if getattr(inner.config, "use_cache", None) is not None else {}
    return model(input_ids=torch.tensor([sequence], device=next(inner.parameters()).device), **no_cache)
