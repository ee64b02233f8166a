"""Train embeddings on pairs, so that an anchor is nearer to its positive than to other texts.

A record is an anchor and a positive, and may have hard negatives. Each text is a sequence of its own, and the sequences
of a record stay together (`Examples.group`). The candidates of an anchor are all positives and hard negatives of the
micro-step on all ranks (`nopad.losses.contrast`), so packing only changes which records share a micro-step. With
gradient accumulation, each micro-step sees only its own negatives (GradCache, which avoids this, is not implemented);
for more negatives, take more rows per rank, not more micro-steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from nopad.batch import PackedBatch
from nopad.corpus.framing import Tokenised, tokenised
from nopad.corpus.records import check_text
from nopad.errors import RecordError
from nopad.losses.contrast import (
    ANCHOR,
    NEGATIVE,
    POSITIVE,
    Same,
    contrastive_sum,
    false_negatives,
    gathered,
    gathered_rows,
    paired,
)
from nopad.losses.slots import wide
from nopad.options import BOOLEAN, Option, check_choice, check_number
from nopad.tasks.examples import Examples, field_of, numbered, stacked
from nopad.tasks.folder import Pooling
from nopad.tasks.meters import over_all_ranks
from nopad.tasks.objective import Meter
from nopad.tasks.task import Task
from nopad.tasks.texts import encoded
from nopad.tasks.vectors import Vectors, base_model

__all__ = ["Contrastive", "InBatch"]

_SYMMETRIC = Option(default=False, choices=BOOLEAN, help="whether positives are compared with anchors too")

_ROWS = 1024  # anchors compared at a time, when metrics are computed


class InBatch(Vectors):
    """Contrastive loss with in-batch negatives, from all ranks of a micro-step (`nopad.losses.contrast`).

    Args:
        pooling: the vector is the "mean" of the last layer's hidden states over a sequence, or the hidden state of its
            "first" or "last" token.
        normalize: True: similarities are cosines; False: dot products.
        scale: factor of the similarities: 1 / temperature.
        symmetric: whether the loss is the mean of two: that of anchors against all candidates, and that of positives
            against all anchors.
        same: what happens to an anchor's false negatives. "mask": they are left out of the loss; "keep": they are
            negatives. Any candidate but the anchor's own positive is a false negative if it has the same tokens as the
            anchor or as this positive. If two anchors have the same tokens, the positive of each is also a false
            negative of the other. The tokens of prompts are compared too.
        group: the process group whose ranks share negatives; None: all ranks.

    All ranks must call `step` the same number of times, and either all or none of them run the backward pass.

    Raises:
        OptionError: an option has an invalid value.

    >>> from nopad.tasks import InBatch
    >>> objective = InBatch("mean", scale=20.0, symmetric=True)
    >>> objective.pooling, objective.scale
    ('mean', 20.0)
    """

    targets = ("roles", "pairs", "contents")

    def __init__(
        self,
        pooling: Pooling = "mean",
        *,
        normalize: bool = True,
        scale: float = 20.0,
        symmetric: bool = False,
        same: Same = "mask",
        group: Any = None,
    ) -> None:
        super().__init__(pooling, normalize=normalize)
        self.scale, self.symmetric, self.group = (
            check_number("scale", scale, above=0),
            _SYMMETRIC.check("symmetric", symmetric),
            group,
        )
        self.same: Same = check_choice("same", same, Same)

    def denominator(self, batch: PackedBatch) -> Tensor:
        """Return the number of anchors in this rank's batch; a float64 scalar."""
        found: Tensor = (batch["roles"] == ANCHOR).sum().double()
        return found

    def loss(self, outputs: Any, batch: PackedBatch, denominator: Tensor) -> Tensor:
        """Return the sum of the losses of this rank's anchors, divided by `denominator`; a scalar.

        An anchor is compared with the candidates of all ranks, so all ranks must call this together.

        Raises:
            BatchError: a batch has an anchor without its positive, or a positive without its anchor.
        """
        table, where = gathered(torch.stack([batch[name] for name in self.targets], 1), self.group)
        vectors = gathered_rows(outputs["embeddings"], self.group)
        found = paired(table[:, 0], table[:, 1], where)
        total = contrastive_sum(
            vectors,
            found,
            table[:, 2],
            where[found.anchors] == self._rank(),
            scale=self.scale,
            symmetric=self.symmetric,
            same=self.same,
        )
        return total / denominator.to(total)

    def nothing(self, outputs: Any, batch: PackedBatch) -> Tensor:
        """Return 0, the loss of a stand-in (`PackedBatch.as_stand_in`).

        Vectors and gradients are still exchanged with the other ranks, which wait for them.
        """
        gathered(torch.stack([batch[name] for name in self.targets], 1)[:0], self.group)
        vectors = gathered_rows(outputs["embeddings"][:0], self.group)
        return super().nothing({**outputs, "gathered": vectors}, batch)

    def meter(self) -> Meter:
        """Return a meter of accuracy at 1 and mean reciprocal rank.

        For each anchor, all candidates are sorted by their similarity to it, the most similar first. If `same` is
        "mask", the anchor's false negatives are left out. Both metrics are computed from the places of the anchors' own
        positives in this order.
        """
        return _Nearness(self)

    def _rank(self) -> int:
        there = torch.distributed.is_available() and torch.distributed.is_initialized()
        return torch.distributed.get_rank(self.group) if there else 0


