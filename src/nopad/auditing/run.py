"""Run sequences alone and packed, and compare outputs, gradients, poison, layers (docs/audit.md: what each proves).

The model is copied, once a dtype: nothing of the caller's changes. Outputs are compared on packs of the capacity; what
costs more, gradients and poison, on packs of a quarter of it. About 10 s for a base-size model on two cores.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nopad.auditing.probes import Places, draw, find, lengths_for
from nopad.auditing.verdict import Check, Verdict
from nopad.batch import PackedBatch
from nopad.errors import OptionError
from nopad.model.attention import watched
from nopad.model.safety import STATE, bare, is_packed, packed

__all__ = ["audit"]

Collator = Callable[[list[dict[str, Any]]], Mapping[str, Any]]

EXACT = 1e-12  # float64, of the largest value
PARTLY_SINGLE = 1e-5  # the same where the model itself computes some of it in float32
LIMITS = {torch.float64: EXACT, torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}
SCALE = 1e6
SHARED_NAN = ("segments", "varlen")  # backends of which one sequence's NaN stays its own


def audit(
    model: Any,
    *,
    collator: Collator | None = None,
    capacity: int = 64,
    backend: str = "auto",
    gradients: bool = True,
    seed: int = 0,
) -> Verdict:
    """Prove that sequences in a pack get what they get alone, or name the layer at which they do not.

    Args:
        model: a transformers model; made pack-safe for the audit where it is not, and no collator is given.
        collator: audit the model as it is, fed with what this makes of features (dicts with ``input_ids``): any
            function that returns the arguments of a forward call.
        capacity: of the packs that are tried; the longest sequence.
        backend: of the model that is made pack-safe here.
        gradients: compare those of the parameters too.
        seed: of the tokens and of what the outputs are weighed with.

    Raises:
        UnsupportedModelError: nopad refuses this model, with the reason.
        BatchError: the collator cuts, drops or changes sequences.

    >>> import nopad
    >>> from transformers import BertConfig, BertModel, DataCollatorWithFlattening
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = BertModel(BertConfig(**sizes))
    >>> nopad.audit(model).isolated
    True
    >>> stock = nopad.audit(model, collator=DataCollatorWithFlattening(return_tensors="pt"))
    >>> stock.isolated, stock.first_difference
    (False, 'encoder.layer.0.attention.self')
    """
    inner = bare(model)
    if capacity < 4:
        raise OptionError(f"an audit needs a capacity of at least 4, got {capacity}")
    dtype = next(inner.parameters()).dtype
    found = _Found()
    notes = []
    with torch.random.fork_rng(devices=[]):
        subject = _subject(model, torch.float64, collator, backend)
        small = max(capacity // 4, 4)
        whole = _Trial.drawn(subject, collator, capacity, seed)
        part = _Trial.drawn(subject, collator, small, seed, most=4)
        found.add(_compare(whole, *whole.forms[0], torch.float64, gradients=False))
        found.add(_compare(part, *part.forms[-1], torch.float64, gradients=gradients))
        found.checks += _poison(part)
        if collator is None:
            found.checks.append(_once_a_layer(part))
        how = part.how
        del subject, whole, part
        if dtype != torch.float64:
            own = _Trial.drawn(_subject(model, dtype, collator, backend), collator, small, seed, most=4)
            found.checks += _compare(own, *own.forms[0], dtype, gradients=False).checks
    if found.skipped:
        notes.append(f"gradients that are zero in truth, left out: {_listed(found.skipped)}")
    if any(check.limit == PARTLY_SINGLE for check in found.checks if check.name.startswith("float64")):
        notes.append("this model computes some of it in float32, even in float64")
    isolated = all(check.passed for check in found.checks)
    return Verdict(
        isolated=isolated,
        max_abs_diff=found.worst,
        first_difference=None if isolated else found.first,
        model=type(inner).__name__,
        how=how,
        checks=tuple(found.checks),
        notes=tuple(notes),
    )


@dataclass
class _Found:
    """What was measured so far."""

    checks: list[Check] = field(default_factory=list)
    worst: float = 0.0
    first: str | None = None
    skipped: list[str] = field(default_factory=list)

    def add(self, other: _Found) -> None:
        """Take over what another comparison measured."""
        self.checks += other.checks
        self.worst = max(self.worst, other.worst)
        self.first = self.first or other.first
        self.skipped += [name for name in other.skipped if name not in self.skipped]


@dataclass(frozen=True)
class _Trial:
    """A model in one dtype, and what it is fed."""

    model: Any
    collator: Collator | None
    sequences: list[list[int]]
    others: list[list[int]]
    capacity: int
    seed: int

    @classmethod
    def drawn(cls, model: Any, collator: Collator | None, capacity: int, seed: int, most: int = 6) -> _Trial:
        """Draw up to `most` sequences that fit the model."""
        config = bare(model).config.get_text_config()
        limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or capacity
        longest = min(capacity, max(int(limit) - 2, 1)) if limit > 0 else capacity
        avoid = [getattr(config, f"{name}_token_id", None) for name in ("pad", "mask", "bos", "eos", "cls", "sep")]
        flat = [
            token for entry in avoid for token in (entry if isinstance(entry, list) else [entry]) if token is not None
        ]
        lengths = lengths_for(longest, longest)[:most]
        sequences, others = (draw(lengths, config.vocab_size, flat, seed + at) for at in (0, 1))
        return cls(model, collator, sequences, others, longest, seed)

    @property
    def how(self) -> str:
        """What keeps sequences apart, in words."""
        if self.collator is not None:
            name = getattr(self.collator, "__name__", type(self.collator).__name__)
            return f"as it is, with {name}"
        return f"nopad, backend {getattr(bare(self.model), STATE).backend!r}"

    @property
    def forms(self) -> list[tuple[str, Collator]]:
        """The ways in which sequences are put together, by name."""
        if self.collator is not None:
            return [("packed", self.collator)]
        pad = bare(self.model).config.get_text_config().pad_token_id or 0
        rows: dict[str, Any] = {"form": "rows", "capacity": self.capacity, "pad_id": pad}
        return [
            ("flat", lambda features: PackedBatch.from_features(features)),
            ("rows", lambda features: PackedBatch.from_features(features, **rows)),
        ]

    def batch(self, collate: Collator, sequences: Sequence[Sequence[int]]) -> tuple[Mapping[str, Any], Places]:
        """Collate sequences, and find them in the batch."""
        features = [{"input_ids": list(sequence), "labels": list(sequence)} for sequence in sequences]
        try:
            batch = collate([dict(feature) for feature in features])
        except (KeyError, TypeError, ValueError):
            batch = collate([{"input_ids": feature["input_ids"]} for feature in features])
        places = find(batch, sequences)
        device = next(bare(self.model).parameters()).device
        if isinstance(batch, PackedBatch):
            fields = batch.to(device)
            fields.pop("labels", None)
            return fields, places
        moved = {n: v.to(device) if isinstance(v, Tensor) else v for n, v in batch.items() if n != "labels"}
        return moved, places


def _subject(model: Any, dtype: torch.dtype, collator: Collator | None, backend: str) -> Any:
    """Copy the model, in a dtype, made pack-safe where nopad is to keep sequences apart."""
    made = copy.deepcopy(bare(model)).to(dtype).eval()
    made.requires_grad_(True)
    if collator is None and not is_packed(made):
        packed(made, backend=backend)
    return made


def _outputs(output: Mapping[str, Any]) -> dict[str, Tensor]:
    return {n: v for n, v in output.items() if isinstance(v, Tensor) and v.is_floating_point() and v.dim() > 0}


def _per_sequence(output: Mapping[str, Any], places: Places) -> dict[str, list[Tensor]]:
    """The outputs of which every sequence has a part of its own."""
    split = {name: places.split(value) for name, value in _outputs(output).items()}
    return {name: parts for name, parts in split.items() if parts is not None}


def _compare(trial: _Trial, form: str, collate: Collator, dtype: torch.dtype, gradients: bool) -> _Found:
    """Run alone and packed, and compare outputs, and gradients where wanted."""
    model, out = trial.model, _Found()
    batch, places = trial.batch(collate, trial.sequences)
    label = str(dtype).removeprefix("torch.")
    with torch.set_grad_enabled(gradients):
        alone = [_outputs(_alone(model, sequence)) for sequence in trial.sequences]
        together = _per_sequence(model(**batch), places)
    worst, scale = 0.0, 0.0
    for name, parts in together.items():
        for number, part in enumerate(parts):
            if name in alone[number]:
                worst = max(worst, _distance(part, alone[number][name]))
                scale = max(scale, float(alone[number][name].detach().abs().max()))
    limit = _limit(worst / max(scale, 1e-30), dtype)
    passed = worst <= limit * max(scale, 1e-30)
    out.worst = worst
    out.checks.append(
        Check(
            name=f"{label} outputs, {form}",
            passed=passed,
            value=worst / max(scale, 1e-30),
            limit=limit,
            detail=", ".join(together) or "no output that sequences have a part of",
        )
    )
    if not passed or not together:
        out.first = _first_difference(trial, collate, limit)
    if gradients:
        out.add(_gradients(trial, alone, together, label, form))
    return out


def _limit(measured: float, dtype: torch.dtype) -> float:
    """How near is near enough; models that compute partly in float32 even in float64 get that."""
    if dtype == torch.float64 and EXACT < measured <= PARTLY_SINGLE:
        return PARTLY_SINGLE
    return LIMITS.get(dtype, 1e-2)


def _distance(packed_value: Tensor, alone: Tensor) -> float:
    """Largest difference; what is behind the end of a sequence (minus infinity) does not count."""
    wanted = alone[0]
    got = packed_value
    if got.shape != wanted.shape:
        got = got[: wanted.shape[0]] if got.dim() == wanted.dim() else got
    if got.shape != wanted.shape:
        return float("inf")
    difference = (got - wanted).detach().abs()
    return float(difference.max()) if not difference.isnan().any() else float("inf")


def _largest(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values, torch.inf))


def _alone(model: Any, sequence: Sequence[int]) -> Any:
    """Run one sequence by itself."""
    inner = bare(model)
    no_cache = {"use_cache": False} if getattr(inner.config, "use_cache", None) is not None else {}
    return model(input_ids=torch.tensor([sequence], device=next(inner.parameters()).device), **no_cache)


def _gradients(
    trial: _Trial, alone: list[dict[str, Tensor]], together: dict[str, list[Tensor]], label: str, form: str
) -> _Found:
    """Compare the gradients of one random weighing of all outputs."""
    out = _Found()
    names = [name for name in together if name in alone[0]]

    def objective(parts: Callable[[int, str], Tensor]) -> Any:
        total: Any = 0
        for number in range(len(trial.sequences)):
            generator = torch.Generator().manual_seed(trial.seed * 1000 + number)
            for name in names:
                value = alone[number][name][0]
                weights = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value)
                part = parts(number, name)
                total = total + (part[: value.shape[0]] if part.shape != value.shape else part).mul(weights).sum()
        return total

    parameters = dict(trial.model.named_parameters())
    ways: list[Callable[[int, str], Tensor]] = [lambda n, name: alone[n][name][0], lambda n, name: together[name][n]]
    both: list[Any] = [
        torch.autograd.grad(objective(way), list(parameters.values()), allow_unused=True) for way in ways
    ]
    sizes = [0.0 if gradient is None else _largest(gradient) for gradient in both[0]]
    largest = max(sizes, default=0.0)
    worst, where = 0.0, ""
    for name, size, mine, other in zip(parameters, sizes, *both, strict=True):
        if mine is None or other is None:
            difference = 0.0 if mine is other else float("inf")
        else:
            difference = _largest(mine.sub_(other))
        zero = size <= largest * 1e-12  # in truth: a key's bias shifts all scores of a query alike
        if zero:
            out.skipped.append(name)
        relative = difference / max(largest if zero else size, 1e-30)
        if relative > worst:
            worst, where = relative, name
    limit = _limit(worst, torch.float64)
    out.checks.append(
        Check(
            name=f"{label} gradients, {form}",
            passed=worst <= limit,
            value=worst,
            limit=limit,
            detail=f"{len(parameters) - len(out.skipped)} tensors" + (f", most at {where}" if where else ""),
        )
    )
    return out


def _poison(trial: _Trial) -> list[Check]:
    """Change one sequence, then make it huge, then not a number: its neighbours may not move by one bit."""
    checks = []
    _, collate = trial.forms[-1]
    victim = max(range(len(trial.sequences)), key=lambda n: len(trial.sequences[n]) % trial.capacity)
    others = [
        other if n == victim else mine
        for n, (mine, other) in enumerate(zip(trial.sequences, trial.others, strict=True))
    ]

    def run(sequences: list[list[int]], factor: float | None = None) -> dict[str, list[Tensor]]:
        batch, there = trial.batch(collate, sequences)
        with torch.no_grad(), _scaled(trial.model, there, victim, factor):
            return _per_sequence(trial.model(**batch), there)

    clean = run(trial.sequences)
    backend = getattr(getattr(bare(trial.model), STATE, None), "backend", "")
    backend = "segments" if backend == "auto" else backend
    tries: list[tuple[str, list[list[int]], float | None]] = [
        ("other tokens", others, None),
        (f"embeddings x {SCALE:.0e}", trial.sequences, SCALE),
    ]
    if backend in SHARED_NAN and trial.collator is None:
        tries.append(("NaN", trial.sequences, float("nan")))
    for what, sequences, factor in tries:
        moved = run(sequences, factor)
        worst = 0.0
        for name, parts in clean.items():
            for number, part in enumerate(parts):
                if number != victim:
                    worst = max(worst, _moved(part, moved[name][number]))
        detail = f"sequence {victim} of {len(trial.sequences[victim])} tokens; its neighbours, bit for bit"
        checks.append(Check(name=f"poison, {what}", passed=worst == 0, value=worst, limit=0, detail=detail))
    return checks


def _moved(before: Tensor, after: Tensor) -> float:
    if torch.equal(before, after):
        return 0.0
    both = torch.isfinite(before) & torch.isfinite(after)
    return float((before - after).abs().max()) if bool(both.all()) else float("inf")


@contextmanager
def _scaled(model: Any, places: Places, victim: int, factor: float | None) -> Iterator[None]:
    """Scale the embeddings of one sequence."""
    if factor is None:
        yield
        return
    mask = torch.ones(places.shape[0] * places.shape[1], 1, dtype=torch.float64)
    mask[torch.from_numpy(places.of[victim])] = factor

    def scale(_: nn.Module, args: Any, output: Tensor) -> Tensor:
        if tuple(output.shape[:2]) != places.shape:
            return output
        scaled: Tensor = output * mask.reshape(*places.shape, 1).to(output)
        return scaled

    handle = bare(model).get_input_embeddings().register_forward_hook(scale)
    try:
        yield
    finally:
        handle.remove()


def _once_a_layer(trial: _Trial) -> Check:
    """Our attention ran once for every layer that attends."""
    counts: dict[int, int] = {}
    _, collate = trial.forms[0]
    batch, _ = trial.batch(collate, trial.sequences)
    with torch.no_grad(), watched(lambda module: counts.update({id(module): counts.get(id(module), 0) + 1})):
        trial.model(**batch)
    config = bare(trial.model).config.get_text_config()
    layers = int(getattr(config, "num_hidden_layers", 0) or getattr(config, "num_layers", 0) or 0)
    shared = len(counts) < layers  # ALBERT: one layer, again and again
    ran = sum(counts.values())
    wrong = (
        abs(ran - layers) if shared else max(abs(ran - layers), max((abs(n - 1) for n in counts.values()), default=1))
    )
    return Check(
        name="attention ran once a layer",
        passed=wrong == 0,
        value=wrong,
        limit=0,
        detail=f"{ran} times in {layers} layers",
    )


@contextmanager
def _traced(model: Any, trace: dict[str, Any], keep: Callable[[Tensor], Any]) -> Iterator[None]:
    """Keep the first tensor that each module gives, in the order in which modules finish."""
    handles = []

    def hook(name: str) -> Callable[..., None]:
        def after(_: nn.Module, args: Any, output: Any) -> None:
            value = output[0] if isinstance(output, tuple | list) and output else output
            if isinstance(value, Tensor) and value.is_floating_point() and value.dim() >= 2:
                kept = keep(value.detach())
                if isinstance(kept, tuple):
                    trace.setdefault(name, {}).setdefault(*kept)
                elif kept is not None and name not in trace:
                    trace[name] = kept

        return after

    for name, module in bare(model).named_modules():
        if name:
            handles.append(module.register_forward_hook(hook(name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _first_difference(trial: _Trial, collate: Collator, limit: float) -> str | None:
    """Run again with hooks, and name the first module to finish whose outputs differ."""
    batch, places = trial.batch(collate, trial.sequences)
    single: dict[str, Any] = {}
    packs: dict[str, Any] = {}
    with torch.no_grad():
        for number, sequence in enumerate(trial.sequences):
            with _traced(trial.model, single, partial(_numbered, number)):
                _alone(trial.model, sequence)
        with _traced(trial.model, packs, places.split):
            trial.model(**batch)
    for name, parts in packs.items():
        alone = single.get(name, {})
        for number, part in enumerate(parts):
            wanted = alone.get(number)
            if wanted is None or wanted.shape[1:] != part.shape:
                continue
            scale = max(float(wanted.abs().max()), 1e-30)
            if float((part - wanted[0]).abs().max()) > max(limit, 1e-9) * scale:
                return name
    return None


def _numbered(number: int, value: Tensor) -> tuple[int, Tensor]:
    return number, value


def _listed(names: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
