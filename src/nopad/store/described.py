"""The text of a `PackedDataset`'s `repr`: what the dataset holds, in one line."""

from __future__ import annotations

from nopad.store.manifest import Manifest
from nopad.wording import counted

__all__ = ["described"]

_COUNTED = {
    "truncated": "truncated",
    "split": "split",
    "dropped": "dropped as too long",
    "empty_skipped": "skipped as empty",
    "bad_skipped": "skipped as bad",
    "stripped": "without their padding",
    "other_split": "held out or in the other half",
}


def described(m: Manifest, place: str) -> str:
    """Return the `repr` of a packed dataset: size, padding, columns, records left out or changed, and folder.

    `m` is the dataset's manifest; `place` is the text that stands for its folder.
    """
    packs = f"{counted(m.packs, 'pack')} of at most {m.capacity:,} tokens"
    depth = "" if m.depth is None else f" and {m.depth:,} sequences"
    sequences = f"{counted(m.sequences, 'sequence')}, {counted(m.tokens, 'token')}"
    parts = [f"{packs}{depth}", f"{sequences}, {1 - m.efficiency:.2%} padding"]
    for per in ("token", "sequence"):
        names = [name for name, of in m.carried.items() if of == per]
        names = (["input_ids"] if per == "token" and m.kind == "packed" else []) + names
        parts += [f"per {per}: {', '.join(names)}"] if names else []
    odd = [f"{m.counts[name]:,} {what}" for name, what in _COUNTED.items() if m.counts[name]]
    parts += [f"of {m.source['records']:,} records {', '.join(odd)}"] if odd else []
    left_out = m.source["left_out"]
    parts += [f"columns left out: {', '.join(left_out)}"] if left_out else []
    parts += ["an index, whose tokens are in its source"] if m.kind == "index" else []
    return f"PackedDataset({'; '.join([*parts, f'in {place}'])})"
