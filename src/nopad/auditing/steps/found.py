"""Find each sequence of a micro-batch in its batch, and what the collator cut, dropped, added or changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nopad.auditing.probes import slots_of
from nopad.auditing.steps.examples import Example
from nopad.auditing.steps.verdict import Finding
from nopad.batch import PackedBatch
from nopad.sequences import IGNORED

__all__ = ["Micro", "looked_up", "told"]

Places = NDArray[np.int64]
SHORTEST = 3  # fewest tokens by which a cut sequence is recognised; a shorter match may be chance


@dataclass
class Micro:
    """One micro-batch of one rank.

    Attributes:
        rank, number: number of its rank, and its own number among the micro-batches of that rank, both from 0.
        batch: the batch that the collator returned.
        examples: the sequences as they were given to the collator.
        first: the number, within the step, of the first of these sequences.
        shape: (R, L) of the batch's input_ids; None: the batch has none.
        places: for each sequence, the positions of its tokens in the concatenated rows; None: it is not in the batch.
        begins: for each sequence, the index of its first token that is in the batch; 0 unless its beginning was cut
            off.
        made: the sequences as they are in the batch, with the labels that they have there; None: not in the batch.
        findings: errors in the batch, which count even if the loss is right.
        notes: remarks for the user.
        suspects: oddities that become findings only if the step differs, such as tokens of no sequence, or labels in
            another order.
    """

    rank: int
    number: int
    batch: Any
    examples: list[Example]
    first: int = 0
    shape: tuple[int, int] | None = None
    places: list[Places | None] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    made: list[Example | None] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    suspects: list[Finding] = field(default_factory=list)

    @property
    def where(self) -> str:
        """The numbers of the micro-batch and its rank, as text for messages: "micro-batch 0 of rank 1"."""
        return f"micro-batch {self.number} of rank {self.rank}"

    @property
    def in_order(self) -> list[int]:
        """Indices of the sequences that are in the batch, in the order in which they lie in its rows."""
        there = [number for number, at in enumerate(self.places) if at is not None]
        return sorted(there, key=lambda number: int(self.places[number][0]))  # type: ignore[index]

    @property
    def numbered(self) -> list[int]:
        """Indices of the sequences that are in the batch, in the order of the batch's per-sequence values."""
        if not isinstance(self.batch, PackedBatch):
            return self.in_order
        numbers = self.batch.layout.sequence_ids.reshape(-1)
        return sorted(self.in_order, key=lambda number: int(numbers[self.places[number][0]]))  # type: ignore[index]

    def rows(self) -> list[int | None]:
        """Return the row of each sequence's first token; None for a sequence that is not in the batch."""
        assert self.shape is not None
        return [None if at is None else int(at[0]) // self.shape[1] for at in self.places]

    def before(self) -> list[int | None]:
        """Return, for each sequence, the index of the sequence that begins in the same row and ends right before it.

        An entry is None if there is no such sequence.
        """
        found: list[int | None] = [None] * len(self.places)
        rows = self.rows()
        for one, next_one in pairwise(self.in_order):
            last, first = self.places[one], self.places[next_one]
            assert last is not None
            assert first is not None
            if int(last[-1]) + 1 == int(first[0]) and rows[one] == rows[next_one]:
                found[next_one] = one
        return found


def looked_up(micro: Micro, causal: bool) -> Micro:
    """Find the sequences of a micro-batch in its batch, and what the collator did to them; return the micro-batch.

    The micro-batch is changed in place. If its batch is not a mapping with ``input_ids`` ``[R, L]``, nothing is
    compared: the examples are used as they are, and a note says that the collator is not checked. `causal`: whether
    labels are predicted by the token before, so that labels of first tokens do not count.
    """
    batch, examples = micro.batch, micro.examples
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    if not (isinstance(ids, Tensor) and ids.dim() == 2):
        micro.made = list(examples)
        micro.notes.append(f"{type(batch).__name__} has no input_ids [R, L], so what the collator did is not checked")
        return micro
    micro.shape = (int(ids.shape[0]), int(ids.shape[1]))
    flat = ids.reshape(-1).cpu().numpy()
    parts = told(batch)
    if isinstance(batch, PackedBatch):
        found = _matched(parts, flat, examples)
    else:
        found = _searched(batch, flat, examples, micro.shape[1])
    micro.places, micro.begins = [at for at, _ in found], [begin for _, begin in found]
    whole = [at is not None and len(at) == len(one.ids) for at, one in zip(micro.places, examples, strict=True)]
    if not all(whole) and [len(part) for part in parts] == [len(one.ids) for one in examples]:
        micro.places, micro.begins = list(parts), [0] * len(parts)
        micro.notes.append("the collator changed tokens, as masking does; sequences alone get the tokens of the batch")
    _lost(micro)
    where = zip(examples, micro.places, micro.begins, strict=True)
    micro.made = [_made(one, at, begin, batch, flat) for one, at, begin in where]
    _sequence_labels(micro)
    _relabelled(micro, causal)
    return micro


def told(batch: Mapping[str, Any]) -> list[Places]:
    """Return where sequences lie in a batch, according to the batch itself: positions in its concatenated rows.

    In a `PackedBatch`, the positions come from its layout, and the sequences are in the order in which they were given.

    Any other batch is read row after row. The first that it has of ``cu_seq_lens_q``, ``seq_idx`` and ``position_ids``
    (which begin again at each sequence) tells where sequences begin. Without any of these, each row is one sequence.
    Slots that the attention mask marks as padding are left out, but not with ``cu_seq_lens_q``.
    """
    if isinstance(batch, PackedBatch):
        return slots_of(batch.layout)
    rows, width = (int(size) for size in batch["input_ids"].shape)
    ends = batch.get("cu_seq_lens_q")
    if ends is not None:
        edges = torch.as_tensor(ends).reshape(-1).tolist()
        return [np.arange(begin, end) for begin, end in pairwise(edges) if end > begin]
    starts = np.zeros((rows, width), dtype=bool)
    starts[:, :1] = True
    numbers, positions = batch.get("seq_idx"), batch.get("position_ids")
    if isinstance(numbers, Tensor) and tuple(numbers.shape) == (rows, width):
        starts[:, 1:] = np.diff(numbers.cpu().numpy(), axis=1) != 0
    elif isinstance(positions, Tensor) and tuple(positions.shape) == (rows, width):
        starts[:, 1:] = np.diff(positions.cpu().numpy(), axis=1) != 1
    real = _real(batch, rows * width)
    edges = [*np.flatnonzero(starts.reshape(-1)).tolist(), rows * width]
    found = [np.arange(begin, end)[real[begin:end]] for begin, end in pairwise(edges)]
    return [part for part in found if part.size]


def _real(batch: Mapping[str, Any], slots: int) -> NDArray[np.bool_]:
    """Return which slots hold tokens, bool ``[slots]``, by the 2-D attention mask; without one, all slots do."""
    mask = batch.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2 and mask.numel() == slots:
        real: NDArray[np.bool_] = mask.reshape(-1).cpu().numpy() != 0
        return real
    return np.ones(slots, dtype=bool)


def _matched(parts: Sequence[Places], flat: NDArray[Any], examples: Sequence[Example]) -> list[tuple[Any, int]]:
    """Find each example in one of the sequences that a batch says it has; return a pair ``(places, begin)`` for each.

    `places` are the positions of the example's tokens in `flat`, the concatenated rows (None: not found). `begin` is
    the index of its first token that is in the batch. `parts` has the positions of the tokens of each sequence of the
    batch. A sequence of the batch counts as an example if it equals the example or contains it (tokens were added). It
    also counts if it has at least 3 tokens and is the beginning or the end of the example (the example was cut).
    """
    left = list(parts)
    found: list[tuple[Any, int]] = [(None, 0)] * len(examples)
    for kind in ("same", "inside", "beginning", "end"):
        for number, example in enumerate(examples):
            ids = example.ids.numpy()
            for at, part in enumerate(left if found[number][0] is None else ()):
                place = _fits(kind, part, flat[part], ids)
                if place is not None:
                    left.pop(at)
                    found[number] = place
                    break
    return found


def _fits(kind: str, part: Places, tokens: NDArray[Any], ids: NDArray[Any]) -> tuple[Places, int] | None:
    """Return (places, begin) of an example if it is found in one sequence of a batch; else None.

    `places` are the positions of the example's tokens in the concatenated rows, and `begin` is the index of its first
    token that is in the batch.

    Args:
        kind: what to look for: the sequence and the example are the "same"; the example lies "inside" the sequence; or
            the sequence, of at least 3 tokens, is the "beginning" or the "end" of the example.
        part: positions of the sequence's tokens in the concatenated rows.
        tokens: token ids of the sequence.
        ids: token ids of the example.
    """
    size = len(part)
    if kind == "same":
        return (part, 0) if np.array_equal(tokens, ids) else None
    if kind == "inside":
        for begin in range(size - len(ids) + 1):
            if np.array_equal(tokens[begin : begin + len(ids)], ids):
                return part[begin : begin + len(ids)], 0
        return None
    if not SHORTEST <= size < len(ids):
        return None
    begin = 0 if kind == "beginning" else len(ids) - size
    return (part, begin) if np.array_equal(tokens, ids[begin : begin + size]) else None


def _searched(
    batch: Mapping[str, Any], flat: NDArray[Any], examples: Sequence[Example], width: int
) -> list[tuple[Any, int]]:
    """Find each example by its tokens in the rows of any batch; return a pair ``(places, begin)`` for each.

    `places` are the positions of the example's tokens in `flat` (None: not found). `begin` is the index of its first
    token that is in the batch; it is above 0 only if the beginning was cut off.

    `flat` holds the token ids of all rows, one row after the other; a row has `width` slots. An example lies within one
    row. Whole examples are looked for first, the longest before the others; then the beginnings of the examples that
    are left, then the ends. A beginning or end has at least 3 tokens.
    """
    free = _real(batch, flat.size).copy()
    found: list[tuple[Any, int]] = [(None, 0)] * len(examples)
    for kind in ("whole", "beginning", "end"):
        for number in sorted(range(len(examples)), key=lambda number: -len(examples[number].ids)):
            if found[number][0] is not None:
                continue
            wanted, size = examples[number].ids.numpy(), len(examples[number].ids)
            if kind == "end":
                rows = flat.reshape(-1, width)[:, ::-1].reshape(-1), free.reshape(-1, width)[:, ::-1].reshape(-1)
                start, length = _longest(wanted[::-1], *rows, width)
                row, column = divmod(start, width)
                start = row * width + width - column - length
            else:
                start, length = _longest(wanted, flat, free, width)
            if length == size or (kind != "whole" and length >= SHORTEST):
                free[start : start + length] = False
                found[number] = np.arange(start, start + length), size - length if kind == "end" else 0
    return found


def _longest(wanted: NDArray[Any], flat: NDArray[Any], free: NDArray[np.bool_], width: int) -> tuple[int, int]:
    """Return (start, length) of the longest piece within one row that equals the beginning of `wanted`.

    `flat` holds the token ids of all rows, one row after the other; a row has `width` slots, and `start` is an index in
    `flat`. Only slots that are `free` are used. The length is 0 if there is no such piece.
    """
    best = (0, 0)
    for start in np.flatnonzero((flat == wanted[0]) & free).tolist():
        end = min(start + wanted.size, (start // width + 1) * width)
        if end - start <= best[1]:
            continue
        other = np.flatnonzero((flat[start:end] != wanted[: end - start]) | ~free[start:end])
        length = int(other[0]) if other.size else end - start
        if length > best[1]:
            best = (start, length)
    return best


def _lost(micro: Micro) -> None:
    """Add findings for dropped or cut sequences to the micro-batch.

    If there are none, but the batch has tokens that are in no sequence, a finding on these is added to
    `micro.suspects`: it counts only if the step differs. Such tokens are looked for in a `PackedBatch`, in a single
    row, and in a batch with a 2-D attention mask.
    """
    for number, (example, at) in enumerate(zip(micro.examples, micro.places, strict=True)):
        name = f"sequence {micro.first + number} of {len(example.ids)} tokens"
        if at is None:
            micro.findings.append(Finding("sequence dropped", f"{name} is not in {micro.where}: dropped, or changed"))
        elif len(at) < len(example.ids):
            micro.findings.append(Finding("sequence truncated", f"{name} is cut to {len(at)} tokens in {micro.where}"))
    covered = sum(len(at) for at in micro.places if at is not None)
    mask = micro.batch.get("attention_mask")
    if isinstance(micro.batch, PackedBatch):
        real = micro.batch.layout.tokens
    elif isinstance(mask, Tensor) and mask.dim() == 2:
        real = int((mask != 0).sum())
    elif micro.shape is not None and micro.shape[0] == 1:
        real = micro.shape[1]
    else:
        return
    if real > covered and not micro.findings:
        text = f"{micro.where} has {real} tokens, and its sequences have {covered}"
        micro.suspects.append(Finding("tokens added", text))


def _made(
    example: Example, at: Places | None, begin: int, batch: Mapping[str, Any], flat: NDArray[Any]
) -> Example | None:
    """Return an example with the tokens that it has in the batch, and with the batch's labels if they are per token.

    An example with labels of its own that are not per token keeps these.

    `at` are the sequence's places in `flat`, the token ids of all rows. `begin` is the index in `example` of the first
    token that the collator kept. If the sequence is not in the batch (`at` is None), the result is None.
    """
    if at is None:
        return None
    cut = example.cut(begin, len(at))
    columns = {"input_ids": torch.from_numpy(flat[at].copy())}
    per_token = []
    found = _labels(batch)
    if found is not None and (example.labels is None or "labels" in example.per_token):
        labels = found[torch.from_numpy(at)]
        columns["labels"] = labels
        per_token.append("labels")
    return cut.with_columns(columns, per_token)


def _labels(batch: Mapping[str, Any]) -> Tensor | None:
    """Return labels per token, aligned with ``input_ids`` and flattened, ``[R x L]``; None: the batch has none.

    ``shift_labels`` are shifted back for this.
    """
    labels, shifted = batch.get("labels"), batch.get("shift_labels")
    shape = tuple(batch["input_ids"].shape)
    if isinstance(labels, Tensor) and tuple(labels.shape) == shape:
        return labels.reshape(-1).cpu()
    if isinstance(shifted, Tensor) and tuple(shifted.shape) == shape:
        back = torch.full(shape, IGNORED)
        back[:, 1:] = shifted.cpu()[:, :-1]
        return back.reshape(-1)
    return None


def _sequence_labels(micro: Micro) -> None:
    """Use the batch's labels per sequence: as labels of examples without labels, or to check the labels of examples.

    If some examples in the batch have no labels, and the batch has one label per sequence, these examples get the
    batch's labels in `micro.made`. Nothing is checked then.

    Otherwise, if each example has a single label, the batch's labels are compared with these. Another number of labels,
    or other labels, are a finding. Another order is added to `micro.suspects`, and becomes a finding only if the step
    differs. A batch without labels is not checked.
    """
    labels = micro.batch.get("labels")
    if not isinstance(labels, Tensor) or labels.dim() == 0:
        return
    without = [one is not None and one.labels is None for one in micro.made]
    if any(without) and len(labels) == len(micro.made):
        micro.made = [
            one.with_columns({"labels": labels[number].cpu()}) if one is not None and without[number] else one
            for number, one in enumerate(micro.made)
        ]
        return
    single = [one for one in micro.examples if one.labels is not None and "labels" not in one.per_token]
    flat = labels.reshape(-1)
    if len(single) < len(micro.examples) or any(one.columns["labels"].dim() for one in single):
        return
    if len(flat) != len(single):
        text = f"{micro.where} has {len(flat)} labels for {len(single)} sequences"
        micro.findings.append(Finding("labels dropped", text))
        return
    given = [float(one.columns["labels"]) for one in single]
    if not np.allclose(sorted(flat.double().tolist()), sorted(given), rtol=1e-6):
        micro.findings.append(Finding("labels changed", f"labels of {micro.where} are not its sequences'"))
    elif len(micro.numbered) == len(given):
        wanted = [given[number] for number in micro.numbered]
        if not np.allclose(flat.double().tolist(), wanted, rtol=1e-6):
            text = f"labels of {micro.where} are in another order than its sequences"
            micro.suspects.append(Finding("labels changed", text))


def _relabelled(micro: Micro, causal: bool) -> None:
    """Add findings for labels per token that the collator dropped, added or changed.

    With `causal`, the first label of each sequence is not compared. If examples have no labels, but their sequences in
    the batch have, a note says that this cannot be checked.
    """
    kinds: dict[str, list[str]] = {"labels dropped": [], "labels added": [], "labels changed": []}
    counts = dict.fromkeys(kinds, 0)
    unknown = 0
    for number, (example, made) in enumerate(zip(micro.examples, micro.made, strict=True)):
        if made is None or "labels" not in made.per_token:
            continue
        if example.labels is None:
            unknown += 1
            continue
        now = made.columns["labels"]
        wanted = example.cut(micro.begins[number], len(now)).columns["labels"]
        if causal:
            now, wanted = now[1:], wanted[1:]
        differs = {
            "labels dropped": (wanted != IGNORED) & (now == IGNORED),
            "labels added": (wanted == IGNORED) & (now != IGNORED),
            "labels changed": (wanted != IGNORED) & (now != IGNORED) & (wanted != now),
        }
        for kind, where in differs.items():
            if bool(where.any()):
                counts[kind] += int(where.sum())
                kinds[kind].append(str(micro.first + number))
    for kind, numbers in kinds.items():
        if numbers:
            said = f"{counts[kind]} of sequence{'s' * (len(numbers) > 1)} {', '.join(numbers)} in {micro.where}"
            meant = "; if that is meant, leave labels out of the examples" if kind == "labels dropped" else ""
            micro.findings.append(Finding(kind, f"{kind}: {said}{meant}"))
    if unknown:
        micro.notes.append("labels are the collator's own, so whether it drops some is not checked")
