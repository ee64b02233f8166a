"""Sequences of tokens by number: the interface `TokenSource`, and its implementations, which `open_tokens` opens."""

from nopad.loading.sources.discover import open_tokens
from nopad.loading.sources.source import TokenSource

__all__ = ["TokenSource", "open_tokens"]
