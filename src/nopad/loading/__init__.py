"""Loading: packs, rows or sequences dealt to ranks in equal steps of equal cost, with exact resume."""

from nopad.loading.collate import causal
from nopad.loading.loader import PackedLoader
from nopad.loading.mixture import Mixture
from nopad.loading.ranks import Ranks
from nopad.loading.supply import EpochCollate

__all__ = ["EpochCollate", "Mixture", "PackedLoader", "Ranks", "causal"]
