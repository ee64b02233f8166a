"""Serving: requests of different lengths as they arrive, packed into batches and answered on time."""

from __future__ import annotations

from nopad.serving.batching import Batching
from nopad.serving.packer import Decision, OnlineBatch, OnlinePacker, PackerStatistics

__all__ = ["Batching", "Decision", "OnlineBatch", "OnlinePacker", "PackerStatistics"]
