"""Tokens by number: the seam `TokenSource`, and its implementations behind `open_tokens`."""

from nopad.loading.sources.discover import open_tokens
from nopad.loading.sources.source import TokenSource

__all__ = ["TokenSource", "open_tokens"]