class _Nearness(Meter):
    """Accuracy at 1 and mean reciprocal rank of each anchor's positive among the candidates of all records.

    For each anchor, all candidates are sorted by their similarity to it; the rank is the place of its positive, from 1.
    Candidates that are exactly as similar as the positive are placed before it. If `InBatch.same` is "mask", an
    anchor's false negatives, such as candidates with the same tokens as its positive, do not count. The candidates come
    from all records, not only from one batch, so packs and the number of processes do not change the metric. The meter
    keeps one vector per sequence, and computes the similarity of every anchor to every distinct candidate.
    """

    def __init__(self, objective: InBatch) -> None:
        self.objective, self.batches = objective, 0
        self.parts: list[tuple[Any, Any]] = []

    def add(self, outputs: Any, batch: PackedBatch) -> None:
        """Add the outputs for a batch: ``embeddings`` ``[S, H]``. The batch says which sequences are anchors."""
        columns = [batch[name] for name in self.objective.targets]
        table = torch.stack([*columns, torch.full_like(columns[0], self.batches)], 1)
        self.parts.append((wide(outputs["embeddings"].detach()).cpu().numpy(), table.cpu().numpy()))
        self.batches += 1

    def reduce(self) -> None:
        """Gather the vectors of all ranks; every rank must call this."""
        ranks = over_all_ranks(self.parts)
        self.parts, first = [], 0
        for parts in ranks:
            for vectors, table in parts:
                table = table.copy()
                table[:, 3] += first
                self.parts.append((vectors, table))
            first += len(parts)

    def values(self) -> dict[str, float]:
        """Return ``accuracy_at_1`` and ``mrr``, from 0 to 1; NaN if no anchor was added."""
        if not any((table[:, 0] == ANCHOR).any() for _, table in self.parts):
            return {"accuracy_at_1": float("nan"), "mrr": float("nan")}
        vectors = torch.from_numpy(np.concatenate([one for one, _ in self.parts]))
        table = torch.from_numpy(np.concatenate([one for _, one in self.parts]))
        found = paired(table[:, 0], table[:, 1], table[:, 3])
        # Vectors of the same tokens differ by rounding, which must not decide which is nearer: one stands for all
        contents, content = np.unique(table[found.candidates, 2].numpy(), return_inverse=True)
        standing = np.empty(len(contents), np.int64)
        standing[content[::-1]] = found.candidates.numpy()[::-1]
        candidates, anchors = vectors[standing], found.anchors.numel()
        first, turned = 0.0, 0.0
        for begin in range(0, anchors, _ROWS):
            at = torch.arange(begin, min(begin + _ROWS, anchors))
            scores = (vectors[found.anchors[at]] @ candidates.T)[:, content]
            nearer = scores >= scores[torch.arange(at.numel()), at][:, None]
            if self.objective.same == "mask":
                nearer &= ~false_negatives(found, table[:, 2], at)
            places = nearer.sum(1)  # from 1, since the positive is as near as itself
            first += float((places == 1).sum())
            turned += float((1 / places.double()).sum())
        return {"accuracy_at_1": first / anchors, "mrr": turned / anchors}


