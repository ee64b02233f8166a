"""Serving: pack requests of different lengths into batches as they arrive, and answer them on time."""

from __future__ import annotations

from nopad.serving.batching import Batching
from nopad.serving.packer import Decision, OnlineBatch, OnlinePacker, PackerStatistics

__all__ = ["Batching", "Decision", "OnlineBatch", "OnlinePacker", "PackerStatistics"]
