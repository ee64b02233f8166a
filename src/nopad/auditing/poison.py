"""Check that no sequence changes its neighbours' results, and that nopad's attention ran in every layer.

The neighbours of a sequence are all other sequences in its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nopad.auditing.alone import Alone
from nopad.auditing.comparison import Found
from nopad.auditing.failure import ModelFailedError
from nopad.auditing.limits import apart, largest_finite, named
from nopad.auditing.probes import Places
from nopad.auditing.shortened import layer_count
from nopad.auditing.trial import Kinds, Trial, per_sequence
from nopad.auditing.verdict import Check
from nopad.errors import UnsupportedModelError
from nopad.model.embedded import input_embeddings
from nopad.model.hooked import part_of
from nopad.model.postconditions import mixed
from nopad.model.safety import STATE, bare, state_of
from nopad.wording import counted

__all__ = ["Poisoned", "keeps_nan_apart", "once_a_layer", "poison", "unseen"]

SCALE = {torch.float16: 1e3}  # float16 cannot represent 1e6
ROUNDINGS = 4  # allowed change in units of eps: on other devices than the CPU, or per layer if routing changes
SHARED_NAN = ("segments", "varlen")  # backends in which NaN does not reach other sequences
FORM = "rows"


def poison(alone: Alone, dtype: torch.dtype) -> Found:
    """Change one sequence in several ways; for each way, measure how much the results of the other sequences change.

    The sequence gets other tokens; its embeddings are scaled; and its embeddings become NaN. The last way is tried only
    without a collator, and with a backend in which NaN does not spread to neighbours. The returned `Found` has a check
    for each way that was tried; the check fails if the model raises an exception. If no output can be split into
    sequences, there are no checks.

    On a CPU, a neighbour's result must usually stay the same, bit for bit. On other devices, where the order of
    additions varies, it may usually change by a few roundings of the largest value. In two cases, it may change by a
    few roundings per layer instead, on any device: the change of the sequence alters which tokens are computed
    together, as in a mixture of experts; or a collator puts the sequences of the changed batch at other places.

    Args:
        alone: the results of the sequences, each run alone; they say how the outputs are split.
        dtype: the dtype of the model, which decides how large a rounding is.

    Raises:
        BatchError: the collator failed, or cut, dropped, changed or added tokens.
        UnsupportedModelError: the model does not say which module embeds its ``input_ids``.
    """
    found, trial, huge = Found(), alone.trial, SCALE.get(dtype, 1e6)
    poisoned = Poisoned(trial, alone.kinds)
    tries: list[tuple[str, list[list[int]], float | None]] = [
        ("other tokens", poisoned.others, None),
        (f"embeddings x {huge:.0e}", trial.sequences, huge),
    ]
    state = getattr(bare(trial.model), STATE, None)
    if state is not None and trial.collator is None and keeps_nan_apart(state.backend):
        tries.append(("NaN", trial.sequences, float("nan")))
    for what, sequences, factor in tries:
        name = f"{named(dtype)} poison, {what}"

        def measure(name: str = name, sequences: list[list[int]] = sequences, factor: float | None = factor) -> Found:
            check = poisoned.check(name, dtype, sequences, factor)
            return Found(checks=[] if check is None else [check])

        found.attempt(name, measure)
    return found


def keeps_nan_apart(backend: str) -> bool:
    """Return whether NaN in one sequence reaches no other sequence with this attention backend; True for "auto"."""
    return backend in ("auto", *SHARED_NAN)


def unseen(alone: Alone, dtype: torch.dtype) -> bool:
    """Return whether no sequence's results change, but for rounding, when another sequence gets other tokens.

    Each sequence is changed once, in every form (batch layout) of the trial. The result is also False if the model
    fails, or if no output can be split into sequences. `alone` has the trial, and the results of its sequences, each
    run alone. `dtype` is the dtype of the model, which decides how large a rounding is.

    Raises:
        BatchError: the collator fails, or cuts, drops, changes or adds tokens.
    """
    trial = alone.trial
    try:
        for form in trial.forms:
            for victim in range(len(trial.sequences)):
                poisoned = Poisoned(trial, alone.kinds, victim, form=form)
                check = poisoned.check("unseen", dtype, poisoned.others, None)
                if check is None or not check.passed:
                    return False
    except ModelFailedError:
        return False
    return True


class Poisoned:
    """A trial in which one sequence is changed, in all or some of its tokens.

    Attributes:
        form: the layout of the batch, such as "rows" or "flat".
        victim: index of the changed sequence.
        others: the token ids of all sequences, with other tokens in the changed one.
    """

    def __init__(
        self,
        trial: Trial,
        kinds: Kinds,
        victim: int | None = None,
        tokens: Sequence[int] | None = None,
        form: str | None = None,
    ) -> None:
        """Choose the sequence that is changed, and its new tokens; nothing is run yet.

        Args:
            trial: the trial whose sequence is changed.
            kinds: for each output: whether its values belong to tokens, targets or sequences.
            victim: index of the sequence that is changed; None: the longest of those that are shorter than the
                capacity, or the first sequence if none is.
            tokens: the positions in the sequence whose tokens are replaced; None: all.
            form: one of the trial's forms; None: "rows", or the last form if "rows" is not among them.
        """
        self.trial, self.kinds = trial, kinds
        self.form = form or (FORM if FORM in trial.forms else trial.forms[-1])
        longest = max(range(len(trial.sequences)), key=lambda n: len(trial.sequences[n]) % trial.capacity)
        self.victim = longest if victim is None else victim
        changed = trial.others[self.victim]
        if tokens is not None:
            mine, chosen = trial.sequences[self.victim], set(tokens)
            changed = [changed[at] if at in chosen else token for at, token in enumerate(mine)]
        self.others = [changed if number == self.victim else mine for number, mine in enumerate(trial.sequences)]
        self._clean: tuple[dict[str, list[Tensor]], Places] | None = None

    def run(
        self, sequences: list[list[int]], factor: float | None = None, watch: Callable[[Places], Any] | None = None
    ) -> dict[str, list[Tensor]]:
        """Run the sequences packed; return the outputs, by name, split into one part per sequence.

        The embeddings of the sequence with the index `victim`, and of its target, are multiplied by `factor`; None:
        they stay as they are. If `watch` is given, it is called with the `Places` of the sequences in the batch, and
        returns a context manager inside which the model runs.

        Raises:
            ModelFailedError: the model raised an exception.
            BatchError: the collator failed, or cut, dropped, changed or added tokens.
            UnsupportedModelError: `factor` is given, and the model does not say which module embeds its ``input_ids``.
        """
        return self._run(sequences, factor, watch)[0]

    def _run(
        self, sequences: list[list[int]], factor: float | None, watch: Callable[[Places], Any] | None
    ) -> tuple[dict[str, list[Tensor]], Places]:
        """Run the sequences packed, as `run` does; return ``(outputs, places)``.

        `outputs` has the outputs by name, each split into one part per sequence. `places` says where the sequences lie
        in the batch.
        """
        batch, there = self.trial.batch(self.form, sequences)
        inside = nullcontext() if watch is None else watch(there)
        with torch.no_grad(), _scaled(self.trial, there, self.victim, factor), inside:
            return per_sequence(self.trial.run(batch, f"packed, {self.form}"), there, self.kinds), there

    def check(self, name: str, dtype: torch.dtype, sequences: list[list[int]], factor: float | None) -> Check | None:
        """Return a check of how far the results of the other sequences move when sequence `victim` is changed.

        The model runs the unchanged sequences (once for all calls), and then `sequences`, in which only sequence
        `victim` may differ. The embeddings of this sequence are multiplied by `factor`; None: they stay as they are.
        `name` is the name of the check. The result is None if no output of the model can be split into sequences.

        Raises:
            ModelFailedError: the model raised an exception.
            BatchError: the collator failed, or cut, dropped, changed or added tokens.
            UnsupportedModelError: `factor` is given, and the model does not say which module embeds its ``input_ids``.
        """
        if self._clean is None:
            self._clean = self._run(self.trial.sequences, None, None)
        clean, before = self._clean
        if not clean:
            return None
        moved, after = self._run(sequences, factor, None)
        worst = max(
            (
                apart(part, moved[output][number])
                for output, parts in clean.items()
                for number, part in enumerate(parts)
                if number != self.victim
            ),
            default=0.0,
        )
        scale = max((largest_finite(part) for parts in clean.values() for part in parts), default=0.0) or 1e-30
        worst /= scale
        limit, how = self.allowed(worst, dtype, sequences, factor, before.alike(after))
        detail = f"sequence {self.victim} of {len(self.trial.sequences[self.victim])} tokens; its neighbours{how}"
        return Check(name=name, passed=worst <= limit, value=worst, limit=limit, detail=detail)

    def allowed(
        self,
        worst: float,
        dtype: torch.dtype,
        sequences: list[list[int]],
        factor: float | None = None,
        alike: bool = True,
    ) -> tuple[float, str]:
        """Return ``(limit, reason)``: how far results of other sequences may move, and text that explains the limit.

        The limit is relative to the largest value of all results: 0 on a CPU, and a few roundings on other devices. If
        `worst` is above this, the limit becomes a few roundings per layer in two cases: the change alters which tokens
        are computed together, or the sequences do not lie at the same places in both batches (`alike` is False).

        `worst` is how far the results moved when the model ran `sequences`, with the embeddings of sequence `victim`
        multiplied by `factor` (None: unchanged).

        Raises:
            ModelFailedError: the model raised an exception.
            BatchError: the collator failed, or cut, dropped, changed or added tokens.
            UnsupportedModelError: `factor` is given, and the model does not say which module embeds its ``input_ids``.
        """
        exact = next(bare(self.trial.model).parameters()).device.type == "cpu"
        limit = 0.0 if exact else ROUNDINGS * torch.finfo(dtype).eps
        if worst <= limit or (alike and not self._reroutes(sequences, factor)):
            return limit, ", bit for bit" if exact else ""
        single = torch.float32 if self.trial.partly else dtype
        eps = max(torch.finfo(single).eps, torch.finfo(dtype).eps)
        # Matrix products round the rows of a matrix differently, by where they are
        why = "the collator lays each batch out anew"
        if alike:
            why = "where it is routed to changes what they are computed with"
        return ROUNDINGS * eps * max(_layers(self.trial), 1), f", but for rounding: {why}"

    def _reroutes(self, sequences: list[list[int]], factor: float | None) -> bool:
        """Return whether the changed sequence alters what the model computes: operations, shapes or decisions.

        A decision is, for example, the choice of a token's experts. The model runs the unchanged sequences, and then
        `sequences`. In the second run, the embeddings of the changed sequence are multiplied by `factor` (None:
        unchanged).
        """
        make: Any = _Decisions
        before, after = make(), make()
        # Scaled by 1, so that both runs have the same operations
        self.run(self.trial.sequences, None if factor is None else 1.0, watch=lambda _: before)
        self.run(sequences, factor, watch=lambda _: after)
        return bool(before.seen != after.seen)


class _Decisions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that records each operation: its name, the shapes of its results, and integers made from floats.

    Such integers are the model's decisions, such as the expert of a token.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Any] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        found = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        real = any(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in tree_leaves(args))
        whole = [leaf.tolist() for leaf in found if real and leaf.dtype in (torch.int32, torch.int64)]
        self.seen.append((function, [leaf.shape for leaf in found], whole))
        return result


@contextmanager
def _scaled(trial: Trial, places: Places, victim: int, factor: float | None) -> Iterator[None]:
    """Inside this context, multiply the embeddings of sequence `victim`, and of its target if it has one, by `factor`.

    `places` says where the tokens of the sequences lie in the batch. If `factor` is None, the embeddings stay as they
    are.
    """
    if factor is None:
        yield
        return
    sides = [places] if places.target is None else [places, places.target]
    masks = {side.shape: torch.ones(side.shape[0] * side.shape[1], 1, dtype=torch.float64) for side in sides}
    for side in sides:
        masks[side.shape][torch.from_numpy(side.of[victim])] = factor

    def scale(module: nn.Module, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):  # quantised embeddings (I-BERT) come with their scale
            return (scale(module, args, output[0]), *output[1:])
        # Rows of targets have another width, so the shape tells which mask applies.
        mask = masks.get((output.shape[0], output.shape[1]))
        if mask is None:
            return output
        scaled: Tensor = output * mask.reshape(*output.shape[:2], 1).to(output)
        return scaled

    inner = bare(trial.model)
    owners = [inner, *(part_of(inner, name) for name in ("encoder", "decoder") if trial.targets is not None)]
    modules = {id(module): module for module in map(_embeddings, owners)}
    handles = [module.register_forward_hook(scale) for module in modules.values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _embeddings(model: Any) -> nn.Module:
    found = input_embeddings(model)
    if found is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} does not say which module embeds its input_ids; define get_input_embeddings() in "
            "it, which returns that module"
        )
    return found


def _layers(trial: Trial) -> int:
    config = bare(trial.model).config.get_text_config()
    layers = layer_count(config)
    if trial.targets is not None:  # a decoder layer has two attentions: to the target and to the encoder
        layers += 2 * int(getattr(config, "num_decoder_layers", 0) or config.decoder_layers)
    return layers


def once_a_layer(trial: Trial, counts: dict[int, int]) -> Check:
    """Return a check that each layer called nopad's attention as often as this model type needs, usually once.

    `counts` has the number of calls of each attention layer, by ``id(module)``. If several layers share one module
    (ALBERT), only the total is checked.
    """
    family, config = state_of(trial.model).family, bare(trial.model).config
    wanted = mixed(config, family, trial.targets is not None)
    each = 1 if family.mixers else family.attends  # with mixers, each mixing module has a count of its own
    ran = sum(counts.values())
    wrong = abs(ran - wanted)
    if len(counts) * each >= wanted:  # not so in ALBERT, which calls one shared layer again and again
        wrong = max(wrong, max((abs(n - each) for n in counts.values()), default=1))
    return Check(
        name="attention calls, missing or extra",
        passed=wrong == 0,
        value=wrong,
        limit=0,
        detail=f"{counted(ran, 'call')} in {counted(_layers(trial), 'layer')}",
    )
