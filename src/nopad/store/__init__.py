"""Packed datasets on disk: write them (`pack_corpus`), read them (`open_packed`), and check them (`verify`)."""

from nopad.store.job import pack_corpus
from nopad.store.manifest import Manifest, Shard
from nopad.store.monitor import Monitor, Silent
from nopad.store.options import PackOptions
from nopad.store.reader import PackedDataset, PackedRow, RowGroup, open_packed
from nopad.store.verification import verify

__all__ = [
    "Manifest",
    "Monitor",
    "PackOptions",
    "PackedDataset",
    "PackedRow",
    "RowGroup",
    "Shard",
    "Silent",
    "open_packed",
    "pack_corpus",
    "verify",
]
