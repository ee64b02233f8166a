"""Attention backends, which keep sequences apart in different ways: one per file, all with the same signature.

Shapes are ``[R, H, L, D]``: R rows, H heads, L slots per row, and D numbers per head. Each backend takes queries, keys
and values of this shape, as transformers gives them; keys and values may have fewer heads. It returns ``[R, L, H, D]``.
To add a backend, add a file and a line in `BACKENDS`.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from nopad.batch.device import Cross, Placement
from nopad.model.backends.core import Heads
from nopad.model.backends.flex import flex
from nopad.model.backends.mask import mask
from nopad.model.backends.repack import repack
from nopad.model.backends.segments import segments
from nopad.model.backends.varlen import automatic, varlen

__all__ = ["AUTOMATIC", "BACKENDS", "Backend", "backend_of"]

Backend = Callable[[Tensor, Tensor, Tensor, "Placement | Cross", Heads], Tensor]

BACKENDS: dict[str, Backend] = {
    "flex": flex,
    "mask": mask,
    "repack": repack,
    "segments": segments,
    "varlen": varlen,
}

# The backend that "auto" chooses on a GPU for flat batches in half precision; users cannot give this name.
AUTOMATIC = "varlen, else segments"


def backend_of(name: str) -> Backend:
    """Return the function of the backend called `name`: a key of `BACKENDS`, or `AUTOMATIC` (`varlen.automatic`)."""
    return automatic if name == AUTOMATIC else BACKENDS[name]
