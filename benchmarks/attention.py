"""The compiled attention kernel of `segments` beside PyTorch's, in one thread, by length, dtype and size of a head.

Both compute about 2,048 tokens of sequences of one length, with 12 heads, in turns; the best of each counts. Differences
are from attention in float64. The two need not round alike.

    python benchmarks/attention.py [--sizes 32 64] [--turns 5]
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from inputs import machine
from torch.nn.functional import scaled_dot_product_attention

from nopad.model.backends import tiled
from nopad.model.backends.core import Heads
from nopad.model.linear import fastest

LENGTHS, HEADS, TOKENS = (3, 8, 12, 16, 20, 26, 40, 64, 90, 128, 174, 256, 512, 1024, 2048), 12, 2048


def compared(length: int, size: int, dtype: torch.dtype, causal: bool, turns: int) -> str:
    """Return a line of the table: microseconds per token of both, their quotient, and largest differences."""
    count = max(1, TOKENS // length)
    tokens = count * length
    given = [torch.randn(tokens, HEADS, size).to(dtype) for _ in range(3)]
    rows = [one.view(count, length, HEADS, size).transpose(1, 2) for one in given]
    out = torch.empty_like(given[0])
    lengths = np.full(count, length, np.int64)
    starts = np.arange(count, dtype=np.int64) * length
    heads = Heads(causal=causal)
    plain, ours = fastest(
        lambda: scaled_dot_product_attention(*rows, is_causal=causal),
        lambda: tiled._run(*given, out, starts, lengths, heads),
        turns=turns,
    )
    exact = scaled_dot_product_attention(*(one.double() for one in rows), is_causal=causal)
    theirs = (scaled_dot_product_attention(*rows, is_causal=causal) - exact).abs().max()
    mine = (out.view(count, length, HEADS, size).transpose(1, 2) - exact).abs().max()
    billions = 4 * length * HEADS * size * tokens / ours / 1e9
    return (
        f"{str(dtype).removeprefix('torch.'):9} {size:3} {length:6} {'causal' if causal else '':7} {plain / tokens * 1e6:8.2f} "
        f"{ours / tokens * 1e6:8.2f} {plain / ours:6.2f} {billions:9.0f}   {theirs:.0e}  {mine:.0e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine(), f"torch {torch.__version__}, one thread; microseconds per token")
    print("dtype    size length          PyTorch    nopad  ratio  GFLOP/s   differ by (PyTorch, nopad)")
    with torch.inference_mode():
        for dtype in (torch.float32, torch.bfloat16):
            for size in options.sizes:
                for length in LENGTHS:
                    for causal in (False, True):
                        print(compared(length, size, dtype, causal, options.turns), flush=True)


if __name__ == "__main__":
    main()
