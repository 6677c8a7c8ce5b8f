"""`update`: newer versions of Potluck itself."""

import argparse
import time
from collections.abc import Callable, Iterator

from potluck.api.values.update import Update, UpdateRequest
from potluck.cli.computers import open_client
from potluck.cli.following import follow, known, put_sources
from potluck.cli.terminal import put, put_json, put_table, say
from potluck.client import Client, NodeGoneError
from potluck.errors import PotluckError
from potluck.launch import find_or_start
from potluck.settings import Folders

POLL_S = 0.3
SWITCH_S = 150.0  # for the node to end, and for the new version to come up or to be left again
_DOES = {
    "looking": "Looking for a newer version",
    "fetching": "Fetching the new version",
    "trying": "Unpacking and trying it",
    "waiting": "Waiting until nothing is answered",
    "switching": "Starting the new version",
}


def update(options: argparse.Namespace) -> int:
    """Look for a newer Potluck, install it, go back, or show what is known. Returns 1 if that failed."""
    client, _ = open_client(options)
    action: str = options.action
    if options.automatic is not None:
        client.change_update(UpdateRequest(allowed=options.automatic == "on"))
    if action == "status":
        state = known(client.state().update)
    else:
        client.change_update(UpdateRequest(action=options.action))
        states = _states(client, lambda: find_or_start(Folders.of(options.home)))
        state = follow(known(client.state().update), states, _describe)
        client = find_or_start(Folders.of(options.home))  # it may be another one now
    if options.json:
        put_json(state)
    else:
        _put(state, client.state().node.version)
    return 1 if state.failed or state.phase == "manual" else 0


def _states(client: Client, again: Callable[[], Client]) -> Iterator[Update]:
    """The states until nothing is done any more; the node may be another one in the end."""
    ends_at = 0.0
    while True:
        time.sleep(POLL_S)
        try:
            state = known(client.state().update)
        except NodeGoneError:
            ends_at = ends_at or time.monotonic() + SWITCH_S
            try:
                client = again()
            except PotluckError:  # it is being started by the node before it
                if time.monotonic() > ends_at:
                    raise
            if time.monotonic() > ends_at:
                raise
            continue
        ends_at = 0.0
        yield state
        if not state.is_working:
            return


def _describe(state: Update) -> str:
    """What is done just now: `Fetching the new version from attic`."""
    source = f" from {state.source}" if state.source else ""
    return f"{_DOES.get(state.phase, '')}{source}"


def _put(state: Update, version: str) -> None:
    put(f"Potluck {version} runs on this computer.")
    if state.left:
        put(f"{state.message} To install it again: potluck update install")
    elif state.phase == "offered" and not state.failed:
        put(f"{state.message} It is {state.version}: potluck update install")
    else:
        put(state.message)
    put_sources(state)
    if state.before:
        put(f"The version before is {state.before}: potluck update back")
    if state.phase != "manual":
        put(
            "Potluck looks for newer versions by itself."
            if state.allowed
            else "Potluck does not look by itself. To let it: potluck update --automatic on"
        )
    if state.computers:
        rows = [(each.name, each.version, each.message) for each in state.computers]
        put_table(("COMPUTER", "VERSION", ""), rows)
    if state.is_working:
        say("This goes on in the background.")
