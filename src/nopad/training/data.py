"""What people hand to a trainer as data -> a loader of its packs."""

from __future__ import annotations

import pickle
from hashlib import blake2b
from typing import Any

from transformers.utils import logging

from nopad.errors import OptionError, SourceError
from nopad.loading import PackedLoader, causal
from nopad.loading.streams.opening import is_stream
from nopad.loading.torch import TorchDataset, TorchLoader
from nopad.tasks import Examples, Objective, OfTokens, Task

__all__ = ["fingerprint_of", "loader_of", "packable"]

logger = logging.get_logger(__name__)


def packable(data: Any, task: Task | None, capacity: int | None, *, collated: bool = False) -> bool:
    """Whether `data` are a loader, or are packed into one: anything but None, where there is a capacity.

    `collated`: there is a collator for what is neither a loader nor records of a task.

    Raises:
        OptionError: `data` are made of a loader, or of a task's examples and there is no capacity.
    """
    if isinstance(data, TorchDataset | TorchLoader):
        raise OptionError("the dataset is made of a PackedLoader; give the loader itself")
    if data is None or isinstance(data, PackedLoader):
        return data is not None
    if capacity is None and (task is not None or isinstance(data, Examples)):
        raise OptionError("packs of what capacity? Give capacity=..., the most tokens of a row; or a PackedLoader")
    return capacity is not None and (task is not None or isinstance(data, Examples) or not collated)


def loader_of(
    data: Any, capacity: int | None, *, task: Task | None, objective: Objective | None, **options: Any
) -> PackedLoader:
    """Return the loader of `data`: a loader itself, examples, records of a task, or tokens that `open_tokens` reads.

    Args:
        data: the data.
        capacity: most tokens per pack; not needed for a loader.
        task: what turns records into sequences; None: `data` are tokens.
        objective: what is learned; a causal language model without a task gets its labels from the tokens.
        options: of `nopad.PackedLoader`.

    Raises:
        RecordError, LengthError, OptionError: as the task, or the loader.
        SourceError: without a task, `data` are not tokens.
    """
    if isinstance(data, PackedLoader):
        return data
    if task is not None:
        made = data if isinstance(data, Examples) else task.encode(task.read(data))
        if any(made.counts.values()):
            logger.warning(f"{made}; training, evaluation and prediction are of these sequences")
        return task.loader(made, capacity, **options)
    if isinstance(data, Examples):
        options.setdefault("groups", data.group if data.group > 1 else None)
        data = data.sequences
    if is_stream(data, options):
        options.pop("seed", None)  # a stream is dealt as it comes
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
    """Return a fingerprint of what data hold now, so that a change in place shows; None: nobody can tell.

    That of a `datasets.Dataset` is its own; of a list, all records are read: about 400,000 a second.
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
