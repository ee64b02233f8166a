"""Stored sequences of tokens, read by number: the interface `TokenSource`, and `open_tokens`, which opens them."""

from nopad.loading.sources.discover import open_tokens
from nopad.loading.sources.source import TokenSource

__all__ = ["TokenSource", "open_tokens"]
