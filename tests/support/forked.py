"""Processes of a test that are forked from one that has imported their module: torch is most of their start.

They are children of this process with an environment, streams, a folder and a status of their own. What differs from
processes that are started: all forks of a server have one seed for the hashes of strings, so sets are in one order; and
what Python or a library reads when it begins (`PYTHONHASHSEED`, `OMP_NUM_THREADS`, `MALLOC_ARENA_MAX`, …) is what the
server had, whatever their environment says; so is their umask. What else `Popen` can do to a process is refused.
Linux only; elsewhere they are started, as are those of other modules.
"""

import ctypes
import inspect
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import potluck

SERVER = Path(__file__).with_name("fork_server.py")
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
# What libraries read when a process begins, as nodes give it (`cluster/processes/stage_process.py`).
_READ_AT_ONCE = {"OMP_WAIT_POLICY": "PASSIVE", "MALLOC_ARENA_MAX": "1"}
_ANSWER_S = 90.0  # importing torch on a busy computer


# What `Popen` asks for that a fork does not do, with its values where nobody has asked.
_NOT_DONE = {
    "preexec_fn": None, "pass_fds": (), "umask": -1, "start_new_session": False, "process_group": -1,
    "uid": None, "gid": None, "gids": None,
}  # fmt: skip


class ForkServer:
    """A process that has imported a module and forks itself to run it."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self.program = environment.get("PYTHONPATH")
        ours, theirs = socket.socketpair()
        self._asked = ours
        ours.settimeout(_ANSWER_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(SERVER), str(theirs.fileno()), module],
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=[theirs.fileno()],
            )

    def fork(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: str,
        streams: Sequence[int],
    ) -> int:
        """Return the number of a new process, a child of this one."""
        request = {
            "arguments": arguments,
            "environment": dict(environment),
            "folder": folder,
        }
        with _adopting():
            socket.send_fds(self._asked, [json.dumps(request).encode()], streams)
            return int(self._asked.recv(32))

    def close(self) -> None:
        self._asked.close()
        self._process.kill()  # it may still import, and has nothing to lose
        self._process.wait()


@contextmanager
def forking(soon: Sequence[str], later: Sequence[str]) -> Iterator[None]:
    """Fork those processes that are started as `python -m` one of these modules.

    Args:
        soon: modules of the nodes; they are imported at once, so that no event loop has to wait for that.
        later: modules that are imported when first wanted.
    """
    if sys.platform != "linux":
        yield
        return
    environment = {**_READ_AT_ONCE, **os.environ, "PYTHONPATH": _python_path()}
    servers = {module: ForkServer(module, environment) for module in soon}
    modules = {*soon, *later}
    lock = threading.Lock()
    execute = subprocess.Popen._execute_child  # pyright: ignore[reportAttributeAccessIssue]
    signature = inspect.signature(execute)

    def fork(process: Any, *given: Any) -> None:
        asked = signature.bind(process, *given).arguments
        match asked["args"]:
            case [sys.executable, "-m", module, *arguments] if module in modules:
                pass
            case _:
                execute(process, *given)
                return
        if refused := [
            name for name, usual in _NOT_DONE.items() if asked.get(name, usual) != usual
        ]:
            raise ValueError(f"a forked process does not have {', '.join(refused)}")
        environment = os.environ if asked["env"] is None else asked["env"]
        with lock:
            if (server := servers.get(module)) is None:
                server = servers[module] = ForkServer(module, environment)
        if server.program != environment.get("PYTHONPATH"):  # another program
            execute(process, *given)
            return
        streams = [asked[end] for end in ("p2cread", "c2pwrite", "errwrite")]
        streams = [own if end == -1 else end for own, end in enumerate(streams)]
        with lock:
            process.pid = server.fork(
                arguments, environment, asked["cwd"] or str(Path.cwd()), streams
            )
        process._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        process._close_pipe_fds(*(asked[end] for end in ends))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "_execute_child", fork)
        try:
            yield
        finally:
            patch.undo()
            for server in servers.values():
                server.close()


def _python_path() -> str:
    """What the nodes of tests give their processes."""
    package_folder = str(Path(potluck.__file__).parent.parent)
    return os.pathsep.join([package_folder, *filter(None, [os.environ.get("PYTHONPATH")])])


@contextmanager
def _adopting() -> Iterator[None]:
    """Processes whose parents end meanwhile become children of this one."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_ADOPT_ORPHANS, 0, 0, 0, 0)
