"""Network namespaces: each is the network of one host. Linux, root."""

import ctypes
import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_FOLDER = Path("/run/netns")
_OWN = "/proc/thread-self/ns/net"
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def inside(namespace: str) -> Generator[None, None, None]:
    """Open sockets and devices in this namespace, in this thread; they stay in it."""
    own = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        target = os.open(_FOLDER / namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(target)
        finally:
            os.close(target)
        try:
            yield
        finally:
            _enter(own)
    finally:
        os.close(own)


def _enter(fd: int) -> None:
    if _libc.setns(fd, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "A network namespace cannot be entered: that needs root.")


def make(namespace: str) -> None:
    ip("netns", "add", namespace)
    ip("-n", namespace, "link", "set", "lo", "up")


def remove(namespace: str) -> None:
    subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)


def all_with(prefix: str) -> list[str]:
    """Return the names of the namespaces that begin with the prefix."""
    return sorted(path.name for path in _FOLDER.glob(f"{prefix}*"))


def processes(namespace: str) -> list[int]:
    """Return the ids of all processes in this namespace."""
    wanted = (_FOLDER / namespace).stat().st_ino
    return sorted(
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _network_of(entry) == wanted
    )


def _network_of(process: Path) -> int:
    try:
        return (process / "ns" / "net").stat().st_ino
    except OSError:  # it has ended
        return 0


def ip(*words: str) -> None:
    """Run a command of iproute2."""
    subprocess.run(["ip", *words], check=True, capture_output=True)
