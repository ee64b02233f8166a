"""`Trial`: a model in one dtype, with the sequences that an audit runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from nopad.auditing.failure import inside_model
from nopad.auditing.forms import FORMS, arranged, crossing, shortened_targets
from nopad.auditing.probes import Places, find, lengths_for
from nopad.auditing.shown import Patches, Pictures, shown_to
from nopad.auditing.tokens import Tokens, draw
from nopad.batch import PackedBatch
from nopad.errors import FOREIGN, BatchError
from nopad.model.admission import positions_of
from nopad.model.calls import takes
from nopad.model.hooked import part_of
from nopad.model.safety import STATE, bare
from nopad.options import MAX_LENGTH

__all__ = ["Collator", "Kinds", "Trial", "fitted", "kinds_of", "longest_of", "per_sequence"]

Collator = Callable[[list[dict[str, Any]]], Mapping[str, Any]]
Kinds = dict[str, Literal["token", "target", "sequence"]]


@dataclass(frozen=True)
class Trial:
    """A model in one dtype, with the sequences that an audit runs.

    Attributes:
        model: the model, in evaluation mode.
        collator: the function that builds batches; None: nopad builds them.
        sequences: token ids of each sequence.
        others: sequences of the same lengths with other ids.
        targets: target ids for an encoder-decoder model: one target per sequence, mostly of another length. None: there
            is no decoder, or a collator builds the batches.
        capacity: capacity of the packs.
        seed: random seed of the token ids, and of the weights with which outputs are summed for gradients.
        start: first id of a decoder's input.
        partly: whether the model computes some of its results in float32, even in float64.
        shown: what the ids of sequences stand for, in a model that takes images; None: ids are tokens.
    """

    model: Any
    collator: Collator | None
    sequences: list[list[int]]
    others: list[list[int]]
    targets: list[list[int]] | None
    capacity: int
    seed: int
    start: int = 0
    partly: bool = False
    shown: Pictures | Patches | None = None

    @classmethod
    def drawn(
        cls, model: Any, collator: Collator | None, capacity: int, seed: int, tokens: Tokens, most: int = 6
    ) -> Trial:
        """Return a trial with up to `most` random sequences; `tokens` says which ids are drawn.

        Sequences of text are no longer than `capacity`, and no longer than the model's positions allow. Some models
        take no row longer than their number of positions (`Family.narrow`). For these, sequences are short enough that
        one row holds all of them, if nopad builds the batches. If nopad builds the batches and the model has a decoder,
        targets are drawn too.

        A model that takes images gets sequences of fixed sizes instead, and `capacity` is not used. In both cases, the
        capacity of the trial is the length of its longest sequence.
        """
        config = bare(model).config.get_text_config()
        shown = shown_to(model, seed, tokens)
        if shown is not None:
            sequences, others = shown.sequences[:most], shown.others[:most]
            return cls(model, collator, sequences, others, None, max(map(len, sequences)), seed, shown=shown)
        longest = longest_of(config, capacity)
        row = MAX_LENGTH if collator is not None else _widest_row(model)
        longest = min(longest, max(row // 3, 1))  # six sequences take about 3 times the longest
        lengths = lengths_for(longest, longest)[:most]
        while sum(lengths) > row and len(lengths) > 1:  # and a little more in rows of less than 14 slots
            lengths.pop()
        sequences, others = (draw(lengths, tokens, seed + at) for at in (0, 1))
        targets = None
        if collator is None and _has_decoder(model):
            targets = draw(shortened_targets(lengths), tokens, seed + 2)
        return cls(model, collator, sequences, others, targets, longest, seed, _start(config))

    def only(self, numbers: Sequence[int]) -> Trial:
        """Return a trial with only the sequences that have these indices."""
        targets = self.targets and [self.targets[number] for number in numbers]
        sequences, others = ([taken[number] for number in numbers] for taken in (self.sequences, self.others))
        return replace(self, sequences=sequences, others=others, targets=targets)

    @property
    def forms(self) -> list[str]:
        """Names of the forms (batch layouts) in which sequences are batched.

        If a collator builds the batches, the only name is "packed". Otherwise the names are "flat", "rows" and "end to
        end"; the last is left out if no width of rows makes one of these sequences continue in the next row.
        """
        if self.collator is not None:
            return ["packed"]
        crosses = crossing([len(sequence) for sequence in self.sequences]) is not None
        return [form for form in FORMS if crosses or form != "end to end"]

    def inputs(self, number: int) -> dict[str, Any]:
        """Return the model's arguments for running sequence `number` (from 0) alone."""
        inner = bare(self.model)
        parameter = next(inner.parameters())
        device = parameter.device
        ids = self.sequences[number]
        given = {"input_ids": torch.tensor([ids])} if self.shown is None else self.shown.alone(ids)
        named: dict[str, Any] = {name: fitted(value, parameter) for name, value in given.items()}
        if getattr(inner.config, "use_cache", None) is not None and takes(inner, "use_cache"):
            named["use_cache"] = False
        if self.targets is not None:
            named["decoder_input_ids"] = torch.tensor([[self.start, *self.targets[number][:-1]]], device=device)
        return named

    def alone(self, number: int) -> dict[str, Tensor]:
        """Run sequence `number` alone; return its outputs by name.

        Raises:
            ModelFailedError: the model does not run on the token ids of one sequence.
        """
        return self.run(
            self.inputs(number),
            f"{type(bare(self.model)).__name__} does not run on the input_ids of one sequence, so there is nothing to "
            "compare" + ("; audit it without a collator, or its encoder" if self.collator is not None else ""),
        )

    def run(self, inputs: Mapping[str, Any], doing: str) -> dict[str, Tensor]:
        """Run the model; return those outputs that are float tensors of at least one dimension, by name.

        Raises:
            ModelFailedError: the model raised an exception; the error's message begins with `doing`, which says what
                was being done.
        """
        with inside_model(doing):
            given = self.model(**inputs)
            if isinstance(given, Tensor):
                given = (given,)
            named = given if isinstance(given, Mapping) else {f"output {at}": each for at, each in enumerate(given)}
            return {n: v for n, v in named.items() if isinstance(v, Tensor) and v.is_floating_point() and v.dim() > 0}

    def batch(self, form: str, sequences: Sequence[Sequence[int]]) -> tuple[Mapping[str, Any], Places]:
        """Build a batch of these sequences in one `form`; return it, without labels, and the sequences' `Places` in it.

        With a collator, `form` is not used.

        Raises:
            BatchError: the collator fails, or cuts, drops, changes or adds tokens.
        """
        parameter = next(bare(self.model).parameters())
        if self.collator is None:
            pad = getattr(bare(self.model).config.get_text_config(), "pad_token_id", None) or 0
            build = None if self.shown is None else partial(self.shown.batch, sequences, parameter)
            made = arranged(form, sequences, self.capacity, pad, self.targets, self.start, build)
            places = find(made, sequences)
            moved = made.to(parameter.device)
            moved.pop("labels", None)
            return moved, places
        if isinstance(self.shown, Pictures):
            batch = self._collated(self.collator, [self.shown.feature(sequence) for sequence in sequences])
            sequences = [self.shown.ids(sequence) for sequence in sequences]
        else:
            batch = self._collated(self.collator, [{"input_ids": list(sequence)} for sequence in sequences])
        places = find(batch, sequences)
        if isinstance(batch, PackedBatch):
            packed_batch = batch.to(parameter.device)
            packed_batch.pop("labels", None)
            return packed_batch, places
        return {n: fitted(v, parameter) for n, v in batch.items() if n != "labels"}, places

    @staticmethod
    def _collated(collate: Collator, features: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        try:
            batch = collate([{**feature, "labels": list(feature["input_ids"])} for feature in features])
        except FOREIGN:  # a collator may raise anything for labels
            try:
                batch = collate([dict(feature) for feature in features])
            except FOREIGN as error:
                raise BatchError(
                    f"the collator failed on dicts of input_ids and labels, and of input_ids alone: "
                    f"{type(error).__name__}: {error}"
                ) from error
        ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
        if not isinstance(batch, PackedBatch) and not (isinstance(ids, Tensor) and ids.dim() == 2):
            raise BatchError(
                f"the collator gave {type(batch).__name__} with {type(ids).__name__} as input_ids; expected the "
                "arguments of a forward call by name, input_ids a tensor [R, L] among them"
            )
        return batch


def kinds_of(alone: Sequence[Mapping[str, Tensor]], trial: Trial) -> Kinds:
    """Return what the values of each output belong to, by name: "token", "target" (a token of a target) or "sequence".

    `alone` has the outputs of each sequence by name. The shapes decide. Values belong to tokens if the second dimension
    is the length of the sequence, in every sequence; and to targets if it is the length of the target. All others
    belong to sequences. Names that a sequence lacks are left out.
    """

    def as_long_as(name: str, wanted: Sequence[Sequence[int]]) -> bool:
        pairs = zip((output[name] for output in alone), wanted, strict=True)
        return all(value.dim() > 1 and value.shape[1] == len(one) for value, one in pairs)

    kinds: Kinds = {}
    for name in alone[0]:
        if any(name not in output for output in alone):
            continue
        if as_long_as(name, trial.sequences):
            kinds[name] = "token"
        else:
            target = trial.targets is not None and as_long_as(name, trial.targets)
            kinds[name] = "target" if target else "sequence"
    return kinds


def per_sequence(output: Mapping[str, Tensor], places: Places, kinds: Kinds) -> dict[str, list[Tensor]]:
    """Return a batch's outputs by name, each split into one part per sequence; those that cannot be split are left out.

    `places` says where the sequences lie in the batch, and `kinds` what the values of each output belong to: "token",
    "target" (a token of a target) or "sequence". Outputs without an entry in `kinds` are left out too.
    """
    split = {name: places.split(value, kinds[name]) for name, value in output.items() if name in kinds}
    return {name: parts for name, parts in split.items() if parts is not None}


def longest_of(config: Any, capacity: int) -> int:
    """Return the longest length to try: `capacity`, or the model's number of positions minus 2 if that is less.

    Some models, such as RoBERTa, never use the first two positions. If `config` does not state the number of positions,
    as T5's, or states a negative one, the result is `capacity`. The result is at least 1.
    """
    limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or -1
    return min(capacity, max(int(limit) - 2, 1)) if limit > 0 else capacity


def _widest_row(model: Any) -> int:
    """Return how many slots a row may have: the number of positions of a pack-safe model with `Family.narrow`.

    For other models, the result is `MAX_LENGTH`.
    """
    inner = bare(model)
    state = getattr(inner, STATE, None)
    limit = positions_of(inner, state.family) if state is not None and state.family.narrow else None
    return MAX_LENGTH if limit is None else limit


def fitted(value: Any, parameter: Tensor) -> Any:
    """Return the tensor `value` on the device of `parameter`, a parameter of the model; other values stay as they are.

    Tensors of floats, such as additive masks, are cast to the model's dtype. Finite values beyond the dtype's range
    become its largest or smallest value; infinity and NaN stay.
    """
    if not isinstance(value, Tensor):
        return value
    if value.is_floating_point():
        most = torch.finfo(parameter.dtype).max
        wide = value.double()  # clamp keeps NaN
        value = torch.where(wide.isinf(), wide, wide.clamp(-most, most)).to(parameter.dtype)
    return value.to(parameter.device)


def _has_decoder(model: Any) -> bool:
    inner = bare(model)
    state = getattr(inner, STATE, None)
    if state is None or not state.family.encoder_decoder or part_of(inner, "decoder") is None:
        return False
    return "decoder_input_ids" in inspect.signature(type(inner).forward).parameters


def _start(config: Any) -> int:
    start = getattr(config, "decoder_start_token_id", None)
    return int(getattr(config, "pad_token_id", None) or 0) if start is None else int(start)
