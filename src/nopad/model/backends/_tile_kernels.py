"""Compiled attention for sequences in one stream: all heads of all sequences in one call, in one thread.

PyTorch's attention on CPUs multiplies the small matrices of each head by a general library, and computes up to 15
exponentials per row one by one. Here, vector instructions do both. Numba does not make such instructions of plain
Python loops, so two functions here emit LLVM code: `_tile` for products of matrices, with sums that stay in registers,
and `_instructions` for the exponentials of one row of a softmax.

Numbers are float32, or bfloat16 given as their bits (uint16). In both cases, everything is computed in float32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils as untyped
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

__all__ = ["attention"]

cgutils: Any = untyped
_REGISTERS_32 = bool(binding.get_host_cpu_features().get("avx512f"))
WIDTH = 16 if _REGISTERS_32 else 8  # float32 numbers of a vector register
ROWS = 8 if _REGISTERS_32 else 4  # rows of a tile: 2 registers each for the sums, and some for the factors

DEPTH = 256  # products that are added up in one register

_FLOAT, _INT, _LONG = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR, _INTEGERS = ir.VectorType(_FLOAT, WIDTH), ir.VectorType(_INT, WIDTH)
_FUSED = ("contract",)  # a product and a sum may be one instruction, rounded once
_WHOLE = 12_582_912.0  # 1.5 * 2^23: adding it rounds a small float32 to an integer, which its lowest bits then are
_LEAST = -125.0  # exponents of 2 below this count as this: 2^-125 is nothing beside the largest, 1
_POWERS = [math.log(2) ** n / math.factorial(n) for n in range(7)]  # series of 2^x; exact to 1.2e-7 for |x| <= 0.5


def _all(value: float | int) -> Any:
    """Return LLVM's constant for a vector of `WIDTH` equal values."""
    return ir.Constant(_INTEGERS if isinstance(value, int) else _VECTOR, [value] * WIDTH)


def _spread(builder: Any, vector: Any) -> Any:
    """Emit code that copies the first value of `vector` to all places of a new vector; return the new vector."""
    places = ir.Constant(_INTEGERS, [0] * WIDTH)
    return builder.shuffle_vector(vector, ir.Constant(_VECTOR, ir.Undefined), places)


def _folded(builder: Any, vector: Any, both: Any) -> Any:
    """Emit code that reduces a vector to one number, its sum or maximum; return a vector with this number first.

    `both` is a function that emits the sum, or the maximum, of two vectors.
    """
    half = WIDTH // 2
    while half:
        places = ir.Constant(_INTEGERS, [(place + half) % WIDTH for place in range(WIDTH)])
        vector = both(vector, builder.shuffle_vector(vector, ir.Constant(_VECTOR, ir.Undefined), places))
        half //= 2
    return vector


def _vectors(context: Any, builder: Any, kind: Any, array: Any) -> tuple[Any, Any]:
    """Return the functions ``load(at)`` and ``store(vector, at)``, which emit code that accesses `array`.

    They load or store `WIDTH` numbers of a one-dimensional float32 array, from index `at` on. `kind` is Numba's type of
    the array.
    """
    first = context.make_array(kind)(context, builder, array).data

    def place(at: Any) -> Any:
        return builder.bitcast(builder.gep(first, [at]), _VECTOR.as_pointer())

    def load(at: Any) -> Any:
        return builder.load(place(at), align=4)

    def store(vector: Any, at: Any) -> None:
        builder.store(vector, place(at), align=4)

    return load, store


