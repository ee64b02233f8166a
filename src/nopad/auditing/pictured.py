"""Audit a model that takes images, in nopad's own batches: compare samples run packed and alone.

The samples are those of `nopad.auditing.shown`. If the user gives a collator, the audit for texts
(`nopad.auditing.run`) is used instead, and the collator gets these samples as its features.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nopad.auditing.forms import MAY_REFUSE
from nopad.auditing.samples import compared
from nopad.auditing.shown import Patches, Pictures, shown_to, tokens_of
from nopad.auditing.subject import eager_experts
from nopad.auditing.verdict import Verdict
from nopad.batch import Flat, PackedBatch, Rows
from nopad.batch.images import PICTURES
from nopad.model.fronts import front_of
from nopad.model.safety import bare, is_packed, packed, state_of

__all__ = ["DRAWN", "audit_pictured"]

RESULTS = ("logits", "last_hidden_state", "pooler_output")
NO_ROWS_OF = "mask"  # the backend that refuses rows filled end to end
DRAWN = "its images were drawn by its configuration; no processor ran"
Sample = dict[str, Tensor]


def audit_pictured(model: Any, backend: Callable[[torch.dtype], str], gradients: bool, seed: int, how: str) -> Verdict:
    """Audit a model that takes images, on five samples that are drawn.

    The samples run alone and in packs: in one flat row, in rows, and in rows filled end to end (left out if the backend
    refuses these). To see whether the results of the others change, the middle sample is changed in several ways. It is
    replaced by another sample of the same shape. Its pixel values are replaced by random values, by very large ones,
    and by NaN if the backend keeps NaN out of other samples. Only copies of the model run.

    Args:
        model: a transformers model that takes images (`takes_pictures`), pack-safe or not.
        backend: function that returns the attention backend for a dtype.
        gradients: also compare the gradients of the parameters.
        seed: random seed of the samples.
        how: text for the verdict: the backend that keeps sequences apart.

    Raises:
        UnsupportedModelError: nopad refuses this model.
        OptionError: the model has no vocabulary, has one that is too small to draw from, or is random in evaluation
            mode.
    """
    made = copy.deepcopy(bare(model))
    eager_experts(made)
    if not is_packed(made):
        packed(made, backend=backend(next(made.parameters()).dtype))
    state_of(made).most = None  # the audit may use more sequences than the user's limit
    shown = shown_to(made, seed, tokens_of(made))
    assert shown is not None
    samples, others = ([_sample(shown, one) for one in ids] for ids in (shown.sequences, shown.others))
    way = (_Front if isinstance(shown, Patches) else _Texts)(backend, max(map(len, shown.sequences)))
    verdict = compared(made, samples, way.alone, way.packed, gradients, seed, how, other=others[len(samples) // 2])
    return replace(verdict, model=type(made).__name__, notes=(DRAWN, *verdict.notes))


def _sample(shown: Pictures | Patches, sequence: Sequence[int]) -> Sample:
    if isinstance(shown, Pictures):
        return shown.sample(sequence)
    return {PICTURES.pixels: shown.alone(sequence)[PICTURES.pixels]}


@dataclass(frozen=True)
class _Texts:
    """Runs samples of text and images alone and packed.

    Attributes:
        backend: function that returns the attention backend for a dtype.
        longest: number of tokens of the longest sample.
    """

    backend: Callable[[torch.dtype], str]
    longest: int

    def alone(self, model: Any, sample: Sample) -> dict[str, Tensor]:
        """Return the outputs of one sample, run in an ordinary call without packing; tensors by name.

        The dict has each output once per form (batch layout), without the batch dimension. The names are those that
        `packed` gives, such as "flat logits" and "rows logits".
        """
        found = _results(model(**sample))
        return {f"{form} {name}": value[0] for form in self._forms(model) for name, value in found.items()}

    def packed(self, model: Any, samples: Sequence[Sample]) -> list[dict[str, Tensor]]:
        """Run all samples as one batch, once in each form (batch layout); return one dict of outputs per sample.

        The names in a dict consist of form and output, such as "flat logits" and "rows logits".
        """
        forms = self._forms(model)
        batches = {name: self._batch(model, samples, form) for name, form in forms.items()}
        return _split({name: (batch, _results(model(**batch))) for name, batch in batches.items()}, len(samples))

    def _batch(self, model: Any, samples: Sequence[Sample], form: Any) -> PackedBatch:
        pad = getattr(model.config.get_text_config(), "pad_token_id", None) or 0
        return PackedBatch.from_features(samples, form, pad_id=pad)

    def _forms(self, model: Any) -> dict[str, Any]:
        """Return the forms (batch layouts) to try, by name, as `PackedBatch` takes them: `Flat` and `Rows` objects.

        The call also sets the model's backend to the one for the model's dtype. The form "end to end" is left out if
        this backend refuses it.
        """
        backend = state_of(model).backend = self.backend(next(model.parameters()).dtype)
        forms = {"flat": Flat(), "rows": Rows(self.longest + 3), "end to end": Rows(self.longest + 1, end_to_end=True)}
        return {name: form for name, form in forms.items() if name not in MAY_REFUSE or backend != NO_ROWS_OF}


@dataclass(frozen=True)
class _Front(_Texts):
    """Runs images alone and packed, for a model that makes its tokens from images."""

    def alone(self, model: Any, sample: Sample) -> dict[str, Tensor]:
        """Return the outputs of one image, run in an ordinary call at its own size; tensors by name.

        The dict has each output once per form (batch layout), without the batch dimension, under names such as "flat
        logits" and "rows logits".
        """
        found = _results(model(**sample, interpolate_pos_encoding=True))
        return {f"{form} {name}": value[0] for form in self._forms(model) for name, value in found.items()}

    def _batch(self, model: Any, samples: Sequence[Sample], form: Any) -> PackedBatch:
        base = model.base_model
        front = front_of(base, state_of(model).family)
        states = [front(one[PICTURES.pixels], interpolate_pos_encoding=True)[0] for one in samples]
        return PackedBatch.from_embeddings(states, form)


def _split(ran: dict[str, tuple[PackedBatch, dict[str, Tensor]]], count: int) -> list[dict[str, Tensor]]:
    """Return a dict for each of `count` samples: its outputs in every form (batch layout), named like "flat logits".

    `ran` has, by the name of each form, a pair: a batch that holds all samples, and the model's outputs for it by name.
    """
    found: list[dict[str, Tensor]] = [{} for _ in range(count)]
    for form, (batch, results) in ran.items():
        for name, value in results.items():
            per_token = tuple(value.shape[:2]) == batch.layout.shape
            parts = (batch.unpack_tokens if per_token else batch.unpack_sequences)(value)
            for one, part in zip(found, parts, strict=True):
                one[f"{form} {name}"] = part
    return found


def _results(output: Any) -> dict[str, Tensor]:
    return {name: output[name] for name in RESULTS if isinstance(output.get(name), Tensor)}
