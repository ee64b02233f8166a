"""Compare the results of sequences run packed and alone: their outputs and their gradients.

If outputs differ, the first module whose output differs is searched for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn

from nopad.auditing.alone import Alone
from nopad.auditing.failure import ModelFailedError
from nopad.auditing.forms import MAY_REFUSE
from nopad.auditing.gradients import Truth, compare_gradients
from nopad.auditing.limits import apart, largest_finite, limit_of, named
from nopad.auditing.probes import Places
from nopad.auditing.tracing import first_difference
from nopad.auditing.trial import per_sequence
from nopad.auditing.verdict import Check
from nopad.model.attention import watched

__all__ = ["Found", "compare", "same_outputs"]


@dataclass
class Found:
    """The results of an audit so far.

    Attributes:
        checks: the checks, with their measured values.
        worst: largest absolute difference of an output between packed and alone, in float64; infinite if outputs cannot
            be compared.
        first: name of the first module whose output differs between packed and alone; None: no output of the model
            differs, or no such module was found.
        notes: remarks for the user.
        attended: how often each layer called nopad's attention in the first packed run, by ``id(module)``.
        names: names of the outputs that can be split into one part per sequence.
        row: number of slots in the widest row that was run so far.
        unseen: True: outputs differ, although no sequence sees another: changing one does not change the results of the
            others. False: outputs differ, and a sequence sees another or may see one. None: this was not checked, for
            example because no output differs.
    """

    checks: list[Check] = field(default_factory=list)
    worst: float = 0.0
    first: str | None = None
    notes: list[str] = field(default_factory=list)
    attended: dict[int, int] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    row: int = 0
    unseen: bool | None = None

    def add(self, other: Found) -> None:
        """Add the results of another comparison, in place.

        Checks and notes are appended; `worst` and `row` become the larger ones; `first`, `attended` and `names` are
        replaced only if they are not set yet. If `other.unseen` is None, `unseen` stays as it is. Otherwise it becomes
        False if one of the two is False, and else True.
        """
        self.checks += other.checks
        self.worst = max(self.worst, other.worst)
        self.first = self.first or other.first
        self.attended = self.attended or other.attended
        self.names = self.names or other.names
        self.row = max(self.row, other.row)
        if other.unseen is not None:
            self.unseen = other.unseen and self.unseen is not False
        for note in other.notes:
            self.note(note)

    def note(self, text: str) -> None:
        """Add a note, unless it is there already."""
        if text not in self.notes:
            self.notes.append(text)

    def attempt(self, name: str, measure: Callable[[], Found], may_refuse: bool = False) -> None:
        """Call `measure` and add its result; if the model raises an exception, add a failed check called `name`.

        The failed check also makes `worst` infinite if `name` begins with "float64". With `may_refuse`, a refusal of
        the batch by nopad adds only a note, and no check.
        """
        try:
            self.add(measure())
        except ModelFailedError as error:
            if error.refused and may_refuse:
                self.note(f"{name}, refused: {error.reason}")
                return
            missed = float("inf")
            self.checks.append(
                Check(name=name, passed=False, value=missed, limit=0.0, detail=str(error), error=error.kind)
            )
            self.worst = missed if name.startswith(named(torch.float64)) else self.worst


def compare(
    alone: Alone, dtype: torch.dtype, truth: Truth | None = None, *, forms: Sequence[str] | None = None, label: str = ""
) -> Found:
    """Run the sequences packed, compare their outputs with those alone, and return the results.

    If `alone.graph` is True, gradients are compared too; for the form "end to end" only in float64. If the model raises
    an exception, a check fails. If nopad refuses a batch, a check fails too, unless the form is "end to end" or a
    `label` is given: then only a note is added.

    Args:
        alone: the outputs and gradients of the sequences, each run alone.
        dtype: the dtype of the model, which decides how large a difference may be.
        truth: the float64 gradients of the same sequences alone. None: gradients in float64 are judged by those of
            `alone`, and gradients in another dtype are not compared.
        forms: the forms (batch layouts) in which the sequences are packed, of "flat", "rows" and "end to end" (or
            "packed" with a collator); None: all forms of the trial.
        label: text that is appended to the names of the checks.

    Raises:
        BatchError: the collator failed, or cut, dropped, changed or added tokens.
    """
    found = Found()
    for form in alone.trial.forms if forms is None else forms:
        measure = partial(_compare_form, alone, form, dtype, truth, label)
        name = f"{named(dtype)} outputs, {form}{label}"
        found.attempt(name, measure, may_refuse=bool(label) or form in MAY_REFUSE)
    return found


def _compare_form(alone: Alone, form: str, dtype: torch.dtype, truth: Truth | None, label: str) -> Found:
    out, trial = Found(), alone.trial
    # Forms in MAY_REFUSE only cut the same stream into other rows: compare their gradients in float64 only.
    with_gradients = alone.graph and (dtype == torch.float64 or form not in MAY_REFUSE)
    batch, places = trial.batch(form, trial.sequences)

    def attended(module: nn.Module) -> None:
        out.attended[id(module)] = out.attended.get(id(module), 0) + 1

    with torch.set_grad_enabled(with_gradients), watched(attended):
        given = trial.run(batch, f"packed, {form}")
    together, check, worst = _judged(alone, given, places, dtype)
    out.names, out.row = tuple(together), places.shape[1]
    if _left_out(alone, given, together):
        out.note("pooler_output is not compared: it is a row's, and no sequence's")
    out.worst = worst if dtype == torch.float64 else 0.0
    out.checks.append(replace(check, name=f"{named(dtype)} outputs, {form}{label}"))
    if not check.passed:
        out.first = first_difference(trial, form, check.limit)
    if with_gradients and together:
        out.attempt(
            f"{named(dtype)} gradients, {form}{label}",
            partial(_gradients, alone, together, form, dtype, truth, f"{form}{label}"),
        )
    return out


def same_outputs(alone: Alone, dtype: torch.dtype) -> bool:
    """Run sequences packed, in each form (batch layout); return whether all outputs equal those in `alone`.

    `alone` has the trial with the sequences, and the outputs of each one run by itself. Differences up to the rounding
    of `dtype`, the model's dtype, do not count. The result is also False if no output of the packed run can be split
    into sequences. Gradients are not compared.

    Raises:
        ModelFailedError: the model raised an exception.
        BatchError: the collator failed, or cut, dropped, changed or added tokens.
    """
    for form in alone.trial.forms:
        batch, places = alone.trial.batch(form, alone.trial.sequences)
        with torch.no_grad():
            given = alone.trial.run(batch, f"packed, {form}")
        together, check, _ = _judged(alone, given, places, dtype)
        if not check.passed or not together:
            return False
    return True


def _judged(
    alone: Alone, given: Mapping[str, Tensor], places: Places, dtype: torch.dtype
) -> tuple[dict[str, list[Tensor]], Check, float]:
    """Compare `given`, the outputs of a packed run by name, with those of the sequences alone.

    `places` says where the sequences lie in the packed batch. `dtype` is the dtype of the model, which decides how
    large a difference may be.

    Returns:
        Three things: the packed outputs by name, each as one part per sequence; the check of all outputs; and the
            largest absolute difference of an output.
    """
    together = per_sequence(given, places, alone.kinds)
    of_rows = [name for name in given if name in alone.kinds and name not in together]
    if _left_out(alone, given, together):
        of_rows.remove("pooler_output")  # a base model's; its hidden states are compared
    check, worst = _outputs(alone, together, of_rows, [n for n in alone.kinds if n not in given], dtype)
    return together, check, worst


def _left_out(alone: Alone, given: Mapping[str, Tensor], together: Mapping[str, list[Tensor]]) -> bool:
    """Return whether the output `pooler_output` is not compared, because it has one value per row, not per sequence.

    This is so only with a collator of the user's, since nopad's batches make the model pool each sequence. Other
    outputs must remain to be compared. `given` has all outputs of the packed run by name, and `together` those that can
    be split into sequences.
    """
    pooled = "pooler_output"
    foreign = alone.trial.collator is not None
    return foreign and pooled in given and pooled in alone.kinds and pooled not in together and bool(together)


def _outputs(
    alone: Alone, together: dict[str, list[Tensor]], of_rows: list[str], missing: list[str], dtype: torch.dtype
) -> tuple[Check, float]:
    """Compare outputs of the sequences packed with those alone; return the check, and the largest absolute difference.

    The check fails if a difference is too large for `dtype`, the dtype of the model. It also fails, with an infinite
    difference, if `of_rows` or `missing` has names, if an output has no finite number even alone, or if nothing can be
    compared.

    Args:
        alone: the sequences run alone, with their outputs.
        together: the packed outputs by name, one part per sequence.
        of_rows: names of the outputs that belong to a row and to no sequence.
        missing: names of the outputs that the packed run does not have.
        dtype: the dtype of the model.
    """
    worst, scale, odd = 0.0, 1e-30, []
    for name, parts in together.items():
        singles = [output[name] for output in alone.outputs]
        for part, single in zip(parts, singles, strict=True):
            worst = max(worst, _distance(part, single[0]))
        scale = max(scale, *map(largest_finite, singles))
        if not any(bool(single.isfinite().any()) for single in singles):
            odd.append(f"{name}: not one finite number, even alone")
    if of_rows:
        odd.append(f"{', '.join(of_rows)}: of a row, whatever is in it, and of no sequence")
    if missing:
        odd.append(f"{', '.join(missing)}: only alone, and not of packs")
    if not together and not odd:
        odd.append("the model gives nothing to compare")
    worst = float("inf") if odd else worst
    limit = limit_of(worst / scale, dtype, alone.trial.partly)
    passed = worst <= limit * scale
    return Check(
        name="outputs", passed=passed, value=worst / scale, limit=limit, detail="; ".join(odd) or ", ".join(together)
    ), worst


def _gradients(
    alone: Alone, together: dict[str, list[Tensor]], form: str, dtype: torch.dtype, truth: Truth | None, label: str
) -> Found:
    """Compare gradients packed and alone; return a `Found` (results of an audit) with notes, and a check if possible.

    Sequences and parameters whose gradients are not finite even alone are left out. `together` holds the outputs packed
    in the batch layout `form`, by name, one part per sequence. `truth` holds the gradients in float64. If it is None,
    only float64 gradients are compared, and they are judged by those of `alone`. `label` goes into the check's name.

    Raises:
        ModelFailedError: the gradients cannot be computed.
        BatchError: the collator fails on the sequences that are left, or cuts, drops, changes or adds tokens.
    """
    names = tuple(together)
    sound, left_out, notes = alone.sound(names)
    out = Found(notes=list(notes))
    if sound is None:
        return out
    if truth is None and dtype != torch.float64:  # which gradients are zero, and how far rounding goes, is not known
        out.note(f"gradients in {named(dtype)} are not compared: there are none in float64 to judge them by")
        return out
    if sound is not alone:
        batch, places = sound.trial.batch(form, sound.trial.sequences)
        together = per_sequence(sound.trial.run(batch, f"packed, {form}"), places, alone.kinds)
        truth = None if truth is None else Truth({}, truth.zero)
    truth = truth or Truth.of(sound, names)
    check = compare_gradients(sound, together, dtype, truth, left_out)
    out.checks.append(replace(check, name=f"{named(dtype)} gradients, {label}"))
    return out


def _distance(packed_value: Tensor, wanted: Tensor) -> float:
    """Return the largest difference between a sequence's output packed and alone (`wanted`); infinity if shapes differ.

    A packed output that is longer is cut to the length of `wanted` first.
    """
    got = packed_value
    if got.shape != wanted.shape:
        got = got[: wanted.shape[0]] if got.dim() == wanted.dim() else got
    return float("inf") if got.shape != wanted.shape else apart(wanted, got)
