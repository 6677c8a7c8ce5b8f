"""Token ids as the wire has them."""

import struct
from collections.abc import Sequence


def token_payload(tokens: Sequence[int]) -> bytes:
    """Token ids in the form of the wire: little-endian int32."""
    return struct.pack(f"<{len(tokens)}i", *tokens)
