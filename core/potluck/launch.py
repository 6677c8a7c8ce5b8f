"""Find the running node of this user, or start it in the background.

A node in the background outlives the command that started it, ends by itself after ten idle minutes
and writes its own log. Its other output, such as the traceback of a crash, goes to a separate file
that is overwritten at each start. Two commands that start at the same time get the same node.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import potluck
from potluck.client import Client, NodeGoneError, NodeSilentError
from potluck.errors import PotluckError, UsageError
from potluck.settings import (
    AlreadyRunningError,
    Folders,
    NodeFile,
    exclusive,
    make_private,
    read_node_file,
    remove_node_file,
)
from potluck.system.starting import hidden
from potluck.update.versions import Versions, started

logger = logging.getLogger(__name__)

_OURS = "potluck: "  # before each sentence that a command prints when it fails
START_S = 20.0  # the first start on a slow disk compiles every module
NEW_START_S = 60.0  # of a version that has never come up: none is left for a disk that is busy
END_S = 60.0  # for the node before it to end: it takes the model out of force first
HEALTH_S = 5.0
POLL_S = 0.05


class NodeStartError(PotluckError):
    """The node could not be started. The message has the last line that the node printed."""

    code = "node_start"


def find(folders: Folders, *, health_s: float = HEALTH_S) -> Client | None:
    """Return the running node after a check that it answers; delete the file of a dead node.

    Args:
        folders: of the node.
        health_s: how long its answer is waited for, in seconds.

    Raises:
        NodeSilentError: the process of the node is alive but does not answer.
    """
    node = read_node_file(folders)
    if node is None:
        return None
    client = Client(node.port, node.token)
    try:
        if client.health(timeout_s=health_s).pid == node.pid:
            return client
    except NodeGoneError:
        if _hangs(node):
            raise NodeSilentError(
                f"The node of this computer (process {node.pid}) does not answer. End it, or"
                f" try again later. Its log is {folders.log_file}.",
                pid=node.pid,
            ) from None
    except UsageError:
        pass  # another program has the port now
    remove_node_file(folders, node)
    return None


def _hangs(node: NodeFile) -> bool:
    """Return whether something listens on the node's port and the process of the node is alive."""
    import socket

    import psutil  # slow to import, and rarely needed

    try:
        socket.create_connection(("127.0.0.1", node.port), timeout=1).close()
    except TimeoutError:
        pass  # it listens, and its queue of connections is full
    except OSError:
        return False
    return psutil.pid_exists(node.pid)


def find_or_start(folders: Folders, *, wait_s: float = START_S) -> Client:
    """Return the running node. Start a node if there is none.

    Raises:
        NodeStartError: the node did not answer in time, or ended at once.
        NodeSilentError: there is a node, which does not answer.
        AlreadyRunningError: the node before has not ended yet.
    """
    found = find(folders)
    if found is not None:
        return found
    with exclusive(folders.start_lock, wait_s=wait_s):
        found = find(folders)  # another command may have started it meanwhile
        if found is not None:
            return found
        versions = Versions.of_this()
        if versions is not None and versions.is_on_trial:
            wait_s = max(wait_s, NEW_START_S)
            _wait_for_end(
                folders, END_S
            )  # else a good version would count as one that does not start
        return started(lambda: _start(folders, wait_s, versions), versions, NodeStartError)


def _wait_for_end(folders: Folders, wait_s: float) -> None:
    """Wait until no node holds these folders any more.

    Raises:
        AlreadyRunningError: one does still.
    """
    try:
        with exclusive(folders.node_lock, wait_s=wait_s):
            pass
    except AlreadyRunningError:
        raise AlreadyRunningError(
            "The Potluck that ran before has not ended yet. Try again in a minute."
        ) from None


def _start(folders: Folders, wait_s: float, versions: Versions | None) -> Client:
    """Start a node, of the version that is in use now: this process may be of another one."""
    words = command(folders, "node")
    if versions is not None:
        words[0] = str(versions.python)
    output = _open_output(folders)
    try:
        process = subprocess.Popen(  # noqa: S603 - our own module by our own interpreter
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment(),
            # Not the user's folder: a node must not keep a disk from being unmounted.
            cwd=folders.state,
            start_new_session=True,  # Ctrl-C in the terminal must not reach the node
            creationflags=hidden(alone=True),
        )
    finally:
        os.close(output)
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        found = find(folders)
        if found is not None:
            # The node may outlive this process. If it does not, it must not stay as a zombie, whose
            # id would seem to be that of a running node.
            threading.Thread(target=process.wait, name="node ended", daemon=True).start()
            return found
        if ended:
            break
        time.sleep(POLL_S)
    else:
        process.kill()
        process.wait()
    _wait_for_end(folders, 0.0)  # one that was in its way is not its fault
    raise NodeStartError(
        f"Potluck could not be started in the background. {why_ended(folders.output_file)}"
        f" More is in {folders.state}."
    )


def command(folders: Folders, *words: str) -> list[str]:
    """Return the command line of another Potluck process that uses the same folders."""
    home = ["--home", str(folders.home)] if folders.home is not None else []
    # -P: do not import a file called potluck.py from the current folder.
    return [sys.executable, "-P", "-m", "potluck", *words, *home]


def environment() -> dict[str, str]:
    """Return the environment of another Potluck process, which must find the same package."""
    environ = dict(os.environ)
    package = Path(potluck.__file__).resolve().parent.parent
    if "site-packages" not in package.parts:  # a checkout that is not installed
        known = environ.get("PYTHONPATH")
        environ["PYTHONPATH"] = f"{package}{os.pathsep}{known}" if known else str(package)
    return environ


def _open_output(folders: Folders) -> int:
    make_private(folders.state)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    return os.open(folders.output_file, flags, 0o600)


def why_ended(file: Path) -> str:
    """Return why a process ended, which printed to this file, as a sentence.

    Its own last sentence says it. The last line of a traceback is for who reads the file.
    """
    try:
        lines = file.read_bytes().decode(errors="replace").split("\n")
    except OSError:
        lines = []
    said = [line.strip() for line in lines if line.strip()]
    if not said:
        return "It said nothing."
    sentence = said[-1].removeprefix(_OURS)
    return sentence if sentence != said[-1] else "An error of its own ended it."
