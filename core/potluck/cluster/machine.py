"""An id of the physical computer, to find nodes on one computer (several containers or users)."""

import hashlib
import uuid
from pathlib import Path

_LINUX_BOOT = Path("/proc/sys/kernel/random/boot_id")  # the same in every container of a computer
_IS_MULTICAST = 1 << 40  # in a hardware address: the address is random, since none could be read


def machine_id(boot: Path = _LINUX_BOOT) -> str:
    """An id that all nodes of one computer share until its next start. It is a hash.

    Returns:
        32 hexadecimal digits; empty if the system has no number to make it from.
    """
    try:
        number = boot.read_text("ascii").strip()
    except (OSError, UnicodeError):
        address = uuid.getnode()
        number = "" if address & _IS_MULTICAST else f"{address:012x}"
    return hashlib.blake2b(number.encode(), digest_size=16).hexdigest() if number else ""
