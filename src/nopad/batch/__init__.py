"""Packed batches: `PackedBatch` is built from sequences, rows or features, with a layout and a guard mask.

The module `device` puts a layout on a torch device; the other modules compute with NumPy.
"""

from nopad.batch.form import Flat, Rows
from nopad.batch.packed import PackedBatch

__all__ = ["Flat", "PackedBatch", "Rows"]
