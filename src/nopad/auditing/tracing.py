"""Find the first module whose output differs, by running the sequences alone and packed with hooks on all modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nopad.auditing.failure import ModelFailedError
from nopad.auditing.limits import apart, largest_finite
from nopad.auditing.recording import on_outputs, states_of, within
from nopad.auditing.shown import parts_of_images
from nopad.auditing.trial import Trial
from nopad.model.safety import bare

__all__ = ["first_difference"]


def first_difference(trial: Trial, form: str, limit: float) -> str | None:
    """Return the name of the first module whose output differs between the sequences alone and a batch of this `form`.

    `form` is one of the trial's forms. An output differs if, for some sequence, the largest difference is above
    ``max(limit, 1e-9)`` times the largest value that the module gives when this sequence runs alone. Modules are passed
    over if they work on images, or if their outputs cannot be split into sequences or have other shapes alone. The
    result is None if no module's output differs, or if the model fails.

    Raises:
        BatchError: the collator fails, or cuts, drops, changes or adds tokens.
    """
    batch, places = trial.batch(form, trial.sequences)
    single: dict[str, Any] = {}
    packs: dict[str, Any] = {}
    try:
        with torch.no_grad():
            for number in range(len(trial.sequences)):
                with _traced(trial.model, single, partial(_numbered, number)):
                    trial.alone(number)
            with _traced(trial.model, packs, places.split):
                trial.run(batch, "traced")
    except ModelFailedError:
        return None
    of_images = parts_of_images(trial.model)
    for name, parts in packs.items():
        if within(name, of_images):
            continue
        alone = single.get(name, {})
        for number, part in enumerate(parts):
            wanted = alone.get(number)
            if wanted is None or wanted.shape[1:] != part.shape:
                continue
            scale = max(largest_finite(wanted), 1e-30)
            if apart(part, wanted[0]) > max(limit, 1e-9) * scale:
                return name
    return None


@contextmanager
def _traced(model: Any, trace: dict[str, Any], keep: Callable[[Tensor], Any]) -> Iterator[None]:
    """Inside this context, store what ``keep(tensor)`` returns for modules' outputs in `trace`, by module name.

    The entries are in the order in which modules finish; the model itself has none. `keep` gets a module's output, or
    its first entry if it is a tuple or list. This must be a floating-point tensor with at least 2 dimensions; other
    outputs are passed over.

    If `keep` returns None, nothing is stored. If it returns a pair ``(key, value)``, ``trace[name]`` is a dict with
    such pairs. If a module is called several times, the first result counts (the first for each key).
    """

    def seen(name: str, output: Any) -> None:
        value = states_of(output)
        kept = keep(value) if name and value is not None else None
        if isinstance(kept, tuple):
            trace.setdefault(name, {}).setdefault(*kept)
        elif kept is not None and name not in trace:
            trace[name] = kept

    with on_outputs(bare(model), seen):
        yield


def _numbered(number: int, value: Tensor) -> tuple[int, Tensor]:
    return number, value
