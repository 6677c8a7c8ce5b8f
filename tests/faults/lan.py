"""A home network on one machine: hosts with a network each, joined by the switch of `switch.py`."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from faults import namespaces
from faults.switch import Link

TESTS = Path(__file__).parents[1]
NETWORK = "10.231.78"  # used only inside the namespaces
PREFIX = "potluck-faults-"  # of namespaces; then the process that made them, and the host
CABLE = Link()


class Lan:
    """Hosts that reach each other. `close` removes it; a killed program's is removed by the next."""

    def __init__(self, hosts: Sequence[str]) -> None:
        _remove_abandoned()
        self.namespaces = {host: f"{PREFIX}{os.getpid()}-{host}" for host in hosts}
        for namespace in self.namespaces.values():
            namespaces.make(namespace)
        self._switch = subprocess.Popen(
            [sys.executable, "-m", "faults.switch", *self.namespaces.values()],
            env=os.environ | {"PYTHONPATH": str(TESTS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C in the terminal must not reach it: links are still needed
        )
        self._wait_for_switch()
        for number, namespace in enumerate(self.namespaces.values(), 1):
            address = f"{NETWORK}.{number}/24"
            namespaces.ip(
                "-n", namespace, "address", "add", address, "broadcast", "+", "dev", "eth0"
            )
            namespaces.ip("-n", namespace, "link", "set", "eth0", "up")
            namespaces.ip(
                "-n", namespace, "route", "add", "default", "dev", "eth0"
            )  # for multicast

    def set_link(self, host: str, link: Link = CABLE) -> None:
        """Change the link of a host, at once."""
        assert self._switch.stdin is not None
        command = {"host": self.namespaces[host], **asdict(link)}
        self._switch.stdin.write(json.dumps(command) + "\n")
        self._switch.stdin.flush()
        self._wait_for_switch()

    def _wait_for_switch(self) -> None:
        assert self._switch.stdout is not None
        if self._switch.stdout.readline() != "ok\n":
            raise RuntimeError("The switch has ended; what it said is above.")

    def close(self) -> None:
        self._switch.communicate()
        for namespace in self.namespaces.values():
            namespaces.remove(namespace)


def _remove_abandoned() -> None:
    """Remove the namespaces of programs that were killed, with what runs in them."""
    for namespace in namespaces.all_with(PREFIX):
        maker = namespace.removeprefix(PREFIX).split("-")[0]
        if not Path("/proc", maker).exists():
            for pid in namespaces.processes(namespace):
                os.kill(pid, 9)
            namespaces.remove(namespace)
