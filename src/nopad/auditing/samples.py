"""`audit_samples`: compare samples packed and alone, for any torch module and any data, by two functions of the user.

`audit` draws tokens itself and knows how to call transformers' models. Graphs, images and sound have other formats, and
their models other arguments, so here one function runs a sample alone and another runs several samples packed. The
measurements are the same: outputs, gradients of the trainable parameters, and whether replacing one sample's values
(poison) changes the results of the other samples in its pack.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map_with_path

from nopad.auditing.alone import Gradients, weighed
from nopad.auditing.failure import ModelFailedError, inside_model
from nopad.auditing.gradients import Truth, judged
from nopad.auditing.limits import apart, largest_finite, limit_of, named
from nopad.auditing.poison import ROUNDINGS, SCALE, keeps_nan_apart
from nopad.auditing.steadiness import Singles
from nopad.auditing.verdict import Check, Verdict
from nopad.batch.images import VIDEOS
from nopad.errors import BatchError, OptionError
from nopad.model.safety import STATE
from nopad.options import BOOLEAN, Option

__all__ = ["LEAST", "audit_samples", "compared"]

OPTIONS = {
    "gradients": Option(default=True, help="compare gradients too", choices=BOOLEAN),
    "seed": Option(default=0, help="random seed of what is drawn", low=0),
}
LEAST = 2  # samples: one has no neighbour
RESULT = "result"  # the name of an output that is a tensor and no dict

Parts = list[Mapping[str, Tensor]]
AloneFunction = Callable[[Any, Any], Any]
PackedFunction = Callable[[Any, Sequence[Any]], Sequence[Any]]


def audit_samples(
    model: nn.Module,
    samples: Sequence[Any],
    *,
    alone: AloneFunction,
    packed: PackedFunction,
    gradients: bool = True,
    seed: int = 0,
) -> Verdict:
    """Check that samples of any kind get the same results in a pack as alone.

    The model is copied in float64 and in its own dtype, both in evaluation mode. Each copy runs the samples alone, and
    packed in the given order and in reverse. Then the float values of the middle sample are replaced in three ways: by
    random values, by themselves times 1e6 (1e3 in float16), and by NaN (left out if the backend of a pack-safe model
    lets NaN spread). On a CPU, not a single bit may change in the results of the other samples in the pack; on other
    devices, they may change by rounding only.

    Args:
        model: any torch module, pack-safe or not. It is copied, never changed.
        samples: two or more samples, as `alone` and `packed` take them: tensors, or dicts, tuples or lists of tensors.
            Both functions get them on the model's device, with float tensors cast to the dtype under test. Only
            ``second_per_grid_ts`` (seconds between steps of videos) keeps its dtype, and its values are not replaced.
        alone: ``alone(model, sample)`` returns the result of one sample by itself: a float tensor, or a dict of them.
        packed: ``packed(model, samples)`` returns the results of several samples run as one pack: a list or tuple with
            one result per sample, in their order, each with the keys and shapes that `alone` returns for it.
        gradients: also compare the gradients of the model's trainable parameters.
        seed: random seed of the weights with which outputs are summed for gradients, and of the random values of the
            middle sample.

    Returns:
        A `nopad.auditing.Verdict`; `isolated` says whether all checks passed. An exception in the model or in one of
            the two functions is a failed check with the exception's name. If the middle sample holds no floats, it is
            not changed, and a note says so.

    Raises:
        OptionError: `model` is not a module; `alone` or `packed` is not callable; `samples` is no sequence (such as a
            list), or has fewer than two entries; `gradients` or `seed` is not valid; or the results alone differ from
            one run to the next.

    >>> import torch, nopad
    >>> model = torch.nn.Linear(3, 2)
    >>> samples = [torch.randn(4, 3), torch.randn(1, 3), torch.randn(2, 3)]
    >>> def together(model, samples):
    ...     return model(torch.cat(samples)).split([len(sample) for sample in samples])
    >>> nopad.audit_samples(model, samples, alone=lambda model, sample: model(sample), packed=together).isolated
    True
    """
    for name, value in {"gradients": gradients, "seed": seed}.items():
        OPTIONS[name].check(name, value)
    if not isinstance(model, nn.Module):
        raise OptionError(f"model is a {type(model).__name__}; expected a torch module")
    for name, function in {"alone": alone, "packed": packed}.items():
        if not callable(function):
            raise OptionError(f"{name} is a {type(function).__name__}; expected a function (model, samples)")
    if not isinstance(samples, Sequence) or isinstance(samples, str | bytes | bytearray) or len(samples) < LEAST:
        raise OptionError(f"at least {LEAST} samples are audited, in a list: one by itself has no neighbours")
    how = f"{len(samples)} samples, packed by {getattr(packed, '__name__', type(packed).__name__)}"
    return compared(model, samples, alone, packed, gradients, seed, how)


def compared(
    model: nn.Module,
    samples: Sequence[Any],
    alone: AloneFunction,
    packed: PackedFunction,
    gradients: bool,
    seed: int,
    how: str,
    other: Any = None,
) -> Verdict:
    """Compare samples packed and alone, and return the verdict; the arguments are already checked.

    Args:
        model: any torch module; only copies of it run.
        samples: two or more samples, as the two functions take them.
        alone: ``alone(model, sample)`` returns the result of one sample by itself: a tensor, or a dict of them.
        packed: ``packed(model, samples)`` returns a list with the result of each of several samples, run as one pack.
        gradients: also compare the gradients of the model's trainable parameters.
        seed: random seed of the weights with which outputs are summed for gradients, and of the random values that
            replace the floats of the middle sample.
        how: text that says what keeps samples apart, for the verdict.
        other: one more sample that replaces the middle one, to see whether the results of the others change. Its
            integers, such as its tokens, may differ from those of the middle one. None: there is none.

    Raises:
        OptionError: the results alone differ from one run to the next.
    """
    task = _Task(model, list(samples), alone, packed, gradients, seed, other)
    with torch.random.fork_rng(devices=[]):
        task.run()
    return Verdict(
        isolated=all(check.passed for check in task.checks),
        max_abs_diff=task.worst,
        first_difference=None,
        model=type(model).__name__,
        how=how,
        checks=tuple(task.checks),
        notes=tuple(task.notes),
    )


@dataclass
class _Task:
    """The arguments and state of one audit.

    Attributes:
        model: the user's module; only copies of it run.
        samples: the samples, as both functions take them.
        alone: the user's function that runs one sample: ``alone(model, sample)``.
        packed: the user's function that runs several samples as one pack: ``packed(model, samples)``.
        gradients: whether gradients are compared too.
        seed: random seed of the weights with which outputs are summed for gradients, and of the random values that
            replace the floats of the middle sample.
        other: one more sample that replaces the middle one; None: there is none.
        checks: the checks so far.
        notes: remarks for the user so far.
        worst: largest absolute difference of an output between packed and alone so far, in float64; infinite if the
            model or a function failed.
        partly: whether the model computes some results in float32, even in float64.
        truth: gradients of the samples, each run alone; None: not computed yet. They are computed in float64 or, if no
            gradients could be compared in float64, in the model's own dtype.
    """

    model: nn.Module
    samples: list[Any]
    alone: AloneFunction
    packed: PackedFunction
    gradients: bool
    seed: int
    other: Any = None
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    worst: float = 0.0
    partly: bool = False
    truth: Truth | None = None

    def run(self) -> None:
        """Run all checks in float64 and in the model's own dtype; the results are in `checks`, `notes` and `worst`.

        If the model or a function of the user fails, this is a failed check.

        Raises:
            OptionError: the results alone differ from one run to the next.
        """
        first = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float64)
        for dtype in dict.fromkeys((torch.float64, first)):
            self._attempt(f"{named(dtype)} outputs, alone", partial(self._in, dtype))

    def _attempt(self, name: str, measure: Callable[[], None]) -> None:
        try:
            measure()
        except ModelFailedError as error:
            self.checks.append(
                Check(name=name, passed=False, value=float("inf"), limit=0.0, detail=str(error), error=error.kind)
            )
            self.worst = float("inf")

    def _in(self, dtype: torch.dtype) -> None:
        model = self._copied(dtype)
        samples = [self._as(sample, dtype, model) for sample in self.samples]
        single = self._singles(model, samples)
        make: Any = Singles
        with torch.no_grad(), make() as watch:
            again = self._singles(model, samples)
        self.partly |= bool(watch.found) and dtype == torch.float64
        shapes = [[{name: value.shape for name, value in part.items()} for part in parts] for parts in (single, again)]
        if shapes[0] != shapes[1]:
            raise OptionError(
                "the results alone have other names or shapes from one run to the next, so nothing can be compared "
                "with them; is there something random in evaluation mode?"
            )
        moved = max(apart(a[name], b[name]) for a, b in zip(single, again, strict=True) for name in a)
        scale = max((largest_finite(value) for part in single for value in part.values()), default=0.0)
        # On devices other than the CPU, sums may be added up in any order.
        steady = 0.0 if _device(model).type == "cpu" else ROUNDINGS * torch.finfo(dtype).eps * scale
        if moved > steady:
            raise OptionError(
                f"the results alone differ from one run to the next, by up to {moved:.1e}, so nothing can be compared "
                "with them; is there something random in evaluation mode?"
            )
        orders = {"in order": list(range(len(samples))), "reversed": list(range(len(samples)))[::-1]}
        for name, order in orders.items():
            self._attempt(
                f"{named(dtype)} outputs, {name}",
                partial(self._compare, model, samples, single, name, order, dtype),
            )
        self._poison(model, samples, single, dtype)

    def _compare(
        self, model: nn.Module, samples: list[Any], single: Parts, name: str, order: list[int], dtype: torch.dtype
    ) -> None:
        with torch.set_grad_enabled(self.gradients):
            found = self._together(model, [samples[number] for number in order], f"packed, {name}", single, order)
        parts = [found[order.index(number)] for number in range(len(order))]
        worst = max(_distance(a[one], b[one]) for a, b in zip(single, parts, strict=True) for one in a)
        scale = max(largest_finite(value) for part in single for value in part.values()) or 1e-30
        limit = limit_of(worst / scale, dtype, self.partly)
        self.worst = max(self.worst, worst) if dtype == torch.float64 else self.worst
        self.checks.append(
            Check(
                name=f"{named(dtype)} outputs, {name}",
                passed=worst <= limit * scale,
                value=worst / scale,
                limit=limit,
                detail=", ".join(single[0]),
            )
        )
        if self.gradients and worst <= limit * scale and any(p.requires_grad for p in model.parameters()):
            mine = self._slopes(model, single, single, "gradients alone", keep=True)
            theirs = self._slopes(model, single, parts, "gradients of packs")
            self.truth = self.truth or Truth.among(mine)
            check = judged(mine, theirs, dtype, self.truth, self.partly)
            self.checks.append(replace(check, name=f"{named(dtype)} gradients, {name}"))

    def _slopes(self, model: nn.Module, wanted: Parts, parts: Parts, doing: str, keep: bool = False) -> Gradients:
        parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        with inside_model(doing):
            total = weighed(self.seed, wanted, parts)
            found = torch.autograd.grad(total, list(parameters.values()), allow_unused=True, retain_graph=keep)
        return dict(zip(parameters, found, strict=True))

    def _poison(self, model: nn.Module, samples: list[Any], single: Parts, dtype: torch.dtype) -> None:
        """Change the sample in the middle of `samples`, and measure how far the results of the other samples move.

        The sample is changed in up to four ways: it is replaced by the attribute `other`, if there is one; its floats
        become random values; its floats are multiplied by a large number; its floats become NaN, if the backend keeps
        NaN apart. Each way adds a check to `checks`. If the sample holds no floats, and there is no `other`, there is
        no check, and a note says so. `single` has the results of the samples alone.
        """
        victim = len(samples) // 2
        generator = torch.Generator().manual_seed(self.seed)
        huge = SCALE.get(dtype, 1e6)

        def other(value: Tensor) -> Tensor:
            return torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value)

        tries: dict[str, Callable[[Tensor], Tensor]] = {
            "other values": other,
            f"values x {huge:.0e}": lambda v: v * huge,
        }
        if self._promises_nan():
            tries["NaN"] = lambda value: torch.full_like(value, float("nan"))
        else:
            self.notes.append(
                "NaN was not tried: this backend multiplies a neighbour's values by 0, and 0 x NaN is NaN"
            )
        order = list(range(len(samples)))
        others: dict[str, Any] = {} if self.other is None else {"another sample": self._as(self.other, dtype, model)}
        if any(_is_value(path, leaf) for path, leaf in tree_flatten_with_path(samples[victim])[0]):
            for what, change in tries.items():
                others[what] = tree_map_with_path(
                    lambda p, v, change=change: change(v) if _is_value(p, v) else v, samples[victim]
                )
        elif self.other is None:
            self.notes.append("no sample was poisoned: they hold no floats")
        for what, sample in others.items():
            name = f"{named(dtype)} poison, {what}"

            def measure(name: str = name, sample: Any = sample) -> None:
                changed = [sample if number == victim else one for number, one in enumerate(samples)]
                with torch.no_grad():
                    clean = self._together(model, samples, "packed", single, order)
                    moved = self._together(model, changed, f"packed, with {name}", single, order)
                worst = max(apart(clean[n][one], moved[n][one]) for n in order if n != victim for one in single[n])
                scale = max(largest_finite(value) for part in clean for value in part.values()) or 1e-30
                exact = _device(model).type == "cpu"
                limit = 0.0 if exact else ROUNDINGS * torch.finfo(dtype).eps
                detail = f"sample {victim}; its neighbours{', bit for bit' if exact else ''}"
                self.checks.append(
                    Check(name=name, passed=worst / scale <= limit, value=worst / scale, limit=limit, detail=detail)
                )

            self._attempt(name, measure)

    def _promises_nan(self) -> bool:
        """Return whether NaN in one sequence stays out of the others.

        The backends of all pack-safe parts of the model decide this. The result is True if the model has no pack-safe
        part.
        """
        return all(keeps_nan_apart(vars(part)[STATE].backend) for part in self.model.modules() if STATE in vars(part))

    def _copied(self, dtype: torch.dtype) -> nn.Module:
        with inside_model(f"{type(self.model).__name__} cannot be copied in {dtype}"):
            return copy.deepcopy(self.model).to(dtype).eval()

    def _as(self, sample: Any, dtype: torch.dtype, model: nn.Module) -> Any:
        def made(path: Any, value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return value.detach().to(_device(model), dtype if _is_value(path, value) else value.dtype)

        return tree_map_with_path(made, sample)

    def _singles(self, model: nn.Module, samples: list[Any]) -> Parts:
        found = []
        for number, sample in enumerate(samples):
            with inside_model(f"sample {number} alone"):
                found.append(_outputs(self.alone(model, sample), f"alone, of sample {number}"))
        return found

    def _together(self, model: nn.Module, samples: list[Any], doing: str, single: Parts, order: list[int]) -> Parts:
        """Run samples packed, and return the result of each sample.

        A sample must have the same output names packed and alone. `single` has the results of all samples alone. For
        each entry of `samples`, `order` has the index of its result in `single`. `doing` begins the message of an
        error.

        Raises:
            ModelFailedError: the user's function or the model fails, or the results are not as expected.
        """
        with inside_model(doing):
            given = self.packed(model, samples)
            if isinstance(given, Tensor | Mapping) or not isinstance(given, Sequence) or len(given) != len(samples):
                said = f"{len(given)} of them" if isinstance(given, Sequence) else type(given).__name__
                raise BatchError(
                    f"results of packs are {said}; expected a list, one for each of {len(samples)} samples"
                )
            found = [_outputs(one, f"of sample {number} in packs") for number, one in zip(order, given, strict=True)]
            for number, one in zip(order, found, strict=True):
                if set(one) != set(single[number]):
                    raise BatchError(
                        f"sample {number}: {', '.join(one)} in packs, and {', '.join(single[number])} alone; give both"
                    )
        return found


def _outputs(given: Any, what: str) -> Mapping[str, Tensor]:
    found = given if isinstance(given, Mapping) else {RESULT: given}
    if not found or not all(_is_float(value) for value in found.values()):
        raise BatchError(f"the result {what} is {type(given).__name__}; expected a float tensor, or a dict of them")
    return found


def _distance(wanted: Tensor, got: Tensor) -> float:
    return float("inf") if wanted.shape != got.shape else apart(wanted, got)


def _is_value(path: Any, value: Any) -> bool:
    """Return whether an entry of a sample is a float tensor that the audit may change.

    Every float tensor is, except the seconds between steps of videos (``second_per_grid_ts``). `path` is the entry's
    key path in the sample, as PyTorch's tree functions give it.
    """
    return _is_float(value) and keystr(path[-1:]) != f"['{VIDEOS.seconds}']"


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _device(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
