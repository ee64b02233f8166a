"""Online packing: sequences are packed as they arrive, and each pack is returned as soon as it is made."""

from nopad.online.stream import StreamPacker, stream_pack

__all__ = ["StreamPacker", "stream_pack"]
