"""Keep a command going when the node of this computer ends: start the node again, and go on.

A node may crash, be killed, or stop answering. One that does not answer, but whose process lives, is
waited for: a second node cannot run beside it. A node that its owner shut down is not started again:
it has removed the file by which it is found.
"""

import argparse
import time
from collections.abc import Callable

from potluck.cli.parser import Waits
from potluck.cli.terminal import say
from potluck.client import Client, NodeGoneError, NodeSilentError
from potluck.errors import PotluckError
from potluck.launch import find, find_or_start
from potluck.settings import Folders, read_node_file


def keep_going(
    options: argparse.Namespace, client: Client, use: Callable[[Client, bool], None]
) -> None:
    """Use the node, and use it again whenever it was lost, until its owner shuts it down.

    Args:
        options: of the command.
        client: of the running node.
        use: called with the client of the node, and whether the node was lost before. It goes on as
            long as the node runs.

    Raises:
        PotluckError: the node was lost too often within a short time, or `use` has failed.
    """
    folders, waits = Folders.of(options.home), options.waits
    tries, was_lost = 0, False
    while True:
        began = time.monotonic()
        try:
            use(client, was_lost)
            lost = NodeGoneError("The node of this computer ended.")
        except NodeGoneError as error:
            lost = error
        if read_node_file(folders) is None:
            say("Potluck was shut down on this computer.")
            return
        if time.monotonic() - began > waits.steady_s:
            tries = 0
        client, tries = _start_again(folders, waits, lost, tries)
        was_lost = True


def _start_again(
    folders: Folders, waits: Waits, lost: PotluckError, tries: int
) -> tuple[Client, int]:
    """Find the node or start it again, and return it with the number of tries so far.

    Raises:
        PotluckError: why the last try failed.
    """
    while tries < waits.restarts:
        if tries:
            time.sleep(waits.restart_s * 2 ** (tries - 1))
        tries += 1
        try:
            if (running := _running(folders, waits)) is not None:
                return running, tries
            say(
                "The node of this computer was lost, and is started again"
                f" (try {tries} of {waits.restarts})."
            )
            return find_or_start(folders), tries
        except PotluckError as error:
            lost = error
            say(error.message)
    raise lost


def _running(folders: Folders, waits: Waits) -> Client | None:
    """Return the running node as soon as it answers; None: there is none, or it has ended."""
    has_said = False
    while True:
        try:
            return find(folders)
        except NodeSilentError as error:
            if not has_said:
                say(f"{error.message} This command waits until it answers or ends.")
                has_said = True
            time.sleep(waits.poll_s)
