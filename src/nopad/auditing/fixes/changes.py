"""The changes that `find_fix` and `find_step_fix` try: each mends a frequent fault of a collator, model or loss.

A change is a few lines of code.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from textwrap import indent
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nopad.auditing.fixes.fix import Change
from nopad.auditing.probes import Places, find
from nopad.batch import PackedBatch
from nopad.model.safety import outermost

__all__ = [
    "LOSS",
    "OURS",
    "PADDED",
    "SUMMED",
    "Changed",
    "Layout",
    "changed_loss",
    "changed_model",
    "groups_for",
    "nopads_own",
    "sets_of",
    "trying",
    "without_first_labels",
]

MOST = 3  # changes at a time

OURS = "nopad's own batches"
_GIVEN = "# number [R, L]: of which sequence each token is, -1 in padding; your collator knows it"
_COUNTED = (
    'lengths = torch.tensor([len(one["input_ids"]) for one in features])\n'
    "number = torch.repeat_interleave(torch.arange(len(features)), lengths)[None]"
)
CACHE = Change(
    "use_cache",
    "with a cache, causal models do not look where position_ids begin again",
    'batch["use_cache"] = False',
)
NO_MASK = Change(
    "attention_mask left out",
    "with a mask per token, causal models do not look where position_ids begin again; its numbers count as ones",
    'batch.pop("attention_mask", None)',
)
TYPES = Change(
    "token_type_ids",
    "they are not those of the sequences alone",
    'batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])',
)
OFFSET = Change(
    "position_ids after padding_idx",
    "this model's positions begin at padding_idx + 1",
    'batch["position_ids"] = batch["position_ids"] + model.config.pad_token_id + 1',
)
_POSITIONS = (
    "without positions from 0 in each sequence, later ones have those of one long text, and borders are unknown"
)
# Of each sequence with its own images
_AXES = (
    'names = ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")\n'
    "def axes(one):\n"
    "    shown = {name: one[name] for name in names if one.get(name) is not None}\n"
    '    rows = {name: torch.as_tensor(one[name]).view(1, -1) for name in ("input_ids", "mm_token_type_ids")}\n'
    "    return model.get_rope_index(**rows, **shown)[0]\n"
    'batch["position_ids"] = torch.cat([axes(one) for one in features], dim=2)'
)
_MASK = "no mask keeps a sequence from seeing its neighbours"
_ATTENTION = "this attention does not take the batch's mask as it is meant"
PADDED = Change(
    "one sequence per row",
    "this model cannot be packed, so its batches are padded",
    'ids = [torch.tensor(one["input_ids"]) for one in features]\n'
    "real = [torch.ones_like(one) for one in ids]\n"
    "pad = torch.nn.utils.rnn.pad_sequence\n"
    'batch = {"input_ids": pad(ids, batch_first=True, padding_value=model.config.pad_token_id or 0)}\n'
    'batch["attention_mask"] = pad(real, batch_first=True)',
    "instead",
)
_DENOMINATOR = "a step has one denominator: its labelled items, on all ranks"
LOSS = Change(
    "denominator",
    _DENOMINATOR,
    "return model(**batch, num_items_in_batch=step.num_items_in_batch).loss * step.ranks",
    "loss",
)
SUMMED = Change(
    "denominator, summed by hand",
    f"{_DENOMINATOR}, and this head takes none",
    "logits = model(**batch).logits\n"
    "sum_of = torch.nn.functional.cross_entropy(\n"
    '    logits.flatten(0, -2), batch["labels"].flatten(), reduction="sum"\n'
    ")\n"
    "return sum_of / step.num_items_in_batch * step.ranks",
    "loss",
)


def nopads_own(causal: bool, safe: bool = False) -> Change:
    """Return the change that uses nopad's batches in place of the collator, and makes the model pack-safe.

    `causal`: whether the model shifts labels, so that each token predicts the next one. `safe`: whether the model is
    pack-safe already; the change then only replaces the batches.
    """
    more = ", causal=True" if causal else ""
    made = f"batch = nopad.PackedBatch.from_features(features{more})"
    code = made if safe else f"model = nopad.packed(model)\n{made}"
    return Change(OURS, "no small change makes collator and model sound", code, "instead")


def without_first_labels(layout: Layout) -> Change:
    """Return the change that sets the label of each sequence's first token to -100 (no label).

    `layout` says where the sequences of a batch are, and has the lines of code that number the tokens by sequence.
    """
    return Change(
        "labels of first tokens",
        "the last token of a sequence predicts the first of the next one",
        f"{layout.number}\nfirst = number != number.roll(1, 1)\nfirst[:, 0] = True\n"
        'batch["labels"] = batch["labels"].masked_fill(first, -100)',
    )


@dataclass(frozen=True)
class Layout:
    """Where a collator puts the sequences of a batch.

    Attributes:
        one_row: whether one row holds all sequences, in the order given, and nothing else (no padding, no separators).
        number: lines of code that set a variable `number` to an int64 array ``[R, L]``: the index of each token's
            sequence. If `one_row` is False, these lines are only a comment that describes the array. While nopad tries
            a change, it finds the array itself; a user who adopts the change must compute it in the collator.
    """

    one_row: bool
    number: str

    @classmethod
    def of(cls, batch: Mapping[str, Any], places: Places) -> Layout:
        """Return the layout of a batch in which the sequences are at `places`."""
        together = np.concatenate(places.of)
        one_row = places.shape[0] == 1 and np.array_equal(together, np.arange(places.shape[1]))
        return cls(one_row, _COUNTED if one_row else _GIVEN)


class Changed:
    """A collator that calls another collator, and then runs the code of changes on its batch.

    Attributes:
        collate: the other collator.
        changes: the changes that are run: the given ones without those of the model or the loss.
        model: the model; the code of some changes reads its configuration.
    """

    def __init__(self, collate: Any, changes: Sequence[Change], model: Any) -> None:
        self.collate, self.model = collate, model
        self.changes = [change for change in changes if change.where in ("collator", "instead")]
        self.__name__ = f"{getattr(collate, '__name__', type(collate).__name__)}, changed"

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> Any:
        """Return the collator's batch with the changes.

        If the batch is a `PackedBatch` or no mapping, it is returned as it is. Errors of the collator, and of the code
        of the changes, are raised unchanged.

        Raises:
            BatchError: a change needs the index of each token's sequence, which cannot be found: a sequence is not
                whole in the batch, or the attention mask covers more tokens than the sequences have.
        """
        given = [dict(one) for one in features]  # a collator may take columns out of them
        batch = self.collate(features)
        if isinstance(batch, PackedBatch) or not isinstance(batch, Mapping):
            return batch
        told: dict[str, Any] = {"batch": dict(batch), "features": given, "model": outermost(self.model), "torch": torch}
        for change in self.changes:
            if _GIVEN in change.code:
                told["number"] = _numbers(batch, given)
            exec(change.code, told)
        return told["batch"]


def changed_loss(changes: Sequence[Change]) -> Any:
    """Return the loss function that `changes` put in place of the user's; None if they change no loss.

    The function takes ``(model, batch, step)``, runs the code of the first change whose `where` is "loss", and returns
    the loss, a scalar tensor.
    """
    for change in changes:
        if change.where == "loss":
            told: dict[str, Any] = {"torch": torch}
            exec(f"def loss(model, batch, step):\n{indent(change.code, '    ')}", told)
            return told["loss"]
    return None


def changed_model(model: Any, changes: Sequence[Change]) -> None:
    """Run the code of those changes that belong to a model; this changes `model` itself."""
    for change in changes:
        if change.where == "model":
            exec(change.code, {"model": outermost(model)})


def _numbers(batch: Mapping[str, Any], features: Sequence[Mapping[str, Any]]) -> Tensor:
    """Return, for each token of the batch, the index of its sequence in `features`, int64 ``[R, L]``; -1 for none.

    If the batch has an attention mask ``[R, L]``, all tokens outside the sequences get -1. If it has none, tokens that
    follow a sequence in its row, such as a separator or padding, count as tokens of that sequence. Tokens before the
    first sequence of a row then get -1.

    Raises:
        BatchError: a sequence is not whole in the batch, or the attention mask covers more tokens than the sequences
            have.
    """
    places = find(batch, [[int(token) for token in one["input_ids"]] for one in features])
    number = np.full(places.shape[0] * places.shape[1], -1)
    for sequence, there in enumerate(places.of):
        number[there] = sequence
    mask = batch.get("attention_mask")
    padding = isinstance(mask, Tensor) and tuple(mask.shape) == places.shape
    free = np.asarray(mask.cpu()).reshape(-1) == 0 if padding and mask is not None else np.zeros(number.size, bool)
    for at in range(1, number.size):
        if number[at] < 0 and not free[at] and at % places.shape[1]:
            number[at] = number[at - 1]
    return torch.from_numpy(number.reshape(places.shape))


def groups_for(model: Any, batch: Mapping[str, Any], layout: Layout, causal: bool) -> list[list[Change]]:
    """Return the changes that could make the audit of a collator and model pass, in groups of alternatives.

    At most one change of a group is made at a time. `batch` is a batch of the unchanged collator, and `layout` says
    where it puts the sequences. `causal`: whether no token attends to later ones.
    """
    inner = outermost(model)
    config = getattr(inner, "config", None)  # a module of your own has none
    takes = set(inspect.signature(type(inner).forward).parameters)
    cached = "use_cache" in takes and getattr(config, "use_cache", None) is not False
    own = getattr(config, "_attn_implementation", None)
    attentions = [
        Change("attention implementation", _ATTENTION, f'model.set_attn_implementation("{name}")', "model")
        for name in ("sdpa", "eager")
        if own is not None and own != name
    ]
    masks = [NO_MASK] if batch.get("attention_mask") is not None else []
    masks += (
        [Change("block-diagonal attention_mask", _MASK, _mask(layout, causal))] if "attention_mask" in takes else []
    )
    return [
        group
        for group in (
            [CACHE] if cached and batch.get("use_cache") is not False else [],
            _position_changes(inner, layout) if "position_ids" in takes else [],
            masks,
            [OFFSET] if "position_ids" in takes and _after_padding(inner) else [],
            attentions,
            [TYPES] if batch.get("token_type_ids") is not None else [],
        )
        if group
    ]


def sets_of(groups: Sequence[Sequence[Change]], most: int = MOST) -> Iterator[tuple[Change, ...]]:
    """Yield sets of 1 to `most` changes, the smallest first, with at most one change of each group."""
    for size in range(1, min(most, len(groups)) + 1):
        for chosen in combinations(groups, size):
            yield from product(*chosen)


def trying(number: int, most: int) -> str:
    """Return text that a monitor shows while set number `number`, of at most `most` sets of changes, is tried.

    >>> trying(3, 9)
    'trying 3 of at most 9'
    """
    return f"trying {number} of at most {most}"


def _positions(layout: Layout) -> str:
    if layout.one_row:
        return 'batch["position_ids"] = torch.cat([torch.arange(len(one["input_ids"])) for one in features])[None]'
    return (
        f"{layout.number}\nat = torch.arange(number.shape[1]).expand_as(number)\n"
        'batch["position_ids"] = at - (at * (number != number.roll(1, 1))).cummax(1).values'
    )


def _position_changes(model: Any, layout: Layout) -> list[Change]:
    """Return a list with one change, which computes ``position_ids`` anew for each sequence; empty if there is none.

    If the model has positions with three axes (M-RoPE, by `get_rope_index`), the change computes all three. There is no
    change for such a model if `Layout.one_row` is False: the batch is not one row with nothing but the sequences.
    """
    base = getattr(model, "model", model)
    if not hasattr(base, "get_rope_index"):
        return [Change("position_ids", _POSITIONS, _positions(layout))]
    if not layout.one_row:
        return []
    code = _AXES.replace("model.get", "model.model.get") if base is not model else _AXES
    return [Change("position_ids with three axes", _POSITIONS, code)]


def _mask(layout: Layout, causal: bool) -> str:
    earlier = ".tril()" if causal else ""
    return f'{layout.number}\nbatch["attention_mask"] = (number[:, :, None] == number[:, None, :]){earlier}[:, None]'


def _after_padding(model: nn.Module) -> bool:
    """Return whether position embeddings have a ``padding_idx``, so that positions begin at ``padding_idx + 1``."""
    return any(
        "position_embeddings" in name and getattr(module, "padding_idx", None) is not None
        for name, module in model.named_modules()
    )