def _tile(rows: int, vectors: int) -> Any:
    """Return a compiled function that writes a part of a matrix product: `rows` rows, ``vectors * WIDTH`` columns.

    The function is called as ``multiply(a, a_at, a_row, b, b_at, b_row, c, c_at, c_row, depth)``, and writes ``a @ b``
    to c. The arrays a, b and c are float32 and one-dimensional. In the array a, the matrix begins at index `a_at`, and
    each row begins `a_row` entries after the one before; the same holds for b and c. `depth` is the number of columns
    of a and of rows of b.
    """

    @intrinsic
    def multiply(
        _: Any,
        a: Any,
        a_at: Any,
        a_row: Any,
        b: Any,
        b_at: Any,
        b_row: Any,
        c: Any,
        c_at: Any,
        c_row: Any,
        depth: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            left, left_at, left_row, right, right_at, right_row, out, out_at, out_row, inner = arguments
            scalars = context.make_array(a)(context, builder, left).data
            load, _ = _vectors(context, builder, b, right)
            _, store = _vectors(context, builder, c, out)
            sums = [[cgutils.alloca_once(builder, _VECTOR) for _ in range(vectors)] for _ in range(rows)]
            for total in (total for mine in sums for total in mine):  # the compiler keeps them in registers
                builder.store(_all(0.0), total)
            starts = [builder.add(left_at, builder.mul(left_row, _LONG(row))) for row in range(rows)]
            with cgutils.for_range(builder, inner) as loop:
                base = builder.add(right_at, builder.mul(loop.index, right_row))
                columns = [load(builder.add(base, _LONG(one * WIDTH))) for one in range(vectors)]
                for start, mine in zip(starts, sums, strict=True):
                    factor = builder.load(builder.gep(scalars, [builder.add(start, loop.index)]))
                    empty = ir.Constant(_VECTOR, ir.Undefined)
                    factors = _spread(builder, builder.insert_element(empty, factor, _INT(0)))
                    for column, total in zip(columns, mine, strict=True):
                        product = builder.fmul(factors, column, flags=_FUSED)
                        builder.store(builder.fadd(builder.load(total), product, flags=_FUSED), total)
            for row, mine in enumerate(sums):
                base = builder.add(out_at, builder.mul(out_row, _LONG(row)))
                for one, total in enumerate(mine):
                    store(builder.load(total), builder.add(base, _LONG(one * WIDTH)))
            return context.get_dummy_value()

        return types.void(a, a_at, a_row, b, b_at, b_row, c, c_at, c_row, depth), generate

    return multiply


_wide, _narrow = _tile(ROWS, 2), _tile(ROWS, 1)
_low_wide, _low_narrow = _tile(ROWS // 2, 2), _tile(ROWS // 2, 1)


def _instructions(_: Any, scores: Any, at: Any, width: Any) -> Any:
    """Return Numba's signature and code generator for `_exponentials`; the code handles `WIDTH` numbers at a time."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, start, size = arguments
        load, store = _vectors(context, builder, scores, array)
        count = builder.sdiv(size, _LONG(WIDTH))

        def higher(one: Any, other: Any) -> Any:
            return builder.select(builder.fcmp_ordered(">", one, other), one, other)

        most = cgutils.alloca_once(builder, _VECTOR)
        builder.store(load(start), most)
        with cgutils.for_range(builder, count) as loop:
            vector = load(builder.add(start, builder.mul(loop.index, _LONG(WIDTH))))
            builder.store(higher(vector, builder.load(most)), most)
        top = _spread(builder, _folded(builder, builder.load(most), higher))

        total = cgutils.alloca_once(builder, _VECTOR)
        builder.store(_all(0.0), total)
        with cgutils.for_range(builder, count) as loop:
            place = builder.add(start, builder.mul(loop.index, _LONG(WIDTH)))
            power = builder.fsub(load(place), top)
            power = builder.select(builder.fcmp_ordered("<", power, _all(_LEAST)), _all(_LEAST), power)
            shifted = builder.fadd(power, _all(_WHOLE))
            rest = builder.fsub(power, builder.fsub(shifted, _all(_WHOLE)))
            found = _all(_POWERS[-1])
            for factor in _POWERS[-2::-1]:
                found = builder.fadd(builder.fmul(found, rest, flags=_FUSED), _all(factor), flags=_FUSED)
            # 2^n as float32 is n + 127 in the bits from 23 on; the upper bits of `shifted` are lost in the shift
            bits = builder.shl(builder.add(builder.bitcast(shifted, _INTEGERS), _all(127)), _all(23))
            found = builder.fmul(found, builder.bitcast(bits, _VECTOR))
            store(found, place)
            builder.store(builder.fadd(builder.load(total), found), total)
        found = _folded(builder, builder.load(total), builder.fadd)
        return builder.extract_element(found, _INT(0))

    return types.float32(scores, at, width), generate


_by_vectors: Any = intrinsic(_instructions)


def _exponentials(scores: NDArray[np.float32], at: int, width: int) -> Any:
    """Replace `width` scores s, from index `at` on, by 2^(s - m), where m is their maximum; return the new sum.

    Exponents below -125 count as -125. `width` is a multiple of `WIDTH`. The sum is NaN if a score is NaN or +inf, or
    if all scores are -inf.
    """
    mine = scores[at : at + width]
    mine[:] = np.exp2(np.maximum(mine - mine.max(), np.float32(_LEAST)))
    return mine.sum()


@overload(_exponentials)
def _compiled_exponentials(scores: Any, at: Any, width: Any) -> Any:
    def by_vectors(scores: Any, at: Any, width: Any) -> Any:
        return _by_vectors(scores, at, width)

    return by_vectors


def _product(rows: int, a: Any, a_row: int, b: Any, b_row: int, c: Any, c_row: int, depth: int, columns: int) -> Any:
    """Write the product of the matrices a and b to c; all three are one-dimensional float32 arrays.

    The product has `rows` rows (`ROWS` or half of it) and `columns` columns (a multiple of `WIDTH`). `depth` is the
    number of columns of a and of rows of b. A row of a begins `a_row` entries after the one before; `b_row` and `c_row`
    are the same for b and c.
    """
    right = b[: depth * b_row].reshape(depth, b_row)[:, :columns]
    for row in range(rows):
        c[row * c_row : row * c_row + columns] = a[row * a_row : row * a_row + depth] @ right


@overload(_product)
def _compiled_product(
    rows: Any, a: Any, a_row: Any, b: Any, b_row: Any, c: Any, c_row: Any, depth: Any, columns: Any
) -> Any:
    def by_tiles(
        rows: Any, a: Any, a_row: Any, b: Any, b_row: Any, c: Any, c_row: Any, depth: Any, columns: Any
    ) -> Any:
        for at in range(0, columns - WIDTH, 2 * WIDTH):
            if rows == ROWS:
                _wide(a, 0, a_row, b, at, b_row, c, at, c_row, depth)
            else:
                _low_wide(a, 0, a_row, b, at, b_row, c, at, c_row, depth)
        if columns // WIDTH % 2:
            at = columns - WIDTH
            if rows == ROWS:
                _narrow(a, 0, a_row, b, at, b_row, c, at, c_row, depth)
            else:
                _low_narrow(a, 0, a_row, b, at, b_row, c, at, c_row, depth)

    return by_tiles


def _read(number: Any) -> Any:
    """Return a float32 number unchanged, and the bits of a bfloat16 number (uint16) as float32."""
    if isinstance(number, np.uint16):
        return np.uint32(np.uint32(number) << np.uint32(16)).view(np.float32)
    return number


@overload(_read)
def _compiled_read(number: Any) -> Any:
    def widened(number: Any) -> Any:
        return np.uint32(np.uint32(number) << np.uint32(16)).view(np.float32)

    def same(number: Any) -> Any:
        return number

    return widened if number == types.uint16 else same


def _write(number: Any, array: Any, at: int) -> Any:
    """Write a float32 number to index `at` of a float32 array, or of a uint16 array as the nearest bfloat16's bits."""
    if array.dtype == np.uint16:
        _write_rounded(number, array, at)
    else:
        array[at] = number


def _write_rounded(number: Any, array: Any, at: int) -> Any:
    if number != number:
        array[at] = np.uint16(0x7FC0)  # NaN
        return
    bits = np.float32(number).view(np.uint32)
    odd = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))  # a tie goes to the even number
    array[at] = np.uint16(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))


