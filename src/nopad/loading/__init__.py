"""Load batches for training: deal packs, rows or sequences to ranks, with equal work per rank and exact resume."""

from nopad.loading.collate import causal
from nopad.loading.collator import PackCollator
from nopad.loading.loader import PackedLoader
from nopad.loading.mixture import Mixture
from nopad.loading.ranks import Ranks
from nopad.loading.supply import EpochCollate

__all__ = ["EpochCollate", "Mixture", "PackCollator", "PackedLoader", "Ranks", "causal"]
