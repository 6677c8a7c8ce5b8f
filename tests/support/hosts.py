"""Three computers on one machine: network namespaces on a bridge if allowed, else loopback.

A host has its own name and folders. In a namespace it also has its own network, whose cable can be
pulled. When a host stops, everything that was started on it ends.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import shared_kernels

CORE = Path(__file__).parents[2] / "core"
_SHUT_DOWN = """
from potluck.launch import find
from potluck.settings import Folders
if (client := find(Folders.of())) is not None:
    client.shutdown()
"""
NETWORK = "10.231.77"  # used only inside the namespaces


def can_make_namespaces() -> bool:
    """Return whether this process may create networks."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    probe = f"potluck-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True).returncode:
        return False
    bridge = ["ip", "-n", probe, "link", "add", "probe", "type", "bridge"]
    works = subprocess.run(bridge, capture_output=True).returncode == 0
    subprocess.run(["ip", "netns", "delete", probe], capture_output=True)
    return works


class Host:
    """One computer of the home."""

    def __init__(
        self, name: str, home: Path, namespace: str | None = None, *, core: Path = CORE
    ) -> None:
        """`core` has the program that it runs."""
        self.name = name
        self._core = core
        self.home = home
        self._namespace = namespace
        self._running: list[subprocess.Popen[str]] = []
        shared_kernels.share_with(home, is_earlier=core != CORE)

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            **os.environ,
            "POTLUCK_HOME": str(self.home),
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(self._core), os.environ.get("PYTHONPATH")])
            ),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def _inside(self, command: Sequence[str]) -> list[str]:
        if self._namespace is None:
            return list(command)
        return ["ip", "netns", "exec", self._namespace, *command]

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command in the background."""
        process = subprocess.Popen(
            self._inside([sys.executable, *words]),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._running.append(process)
        return process

    def run(self, *words: str, timeout_s: float = 100.0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self._inside([sys.executable, *words]),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def potluck(self, *words: str) -> str:
        """Return what a command of Potluck prints; fail the test if the command fails."""
        done = self.run("-m", "potluck", *words)
        assert done.returncode == 0, f"potluck {' '.join(words)}: {done.stderr}\n{self.log()}"
        return done.stdout

    def log(self) -> str:
        path = self.home / "state" / "node.log"
        return path.read_text(encoding="utf-8")[-4000:] if path.exists() else ""

    def node_pid(self) -> int:
        return int(json.loads((self.home / "state" / "node.json").read_text())["pid"])

    def kill(self) -> None:
        """End the node without a goodbye, as a power failure would."""
        os.kill(self.node_pid(), signal.SIGKILL)

    def terminate(self) -> None:
        """End the node as the system does when the computer is restarted."""
        os.kill(self.node_pid(), signal.SIGTERM)

    def end_engines(self, how: signal.Signals) -> None:
        """Send this signal to the stage processes of the node."""
        for child in psutil.Process(self.node_pid()).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has just ended
                if "potluck.cluster.stage.process" in child.cmdline():
                    child.send_signal(how)

    def shut_down(self) -> None:
        """Ask the node to end, as the window does. It may end a moment later."""
        self.run("-c", _SHUT_DOWN)

    def set_cable(self, *, plugged: bool) -> None:
        assert self._namespace is not None, "only a namespace has a cable"
        state = "up" if plugged else "down"
        subprocess.run(["ip", "-n", self._namespace, "link", "set", "eth0", state], check=True)

    def stop(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._running:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self.shut_down()


class Lan:
    """Hosts that can reach each other."""

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self.has_cables = can_make_namespaces()
        self._prefix = f"potluck{os.getpid()}"
        self._namespaces: list[str] = []
        if self.has_cables:
            self._make_switch()
        self.hosts = {
            name: Host(name, folder / name, self._plug_in(name, number))
            for number, name in enumerate(names, 1)
        }

    def _make_switch(self) -> None:
        switch = f"{self._prefix}-switch"
        self._ip("netns", "add", switch)
        self._namespaces.append(switch)
        # Without snooping, multicast goes to every port, as on a common switch for homes.
        self._ip("-n", switch, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
        self._ip("-n", switch, "link", "set", "br0", "up")

    def _plug_in(self, name: str, number: int) -> str | None:
        if not self.has_cables:
            return None
        switch, namespace = f"{self._prefix}-switch", f"{self._prefix}-{name}"
        self._ip("netns", "add", namespace)
        self._namespaces.append(namespace)
        port = f"port{number}"
        self._ip(
            "-n", switch, "link", "add", port, "type", "veth",
            "peer", "name", "eth0", "netns", namespace,
        )  # fmt: skip
        self._ip("-n", switch, "link", "set", port, "master", "br0", "up")
        host = ["-n", namespace]
        self._ip(*host, "link", "set", "lo", "up")
        self._ip(*host, "address", "add", f"{NETWORK}.{number}/24", "broadcast", "+", "dev", "eth0")
        self._ip(*host, "link", "set", "eth0", "up")
        self._ip(*host, "route", "add", "default", "dev", "eth0")  # multicast needs a route
        return namespace

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def close(self) -> None:
        for host in self.hosts.values():
            host.stop()
        for namespace in reversed(self._namespaces):
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)
