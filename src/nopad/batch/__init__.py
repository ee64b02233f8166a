"""Packed batches: `PackedBatch` is built from sequences, rows or features, and holds a layout and a guard mask.

The layout says where the tokens of each sequence lie. The guard mask raises an error in models that are not pack-safe.
Layouts are computed with NumPy; the module `device` puts them on a torch device.
"""

from nopad.batch.form import Flat, Rows
from nopad.batch.packed import PackedBatch

__all__ = ["Flat", "PackedBatch", "Rows"]
