"""Online packing: lengths go in one by one, and packs come out when they are ready."""

from nopad.online.stream import StreamPacker, stream_pack

__all__ = ["StreamPacker", "stream_pack"]