class Contrastive(Task):
    """Embeddings trained on pairs of texts, with in-batch negatives and, if the records have them, hard negatives.

    A prediction has ``embedding``, the vector of the anchor's text.

    Args:
        tokenizer: the model's tokenizer.
        anchor: column of the anchor, such as a question or a title.
        positive: column of the positive: the text that belongs to the anchor, such as an answer.
        negative: column of a hard negative, or of a list of hard negatives. All records must have the same number of
            them; a record without this column has none. None: hard negatives are not read.
        prompt: text to put before each anchor.
        positive_prompt: text to put before each positive and negative.
        pooling: the vector is the "mean" of the last layer's hidden states over a text, or the hidden state of its
            "first" or "last" token. Give "last" for models with causal attention.
        normalize: True: similarities are cosines; False: dot products.
        scale: factor of the similarities: 1 / temperature.
        symmetric: whether positives are compared with all anchors too (`InBatch`).
        same: whether an anchor's false negatives are left out of the loss ("mask") or not ("keep"); see `InBatch`.
        options: `max_length` and `over_long`; see `Task`. If one text of a record is dropped, the record is dropped.

    Raises:
        OptionError: an option has an invalid value.

    >>> import nopad
    >>> task = nopad.tasks.Contrastive(tokenizer)
    >>> made = task.encode([{"anchor": "is it ?", "positive": "yes"}, {"anchor": "why", "positive": "not"}])
    >>> made.group, made.sequences.values["roles"].tolist(), made.sequences.values["pairs"].tolist()
    (2, [0, 1, 0, 1], [0, 0, 1, 1])
    """

    name = "contrast"
    auto = "AutoModel"
    texts_by: ClassVar[tuple[str, ...]] = ("anchor", "positive", "negative")
    dtypes: ClassVar[Mapping[str, str]] = {"embedding": "float32"}
    record_columns: ClassVar[tuple[str, ...]] = ("pairs",)

    def __init__(
        self,
        tokenizer: Any,
        *,
        anchor: str = "anchor",
        positive: str = "positive",
        negative: str | None = "negative",
        prompt: str = "",
        positive_prompt: str = "",
        pooling: Pooling = "mean",
        normalize: bool = True,
        scale: float = 20.0,
        symmetric: bool = False,
        same: Same = "mask",
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, **options)
        self.anchor, self.positive, self.negative = anchor, positive, negative
        self.prompt, self.positive_prompt = prompt or "", positive_prompt or ""  # None is no prompt
        self.objective = InBatch(pooling, normalize=normalize, scale=scale, symmetric=symmetric, same=same)

    objective: InBatch

    def encode(self, records: Iterable[Mapping[str, Any]], *, labels: bool = True) -> Examples:
        """Turn each record into an anchor, a positive and hard negatives; if `labels` is False, only into an anchor.

        Each of these texts is one sequence; see `Task.encode`. With `labels`, sequences have three per-sequence values:
        ``roles`` (0: anchor, 1: positive, 2: hard negative), ``pairs`` (the record's number) and ``contents`` (a hash
        of the tokens). The result's counts are then ``truncated_texts``, a number of texts, and ``dropped``, a number
        of records.

        Raises:
            RecordError: a record lacks a column, a text is not a string, or records have different numbers of hard
                negatives.
            LengthError: a text is longer than `max_length`, and `over_long` is "error"; a text has no token; special
                tokens leave no room for a text that is to be cut; or there is no record.
        """
        if not labels:
            anchors = [field_of(record, self.anchor, number, option="anchor") for number, record in numbered(records)]
            return encoded(self, [self.prompt + text for text in anchors])
        texts = self._texts(records)
        roles = [self._tokenised(list(column)) for column in zip(*texts, strict=True)]
        places = [{number: place for place, number in enumerate(one.kept)} for one in roles]
        kept = [number for number in range(len(texts)) if all(number in one for one in places)]
        each = [(one, place[number]) for number in kept for one, place in zip(roles, places, strict=True)]
        size, ids = len(roles), [one.ids[at] for one, at in each]
        typed = bool(each) and bool(each[0][0].types)
        kinds = np.array([ANCHOR, POSITIVE] + [NEGATIVE] * (size - 2), np.int64)
        record = np.repeat(np.array(kept, np.int64), size)
        values = {
            "roles": np.tile(kinds, len(kept)),
            "pairs": record,
            "contents": np.array([_content(one) for one in ids], np.int64),
        }
        cut = sum(one.counts.get("truncated", 0) for one in roles)
        counts = {"truncated_texts": cut, "dropped": len(texts) - len(kept)}
        types = {"token_type_ids": [one.types[at] for one, at in each]} if typed else {}
        return Examples(
            sequences=stacked(ids, record, tokens=types, values=values),
            record=record,
            records=len(texts),
            group=size,
            counts={name: number for name, number in counts.items() if number},
        )

    def _texts(self, records: Iterable[Mapping[str, Any]]) -> list[list[str]]:
        """Return anchor, positive and hard negatives of each record, with their prompts.

        Raises:
            RecordError: a text is missing, is no string or has a lone surrogate; or records have different numbers of
                hard negatives.
            LengthError: there is no record.
        """
        found: list[list[str]] = []
        for number, record in numbered(records):
            first, second = (field_of(record, getattr(self, one), number, option=one) for one in ("anchor", "positive"))
            given = None if self.negative is None else record.get(self.negative)
            against = [given] if isinstance(given, str) else [] if given is None else given
            if not isinstance(against, list | tuple) or not all(isinstance(text, str) for text in against):
                raise RecordError(
                    f"record {number}: {self.negative} is a {type(given).__name__}; it is a text, or a list of texts"
                )
            for at, text in enumerate(against):
                check_text(text, f"record {number}: {self.negative}, text {at}")
            if found and len(against) != len(found[0]) - 2:
                raise RecordError(
                    f"record {number} has {len(against)} hard negatives, and the first one {len(found[0]) - 2}; give "
                    "all as many, or read none: negative=None"
                )
            found.append([self.prompt + first, *(self.positive_prompt + text for text in (second, *against))])
        return found

    def _tokenised(self, texts: Sequence[str]) -> Tokenised:
        return tokenised(self.tokenizer, texts, max_length=self.max_length, over_long=self.over_long)

    def results(self, outputs: Any, batch: PackedBatch) -> list[dict[str, Any]]:
        """Return a dict for each sequence, with ``embedding``: its vector, a list of H floats (single precision)."""
        return [{"embedding": vector} for vector in outputs["embeddings"].float().tolist()]

    def model(self, name: Any, **options: Any) -> Any:
        """Load a base model; see `Task.model`.

        Its pooling layer is left out if the model's class allows it, since the layer's weights would get no gradient.
        """
        return base_model(super().model, name, **options)


def _content(ids: Sequence[int]) -> int:
    """Return a 64-bit hash of token ids, the same for texts with the same tokens; as a signed integer."""
    digest = hashlib.blake2b(np.asarray(ids, "<i4").tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
