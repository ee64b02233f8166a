"""Check and apply options of `Embedder.encode` that sentence-transformers' `encode` has under the same names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from nopad.errors import OptionError
from nopad.model.admission import device_of
from nopad.model.safety import bare
from nopad.options import BOOLEAN, MAX_LENGTH, Option, shown

__all__ = ["As", "Shown", "check_dim", "check_encoding", "given_as", "progress", "shortened", "width_of"]

As = Literal["array", "tensor", "list"]
Shown = Any  # a function of the number of texts that are done

_TEXTS = Option(default=None, none=True, high=MAX_LENGTH, help="texts run at a time, at most")
_DIM = Option(default=None, none=True, high=MAX_LENGTH, help="first dimensions of each vector that are returned")
_FLAGS = {
    "normalize_embeddings": Option(default=False, choices=BOOLEAN, help="scale vectors to length 1"),
    "convert_to_numpy": Option(default=True, choices=BOOLEAN, help="return an array"),
    "convert_to_tensor": Option(default=False, choices=BOOLEAN, help="return a tensor"),
    "show_progress_bar": Option(default=None, none=True, choices=(*BOOLEAN, None), help="draw a progress bar"),
}


def check_encoding(
    model: Any,
    *,
    batch_size: int | None,
    precision: str,
    output_value: str,
    device: Any,
    truncate_dim: int | None,
    **flags: Any,
) -> As:
    """Check options of `Embedder.encode`, and return the form of its result: "array", "tensor" or "list" (of tensors).

    `flags` are `normalize_embeddings`, `convert_to_numpy`, `convert_to_tensor` and `show_progress_bar`. The form is
    "tensor" if `convert_to_tensor` is True, else "array" if `convert_to_numpy` is True, else "list".

    Raises:
        OptionError: a flag is neither True nor False (`show_progress_bar` may be None), `batch_size` is neither None
            nor an integer of at least 1, `precision` is not "float32", `output_value` is not "sentence_embedding",
            `device` is neither None nor the device of `model`, or `truncate_dim` is neither None nor an integer from 1
            to the number of dimensions that vectors of `model` have.
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
    if not isinstance(output_value, str) or output_value != "sentence_embedding":
        raise OptionError(
            f"output_value is {shown(output_value)}, and encode returns one vector per text; a PackRunner of the model "
            "itself, nopad.PackRunner(embedder.model), gives the states of tokens"
        )
    own = device_of(model)
    if device is not None and str(device) not in (str(own), own.type):
        raise OptionError(f"device is {shown(device)}, and the model is on {own}; move it there before, with model.to")
    check_dim(model, truncate_dim)
    if flags["convert_to_tensor"]:
        return "tensor"
    return "array" if flags["convert_to_numpy"] else "list"


def check_dim(model: Any, truncate_dim: int | None) -> int | None:
    """Return `truncate_dim`, if it is None or an integer from 1 to the number of dimensions of `model`'s vectors.

    Raises:
        OptionError: it is not.
    """
    _DIM.check("truncate_dim", truncate_dim)
    if truncate_dim is not None and truncate_dim > (most := width_of(model)):
        raise OptionError(f"truncate_dim is {truncate_dim}, and vectors of this model have {most} dimensions")
    return truncate_dim


def width_of(model: Any) -> int:
    """Return the number of dimensions of a model's vectors, by its configuration or that of its text part."""
    width: int = bare(model).config.get_text_config().hidden_size
    return width


def shortened(vectors: NDArray[np.float32], most: int | None, *, normalize: bool = False) -> NDArray[np.float32]:
    """Return the first `most` dimensions of vectors ``[n, H]``; if `normalize`, scaled to length 1 again.

    If `most` is None, the vectors are returned as they are.
    """
    if most is None:
        return vectors
    found = np.ascontiguousarray(vectors[:, :most])
    if normalize:
        found /= np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
    return found


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
