"""Keep a command going when the node of this computer ends: start the node again, and go on.

A node may crash, be killed, or stop answering. One that does not answer, but whose process lives, is
waited for: a second node cannot run beside it. A node that its owner shut down is not started again:
it has removed the file by which it is found.
"""

import argparse
import time
from collections.abc import Callable

from potluck.cli.terminal import say
from potluck.cli.waits import Waits
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
    restarts, was_lost = Restarts(options), False
    while True:
        try:
            use(client, was_lost)
            lost = NodeGoneError("The node of this computer ended.")
        except NodeGoneError as error:
            lost = error
        if (again := restarts.after(lost)) is None:
            say("Potluck was shut down on this computer.")
            return
        client, was_lost = again, True


class Restarts:
    """Finds the node of this computer or starts it again, whenever it was lost."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._folders, self._waits = Folders.of(options.home), options.waits
        self._tries = 0  # within a short time
        self._began = time.monotonic()

    def after(self, lost: PotluckError) -> Client | None:
        """Return the node that takes the place of the lost one; None: its owner shut it down.

        Args:
            lost: how the node was lost.

        Raises:
            PotluckError: the node was lost too often within a short time, or could not be started.
        """
        if read_node_file(self._folders) is None:
            return None
        if time.monotonic() - self._began > self._waits.steady_s:
            self._tries = 0
        client = self._start(lost)
        self._began = time.monotonic()
        return client

    def _start(self, lost: PotluckError) -> Client:
        while self._tries < self._waits.restarts:
            if self._tries:
                time.sleep(self._waits.restart_s * 2 ** (self._tries - 1))
            self._tries += 1
            try:
                if (running := _running(self._folders, self._waits)) is not None:
                    return running
                say(
                    "The node of this computer was lost, and is started again"
                    f" (try {self._tries} of {self._waits.restarts})."
                )
                return find_or_start(self._folders)
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
