"""Online packing: sequences are packed as they arrive, and packs are returned when they are ready."""

from nopad.online.stream import StreamPacker, stream_pack

__all__ = ["StreamPacker", "stream_pack"]
