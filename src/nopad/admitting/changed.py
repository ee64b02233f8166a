"""Try a library's model whose code the user has changed, by hooks, forward methods or other functions.

nopad's tables describe the code of transformers, and a proof runs a copy of the model. Neither knows of such changes.
So the model itself is run on a few short sequences, alone and in packs, and its outputs are compared.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from nopad.auditing.failure import ModelFailedError
from nopad.auditing.limits import apart, largest_finite
from nopad.auditing.tokens import Tokens
from nopad.auditing.trial import Kinds, Trial, kinds_of, per_sequence
from nopad.errors import NopadError, UnsupportedModelError
from nopad.model.admission import device_of, positions_of
from nopad.model.modes import evaluated
from nopad.model.own import changes, said
from nopad.model.safety import state_of, unpacked

__all__ = ["check_changes"]

LONGEST = 24  # tokens of a sequence
SEQUENCES = 6
# Largest differences of an output, relative to its largest value, by its dtype
OF_FORM = {torch.float64: 1e-6, torch.float32: 1e-4}  # between a pack and alone
OF_OTHERS = {torch.float64: 1e-6, torch.float32: 1e-5}  # if only other sequences of the pack change: the same kernels
OF_HALF, OF_GPU = 5e-2, 5e-3  # a GPU may multiply float32 with 10 bits


def check_changes(model: Any) -> None:
    """If the user's own code changes a pack-safe model, run the model, and compare packs with sequences alone.

    Such code is what `nopad.model.own.changes` finds: hooks, replaced forward methods and the like.

    Args:
        model: a pack-safe transformers model, without wrappers. It is not copied, so the user's hooks run too. A model
            on the device "meta" cannot run, so nothing is compared: later calls check such code instead
            (`nopad.model.later`).

    Raises:
        UnsupportedModelError: a sequence gets another result in a pack than alone, or another one if the rest of its
            pack changes; or the model does not run. The model is then no longer pack-safe.
        MemoryError, torch.OutOfMemoryError: the run needs too much memory.
    """
    found = changes(model)
    if not found:
        return
    if device_of(model).type == "meta":
        state_of(model).watch.known = []  # untried: calls refuse these changes, or watch them, once there are weights
        return
    try:
        why = _differs(model)
    except (NopadError, ModelFailedError) as error:
        if isinstance(error.__cause__, MemoryError | torch.OutOfMemoryError):
            raise error.__cause__ from None
        why = str(error)
    if why:
        unpacked(model)
        more = f" and {len(found) - 1} more changes" if len(found) > 1 else ""
        raise UnsupportedModelError(
            f"{said(*found[0])}{more} change what {type(model).__name__} computes, and nopad cannot tell that its "
            f"sequences stay apart: {why}. Take them off; or give prove='never', if they see one token at a time"
        )


def _differs(model: Any) -> str:
    """Return a sentence on what is wrong with the outputs of a pack-safe model on packs; "" if nothing is.

    The outputs are right if they equal those of each sequence alone, and stay the same when other sequences of the pack
    change. Rounding is allowed.

    Raises:
        NopadError, ModelFailedError: the model does not run.
    """
    state = state_of(model)
    limit = positions_of(model, state.family)
    longest = min(LONGEST, limit // 3) if state.family.narrow and limit is not None else LONGEST
    tokens = Tokens.of(model.config.get_text_config())
    with evaluated(model), torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as of checkpointing without gradients
        trial = Trial.drawn(model, None, longest, 0, tokens, min(SEQUENCES, state.most or SEQUENCES))
        alone = [trial.alone(number) for number in range(len(trial.sequences))]
        kinds = kinds_of(alone, trial)
        wanted = {name: [one[name][0] for one in alone] for name in kinds}
        every = list(range(len(alone)))
        for form in trial.forms:
            if form != "flat" and state.head.one_row:
                continue
            found = _packed(trial, kinds, form, trial.sequences)
            said = _apart(wanted, found, every, OF_FORM, "between pack and alone")
            for kept in (every[::2], every[1::2]):
                mixed = [trial.sequences[one] if one in kept else trial.others[one] for one in every]
                other = _packed(trial, kinds, form, mixed)
                said = said or _apart(found, other, kept, OF_OTHERS, "when only others in its pack change")
            if said:
                return said
    return ""


def _packed(trial: Trial, kinds: Kinds, form: str, sequences: list[list[int]]) -> dict[str, list[Tensor]]:
    batch, places = trial.batch(form, sequences)
    return per_sequence(trial.run(batch, "packed"), places, kinds)


def _apart(
    wanted: dict[str, list[Tensor]],
    found: dict[str, list[Tensor]],
    numbers: list[int],
    limits: dict[torch.dtype, float],
    when: str,
) -> str:
    """Return a sentence on an output that differs by more than its limit, or has another shape; "": no output does.

    Only names in both `wanted` and `found` are compared. If a tensor to judge has more rows than the wanted one, its
    last rows are ignored.

    Args:
        wanted: the outputs to compare with, by name; one tensor per sequence.
        found: the outputs to judge, in the same form.
        numbers: indices of the sequences that are compared.
        limits: for float64 and float32, the largest difference that passes, relative to the output's largest value in
            all sequences. For other dtypes, `OF_HALF` is used. On devices other than a CPU, float32 has the limit
            `OF_GPU` if that is larger.
        when: words on where the difference is, for the result.
    """
    for name in (one for one in wanted if one in found):
        scale = max(map(largest_finite, wanted[name])) or 1e-30
        for number in numbers:
            one, other = wanted[name][number], found[name][number]
            given = other[: len(one)] if one.dim() and len(other) > len(one) else other
            if given.shape != one.shape:
                return f"{name} of a sequence is {list(given.shape)} {when}, and else {list(one.shape)}"
            most = limits.get(one.dtype, OF_HALF)
            moved = apart(one, given) / scale
            if not moved <= (most if one.device.type == "cpu" or one.dtype == torch.float64 else max(most, OF_GPU)):
                return f"{name} of a sequence differs by {moved:.1e} {when}"
    return ""
