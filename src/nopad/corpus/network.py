"""Find out within seconds whether a host can be reached, since libraries would retry for half a minute.

A connection is opened and closed without sending data. If a proxy is set, the connection goes to the proxy instead.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nopad.errors import FormatError
from nopad.wording import first_line

__all__ = ["NOT_REACHED", "WAIT_S", "hub_in_reach", "not_had", "reachable"]

WAIT_S = 3.0
NOT_REACHED = f"it did not answer within {WAIT_S:g} s, and its cache here does not have it"
_PORTS = {"http": 80, "https": 443}
_LOUD = ("huggingface_hub", "datasets", "httpx", "urllib3")
_outer: ContextVar[bool | None] = ContextVar("_outer", default=None)  # what the block around this one found out


def reachable(url: str) -> bool:
    """Return whether the host of a URL, or the proxy set for it, accepts a connection within 3 seconds (`WAIT_S`)."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if not urllib.request.proxy_bypass(host):
        proxy = urllib.request.getproxies().get(parts.scheme)
        parts = urlsplit(proxy if proxy and "://" in proxy else f"http://{proxy}") if proxy else parts
    where = (parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 443))
    answered = threading.Event()

    def connect() -> None:
        try:
            socket.create_connection(where, timeout=WAIT_S).close()
            answered.set()
        except OSError:
            pass

    # A DNS lookup has no time limit, so it runs in a thread that can be left
    asking = threading.Thread(target=connect, daemon=True)
    asking.start()
    asking.join(WAIT_S)
    return answered.is_set()


@contextmanager
def hub_in_reach() -> Iterator[bool]:
    """For a ``with`` block, silence the Hugging Face libraries, and set them to offline if the hub cannot be reached.

    Yields whether the hub can be reached. Libraries that are offline use only their caches. At the end of the block,
    the levels of the loggers and the offline settings are as before. A block within another one asks the hub no second
    time.
    """
    if (known := _outer.get()) is not None:
        yield known
        return
    online = reachable(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    with ExitStack() as stack:
        for name in _LOUD:
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        if not online:
            for holder, name in _offline_switches():
                stack.callback(setattr, holder, name, getattr(holder, name))
                setattr(holder, name, True)
        stack.callback(_outer.reset, _outer.set(online))
        yield online


def not_had(spec: str | Path, error: BaseException, online: bool, what: str = "") -> FormatError:
    """Return the error for a model that is not in a folder here, and that the Hugging Face hub did not give.

    Args:
        spec: the folder or the name on the hub that was asked for.
        error: what the library raised.
        online: whether the hub could be reached, from `hub_in_reach`.
        what: the part of the model that was read, such as "configuration"; "": the model.
    """
    reason = first_line(error) if online else NOT_REACHED
    subject = f", and its {what}" if what else " and"
    return FormatError(
        f"{str(spec)!r} is no folder here{subject} could not be had from the Hugging Face hub ({reason}); check the "
        "name and the network, or give the path of a model's folder"
    )


def _offline_switches() -> list[tuple[Any, str]]:
    """Return where the installed libraries store whether they are offline, as pairs (module, attribute name)."""
    found: list[tuple[Any, str]] = []
    try:
        from huggingface_hub import constants

        found.append((constants, "HF_HUB_OFFLINE"))
        import datasets

        found += [(datasets.config, "HF_HUB_OFFLINE"), (datasets.config, "HF_DATASETS_OFFLINE")]
    except ImportError:
        pass
    return [(holder, name) for holder, name in found if hasattr(holder, name)]
