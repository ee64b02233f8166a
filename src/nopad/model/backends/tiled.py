"""Attention of all sequences of a batch in one compiled loop (`_tile_kernels`), for inference on CPUs.

`segments` uses this loop where it can. The loop computes what `segments` computes: every sequence by itself, with sums
in float32. It can be faster than PyTorch's kernel, since it has no call per length, no scalar exponentials, and none of
the overhead of a general library for small matrices. Whether it is faster on this CPU is measured and logged, once in a
process for each size of a head and each dtype. The first call of all compiles the loop, which takes a few seconds;
Numba keeps the result for later processes.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nopad.batch.device import Placement
from nopad.model.backends.core import Heads, attend
from nopad.model.linear import fastest, is_alone
from nopad.threads import new_lock

__all__ = ["takes", "tiled"]

log = logging.getLogger("nopad")

MOST_THREADS = 2  # it runs in one thread, and PyTorch's kernel divides its work among all
WORTH = 1.1  # speed-up below which PyTorch's kernel is taken
_TRIED = (9, 20, 40, 70, 120, 200)  # lengths of the sequences that are tried
_HEADS = 4
_gains: dict[tuple[int, torch.dtype], float] = {}
_lock = new_lock()


def takes(query: Tensor, key: Tensor, value: Tensor, heads: Heads) -> bool:
    """Return whether `tiled` can compute this attention, and is at least 1.1 times as fast as PyTorch's kernel.

    It can compute attention of plain tensors on a CPU, in float32 or bfloat16, without gradients, autocast, compilation
    or tracing. No `torch.func` transform and no `TorchDispatchMode` or `TorchFunctionMode` may be active, except
    `fast_linear` and ``with torch.device(...)``. `query` and `value` must have heads of the same size.
    `heads` may only set the scale and causality: with a window, dropout, position bias, softcap or sinks, the result is
    False. It is False too if PyTorch uses more than 2 threads (`MOST_THREADS`).
    """
    tracing: Any = torch.jit._trace.is_tracing
    return (
        query.device.type == "cpu"
        and query.dtype in (torch.float32, torch.bfloat16)
        and heads == Heads(heads.scaling, heads.causal)
        and all(type(one) is Tensor and one.dtype == query.dtype for one in (query, key, value))
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not tracing()
        and query.shape[-1] == value.shape[-1] > 0
        and torch.get_num_threads() <= MOST_THREADS
        and is_alone()
        and _gain(query.shape[-1], query.dtype) >= WORTH
    )


def tiled(query: Tensor, key: Tensor, value: Tensor, placed: Placement, heads: Heads) -> Tensor:
    """Compute attention of all sequences; return ``[R, L, H, D]``, 0 in padding.

    `query` is ``[R, H, L, D]``; `key` and `value` are ``[R, G, L, D]``, where H is a multiple of G. `placed` is the
    batch's layout, and `heads` are the layer's settings. Call this only if ``takes(query, key, value, heads)`` is True.
    """
    starts, lengths, in_rows = placed.keep("tiles", lambda: _places(placed))

    def flat(states: Tensor) -> Tensor:
        by_token = states.transpose(1, 2)
        return by_token.flatten(0, 1) if in_rows else placed.stream(by_token)

    queries = flat(query)
    make = torch.empty if len(queries) == placed.layout.tokens else torch.zeros
    out = make(queries.shape, dtype=query.dtype, device="cpu")
    _run(queries, flat(key), flat(value), out, starts, lengths, heads)
    return out.view(*placed.layout.shape, *out.shape[1:]) if in_rows else placed.rows(out)


def _places(placed: Placement) -> tuple[NDArray[np.int64], NDArray[np.int64], bool]:
    """Return ``(starts, lengths, in_rows)``: where the sequences lie, in stream order (row after row).

    `starts` and `lengths` are int64 ``[S]``. If the tokens of each sequence lie side by side in the concatenated rows,
    `in_rows` is True, and `starts` are indices into the concatenated rows. Otherwise `in_rows` is False, and `starts`
    are indices into the stream, which is all tokens without padding (`Placement.stream`).
    """
    bounds, index = np.asarray(placed.bounds, np.int64), placed.layout.index
    within = np.diff(index) == 1
    within[bounds[1:-1] - 1] = True
    in_rows = bool(within.all())
    starts = index[bounds[:-1]] if in_rows else bounds[:-1]
    return np.ascontiguousarray(starts, np.int64), np.diff(bounds), in_rows


def _run(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    heads: Heads,
) -> None:
    """Compute attention of all sequences, and write it to `out` ``[T, H, D]``.

    `query` is ``[T, H, D]``; `key` and `value` are ``[T, G, D]``, where H is a multiple of G. Sequence i has
    ``lengths[i]`` tokens from index ``starts[i]`` on. Of `heads`, only the scale and the causality are read.
    """
    from nopad.model.backends import _tile_kernels  # compiled only where it runs

    scaling = query.shape[-1] ** -0.5 if heads.scaling is None else float(heads.scaling)
    run: Any = _tile_kernels.attention
    run(_numbers(query), _numbers(key), _numbers(value), starts, lengths, scaling, heads.causal, _numbers(out))


def _numbers(states: Tensor) -> NDArray[Any]:
    """Return a tensor as a contiguous array: float32, or the bits of bfloat16 as uint16."""
    states = states.detach().contiguous()
    if states.dtype == torch.float32:
        return states.numpy()
    return states.view(torch.int16).numpy().view(np.uint16)


def _gain(size: int, dtype: torch.dtype) -> float:
    """Return the time of PyTorch's kernel divided by that of nopad's, for heads of `size` numbers in this dtype.

    Both are measured in one thread, once for each size and dtype. The result is 0 if the measurement fails.
    """
    found = _gains.get((size, dtype))
    if found is not None:
        return found
    with _lock:
        if (size, dtype) not in _gains:
            times: list[float] = []
            thread = threading.Thread(target=_try, args=(size, dtype, times))
            thread.start()
            thread.join()
            plain, ours = times or (0.0, 1.0)
            gain = _gains[size, dtype] = plain / ours
            log.info(
                f"attention with heads of {size} in {str(dtype).removeprefix('torch.')} on this CPU: nopad's kernel is "
                f"{gain:.2f} times as fast as PyTorch's; {'taken for inference' if gain >= WORTH else 'not taken'}"
            )
        return _gains[size, dtype]


def _try(size: int, dtype: torch.dtype, times: list[float]) -> None:
    """Append two times in seconds to `times`: that of PyTorch's kernel, and that of nopad's kernel.

    Both are measured with one PyTorch thread. Run this in a new thread, since it sets PyTorch's number of threads, and
    the calling thread must keep its own. Afterwards the number is set back, since PyTorch gives later threads the
    number that was set last.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        lengths = np.array(_TRIED, np.int64)
        starts = np.cumsum(lengths) - lengths
        states = torch.linspace(-1, 1, int(lengths.sum()) * _HEADS * size, device="cpu").to(dtype)
        states = states.view(-1, _HEADS, size)
        out = torch.empty_like(states)
        parts = [one.transpose(0, 1)[None] for one in torch.split(states, list(_TRIED))]

        def plain() -> None:
            for one in parts:
                attend(one, one, one, None, Heads())

        def ours() -> None:
            _run(states, states, states, out, starts, lengths, Heads())

        with torch.inference_mode():
            times.extend(fastest(plain, ours))
    finally:
        torch.set_num_threads(threads)
