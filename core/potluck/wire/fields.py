"""The types of fields that messages have in common, each with the limit that decoding checks.

The limits bound the memory that a hostile header can take.
"""

import re
from typing import Annotated

from msgspec import Meta

# Text that is shown on one line has no control characters and no marks that reverse it.
_UNPRINTABLE = "\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"
_NOT_TEXT = re.compile(rf"(?![\n\t])[{_UNPRINTABLE}]")
LINE = rf"\A[^{_UNPRINTABLE}]*\Z"
MAX_TEXT = 4096

MAX_NAME = 128
Name = Annotated[str, Meta(max_length=MAX_NAME, pattern=LINE)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]  # for a person; made printable by `printable`
Hex = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]  # SHA-256; `$` would accept a newline
SessionName = Annotated[str, Meta(min_length=1, max_length=64)]
Count = Annotated[int, Meta(ge=0, lt=1 << 31)]
Size = Annotated[int, Meta(ge=0, lt=1 << 50)]  # bytes; no home has a petabyte
Port = Annotated[int, Meta(ge=1, le=65535)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Shape = Annotated[tuple[Count, ...], Meta(max_length=8)]
StoredDtype = Annotated[str, Meta(max_length=16, pattern=r"\A[A-Z0-9_]+\Z")]
"""A safetensors dtype, `GGUF_` with a type of llama.cpp, `PACKED4` or `PACKED8`."""


def line(text: str) -> str:
    """Make of any text a `Name`: one line, of so many characters at most."""
    return re.sub(f"[{_UNPRINTABLE}]", "\N{REPLACEMENT CHARACTER}", text)[:MAX_NAME]


def printable(text: str) -> str:
    """Make a stranger's text safe for a terminal: it cannot move the cursor or set the title.

    Characters are replaced, since refusing an error message would end the connection.
    """
    return _NOT_TEXT.sub("\N{REPLACEMENT CHARACTER}", text)
