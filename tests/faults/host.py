"""One computer of the home: its node, its disk and its processes, and what can be done to them."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import msgspec
import psutil
import shared_kernels

import potluck
from faults import namespaces
from faults.clock import Clock
from potluck.client import Client
from potluck.settings import Folders, Settings, read_node_file, save_settings

CORE = Path(potluck.__file__).parents[1]  # the code that this process has, too
STAGE, TEXT = "potluck.cluster.stage", "potluck.cluster.text"
RESERVE = 1 << 30  # bytes that the store leaves free on a disk
DISK = RESERVE + (192 << 20)  # of the folder with the weights of others
GIVES_UP_KILLS, GIVES_UP_S = 5, 125.0  # one fewer than `Restarts` of the supervisor allows
STARTS_S = 30.0
ENDS_S = 40.0  # a worker that is needed gives its master 30 seconds


class NodeClient(Client):
    """The local API of a node on another host."""

    def __init__(self, port: int, token: str, namespace: str) -> None:
        super().__init__(port, token)
        self._namespace = namespace

    def _connection(self, timeout_s: float) -> HTTPConnection:
        return _Connection(self.port, timeout_s, self._namespace)


class _Connection(HTTPConnection):
    """A connection to a program on another host that listens there on loopback."""

    def __init__(self, port: int, timeout_s: float, namespace: str) -> None:
        super().__init__("127.0.0.1", port, timeout=timeout_s)
        self._namespace = namespace

    def connect(self) -> None:
        with namespaces.inside(self._namespace):
            super().connect()


@dataclass(frozen=True, slots=True)
class Counts:
    """What a host uses, while nothing is asked of it."""

    processes: Sequence[str]  # the kind of each, sorted
    descriptors: int  # of all its processes
    parts: int  # files of transfers that nothing will continue


class Host:
    """A computer whose node is a process of this checkout.

    Its store is a small disk of its own, which can be filled. `close` ends and removes everything.
    """

    def __init__(self, name: str, home: Path, namespace: str) -> None:
        self.name, self.home, self.namespace = name, home, namespace
        self.folders = Folders.of(home)
        self._stage_kills: list[float] = []  # when the compute process of this node was killed
        self._is_leaving = False
        self._node: subprocess.Popen[bytes] | None = None
        self.folders.cache.mkdir(parents=True)
        size = f"size={DISK}"
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", size, "tmpfs", self.folders.cache], check=True
        )
        self.folders.config.mkdir(parents=True)
        shared_kernels.share_with(home)
        self.clock = Clock(home)

    # --- the node

    def start(self, *, worker: bool) -> None:
        """Start the node, if there is none. It does not wait for it."""
        if self.is_up:
            return
        self._stage_kills, self._is_leaving = [], False
        settings = Settings(name=self.name, threads=1, worker=worker)
        if not self.folders.settings_file.exists():
            save_settings(self.folders.settings_file, settings)
        self._node = subprocess.Popen(
            [
                *("nsenter", f"--net=/run/netns/{self.namespace}"),
                *(sys.executable, "-P", "-m", "potluck", "node", "--home", str(self.home)),
            ],
            env=os.environ
            | {"PYTHONPATH": str(CORE), "OMP_NUM_THREADS": "1"}
            | self.clock.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.home,
            start_new_session=True,
        )

    @property
    def is_up(self) -> bool:
        return self._node is not None and self._node.poll() is None

    def client(self) -> NodeClient:
        """Return the API of the node once it answers."""
        eventually(lambda: self._answering(), f"the node of {self.name} answers", STARTS_S)
        node = read_node_file(self.folders)
        assert node is not None
        return NodeClient(node.port, node.token, self.namespace)

    def _answering(self) -> bool:
        node = read_node_file(self.folders)
        return node is not None and self._node is not None and node.pid == self._node.pid

    def lend(self, nbytes: int, *, worker: bool) -> None:
        """Lend at most so many bytes of memory."""
        settings = msgspec.json.decode(self.folders.settings_file.read_bytes(), type=Settings)
        if settings.memory_limit != nbytes:
            from potluck.api.values.schema import RoleRequest

            self.client().set_role(RoleRequest(worker=worker, memory=nbytes))

    # --- its processes

    def processes(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        for pid in namespaces.processes(self.namespace):
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                found.append(psutil.Process(pid))
        return found

    def stage_processes(self) -> list[psutil.Process]:
        return [process for process in self.processes() if _is_stage(process)]

    def kill_stage(self) -> None:
        self._stage_kills.append(time.monotonic())
        self.signal_stage(signal.SIGKILL)

    def kill_node(self) -> None:
        """End the node without a goodbye. Its compute process then ends by itself."""
        assert self._node is not None
        self._node.kill()
        self._node.wait()

    def signal_stage(self, number: int) -> None:
        _signal(self.stage_processes(), number)

    def signal_all(self, number: int) -> None:
        _signal(self.processes(), number)

    def quit(self) -> None:
        """End the node as its owner does."""
        assert self._node is not None
        self._node.terminate()
        self._is_leaving = True

    def revive(self, *, worker: bool) -> None:
        """Let everything go on that was frozen, and start the node again if it ended.

        A node gives up a compute process that dies six times within two minutes. No owner's computer
        does that, but this one does: then its node is started anew.
        """
        self.signal_all(signal.SIGCONT)
        recent = [at for at in self._stage_kills if time.monotonic() - at < GIVES_UP_S]
        if len(recent) >= GIVES_UP_KILLS:
            self.quit()
        if self._is_leaving and self._node is not None:
            self._node.wait(ENDS_S)
        self.start(worker=worker)

    # --- its disk

    @property
    def tensors(self) -> list[Path]:
        """The whole tensors in the store, the one that was used last first."""
        whole = [path for path in self._stored() if path.suffix == ""]
        return sorted(whole, key=lambda path: (-path.stat().st_mtime, path.name))

    @property
    def stale_parts(self) -> list[Path]:
        """Parts of tensors that are there as a whole too. Other parts will be continued."""
        parts = [path for path in self._stored() if path.suffix == ".part"]
        return [path for path in parts if path.with_suffix("").exists()]

    def _stored(self) -> list[Path]:
        return sorted(path for path in self.folders.cache.glob("tensors/??/*") if path.is_file())

    def empty_store(self) -> None:
        """Start the node again without any weights of others."""
        self.quit()
        assert self._node is not None
        self._node.wait(ENDS_S)
        shutil.rmtree(self.folders.cache / "tensors")
        self.start(worker=True)

    def fill_disk(self, left: int) -> None:
        """Leave so many bytes of the disk, of which the store does not use the last `RESERVE`."""
        with self._filler.open("wb") as file:
            while (free := shutil.disk_usage(self.folders.cache).free - left) > 0:
                with suppress(OSError):  # the store took some of it in this moment
                    os.posix_fallocate(file.fileno(), 0, free)
                    return

    def free_disk(self) -> None:
        self._filler.unlink(missing_ok=True)

    @property
    def _filler(self) -> Path:
        return self.folders.cache / "filler"

    # --- what it uses

    def counts(self) -> Counts:
        processes = self.processes()
        return Counts(
            processes=sorted(_kind(process) for process in processes),
            descriptors=sum(_descriptors(process) for process in processes),
            parts=len(self.stale_parts),
        )

    def memory(self) -> dict[str, int]:
        """Return the bytes of memory of its node, and of its compute and text processes."""
        found: dict[str, int] = {}
        for process in self.processes():
            kind = _kind(process)
            with suppress(psutil.NoSuchProcess):
                found[kind] = found.get(kind, 0) + process.memory_info().rss
        return found

    def log(self, lines: int = 30) -> str:
        path = self.folders.log_file
        return "\n".join(path.read_text().splitlines()[-lines:]) if path.exists() else ""

    def close(self) -> None:
        self.signal_all(signal.SIGCONT)
        self.signal_all(signal.SIGKILL)
        if self._node is not None:
            self._node.wait()
        eventually(lambda: not self.processes(), f"{self.name} ended", ENDS_S)
        subprocess.run(["umount", self.folders.cache], check=False)


def _kind(process: psutil.Process) -> str:
    if _is_stage(process):
        return "stage"
    return "text" if _runs(process, TEXT) else "node"


def _signal(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _is_stage(process: psutil.Process) -> bool:
    return _runs(process, STAGE)


def _runs(process: psutil.Process, module: str) -> bool:
    try:
        return any(module in word for word in process.cmdline())
    except psutil.Error:  # it has ended
        return False


def _descriptors(process: psutil.Process) -> int:
    try:
        return process.num_fds()
    except psutil.Error:
        return 0


class TooLateError(Exception):
    """Something did not happen in time."""


def eventually(condition: Callable[[], bool], what: str, seconds: float) -> None:
    """Ask again and again: processes tell nobody when they are ready.

    Raises:
        TooLateError: the condition was not true within so many seconds.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TooLateError(f"Not within {seconds:.0f} s: {what}.")
        time.sleep(0.02)
