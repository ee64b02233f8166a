"""nopad: pack sequences for transformers with almost no padding, and prove how little padding is possible.

Five sequences are packed into three packs of at most 8 tokens; the lower bound proves that two packs cannot hold them:

>>> import nopad
>>> plan = nopad.plan([5, 3, 4, 2, 8], capacity=8)
>>> plan.packs, plan.lower_bound
(3, 3)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nopad.assignment import assign, pack
from nopad.errors import NopadError
from nopad.histogram import Histogram
from nopad.packs import Packs
from nopad.planning import ALGORITHMS, Plan, plan

if TYPE_CHECKING:
    from nopad.admitting import packed
    from nopad.auditing import audit, audit_samples, audit_step
    from nopad.batch import Flat, PackedBatch, Rows
    from nopad.corpus import CorpusOptions, ReaderOptions, load_tokenizer, open_source
    from nopad.in_memory import pack_dataset
    from nopad.loading import PackedLoader
    from nopad.model import unpacked
    from nopad.online import StreamPacker, stream_pack
    from nopad.planning.several import SeveralPlan, pack_several, plan_several
    from nopad.serving.runner import PackRunner
    from nopad.store import PackedDataset, PackOptions, open_packed, pack_corpus, verify
    from nopad.tasks import Embedder

__version__ = "0.1.0"
__all__ = [
    "ALGORITHMS",
    "CorpusOptions",
    "Embedder",
    "Flat",
    "Histogram",
    "NopadError",
    "PackOptions",
    "PackRunner",
    "PackedBatch",
    "PackedDataset",
    "PackedLoader",
    "Packs",
    "Plan",
    "ReaderOptions",
    "Rows",
    "SeveralPlan",
    "StreamPacker",
    "assign",
    "audit",
    "audit_samples",
    "audit_step",
    "load_tokenizer",
    "open_packed",
    "open_source",
    "pack",
    "pack_corpus",
    "pack_dataset",
    "pack_several",
    "packed",
    "plan",
    "plan_several",
    "stream_pack",
    "unpacked",
    "verify",
]

# Modules that need pyarrow or compiled loops are imported when one of these names is first used, so that
# `import nopad` stays quick.
_LAZY = {
    "audit": "nopad.auditing",
    "audit_samples": "nopad.auditing",
    "audit_step": "nopad.auditing",
    "Flat": "nopad.batch",
    "PackedBatch": "nopad.batch",
    "Rows": "nopad.batch",
    "PackedLoader": "nopad.loading",
    "packed": "nopad.admitting",
    "unpacked": "nopad.model",
    "CorpusOptions": "nopad.corpus",
    "ReaderOptions": "nopad.corpus",
    "load_tokenizer": "nopad.corpus",
    "open_source": "nopad.corpus",
    "pack_dataset": "nopad.in_memory",
    "PackOptions": "nopad.store",
    "PackedDataset": "nopad.store",
    "PackRunner": "nopad.serving.runner",
    "open_packed": "nopad.store",
    "pack_corpus": "nopad.store",
    "verify": "nopad.store",
    "SeveralPlan": "nopad.planning.several",
    "pack_several": "nopad.planning.several",
    "plan_several": "nopad.planning.several",
    "Embedder": "nopad.tasks",
    "StreamPacker": "nopad.online",
    "stream_pack": "nopad.online",
}
# Packages that can be used as ``nopad.losses`` without an import of their own, which docs do.
_PACKAGES = {
    "auditing",
    "balance",
    "batch",
    "corpus",
    "loading",
    "losses",
    "model",
    "sequences",
    "serving",
    "store",
    "study",
    "tasks",
    "training",
}


def __getattr__(name: str) -> Any:
    """Return the public object or package of nopad called `name`; its module is imported at the first use.

    Raises:
        AttributeError: nopad has no such name.
        MissingExtraError: the module needs an optional package that is not installed.
    """
    from importlib import import_module

    if name in _PACKAGES:
        return import_module(f"nopad.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'nopad' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """Return the names in `__all__`."""
    return __all__
