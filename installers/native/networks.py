"""Networks that reach nothing else, to try packages in: two computers with a cable, and what stands for the Internet."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from terminal import say

from native.project import BuildError
from native.roots import Root, run

_POLL_S = 0.05
_SERVER_S = 30.0


@contextmanager
def two_networks() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a cable between them, that reach nothing else."""
    names = ("potluck-one", "potluck-two")
    try:
        for name in names:
            run("ip", "netns", "add", name)
        ends = (
            "eth0",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            names[1],
        )
        run("ip", "link", "add", *ends)
        for number, name in enumerate(names, 1):
            inside = ["ip", "-n", name]
            run(*inside, "addr", "add", f"10.79.0.{number}/24", "dev", "eth0")
            run(*inside, "link", "set", "lo", "up")
            run(*inside, "link", "set", "eth0", "up")
            run(*inside, "route", "add", "default", "dev", "eth0")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@contextmanager
def internet(root: Root, folder: Path, port: int) -> Iterator[None]:
    """A web server that stands for the Internet: on the loopback of this computer's network alone."""
    inside = ["ip", "netns", "exec", str(root.namespace)]
    words = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    words += ["--directory", str(folder)]
    knock = f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)"
    ask = [*inside, sys.executable, "-c", knock]
    silent = subprocess.DEVNULL
    with subprocess.Popen([*inside, *words], stdout=silent, stderr=silent) as server:
        try:
            until(
                lambda: subprocess.run(ask, capture_output=True).returncode == 0,
                _SERVER_S,
                "what stands for the Internet answers",
            )
            yield
        finally:
            server.terminate()


def until(is_so: Callable[[], bool], limit_s: float, what: str) -> None:
    """Wait until something is so, which nothing here is told of."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > deadline:
            raise BuildError(f"not within {limit_s:.0f} s: {what}")
        time.sleep(_POLL_S)
    say(f"ok: {what}")
