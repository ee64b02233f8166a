"""Find the first module whose output for a sequence differs between the step and the sequence alone, and why.

To find whether sequences see each other, one sequence gets other tokens: the outputs of the others must not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nopad.auditing.inputs import UNSEEN, input_of
from nopad.auditing.limits import apart, largest_finite
from nopad.auditing.recording import on_outputs, states_of
from nopad.auditing.steps.found import Micro
from nopad.auditing.steps.verdict import Finding
from nopad.errors import FOREIGN

__all__ = ["first_differences"]

RESULTS = "the model's results"
MOST = 8  # sequences that get other tokens, one at a time
SEEING = "contamination"
UNSEEING = "different from alone"


def first_differences(
    micro: Micro, run: Callable[[], Any], model: Any, alone: Any, limit: float
) -> list[tuple[str, Finding]]:
    """Find modules whose outputs differ between the step and the sequences alone; return the first of each kind found.

    The kinds are:

    * "contamination": a sequence sees another, or it is unknown whether one does
    * "different from alone": no sequence sees another, but the model gets other inputs than for a sequence alone, such
      as positions
    * "head fed with rows": a head gives a result per row instead of per sequence

    Args:
        micro: the micro-batch.
        run: runs the micro-batch through `model`.
        model: the copy of the model that runs the micro-batch.
        alone: another copy of the same model, which runs the sequences alone.
        limit: largest difference, relative to the largest value of an output, that counts as equal.

    Returns:
        A list with (name of the module, finding) for each kind that was found. It is empty if no output differs, if the
            batch has no input_ids, or if one of the two models fails.
    """
    if micro.shape is None:
        return []
    together: dict[str, Tensor] = {}
    try:
        with _traced(model, together):
            run()
        single = []
        for example in micro.made:
            seen: dict[str, Tensor] = {}
            if example is not None:
                with _traced(alone, seen), torch.no_grad():
                    alone(**example.inputs(alone))
            single.append(seen)
    except FOREIGN:  # of the user's model or loss
        return []
    found: dict[str, tuple[str, Finding]] = {}
    for name, value in together.items():
        differs = _differs(micro, name, value, single, limit)
        if differs is not None:
            found.setdefault(differs.kind, (name, differs))
    if SEEING not in found:
        return list(found.values())
    name, said = found[SEEING]
    reached = _seen(micro, run, model, together, limit)
    kind = UNSEEING if reached is False else SEEING
    found[SEEING] = name, Finding(kind, f"{said.text}: {_why(name, reached, _padded(micro))}")
    return list(found.values())


def _seen(micro: Micro, run: Callable[[], Any], model: Any, before: Mapping[str, Tensor], limit: float) -> bool | None:
    """Return whether the outputs of some sequence of the micro-batch change when another sequence gets other tokens.

    At most 8 sequences get other tokens, one at a time. ``input_ids`` of the batch are overwritten meanwhile, and are
    restored at the end. `run` runs the batch through `model`. `before` has the modules' outputs for the unchanged
    batch, by name. An output changes if it moves by more than `limit`, relative to its largest value.

    The result is None if this cannot be found out: fewer than 2 sequences were found in the micro-batch; it has fewer
    than 2 different token ids; the ids are not contiguous in memory; no output has one entry per token; the micro-batch
    does not run with other tokens; or the outputs of a sequence do not depend on its own tokens.
    """
    ids = micro.batch["input_ids"]
    there = [at for at in micro.places if at is not None]
    tokens = ids.unique()
    compared = {name: value for name, value in before.items() if tuple(value.shape[:2]) == micro.shape}
    if len(there) < 2 or len(tokens) < 2 or not compared or not ids.is_contiguous():
        return None
    kept = ids.clone()
    try:
        for at in there[:MOST]:
            places = torch.from_numpy(at).to(ids.device)
            next_one = (torch.searchsorted(tokens, kept.reshape(-1)[places]) + 1) % len(tokens)
            ids.copy_(kept.reshape(-1).scatter(0, places, tokens[next_one]).reshape(kept.shape))
            after: dict[str, Tensor] = {}
            with _traced(model, after):
                run()
            others = torch.cat([torch.from_numpy(one) for one in there if one is not at]).to(ids.device)
            if any(_moved(value, after.get(name), others, limit) for name, value in compared.items()):
                return True
            if not any(_moved(value, after.get(name), places, limit) for name, value in compared.items()):
                return None  # the step does not read these ids
            ids.copy_(kept)
    except FOREIGN:
        return None
    finally:
        ids.copy_(kept)
    return False


def _moved(before: Tensor, after: Tensor | None, places: Tensor, limit: float) -> bool:
    """Return whether an output changed by more than `limit`, relative to its largest value, at these places.

    `places` are positions in the concatenated rows. An output that is missing, or has another shape, counts as
    unchanged.
    """
    if after is None or after.shape != before.shape:
        return False
    first, second = (value.reshape(-1, *value.shape[2:])[places.to(value.device)] for value in (before, after))
    return apart(first, second) > limit * max(largest_finite(before), 1e-30)


def _padded(micro: Micro) -> bool:
    """Return whether the batch has slots that hold no token of a sequence."""
    return sum(len(at) for at in micro.places if at is not None) < int(micro.batch["input_ids"].numel())


def _differs(micro: Micro, name: str, value: Tensor, single: list[dict[str, Tensor]], limit: float) -> Finding | None:
    """Return a finding if the output of module `name` for a sequence differs between the step and the sequence alone.

    `value` is the output in the step, and `single` has the modules' outputs for each sequence alone, by name. Outputs
    differ if their largest difference, relative to the largest value alone, is above `limit`. A finding is also
    returned if the module gives one result for a sequence alone, but in the step another number of results than there
    are sequences, such as one per row. If there is neither, or the output cannot be compared, the result is None.
    """
    there = [number for number, seen in enumerate(single) if name in seen]
    if not there or micro.shape is None:
        return None
    per_token = tuple(value.shape[:2]) == micro.shape
    flat = value.reshape(-1, *value.shape[2:]) if per_token else value
    order = [one for one in micro.numbered if one in there]
    for number in there:
        wanted, at = single[number][name], micro.places[number]
        assert at is not None
        if per_token and wanted.dim() == value.dim() and wanted.shape[1] == len(at):
            part = flat[torch.from_numpy(at).to(flat.device)]
        elif wanted.dim() == 2 and value.dim() == 2 and wanted.shape[0] == 1 and wanted.shape[1:] == value.shape[1:]:
            if len(value) != len(there):
                text = (
                    f"{name} gave {len(value)} results for {len(there)} sequences in {micro.where}: a head that reads "
                    "rows, and not sequences"
                )
                return Finding("head fed with rows", text)
            part = value[order.index(number)]
        else:
            continue
        if part.shape != wanted.shape[1:] and part.shape != wanted[0].shape:
            continue
        scale = max(largest_finite(wanted), 1e-30)
        difference = apart(part, wanted[0]) / scale
        if difference > limit:
            text = (
                f"sequence {micro.first + number} gets another result in {micro.where} than alone, first at {name}, "
                f"where it differs by {difference:.1e}"
            )
            return Finding(SEEING, text)
    return None


def _why(name: str, seen: bool | None, padded: bool) -> str:
    """Return as text why the output of module `name` for a sequence differs from that of the sequence alone.

    `seen`: whether some sequence sees another; None: unknown. `padded`: whether the batch has padding.
    """
    others = input_of(name) or ("positions, token types or ids" if "embedding" in name else "")
    tail = {True: "; further on, a sequence sees another", False: f"; {UNSEEN}", None: ""}[seen]
    if others:
        return f"it has other {others} there{tail}"
    if seen:
        return "it sees another sequence"
    if seen is None:
        return "it sees another sequence or padding, or has other positions there"
    return f"it {'sees padding, or ' * padded}has other positions, or another mask, there{tail}"


@contextmanager
def _traced(model: nn.Module, trace: dict[str, Tensor]) -> Iterator[None]:
    """Inside this context, store the outputs of a model's modules in `trace`, by name.

    The entries of `trace` are in the order in which the modules finish. An output (of a tuple or list, the first entry)
    is stored if it is a floating-point tensor with at least 2 dimensions. If a module is called several times, the
    first such output is kept. For the model itself, the logits are stored under the name `RESULTS`, or its output if
    that is a tensor or tuple.
    """

    def seen(name: str, output: Any) -> None:
        if not name:
            output = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", output)
        value = states_of(output)
        if value is not None:
            trace.setdefault(name or RESULTS, value.clone())

    with on_outputs(model, seen):
        yield
