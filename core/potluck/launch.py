"""Find the running node of this user, or start it in the background.

A node that runs in the background outlives the command that started it, ends by itself after ten
idle minutes, and writes its log itself. What it prints besides, such as how it crashed, is in a file
of its own, of the last start alone. Two commands that start at the same time get the same node.
"""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import potluck
from potluck.client import Client, NodeGoneError
from potluck.errors import PotluckError, UsageError
from potluck.settings import (
    Folders,
    NodeFile,
    exclusive,
    make_private,
    read_node_file,
    remove_node_file,
)

logger = logging.getLogger(__name__)

START_S = 20.0  # a first start on a slow disk compiles every module
HEALTH_S = 5.0
POLL_S = 0.05


class NodeStartError(PotluckError):
    """The node could not be started; the sentence ends with the last line that it printed."""

    code = "node_start"


def find(folders: Folders) -> Client | None:
    """The running node, asked whether it is one; a file that speaks of a dead one is removed.

    Raises:
        NodeGoneError: its process lives and does not answer.
    """
    node = read_node_file(folders)
    if node is None:
        return None
    client = Client(node.port, node.token)
    try:
        if client.health(timeout_s=HEALTH_S).pid == node.pid:
            return client
    except NodeGoneError:
        if _hangs(node):
            raise NodeGoneError(
                f"The node of this computer (process {node.pid}) does not answer. End it and try"
                f" again. Its log is {folders.log_file}.",
                pid=node.pid,
            ) from None
    except UsageError:
        pass  # the port belongs to somebody else now
    remove_node_file(folders, node)
    return None


def _hangs(node: NodeFile) -> bool:
    """Whether something listens on the node's port and the node's process is alive."""
    import socket

    import psutil  # only in this rare case: it takes a while to import

    try:
        socket.create_connection(("127.0.0.1", node.port), timeout=1).close()
    except OSError:
        return False
    return psutil.pid_exists(node.pid)


def find_or_start(folders: Folders, *, wait_s: float = START_S) -> Client:
    """The running node; started if there is none.

    Raises:
        NodeStartError: it did not come up in time, or ended at once.
    """
    found = find(folders)
    if found is not None:
        return found
    with exclusive(folders.start_lock, wait_s=wait_s):
        found = find(folders)  # another command may have started it meanwhile
        return found if found is not None else _start(folders, wait_s)


def _start(folders: Folders, wait_s: float) -> Client:
    output = _open_output(folders)
    try:
        process = subprocess.Popen(  # noqa: S603 - our own module by our own interpreter
            command(folders, "node"),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment(),
            cwd=folders.state,  # not the user's folder: a node must not keep a disk from unmounting
            start_new_session=True,  # Ctrl-C in the terminal is not for it
            creationflags=_no_window(),
        )
    finally:
        os.close(output)
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        found = find(folders)
        if found is not None:
            process.returncode = process.returncode or 0  # it goes on without us
            return found
        if ended:
            break
        time.sleep(POLL_S)
    else:
        process.kill()
        process.wait()
    raise NodeStartError(
        "Potluck's node could not be started on this computer."
        f" {_last_line(folders.output_file)} (More is in {folders.state}.)"
    )


def command(folders: Folders, *words: str) -> list[str]:
    """The command line of another process of ours, with the same folders."""
    home = ["--home", str(folders.home)] if folders.home is not None else []
    # -P: a file called potluck.py in the current folder is not us.
    return [sys.executable, "-P", "-m", "potluck", *words, *home]


def environment() -> dict[str, str]:
    """The environment of another process of ours, which must find the package where this one did."""
    environ = dict(os.environ)
    package = Path(potluck.__file__).resolve().parent.parent
    if "site-packages" not in package.parts:  # from a checkout that is not installed
        known = environ.get("PYTHONPATH")
        environ["PYTHONPATH"] = f"{package}{os.pathsep}{known}" if known else str(package)
    return environ


def _no_window() -> int:
    if sys.platform == "win32":
        # Not DETACHED_PROCESS: the node's stage processes would each open a console of their own.
        return subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP
    return 0


def _open_output(folders: Folders) -> int:
    make_private(folders.state)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    return os.open(folders.output_file, flags, 0o600)


def _last_line(file: Path) -> str:
    """The last thing that the node printed, or that it printed nothing."""
    try:
        lines = file.read_bytes().decode(errors="replace").split("\n")
    except OSError:
        lines = []
    said = [line.strip() for line in lines if line.strip()]
    return f"It said: {said[-1]}" if said else "It said nothing."
