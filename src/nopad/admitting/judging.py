"""`Judge`: run packs through a copy of a model with a given `Family`, and compare them with the stock model.

The stock model is the model before `packed`; it runs on each sequence alone. The audit comes after this, and compares a
pack-safe model only with itself. Here packs are compared in evaluation mode and in training mode (without dropout),
since a model may compute something else in training.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nopad.admitting.bad import outputs_of
from nopad.admitting.deriving import most_tokens
from nopad.admitting.modes import in_mode, recording
from nopad.admitting.search import CLOSE
from nopad.admitting.small import ran
from nopad.auditing.limits import EXACT, PARTLY_SINGLE, apart, largest_finite
from nopad.auditing.steadiness import Singles
from nopad.batch import Flat, PackedBatch, Rows
from nopad.errors import NopadError, UnsupportedModelError
from nopad.model.calls import takes
from nopad.model.families import Family
from nopad.model.known import class_of, is_stock
from nopad.model.safety import packed, unpacked

__all__ = ["TYPES", "Judge"]

LENGTHS = (13, 1, 29, 6)
FAR = 150  # tokens of a sequence that is longer than windows of a small copy
TYPES = "token_type_ids"
MOST_TIMES = 10  # a long row has each sequence at most so often
Outputs = list[dict[str, Tensor]]


class Judge:
    """Compares packs with the outputs of a few sequences, each run alone on a copy of a small model in float64.

    The model itself is never run, only copies of it, since a model may change when it is called.

    Attributes:
        model: the small model.
        positions: number of positions that its configuration states; None: it states none.
        sequences: the sequences of token ids.
        alone: for evaluation mode (key False) and training mode (key True), the outputs of each sequence by name.
            Training mode is missing if the model is random there even without dropout.
        limit: the largest difference between packs and alone that passes, relative to the output's largest value.
        close: differences of a module's output of at most this, relative to its largest value, are rounding.
        operations: how many of PyTorch's operations the model runs for a sequence of 29 tokens.
        looped: whether the model runs more than 1.5 times as many operations for 29 tokens as for 13, as with a loop
            over tokens.

    Raises:
        UnsupportedModelError: the configuration has no vocabulary, or what the model returns depends on earlier calls.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        size = getattr(model.config.get_text_config(), "vocab_size", None)
        if not isinstance(size, int):
            raise UnsupportedModelError(
                f"{type(model.config).__name__} has no vocab_size, so there are no tokens to try"
            )
        generator = torch.Generator().manual_seed(1)
        low = min(5, size - 2)
        self.positions = most_tokens(model.config)
        far = min(FAR, max((self.positions or FAR + 4) - 4, 1))
        self.sequences = [torch.randint(low, size, (n,), generator=generator).tolist() for n in (*LENGTHS, far)]
        make: Any = Singles
        with make() as watch:
            self.alone = {False: self._alone(False)}
        self.limit = PARTLY_SINGLE if watch.found else EXACT
        self.close = PARTLY_SINGLE if watch.found else CLOSE
        self._check_forgets()
        self.operations = self._operations(2)
        self.looped = self.operations > 1.5 * self._operations(0)
        trained, again = self._alone(True), self._alone(True)
        if not _worst(trained, again, self.sequences):  # else it is random in training, by more than dropout
            self.alone[True] = trained

    def _forms(self, narrow: bool) -> list[Any]:
        """Return the forms (batch layouts) to try: `Flat`, and `Rows` of one width.

        With `narrow`, no row has more slots than the model has positions; `Flat` is then left out if its row would have
        more.
        """
        most = self.positions if narrow and self.positions is not None else 2**31
        flat = [Flat()] if sum(map(len, self.sequences)) <= most else []
        return [*flat, Rows(min(len(self.sequences[-1]) + 10, most))]

    def _check_forgets(self) -> None:
        """Check that a short and a long sequence get the same outputs, whichever of them is run first.

        Raises:
            UnsupportedModelError: an output depends on which of them is run first.
        """
        short, far = self.sequences[0], self.sequences[-1]
        orders = [[short, far], [far, short]]
        found = []
        for order in orders:
            model = copy.deepcopy(self.model)
            made = {len(one): outputs_of(ran(model, one)) for one in order}
            found.append([{name: value[0] for name, value in made[len(one)].items()} for one in (short, far)])
        worst = _worst(found[0], found[1], [short, far], self.limit)
        if worst:
            raise UnsupportedModelError(
                f"what {type(self.model).__name__} gives depends on what it was called with before: {worst}, by the "
                "order of calls; nopad cannot tell what a sequence gets alone"
            )

    def differs(self, line: Family, head: str | None) -> str:
        """Return a sentence on how results on packs differ from those of the stock model; "" if they do not.

        The packs run through a copy of the small model, made pack-safe with the facts `line` and this kind of `head`
        ("causal", for example; None: nopad knows the head of the model's class). If nopad refuses the model, or the
        model raises an error on packs, the result has the error's message.
        """
        model = copy.deepcopy(self.model)
        try:
            packed(model, head=head, family=line)
        except NopadError as error:
            return str(error)
        try:
            typed = not is_stock(class_of(model)) and takes(model, TYPES)
            return self.apart(model, line.narrow) or (self.with_types(model, line.narrow) if typed else "")
        finally:
            unpacked(model)

    def apart(self, model: Any, narrow: bool) -> str:
        """Return how `model`, a pack-safe copy, differs on packs from the stock model; "": it does not.

        The result is a sentence for messages. If the copy raises an error, the sentence has the error's message. With
        `narrow`, no row is longer than the number of positions that the configuration states. Without `narrow`, if
        there is such a number, one longer row is tried, unless it would hold each sequence more than 10 times.
        """
        try:
            for training, wanted in self.alone.items():
                for form in self._forms(narrow):
                    worst = _worst(wanted, self._packs(model, form, training), self.sequences, self.limit)
                    if worst:
                        return f"{worst} between packs and the stock model alone{', in training' if training else ''}"
            if self.positions is not None and not narrow:  # a row that is longer than the table of positions
                times = self.positions // sum(map(len, self.sequences)) + 1
                found = self._packs(model, Flat(), False, times if times <= MOST_TIMES else 1)
                worst = _worst(self.alone[False], found, self.sequences, self.limit)
                if worst:
                    return f"{worst} between long rows and the stock model alone"
        except Exception as error:  # a model's code may raise anything on packs
            return f"on packs, {type(self.model).__name__} raises {type(error).__name__}: {error}"
        return ""

    def with_types(self, safe: Any, narrow: bool) -> str:
        """Return how `safe`, a pack-safe copy, differs on packs with token types from the stock model; "": it does not.

        `narrow` is as for `apart`. The result is also "" if the configuration has no number of token types
        (`type_vocab_size`).
        """
        kinds = getattr(self.model.config, "type_vocab_size", 0)
        if not kinds:
            return ""
        types = [[at % kinds for at in range(len(one))] for one in self.sequences]
        try:
            wanted = self._alone(False, types)
        except Exception:  # the model hands them on to code that takes none, and so would the user's call fail
            return ""
        for form in self._forms(narrow):
            worst = _worst(wanted, self._packs(safe, form, False, types=types), self.sequences, self.limit)
            if worst:
                return f"{worst} with {TYPES} between packs and the stock model alone"
        return ""

    def _operations(self, number: int) -> int:
        """Return how many of PyTorch's operations the model runs for the sequence with this number."""
        make: Any = _Operations
        with make() as watch:
            ran(copy.deepcopy(self.model), self.sequences[number])
        return int(watch.count)

    def _alone(self, training: bool, types: list[list[int]] | None = None) -> Outputs:
        model = copy.deepcopy(self.model)
        columns = [{} if types is None else {TYPES: torch.tensor([one])} for one in types or self.sequences]
        with in_mode(model, training):
            found = [outputs_of(ran(model, ids, **more)) for ids, more in zip(self.sequences, columns, strict=True)]
        return [{name: value[0].detach() for name, value in one.items() if value.shape[0] == 1} for one in found]

    def _packs(
        self, model: Any, form: Any, training: bool, times: int = 1, types: list[list[int]] | None = None
    ) -> Outputs:
        """Run all sequences packed; return the outputs of each sequence by name.

        `form` is the layout of the batch. `training` says whether the model runs in training mode, without dropout. The
        batch holds the list of sequences `times` times; only the outputs of the first time are returned. `types` are
        the token types of each sequence; None: none are given.
        """
        pad = getattr(model.config.get_text_config(), "pad_token_id", None) or 0
        columns = None if types is None else {TYPES: types}
        batch = PackedBatch.from_sequences(self.sequences * times, form=form, pad_id=pad, columns=columns)
        with in_mode(model, training), recording(model):
            made = outputs_of(model(**batch))
        found: Outputs = [{} for _ in self.sequences]
        for name, value in made.items():
            for one, part in zip(found, _split(batch, value.detach()), strict=False):
                one[name] = part
        return found


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A PyTorch dispatch mode that counts operations."""

    count: int = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def _split(batch: PackedBatch, value: Tensor) -> Sequence[Tensor]:
    """Return a batch's output as one part for each sequence; the output has values per token or per sequence."""
    per_token = tuple(value.shape[:2]) == batch.layout.shape
    return (batch.unpack_tokens if per_token else batch.unpack_sequences)(value)


def _worst(wanted: Outputs, found: Outputs, sequences: list[list[int]], limit: float = 0.0) -> str:
    """Return a sentence on the output that differs most between `wanted` and `found`, relative to its largest value.

    The result is "" if none differs by more than `limit`. `wanted` and `found` have one dict of outputs for each
    sequence. Every output that `wanted` has for its first sequence is compared; if one of these is missing for some
    sequence, the result says which output. Rows that `found` has beyond those of `wanted` are ignored. `sequences` are
    the token ids of the sequences; the sentence gives the length of the one that differs most.
    """
    said, most = "", limit
    for name in wanted[0]:
        scale = max(largest_finite(one[name]) for one in wanted if name in one) or 1e-30
        for number, (one, other) in enumerate(zip(wanted, found, strict=True)):
            if name not in one or name not in other:
                return f"{name} is missing"
            part = other[name]
            if part.shape != one[name].shape and part.dim() == one[name].dim():
                part = part[: one[name].shape[0]]
            moved = float("inf") if part.shape != one[name].shape else apart(one[name], part) / scale
            if moved > most:
                most, said = (
                    moved,
                    f"{name} of sequence {number} ({len(sequences[number])} tokens) differs by {moved:.1e}",
                )
    return said
