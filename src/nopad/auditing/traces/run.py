"""`trace`: run a batch as it is and with one token replaced, and compare the outputs of all modules.

Cost: one run of six short sequences in float64 for each token that is tried, and two more if the token changes another
sequence. If the caller names no token, each sequence is first replaced as a whole, to find out whether it leaks; its
ends are left out if the collator's batch depends on them. Then three tokens of a sequence are tried, and its other
tokens only if the sequence leaks but these three do not show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nopad.auditing.failure import ModelFailedError
from nopad.auditing.poison import Poisoned
from nopad.auditing.probes import Places
from nopad.auditing.recording import within
from nopad.auditing.run import OPTIONS, backend_for, check_model, how_of, refuse_capacity
from nopad.auditing.shortened import shortened
from nopad.auditing.shown import parts_of_images, takes_pictures, tokens_of
from nopad.auditing.steadiness import steady
from nopad.auditing.subject import subject_of
from nopad.auditing.tokens import Tokens
from nopad.auditing.traces.columns import Columns, Values, moved_by, recorded
from nopad.auditing.traces.influence import Trace
from nopad.auditing.traces.pictures import of_pictures, shown_in
from nopad.auditing.trial import Collator, Trial, kinds_of
from nopad.batch import PackedBatch
from nopad.errors import BatchError, OptionError
from nopad.model.safety import bare
from nopad.options import shown

__all__ = ["trace"]

CAPACITY = 16
FORM = "flat"

Floats = NDArray[np.float64]


def trace(
    model: Any,
    *,
    collator: Collator | None = None,
    poisoned: Literal["each"] | Sequence[tuple[int, int]] | None = None,
    capacity: int | None = None,
    backend: str = "auto",
    layers: int | None = None,
    seed: int = 0,
) -> Trace:
    """Replace one token of a batch by another, and measure which tokens' values change, module by module.

    Six random sequences are batched as in `nopad.audit`, and run through a copy of the model. The copy is in float64,
    or in the model's own dtype if it does not run in float64. If sequences are kept apart, only the sequence of the
    replaced token changes.

    If the model takes images, there are five sequences, with images and videos that are drawn as in `nopad.audit`. To
    replace a token of an image is to replace the image. The modules of a vision tower have a value for each image,
    which is shown at all of its tokens.

    If nopad chooses the sequence, it chooses one that changes other sequences, if there is one. In a sequence, it
    chooses the token that changes other sequences most. It tries the first, the middle and the last token. If none of
    these changes another sequence, but all tokens together do, it tries every token. If no token changes another
    sequence, it chooses the middle one.

    With a collator, the first three tries in a sequence of more than 3 tokens leave out its first and last token. Of
    these two, one that the collator's batch depends on is not tried at all, for example because the collator looks for
    eos. A sequence of up to 3 tokens may then have no token to try, and "each" leaves it out.

    Args:
        model: a transformers model. Without a collator, the copies are made pack-safe if the model is not.
        collator: any function from features (dicts with ``input_ids``) to the arguments of a forward call; the model is
            then run unchanged, with batches of this collator.
        poisoned: the tokens to replace, one after the other, as pairs (sequence, token), both from 0. "each": one token
            of every sequence, chosen by nopad. None: one token of one sequence, both chosen by nopad.
        capacity: length of the longest sequence, which is shorter if the model has too few positions; None: 16. Models
            that take images have sequences of fixed sizes, and no capacity.
        backend: attention backend with which the copies are made pack-safe, as in `nopad.packed`.
        layers: trace a copy with only the first `layers` layers; None: all layers.
        seed: random seed of the tokens and images.

    Returns:
        A `nopad.auditing.Trace`. It holds the changes, says whether anything leaks, and draws a picture.

    Raises:
        UnsupportedModelError: nopad refuses this model, or cannot cut it to its first layers; the message gives the
            reason.
        BatchError: the collator fails, or cuts, drops or changes sequences, or adds tokens.
        OptionError: an option is not valid, or `poisoned` names a token that does not exist; `poisoned` names none, and
            all sequences have up to 3 tokens, and what the collator returns depends on them; the model is not one of
            transformers, has no vocabulary to draw from, is pack-safe with another backend, has a part that is
            pack-safe by itself, is random in evaluation mode, or raises an exception on the batch; or it takes images,
            and `capacity` is given; or it makes its tokens from images (ViT), and there is a `collator`.

    With the collator of transformers, a token of sequence 2 changes all other sequences, from the first attention on:

    >>> import nopad.auditing
    >>> from transformers import BertConfig, BertModel, DataCollatorWithFlattening
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = BertModel(BertConfig(**sizes))
    >>> nopad.auditing.trace(model).isolated
    True
    >>> leak = nopad.auditing.trace(model, collator=DataCollatorWithFlattening(return_tensors="pt"))
    >>> leak.isolated, leak.first_leak, leak.reached
    (False, 'encoder.layer.0.attention.self', [0, 1, 3, 4, 5])
    """
    given = {"backend": backend, "capacity": capacity, "layers": layers, "seed": seed}
    for name, value in given.items():
        OPTIONS[name].check(name, value)
    inner = bare(model)
    check_model(model, backend, collator is not None)
    if takes_pictures(model):
        refuse_capacity(inner, capacity)
    capacity = CAPACITY if capacity is None else capacity
    if layers is not None:
        model = inner = shortened(model, layers)
    own = next(inner.parameters()).dtype
    failed: ModelFailedError | None = None
    with torch.random.fork_rng(devices=[]):
        for dtype in dict.fromkeys((torch.float64, own)):
            try:
                with subject_of(model, dtype, collator is None, backend_for(model, backend, dtype)) as subject:
                    tokens = tokens_of(inner)
                    tokens = tokens if collator is None else tokens.for_collators()
                    trial = Trial.drawn(subject, collator, capacity, seed, tokens)
                    trial = replace(_changed(trial, tokens), partly=steady(trial))
                    return _Traced(trial, dtype, how_of(model, collator, backend)).trace(poisoned)
            except ModelFailedError as error:  # some kernels run in one dtype only
                failed = error
    raise OptionError(f"{type(inner).__name__} cannot be traced: {failed}") from failed


def _changed(trial: Trial, tokens: Tokens) -> Trial:
    """Return a copy of the trial in which `others` and `sequences` have different tokens at every place.

    Where both have the same token, the one in `others` is replaced by another ordinary id.
    """
    plain = tokens.plain
    others = [
        [new if new != old else int(plain[(np.searchsorted(plain, old) + 1) % plain.size]) for old, new in pair]
        for pair in (zip(mine, other, strict=True) for mine, other in zip(trial.sequences, trial.others, strict=True))
    ]
    return replace(trial, others=others)


@dataclass
class _Run:
    """One run of the batch: its tokens, and the values of each module and model output for them.

    Attributes:
        columns: the tokens of the batch.
        places: where the sequences lie in the batch.
        names: names of the modules, then of the model's outputs.
        values: the values of each module and output, by name, with the tokens to which they belong.
        outputs: number of the model's outputs.
    """

    columns: Columns
    places: Places
    names: list[str]
    values: dict[str, Values]
    outputs: int = 0


@dataclass
class _Traced:
    """A model with the sequences in which tokens are poisoned, one after the other.

    Attributes:
        trial: the model's copy and its sequences.
        dtype: dtype of the model's copy.
        how: as text, what keeps sequences apart.
    """

    trial: Trial
    dtype: torch.dtype
    how: str

    def __post_init__(self) -> None:
        with torch.no_grad():
            self.kinds = kinds_of([self.trial.alone(number) for number in range(len(self.trial.sequences))], self.trial)
        self.layers = _layers(bare(self.trial.model))
        self.of_images = parts_of_images(self.trial.model)
        self.form = FORM if FORM in self.trial.forms else self.trial.forms[-1]
        self.batch, self.places = self.trial.batch(self.form, self.trial.sequences)
        self.clean = self._run(self.trial.sequences)

    def trace(self, asked: Any) -> Trace:
        """Replace single tokens of the sequences, and return how the values of all tokens change.

        `asked` says which tokens: a list of pairs (sequence, token), "each" (one token of every sequence), or None (one
        token of one sequence). Only one token is replaced at a time; the other tokens are unchanged then.

        Raises:
            OptionError: `asked` is of another form, or names a token that does not exist; or no token can be replaced.
            ModelFailedError: the model does not run on the changed tokens.
            BatchError: the collator fails on the changed tokens, or cuts, drops, changes or adds tokens.
        """
        places, found, limits = [], [], []
        for sequence, tokens in self._asked(asked):
            token, influence, limit = self._worst(sequence, tokens)
            places.append((sequence, token))
            found.append(influence)
            limits.append(limit)
        at = self.clean.columns
        columns = [int(np.flatnonzero((at.sequences == n) & (at.positions == token))[0]) for n, token in places]
        made = Trace(
            model=type(bare(self.trial.model)).__name__,
            how=self.how,
            modules=tuple(self.clean.names),
            influence=np.stack(found),
            sequences=at.sequences,
            positions=at.positions,
            rows=at.rows,
            source=at.source,
            poisoned=np.array(columns, dtype=np.int64),
            limit=max(limits),
            drawn=np.arange(len(self.clean.names)),
            outputs=self.clean.outputs,
        )
        return replace(made, drawn=_drawn(made, bare(self.trial.model)))

    def _asked(self, asked: Any) -> list[tuple[int, list[int]]]:
        """Return a pair for each token to poison: the index of its sequence, and a list of candidates for the token.

        One of the candidates is chosen later. They are indices of tokens in the sequence.

        Raises:
            OptionError: there is no such sequence or token; `asked` is neither None, "each" nor a list of pairs; or all
                sequences have up to 3 tokens, the collator's layout depends on them, and `asked` names none.
        """
        lengths = [len(sequence) for sequence in self.trial.sequences]
        if asked is None or asked == "each":
            found = {number: self._open(number) for number in range(len(lengths))}
            if not any(tokens for tokens, _ in found.values()):
                raise OptionError(
                    "no token can be replaced: the sequences have up to 3 tokens, and what the collator returns beside "
                    "input_ids depends on them; name the tokens to replace all the same, such as [(2, 0)]"
                )
            if asked == "each":
                return [(number, tokens) for number, (tokens, _) in found.items() if tokens]
            usual = self._poisoned(None).victim
            # The first of equal ones; one without tokens, of which none may be poisoned, comes last
            worst = max([usual, *found], key=lambda number: (bool(found[number][0]), found[number][1] > 0))
            return [(worst, found[worst][0])]
        pairs = list(asked) if isinstance(asked, Sequence) and not isinstance(asked, str) else []
        if not pairs or not all(_is_pair(one) for one in pairs):
            raise OptionError(
                f'poisoned is {shown(asked)}; give "each", or pairs of a sequence and its token, as [(2, 0)]'
            )
        for sequence, token in pairs:
            if not 0 <= sequence < len(lengths):
                raise OptionError(f"poisoned names sequence {sequence}; there are 0 to {len(lengths) - 1}")
            if not 0 <= token < lengths[sequence]:
                raise OptionError(
                    f"poisoned names token {token} of sequence {sequence}; it has 0 to {lengths[sequence] - 1}"
                )
        return [(sequence, [token]) for sequence, token in pairs]

    def _open(self, number: int) -> tuple[list[int], float]:
        """Return the tokens of sequence `number` that may be poisoned, and how far other sequences change if all are.

        The change is 0 if it is within the limit of rounding. All tokens may be poisoned if the collator's layout of
        the batch does not depend on them. Otherwise all but the last may be, if the layout does not depend on these;
        and otherwise all but the first and the last. In this last case, a sequence of up to 3 tokens has none.
        """
        every = list(range(len(self.trial.sequences[number])))
        within = every[1:-1] if len(every) > 3 else []
        kinds = (every, every[:-1], within)
        tokens = next((one for one in kinds if one and self._laid_alike(self._poisoned(number, one))), within)
        return tokens, self._moved(number, tokens)[1] if tokens else 0.0

    def _laid_alike(self, poisoned: Poisoned) -> bool:
        """Return whether the batch with poisoned tokens equals the unchanged batch in everything but the token ids.

        With nopad's own batches this is always so. If a collator returns a `PackedBatch`, only the places of the
        sequences are compared. The result is False if the sequences cannot be found in the poisoned batch.
        """
        if self.trial.collator is None:
            return True
        try:
            batch, places = self.trial.batch(self.form, poisoned.others)
        except BatchError:
            return False
        alike = self.places.alike(places)
        if not alike or isinstance(batch, PackedBatch):
            return alike
        beside = [(value, self.batch.get(name)) for name, value in batch.items() if name != "input_ids"]
        return batch.keys() == self.batch.keys() and all(_equal(mine, other) for mine, other in beside)

    def _worst(self, sequence: int, tokens: list[int]) -> tuple[int, Floats, float]:
        """Return the token that changes other sequences most, its influence ``[M, T]`` (see `Trace`), and the limit.

        Three of `tokens` are tried first: the first, the middle and the last. With a collator, the two ends of a
        sequence of more than 3 tokens are not counted for this. The other tokens are tried only if the three show no
        leak but all `tokens` together do.
        """
        size = len(self.trial.sequences[sequence])
        spare = self.trial.collator is not None and size > 3
        inside = [token for token in tokens if not spare or 0 < token < size - 1] or tokens
        middle = inside[len(inside) // 2]
        few = sorted({inside[0], middle, inside[-1]}, key=lambda one: one != middle)
        found = [(token, *self._moved(sequence, [token])) for token in few]
        left = [token for token in tokens if token not in few]
        if left and not any(moved for _, _, moved, _ in found) and self._moved(sequence, tokens)[1]:
            found += [(token, *self._moved(sequence, [token])) for token in left]
        token, influence, _, limit = max(found, key=lambda one: one[2])  # the first of equal ones
        return token, influence, limit

    def _moved(self, sequence: int, tokens: list[int]) -> tuple[Floats, float, float]:
        """Poison these tokens at the same time; return their influence, the change of other sequences, and the limit.

        The influence is float64 ``[M, T]``, as in `Trace`. The change is the largest one in another sequence; 0 if it
        is within the limit.
        """
        poisoned = self._poisoned(sequence, tokens)
        run = self._run(poisoned.others)
        influence = self._influence(run)
        other = self.clean.columns.sequences != sequence
        worst = float(np.nan_to_num(influence[:, other], nan=0.0, posinf=np.inf).max(initial=0.0))
        limit, _ = poisoned.allowed(worst, self.dtype, poisoned.others, alike=self.clean.places.alike(run.places))
        return influence, worst if worst > limit else 0.0, limit

    def _poisoned(self, sequence: int | None, tokens: Sequence[int] | None = None) -> Poisoned:
        return Poisoned(self.trial, self.kinds, sequence, tokens, self.form)

    def _run(self, sequences: list[list[int]]) -> _Run:
        """Run the sequences in one batch; return the values of each module and model output for each token."""
        at: list[Columns] = []
        laid_out: list[Places] = []
        values: dict[str, Values] = {}
        flat: set[str] = set()

        def watch(places: Places) -> AbstractContextManager[None]:
            at.append(Columns.of(places))
            laid_out.append(places)
            shown = shown_in(self.trial, at[-1], sequences)

            def keep(name: str, call: int, value: Tensor) -> None:
                if within(name, self.of_images):
                    pictured = of_pictures(value, shown[call - 1]) if call <= len(shown) else None
                    if pictured is not None:
                        values[name if call == 1 else f"{name}, call {call}"] = pictured
                    return
                if call > 1 and name in flat:
                    values.pop(name, None)
                # In a layer, as many rows as there are sequences are an expert's tokens
                spread = at[-1].spread(value, pooled=not within(name, self.layers))
                if spread is None or (at[-1].flat(value) and call > 1):
                    return
                if at[-1].flat(value):
                    flat.add(name)
                values[name if call == 1 else f"{name}, call {call}"] = Values(*spread)

            return recorded(self.trial.model, keep)

        outputs = self._poisoned(None).run(sequences, watch=watch)
        names = list(values)
        [columns], [places] = at, laid_out
        for name, parts in outputs.items():
            called = name if name not in values else f"output {name}"
            values[called] = Values(*columns.joined(parts, self.kinds[name]))
            names.append(called)
        return _Run(columns, places, names, values, len(outputs))

    def _influence(self, run: _Run) -> Floats:
        """Return how far each token's values in `run` are from those in the unchanged batch; float64 ``[M, T]``.

        There is a row for each module output and a column for each token. An entry is NaN if the output has no value
        for the token, or if the output's values in the two runs differ in shape.
        """
        clean = self.clean
        order = self._same_order(run.columns)
        found = np.full((len(clean.names), len(clean.columns)), np.nan)
        for row, name in enumerate(clean.names):
            mine, other = clean.values[name], run.values.get(name)
            if other is None or other.values.shape != mine.values.shape:
                continue
            if isinstance(mine.here, slice):
                at = torch.from_numpy(order[mine.here] - mine.here.start).to(other.values.device)
                found[row, mine.here] = moved_by(mine.values, other.values[at])
            else:  # nopad's own batches, in which sequences keep their order
                found[row, mine.here] = moved_by(mine.values, other.values)[mine.owner]
        return found

    def _same_order(self, other: Columns) -> NDArray[np.int64]:
        """Return the index in `other` of each token of the unchanged batch; int64 ``[T]``.

        `other` are the columns (tokens) of another batch. Their order may differ, since a collator may order sequences
        by their tokens.
        """
        clean = self.clean.columns
        side = np.arange(len(clean)) >= clean.source
        where = {key: at for at, key in enumerate(zip(side, other.sequences, other.positions, strict=True))}
        keys = zip(side, clean.sequences, clean.positions, strict=True)
        return np.array([where[key] for key in keys], dtype=np.int64)


def _is_pair(given: Any) -> bool:
    """Return whether `given` is a sequence of two integers."""
    return isinstance(given, Sequence) and len(given) == 2 and all(isinstance(one, int | np.integer) for one in given)


def _equal(mine: Any, other: Any) -> bool:
    """Return whether two values of batches are equal; tensors also in shape, other values also in type."""
    if isinstance(mine, Tensor) and isinstance(other, Tensor):
        return mine.shape == other.shape and torch.equal(mine, other)
    return type(mine) is type(other) and bool(np.all(mine == other))


def _drawn(trace: Trace, model: nn.Module) -> NDArray[np.int64]:
    """Return the indices of the modules to draw, ascending; int64.

    These are drawn:

    * each layer whose values change
    * of the modules outside the layers that finish before the first such layer, the last one whose values change
      (mostly the embeddings)
    * the first module that leaks
    * the model's outputs

    If the values of no layer change, all modules are drawn.
    """
    layers = _layers(model)
    modules = len(trace.modules) - trace.outputs
    names = [name.partition(", call ")[0] for name in trace.modules[:modules]]
    moves: NDArray[np.bool_] = np.any(np.nan_to_num(trace.matrix, nan=0.0) > 0, axis=1)
    rows = [at for at, name in enumerate(names) if name in layers and moves[at]]  # tables of positions do not move
    if not rows:
        return np.arange(len(trace.modules))
    moved = [at for at in range(rows[0]) if moves[at] and not within(names[at], layers)]
    first = np.flatnonzero(trace.leaks[:modules].any(1))[:1].tolist()
    return np.array(sorted({*moved[-1:], *rows, *first, *range(modules, len(trace.modules))}), dtype=np.int64)


def _layers(model: nn.Module) -> set[str]:
    """Return the names of a model's layers: the entries of its outermost `nn.ModuleList` modules."""
    found: set[str] = set()
    lists = [name for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    for name in lists:
        if not any(name.startswith(f"{outer}.") for outer in lists if outer != name):
            found |= {f"{name}.{at}" for at, _ in model.get_submodule(name).named_children()}
    return found
