"""The reference of a run of DPO: its log-probabilities, computed before the first step and kept in the run's folder.

The reference is the model as it is before training, with the adapters that training begins with. A resumed run reads
the values that were stored when it began, since the model in its checkpoint has been trained since.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nopad.files import write_atomic
from nopad.loading.ranks import Ranks
from nopad.tasks import reference_logprobs
from nopad.tasks.meters import over_all_ranks
from nopad.tasks.pairing import REFERENCE
from nopad.training.ready import Prepared

__all__ = ["referenced"]

_FILE = "reference.npz"


def referenced(prepared: Prepared, model: Any, cache: Path, *, resume: bool, say: Callable[[str], None]) -> Prepared:
    """Return the run with loaders whose batches have ``reference_logp``, the reference's log-probabilities of answers.

    Every rank must call this. If the task uses no reference (`Task.compares` is False), `prepared` itself is returned.

    Args:
        prepared: what `prepare` returned.
        model: the pack-safe model as it is before training; it is moved to the device of training.
        cache: the folder of the run's encoded data, where the log-probabilities are kept.
        resume: whether to read the stored log-probabilities, if there are any, and not compute them again.
        say: called with lines of text for the user.

    Raises:
        OptionError: the model is not a causal language model.
        BatchError: the model's log-probability of a sequence is NaN or infinite.
        StorageError: the log-probabilities cannot be written.
    """
    if prepared.task is None or not prepared.task.compares:
        return prepared
    loaders, records = prepared.loaders, prepared.records
    examples = {name: loaders.examples(one, name) for name, one in records.items() if one is not None}
    sizes = {name: len(one) for name, one in examples.items() if one is not None}
    first = Ranks.found().rank == 0
    found = over_all_ranks(_read(cache / _FILE, sizes) if first and resume else None)[0]
    if found is None:
        say(f"compares with the model as it is now: the log-probabilities of {sum(sizes.values()):,} answers")
        found = {name: _computed(prepared, model, examples[name]) for name in sizes}
        if first:
            file = io.BytesIO()
            np.savez(file, **found)
            write_atomic(cache / _FILE, file.getvalue())
    for name, values in found.items():
        loaders.add_values(name, {REFERENCE: values})
    evaluation = None if prepared.evaluation is None else loaders.loader(records["eval"], "eval")
    return replace(prepared, train=loaders.loader(records["train"], "train"), evaluation=evaluation)


def _computed(prepared: Prepared, model: Any, examples: Any) -> NDArray[np.float64]:
    """Return each answer's log-probability, computed with the rows and precision of training; float64 ``[n]``."""
    args = prepared.args
    half = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None
    model.to(args.device)
    with torch.autocast(args.device.type, half) if half else nullcontext():
        made = reference_logprobs(model, examples, prepared.train.capacity, rows=prepared.config.packing.rows or 1)
    return np.asarray(made.sequences.values[REFERENCE], np.float64)


def _read(path: Path, sizes: dict[str, int]) -> dict[str, NDArray[np.float64]] | None:
    """Return the log-probabilities that `referenced` stored in the file `path`: float64 ``[n]``, by "train" and "eval".

    `sizes` has the number of answers, n, by the same names. If the file is missing, damaged or of other sizes, the
    result is None.
    """
    try:
        with path.open("rb") as file, np.load(file) as stored:
            found = {name: stored[name] for name in stored}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
    whole = all(one.dtype == np.float64 and one.ndim == 1 and np.isfinite(one).all() for one in found.values())
    return found if whole and {name: len(one) for name, one in found.items()} == sizes else None
