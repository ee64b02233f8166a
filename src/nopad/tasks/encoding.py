"""Check and apply options of `Embedder.encode` that sentence-transformers' `encode` has under the same names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from nopad.errors import OptionError
from nopad.options import BOOLEAN, MAX_LENGTH, Option, shown

__all__ = ["As", "Shown", "check_encoding", "given_as", "progress"]

As = Literal["array", "tensor", "list"]
Shown = Any  # a function of the number of texts that are done

_TEXTS = Option(default=None, none=True, high=MAX_LENGTH, help="texts run at a time, at most")
_FLAGS = {
    "normalize_embeddings": Option(default=False, choices=BOOLEAN, help="scale vectors to length 1"),
    "convert_to_numpy": Option(default=True, choices=BOOLEAN, help="return an array"),
    "convert_to_tensor": Option(default=False, choices=BOOLEAN, help="return a tensor"),
    "show_progress_bar": Option(default=None, none=True, choices=(*BOOLEAN, None), help="draw a progress bar"),
}


def check_encoding(batch_size: int | None, precision: str, **flags: Any) -> As:
    """Check options of `Embedder.encode`, and return the form of its result: "array", "tensor" or "list" (of tensors).

    `flags` are `normalize_embeddings`, `convert_to_numpy`, `convert_to_tensor` and `show_progress_bar`. The form is
    "tensor" if `convert_to_tensor` is True, else "array" if `convert_to_numpy` is True, else "list".

    Raises:
        OptionError: a flag is neither True nor False (`show_progress_bar` may be None), `batch_size` is neither None
            nor an integer of at least 1, or `precision` is not "float32".
    """
    _TEXTS.check("batch_size", batch_size)
    for name, option in _FLAGS.items():
        option.check(name, flags[name])
    if not isinstance(precision, str) or precision != "float32":
        raise OptionError(
            f"precision is {shown(precision)}, and encode returns float32 vectors only; quantise them afterwards, as "
            "sentence_transformers.util.quantize_embeddings does, or compute in lower precision, with "
            "Embedder(precision=...)"
        )
    if flags["convert_to_tensor"]:
        return "tensor"
    return "array" if flags["convert_to_numpy"] else "list"


def given_as(vectors: NDArray[np.float32], form: As, one: bool, device: torch.device) -> Any:
    """Return vectors ``[n, H]`` as an array, a tensor or a list of tensors; tensors are on `device`.

    If `one`, there is one vector, and it is returned as an array or a tensor ``[H]``.
    """
    if form == "array":
        return vectors[0] if one else vectors
    found = torch.from_numpy(vectors).to(device)
    if one:
        return found[0]
    return found if form == "tensor" else list(found)


@contextmanager
def progress(shown: bool | None, texts: int) -> Iterator[Shown]:
    """Return a context manager that gives a function, to be called after each batch with the batch's number of texts.

    If `shown` is True, the function moves a progress bar for `texts` texts on standard error; else it does nothing.
    """
    if not shown:
        yield lambda done: None
        return
    from tqdm.auto import tqdm

    with tqdm(total=texts, unit="text", desc="Texts") as bar:
        yield bar.update
