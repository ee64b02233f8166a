"""Load datasets by their name on the Hugging Face hub: ``hf:NAME``, ``hf:NAME:SPLIT``, ``hf:NAME@CONFIG:SPLIT``.

This needs the package `datasets`, which caches what it downloads; a cached dataset needs no network. Without a network,
a name that is not cached raises an error within seconds (`nopad.corpus.network`).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from nopad.corpus.network import NOT_REACHED, hub_in_reach
from nopad.errors import MissingExtraError, SourceError
from nopad.wording import first_line

__all__ = ["HUB", "hub_dataset"]

HUB = "hf:"


def hub_dataset(spec: str, online: bool | None = None) -> Any:
    """Return the `datasets.Dataset` that `spec` names, such as ``hf:NAME@CONFIG:SPLIT``; the default split is "train".

    A dataset that is not cached is downloaded. `online` says whether the hub can be reached, if the caller knows it
    from `hub_in_reach` already; None: this function finds out itself.

    Raises:
        MissingExtraError: `datasets` is not installed.
        SourceError: there is no such dataset, configuration or split, it cannot be loaded, or it is not cached and the
            hub cannot be reached.
    """
    if spec == HUB:
        raise SourceError("hf: names no dataset; write hf:NAME, hf:NAME:SPLIT or hf:NAME@CONFIG:SPLIT")
    name, _, split = spec.removeprefix(HUB).partition(":")
    name, _, config = name.partition("@")
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(f"{spec}: datasets of the Hugging Face hub need: pip install datasets") from error
    with hub_in_reach() if online is None else nullcontext(online) as online:
        try:
            return datasets.load_dataset(name, config or None, split=split or "train")
        except Exception as error:  # offline, no such name, no such split: the hub has one class for each
            raise SourceError(
                f"{spec}: could not be had from the Hugging Face hub ({first_line(error) if online else NOT_REACHED}); "
                "check the name and the network, or give files"
            ) from error
