"""Write small files so that a crash leaves the old one or the new one, never half of one."""

import os
import secrets
from pathlib import Path

PRIVATE = 0o600  # owner only, from the first byte
SHARED = 0o644


def write_atomically(path: Path, data: bytes, *, mode: int = SHARED) -> None:
    """Replace the file's content as a whole, and make it survive a power cut.

    The mode holds from the file's first byte on. Windows has none of this kind: there the user's own
    folder protects the file.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(temporary, flags, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
