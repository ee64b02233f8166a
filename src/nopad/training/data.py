"""Turn the data given to a trainer into a loader of packs."""

from __future__ import annotations

import pickle
from hashlib import blake2b
from typing import Any

from transformers.utils import logging

from nopad.errors import OptionError, SourceError
from nopad.loading import PackedLoader, causal
from nopad.loading.streams.opening import is_stream
from nopad.loading.torch import TorchDataset, TorchLoader
from nopad.store import PackedDataset
from nopad.tasks import Examples, Objective, OfTokens, Task

__all__ = ["fingerprint_of", "loader_of", "packable"]

logger = logging.get_logger(__name__)
_LOST = {"truncated", "dropped", "empty_skipped", "bad_skipped"}  # counts of records that are not learned as a whole


def packable(data: Any, task: Task | None, capacity: int | None, *, collated: bool = False) -> bool:
    """Return whether `data` are packs (a loader, a packed dataset) or will be packed; False for None.

    Packing needs a `capacity`. If `collated` is True, the trainer has a collator of its own; then data are packed only
    if they are packs, examples, or records of a task.

    Raises:
        OptionError: `data` are a torch dataset or DataLoader made of a `PackedLoader`; or they are examples or records
            of a task, and there is no capacity.
    """
    if isinstance(data, TorchDataset | TorchLoader):
        raise OptionError("the dataset is made of a PackedLoader; give the loader itself")
    if data is None or isinstance(data, PackedLoader | PackedDataset):
        return data is not None
    if capacity is None and (task is not None or isinstance(data, Examples)):
        raise OptionError("packs of what capacity? Give capacity=..., the most tokens of a row; or a PackedLoader")
    return capacity is not None and (task is not None or isinstance(data, Examples) or not collated)


def loader_of(
    data: Any,
    capacity: int | None,
    *,
    task: Task | None,
    objective: Objective | None,
    name: str = "data",
    quiet: bool = False,
    **options: Any,
) -> PackedLoader:
    """Return a loader of `data`.

    Args:
        data: a loader, which is returned unchanged; a packed dataset; examples; records of a task; or tokens in any
            form that `nopad.PackedLoader` takes, such as a stream.
        capacity: most tokens per pack; None: the rows of a packed dataset as stored. A loader has its own.
        task: what turns records into sequences; None: `data` are tokens.
        objective: computes the loss. For the loss of a causal language model, the loader's default `collate` is
            `nopad.loading.causal`, which copies the tokens as labels if there are none.
        name: what to call the data in the warning that says how often a task cut or left out records.
        quiet: warn only of records that were truncated or left out, and not of other counts, such as split records.
        options: further options of `nopad.PackedLoader`.

    Raises:
        RecordError, LengthError, OptionError: as raised by the task or the loader.
        SourceError: without a task, `data` are not tokens.
    """
    if isinstance(data, PackedLoader):
        return data
    if isinstance(data, PackedDataset):  # its sequences are made already, so a task does not encode them
        if task is not None and task.collate is not None:
            options.setdefault("collate", task.collate)
    elif task is not None:
        made = data if isinstance(data, Examples) else task.encode(task.read(data))
        if any(number for name, number in made.counts.items() if name in _LOST or not quiet):
            logger.warning_once(f"{name}: {made}")
        return task.loader(made, capacity, **options)
    if isinstance(data, Examples):
        options.setdefault("groups", data.group if data.group > 1 else None)
        data = data.sequences
    if is_stream(data, options):
        options.pop("seed", None)  # a stream keeps its own order
    if isinstance(objective, OfTokens) and objective.causal:
        options.setdefault("collate", causal)
    try:
        return PackedLoader(data, capacity, **options)
    except SourceError as error:
        raise SourceError(
            f"{error}. Records become sequences by a task: task=nopad.tasks.Chat(tokenizer) for chats, CausalLM for "
            "texts, Classification, ..."
        ) from error


def fingerprint_of(data: Any) -> str | None:
    """Return a fingerprint of the data's content, which changes if the data are changed in place; None: not known.

    For a `datasets.Dataset`, this is the fingerprint that `datasets` computes. Other data are pickled; for a list, all
    records are read, at about 400,000 per second. Data that cannot be pickled have no known fingerprint.
    """
    own = getattr(data, "_fingerprint", None)
    if isinstance(own, str):
        return own
    digest = blake2b()

    def buffer(view: pickle.PickleBuffer) -> None:
        digest.update(view.raw())

    try:
        for one in data if isinstance(data, list | tuple) else [data]:  # one by one, so memory holds one at a time
            digest.update(pickle.dumps(one, protocol=5, buffer_callback=buffer))
    except Exception:  # pickling runs other people's code
        return None
    return digest.hexdigest()