@overload(_write)
def _compiled_write(number: Any, array: Any, at: Any) -> Any:
    def same(number: Any, array: Any, at: Any) -> Any:
        array[at] = number

    return _rounded if array.dtype == types.uint16 else same


def _rounded(number: Any, array: Any, at: Any) -> Any:
    _compiled_rounded(number, array, at)


_compiled_rounded: Any = njit(_write_rounded)


@njit(cache=True, nogil=True, error_model="numpy")
def attention(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    scaling: float,
    causal: bool,
    out: NDArray[Any],
) -> None:
    """Compute the attention of each sequence, and write it to `out`.

    `query` and `out` are ``[T, H, D]``: tokens, heads, and the size of a head. `key` and `value` are ``[T, G, D]``,
    where H is a multiple of G. All four are float32, or uint16 with the bits of bfloat16 numbers. Sequence i has
    ``lengths[i]`` tokens from index ``starts[i]`` on. Entries of `out` that belong to no sequence do not change.
    `scaling` is the factor of the scores. If `causal`, a token sees no later tokens.
    """
    heads, size = query.shape[1], query.shape[2]
    groups = heads // key.shape[1]
    most = 0
    for length in lengths:
        most = max(most, length)
    across = -(-size // WIDTH) * WIDTH  # columns of the values
    row = -(-most // WIDTH) * WIDTH + WIDTH  # not a power of 2, whose rows would share the same places of the cache
    keys, values = np.zeros(size * row, np.float32), np.zeros(max(most, 1) * across, np.float32)
    queries, scores = np.zeros(ROWS * size, np.float32), np.zeros(ROWS * row, np.float32)
    found, sums = np.zeros(ROWS * across, np.float32), np.zeros(ROWS, np.float32)
    more = np.zeros(ROWS * across, np.float32)
    factor = np.float32(scaling * 1.4426950408889634)  # log2(e): powers of 2 instead of e
    for sequence in range(lengths.size):
        start, length = starts[sequence], lengths[sequence]
        for head in range(heads):
            if head % groups == 0:
                for at in range(length):
                    one, other = key[start + at, head // groups], value[start + at, head // groups]
                    for place in range(size):
                        keys[place * row + at] = _read(one[place])
                        values[at * across + place] = _read(other[place])
            begin = 0
            while begin < length:
                rows = ROWS if length - begin > ROWS // 2 else ROWS // 2
                real = min(rows, length - begin)
                for at in range(real):
                    one = query[start + begin + at, head]
                    for place in range(size):
                        queries[at * size + place] = _read(one[place]) * factor
                seen = begin + real if causal else length
                columns = -(-seen // WIDTH) * WIDTH
                _product(rows, queries, size, keys, row, scores, row, size, columns)
                for at in range(real):
                    last = begin + at + 1 if causal else length
                    for place in range(at * row + last, at * row + columns):
                        scores[place] = -np.inf
                    sums[at] = _exponentials(scores, at * row, columns)
                    for place in range(at * row + last, at * row + columns):
                        scores[place] = 0  # not 2^_LEAST, which values near the largest float32 would show
                for first in range(0, seen, DEPTH):  # one sum over all tokens would round more the longer they are
                    depth = min(DEPTH, seen - first)
                    out_of = found if first == 0 else more
                    _product(rows, scores[first:], row, values[first * across :], across, out_of, across, depth, across)
                    if first:
                        for place in range(rows * across):
                            found[place] += more[place]
                for at in range(real):
                    share = np.float32(1) / sums[at]
                    line = out[start + begin + at, head]
                    for place in range(size):
                        _write(found[at * across + place] * share, line, place)
                begin += rows
