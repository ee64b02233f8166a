"""Packed batches: sequences, rows or features in, one `PackedBatch` out, its layout and its guard.

``device`` puts a layout on a torch device; everything else is NumPy.
"""

from nopad.batch.form import Flat, Rows
from nopad.batch.packed import PackedBatch

__all__ = ["Flat", "PackedBatch", "Rows"]
