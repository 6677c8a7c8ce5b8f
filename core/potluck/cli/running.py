"""`ps` and `logs`: what runs on this computer now, and what was logged."""

import argparse
import os
import time
from collections import deque
from pathlib import Path
from typing import BinaryIO

from potluck.api.values.schema import ClusterState, ModelState
from potluck.cli.printing import put, say
from potluck.cli.terminal import put_json, put_table
from potluck.cli.waits import Waits
from potluck.errors import UsageError, format_bytes
from potluck.launch import find
from potluck.reasons import reason
from potluck.settings import Folders


def ps(options: argparse.Namespace) -> int:
    """Print what is loaded, where, and how many are answered. Starts nothing."""
    client = find(Folders.of(options.home))
    state = client.state() if client is not None else None
    if options.json:
        put_json(_as_json(state))
    elif state is None:
        put("Potluck is not running on this computer.")
    else:
        _put_state(state)
    return 0


def _as_json(state: ClusterState | None) -> dict[str, object]:
    if state is None:
        return {"running": False}
    lent = {each.name: each.memory_lent for each in state.computers if each.memory_lent}
    return {
        "running": True,
        "model": state.model,
        "memory": lent,
        "lent_to": state.node.lent_to,
        "listeners": state.listeners,
        "downloads": state.downloads,
        "engine": state.engine,
    }


def _put_state(state: ClusterState) -> None:
    model = state.model
    if model.name is None:
        put("No model is loaded. The next prompt loads one.")
    else:
        put(f"{model.name}: {_phase(model)}")
        put(f"Answers: {model.answering} under way, {model.waiting} waiting.")
        if model.plan is not None:
            _put_places(state)
    for master in state.node.lent_to:
        put(f"This computer helps {master}.")
    for listener in state.listeners:
        put(f"Other programs are answered at http://{listener.host}:{listener.port}/v1.")
    if state.engine is not None and state.engine.phase not in ("own", "ready"):
        put(state.engine.message)
    for each in state.downloads:
        if each.state != "done":
            share = f"{format_bytes(each.done)} of {format_bytes(each.total)}"
            put(f"Download of {each.model} ({each.state}): {share}.")


def _phase(model: ModelState) -> str:
    share = "" if model.progress is None or model.state == "ready" else f" {model.progress:.0%}"
    scheme = f", {model.plan.scheme}" if model.plan is not None else ""
    context = f", {model.context:,} tokens of context" if model.context else ""
    speed = f", {model.tokens_per_s:.1f} tokens/s in the last answer" if model.tokens_per_s else ""
    return f"{model.state}{share}{scheme}{context}{speed}"


def _put_places(state: ClusterState) -> None:
    """Print which computer has which layers, and how much memory they take there."""
    assert state.model.plan is not None
    memory = {each.node_id: each.memory_lent for each in state.computers}
    rows = [
        (
            stage.node,
            stage.device,
            f"{stage.layers[0]} to {stage.layers[1] - 1}"
            + (f", {100 * stage.share:.0f} % of each" if stage.group else ""),
            format_bytes(memory.get(stage.node_id, 0)),
        )
        for stage in state.model.plan.stages
    ]
    put_table(("COMPUTER", "DEVICE", "LAYERS", "MEMORY OF THE COMPUTER"), rows)


# --- logs


def logs(options: argparse.Namespace) -> int:
    """Print the last lines of the log, and with `--follow` those that come."""
    file = Folders.of(options.home).log_file
    if options.path:
        put(str(file))
        return 0
    try:
        with file.open("rb") as log:
            last = deque(log, maxlen=options.lines)
            at = log.tell()
    except FileNotFoundError:
        raise UsageError(
            f"There is no log yet: {file} is written by Potluck when it runs."
        ) from None
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {reason(error)}.") from None
    say(f"{file}:")
    put(b"".join(last).decode(errors="replace"), end="")
    if options.follow:
        _follow(file, at, options.waits)
    return 0


def _follow(file: Path, at: int, waits: Waits) -> None:
    """Print what is written to the file behind this position, until Ctrl-C.

    The node replaces its log when it has become too large.
    """
    log = file.open("rb")
    try:
        log.seek(at)
        while True:
            put(log.read().decode(errors="replace"), end="")
            time.sleep(waits.poll_s)
            if _was_replaced(file, log):
                put(log.read().decode(errors="replace"), end="")
                log.close()
                log = file.open("rb")
    finally:
        log.close()


def _was_replaced(file: Path, log: BinaryIO) -> bool:
    """Return whether the path names another file now, or this one was cut."""
    try:
        now = file.stat()
    except FileNotFoundError:  # between two files
        return False
    open_ = os.fstat(log.fileno())
    return (now.st_dev, now.st_ino) != (open_.st_dev, open_.st_ino) or now.st_size < log.tell()
