"""On which computer this node runs, as nodes in several containers or of several users can compare."""

import hashlib
import uuid
from pathlib import Path

_LINUX_BOOT = Path("/proc/sys/kernel/random/boot_id")  # the same in every container of a computer
_IS_MULTICAST = 1 << 40  # of a hardware address: it was made up, since none could be read


def machine_id(boot: Path = _LINUX_BOOT) -> str:
    """Equal for all nodes of one computer until it is started anew, and saying nothing else of it.

    Returns:
        32 hexadecimal digits, or nothing where the system gives no such number.
    """
    try:
        number = boot.read_text("ascii").strip()
    except (OSError, UnicodeError):
        address = uuid.getnode()
        number = "" if address & _IS_MULTICAST else f"{address:012x}"
    return hashlib.blake2b(number.encode(), digest_size=16).hexdigest() if number else ""
