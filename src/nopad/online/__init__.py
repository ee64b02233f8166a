"""Packs from what arrives: lengths go in one by one, packs come out as they are ready."""

from nopad.online.stream import StreamPacker, stream_pack

__all__ = ["StreamPacker", "stream_pack"]
