"""The header of a decode step, between bytes and message in one call.

The same MessagePack as of every other message. But each token meets a codec twice in every stage, with
caches that the weights have just gone through, and the general way (a map, checked, then converted)
touches three times as much code. What is not plainly a step of ours is left to that.
"""

from collections.abc import Container
from typing import Final

import msgspec

from potluck.wire.messages import Forward, Message, Result

MAX_STEP_HEADER: Final = 4096  # bytes; a step of 256 stages has 3 KiB

_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODERS: Final = {
    # What our encoder begins with, after the byte that counts the fields.
    b"\xa2op\xa7forward": ("forward", msgspec.msgpack.Decoder(Forward)),
    b"\xa2op\xa6result": ("result", msgspec.msgpack.Decoder(Result)),
}
_STARTS: Final = sorted({len(start) for start in _DECODERS})


def encode_step(message: Message) -> bytes | None:
    """The header of a step, or of what came of it; None: of something else."""
    if type(message) is Forward:
        if message.sampling is not None and message.sampling.history is not None:
            return None  # it travels packed
    elif type(message) is not Result:
        return None
    return _ENCODE(message)


def decode_step(header: memoryview, known: Container[str]) -> Message | None:
    """The message of one of the names that are known, if it is a step and as it should be."""
    if len(header) > MAX_STEP_HEADER:
        return None
    for length in _STARTS:
        found = _DECODERS.get(bytes(header[1 : 1 + length]))
        if found is not None and found[0] in known:
            try:
                return found[1].decode(header)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                return None  # the general way says what is wrong
    return None
