"""Compiled loops for int8 linear layers.

`quantise` turns activations into int8, with one scale per token. `dequantise` turns the products of int8 matrices into
float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["dequantise", "quantise"]

_MAGNITUDE = np.uint32(0x7FFF_FFFF)  # a float32's bits without its sign, which are in the order of absolute values
_INFINITE = np.uint32(0x7F80_0000)  # NaN has larger bits
_NORMAL = np.float32(2.0**-126)  # the smallest normal float32
_SMALLEST = np.float32(2.0**-149)  # the smallest float32 above 0, by which others below the normal ones differ
_WHOLE = np.float32(12_582_912.0)  # 1.5 * 2^23: adding it rounds a small float32 to an integer, halves to even


@njit(cache=True, nogil=True, error_model="numpy")
def quantise(
    values: NDArray[np.float32], bits: NDArray[np.uint32], out: NDArray[np.int8], scales: NDArray[np.float32]
) -> Any:
    """Write `values` ``[T, K]`` as int8 to `out` ``[T, K]``, and one scale per row to `scales`, float32 ``[T]``.

    For each row, ``values[row]`` is about ``out[row] * scales[row]``. The scale is chosen so that the largest absolute
    value of the row becomes 127. There are three exceptions:

    * a row of zeros gets zeros and the scale 0;
    * a row with NaN or infinity gets zeros and the scale NaN, so that `dequantise` makes the whole row NaN;
    * if the scale is a subnormal float32 number (below 2^-126), the largest absolute value may become less than 127.

    `bits` ``[T, K]`` must be the memory of `values`, viewed as uint32.
    """
    for row in range(values.shape[0]):
        largest = np.uint32(0)
        for column in range(values.shape[1]):
            largest = max(largest, bits[row, column] & _MAGNITUDE)
        if largest >= _INFINITE:
            scales[row] = np.nan
            out[row, :] = 0
            continue
        most = np.uint32(largest).view(np.float32)
        scales[row] = most / np.float32(127)
        factor = np.float32(127) / most if most > 0 else np.float32(0)
        if scales[row] < _NORMAL and most > 0:  # a scale with fewer bits, and the factor may be infinite
            _quantise_tiny(values[row], most, out[row], scales[row : row + 1])
            continue
        for column in range(values.shape[1]):
            whole = (values[row, column] * factor + _WHOLE) - _WHOLE
            out[row, column] = np.int8(np.int32(whole))


@njit(cache=True, nogil=True, error_model="numpy")
def _quantise_tiny(values: NDArray[np.float32], most: Any, out: NDArray[np.int8], scale: NDArray[np.float32]) -> Any:
    """Quantise one row, `values`, whose scale is a subnormal float32 number (below 2^-126).

    The integers are written to `out`. `scale` ``[1]`` holds the row's scale, and `most` is the row's largest absolute
    value. A scale this small has few significant bits. If `most` is above 127 times the scale, the scale is raised in
    place to the next float32 number, so that no integer is above 127. Values are divided by the scale in float64, since
    ``1 / scale`` may be infinite in float32.
    """
    if np.float64(scale[0]) * 127 < np.float64(most):
        scale[0] += _SMALLEST
    step = np.float64(scale[0])
    for column in range(values.size):
        out[column] = np.int8(np.round(np.float64(values[column]) / step))


@njit(cache=True, nogil=True)
def dequantise(
    products: NDArray[np.int32],
    scales: NDArray[np.float32],
    weight_scales: NDArray[np.float32],
    bias: NDArray[np.float32],
    out: NDArray[np.float32],
) -> Any:
    """Write products * scales[row] * weight_scales[column] + bias[column] to `out`, float32 ``[T, N]``.

    `products` are the products of int8 activations and int8 weights, int32 ``[T, N]``. `scales` ``[T]`` are the scales
    of the activations, one per row. `weight_scales` ``[N]`` are the scales of the weights, one per column. `bias` is
    ``[N]``.
    """
    for row in range(products.shape[0]):
        scale = scales[row]
        for column in range(products.shape[1]):
            out[row, column] = np.float32(products[row, column]) * (scale * weight_scales[column]) + bias[column]
