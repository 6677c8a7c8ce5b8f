"""`engine`: PyTorch, which computes, and is installed after the program."""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

from potluck.api.values.engine import Engine, EngineRequest
from potluck.cli.computers import open_client
from potluck.cli.following import amount, follow, known, put_sources
from potluck.cli.terminal import put, put_json
from potluck.client import Client
from potluck.errors import format_bytes

POLL_S = 0.3
_WORDS = {
    "own": "there",
    "ready": "installed",
    "missing": "not installed",
    "fetching": "being fetched",
    "unpacking": "being unpacked",
    "failed": "not installed",
    "none": "not for this computer",
}


def engine(options: argparse.Namespace) -> int:
    """Install, repair, stop, remove or show the engine. Returns 1 if there is none, or it was not installed."""
    client, _ = open_client(options)
    action: str = options.action
    if action == "install":
        folder: str | None = options.wheels
        if folder is not None:
            folder = str(Path(folder).expanduser().absolute())  # the node runs in another folder
        state = client.change_engine(EngineRequest(action="install", folder=folder))
        state = follow(state, _states(client, state), describe)
    elif action == "repair":
        state = client.change_engine(EngineRequest(action="repair"))
        state = follow(state, _states(client, state), describe)
    elif action == "stop":
        state = client.change_engine(EngineRequest(action="stop"))
    elif action == "remove":
        state = client.change_engine(EngineRequest(action="remove"))
    else:
        state = known(client.state().engine)
    if options.json:
        put_json(state)
    else:
        _put(state)
    is_there = state.phase in ("own", "ready") and not (
        action in ("install", "repair") and state.failed
    )
    return 0 if is_there or action == "remove" else 1


def _states(client: Client, state: Engine) -> Iterator[Engine]:
    """The states until nothing is done any more. The first one may be older than what was asked for."""
    yield state
    time.sleep(POLL_S)
    while (state := known(client.state().engine)).is_working:
        yield state
        time.sleep(POLL_S)
    yield state


def describe(state: Engine) -> str:
    """What is done just now: `The engine is being fetched from attic`."""
    if state.phase == "fetching":
        return "Fetching the engine" + (f" from {state.source}" if state.source else "")
    return "Unpacking and trying the engine"


def _put(state: Engine) -> None:
    named = f" (PyTorch {state.version}, {state.variant})" if state.version else ""
    put(f"Engine: {_WORDS[state.phase]}{named}")
    if state.is_working:
        put(f"{describe(state)}: {state.fraction:.0%}, {amount(state)}")
    elif state.phase == "missing" and state.nbytes:
        put(f"{state.message} It takes {format_bytes(state.nbytes)} to fetch.")
    else:
        put(state.message)
    put_sources(state)
