"""Load batches for training: packs, rows or sequences are dealt to ranks so that all ranks have about the same work.

A run whose state was saved can be resumed exactly where it was saved.
"""

from nopad.loading.collate import causal
from nopad.loading.collator import PackCollator
from nopad.loading.loader import PackedLoader
from nopad.loading.mixture import Mixture
from nopad.loading.ranks import Ranks
from nopad.loading.supply import EpochCollate

__all__ = ["EpochCollate", "Mixture", "PackCollator", "PackedLoader", "Ranks", "causal"]
