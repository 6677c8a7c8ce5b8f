"""Three real nodes on this one computer, each with its own folders, for `potluck demo`.

Two processes do what two workers in other rooms would do: they are started as a person would start
them (`potluck worker --join TOKEN`), find the main node on the network, pair, and receive their
layers. Everything lies in one temporary folder, which is deleted afterwards. The user's own node,
settings and pairings are never touched.
"""

import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

import msgspec

from potluck.api.values.schema import PlanRequest
from potluck.client import Client
from potluck.errors import PotluckError
from potluck.launch import command, environment, find, find_or_start, why_ended
from potluck.settings import Folders, Settings, exclusive, save_settings

MAIN = "Living room"
WORKERS = ("Study", "Attic")
TOGETHER_S = 90.0  # three cold starts on two slow cores
END_S = 10.0
POLL_S = 0.1


class DemoError(PotluckError):
    """The nodes of the demo did not all start and pair."""

    code = "demo"


class Demo:
    """The three nodes, which run and stay paired while the context is open.

    Args:
        say: prints a line.
        wait_s: how long the workers may take to start and pair.
    """

    client: Client  # of the main node

    def __init__(self, say: Callable[[str], None], *, together_s: float = TOGETHER_S) -> None:
        """`together_s` is how long the nodes may take to start and pair, in seconds."""
        self._say = say
        self._together_s = together_s
        self._stack = ExitStack()
        self._workers: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Demo":
        try:
            self._begin()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _begin(self) -> None:
        # Windows keeps a file open a little longer than its process lives; such a file is left
        # behind.
        root = self._stack.enter_context(
            tempfile.TemporaryDirectory(prefix="potluck-demo-", ignore_cleanup_errors=True)
        )
        folders = {
            name: Folders.of(Path(root) / name.lower().replace(" ", "-"))
            for name in (MAIN, *WORKERS)
        }
        for name, place in folders.items():
            save_settings(place.settings_file, Settings(name=name))
            self._stack.callback(_end_node, place)
        self._say(f"Three nodes on this computer: {MAIN}, {' and '.join(WORKERS)}.")
        began = time.monotonic()
        self.client = find_or_start(folders[MAIN])
        for name in WORKERS:
            self._start_worker(name, folders[name])
        self._wait(folders)
        self._say(f"Found each other and paired in {time.monotonic() - began:.1f} s.")

    def share_out(self, request: PlanRequest) -> PlanRequest:
        """Return the same request with layers for each of the three nodes.

        The layers follow the planner. For a small model the planner uses only the fastest nodes,
        here usually one; the layers are then dealt evenly.
        """
        plan = self.client.plan(msgspec.structs.replace(request, workers=len(WORKERS)))
        shares = [(stage.node, stage.layers[1] - stage.layers[0]) for stage in plan.stages]
        if {name for name, count in shares if count} != {MAIN, *WORKERS}:
            total = sum(count for _, count in shares)
            names = (MAIN, *WORKERS)
            each, more = divmod(total, len(names))
            shares = [(name, each + (place < more)) for place, name in enumerate(names)]
            self._say("For so small a model fewer would be faster; here each gets a share.")
        return msgspec.structs.replace(request, layers=tuple(shares))

    def _start_worker(self, name: str, folders: Folders) -> None:
        token = self.client.invite().token
        folders.state.mkdir(parents=True, exist_ok=True)
        with _log(folders).open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - our own module by our own interpreter
                command(folders, "worker", "--join", token, "--name", name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
            )
        self._workers[name] = process
        self._stack.callback(_end_process, process)

    def _wait(self, folders: dict[str, Folders]) -> None:
        """Wait until both workers are paired and online.

        Raises:
            DemoError: a worker ended, or they took too long.
        """
        deadline = time.monotonic() + self._together_s
        while True:
            computers = self.client.state().computers
            ready = {c.name for c in computers if c.paired and c.online and not c.is_self}
            missing = [name for name in WORKERS if name not in ready]
            if not missing:
                return
            for name, process in self._workers.items():
                if process.poll() is not None:
                    raise DemoError(
                        f"{name} ended before it could help. {why_ended(_log(folders[name]))}"
                    )
            if time.monotonic() > deadline:
                who = " and ".join(missing)
                raise DemoError(
                    f"{who} did not come in time. {why_ended(_log(folders[missing[0]]))}"
                )
            time.sleep(POLL_S)


def _log(folders: Folders) -> Path:
    return folders.state / "worker.log"


def _end_process(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_node(folders: Folders) -> None:
    """Ask the node to end and wait for its process, so that its folder can be deleted."""
    with suppress(PotluckError):
        client = find(folders)
        if client is None:
            return
        client.shutdown()
        with exclusive(folders.node_lock, wait_s=END_S):
            pass
