"""`worker`: lend this computer."""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import msgspec

from potluck.api.values.pairing import Pairing
from potluck.api.values.pausing import here, pause_end, paused_line
from potluck.api.values.politeness import SAYS
from potluck.api.values.schema import ClusterState, RoleRequest
from potluck.cli.computers import open_client, spaced
from potluck.cli.keeping import keep_going
from potluck.cli.printing import layers
from potluck.cli.terminal import (
    ask,
    is_interactive,
    say,
)
from potluck.cli.waits import Waits
from potluck.client import Client, NodeGoneError
from potluck.errors import NotFoundError, NotHeldError, PairingError, PotluckError
from potluck.launch import find
from potluck.settings import Folders, load_settings, save_settings
from potluck.system.autostart import autostart

_MAIN = (
    "This computer is the main computer of the home now, and lends nothing. To chat: `potluck chat`."
    " Ctrl-C ends this command."
)


def worker(options: argparse.Namespace) -> int:
    """Lend this computer until Ctrl-C, or until Potluck is shut down on it."""
    folders = Folders.of(options.home)
    if options.start is not None:
        return _start_with_computer(folders, on=options.start == "on")
    if options.name is not None:
        settings = load_settings(folders.settings_file)
        save_settings(folders.settings_file, msgspec.structs.replace(settings, name=options.name))
    client, _ = open_client(options)
    before = client.state()
    if options.name not in (None, before.node.name):
        say(
            f"This computer is running as “{before.node.name}”."
            f" It will be “{options.name}” when Potluck starts the next time."
        )
    if options.join is not None:
        joined = client.join(options.join)
        say(f"Joined the home of {joined.name}.")
    is_worker = before.node.role == "worker"
    lender = _Lender(options)
    try:
        keep_going(options, client, lambda node, _: lender.lend(node))
    except KeyboardInterrupt:
        if not is_worker:
            _leave(folders, options.waits)
    say(
        "This computer lends itself as before."
        if is_worker
        else "This computer is not lent any more."
    )
    return 0


def _start_with_computer(folders: Folders, *, on: bool) -> int:
    """Have the system start this command with the computer, or not."""
    autostart("worker", folders.home).set(on)
    if not on:
        say("`potluck worker` does not start with this computer.")
    elif sys.platform.startswith("linux"):
        say(
            "`potluck worker` starts when you log in. `loginctl enable-linger` starts it with the"
            " computer, without a login."
        )
    else:
        say("`potluck worker` starts when you log in.")
    return 0


def pause(options: argparse.Namespace) -> int:
    """Pause the lending of this computer, for an hour, until tomorrow or until `resume`."""
    client, _ = open_client(options)
    until = pause_end(options.length, here())
    client.set_role(RoleRequest(paused=True, paused_until=until))
    say(f"{paused_line(until)}. `potluck resume` ends the pause.")
    return 0


def resume(options: argparse.Namespace) -> int:
    """End the pause of this computer."""
    client, _ = open_client(options)
    client.set_role(RoleRequest(paused=False))
    say("The pause is over.")
    return 0


def free(options: argparse.Namespace) -> int:
    """Give back at once what this computer lends."""
    client, _ = open_client(options)
    client.set_role(RoleRequest(free_now=True))
    said = paused_line(client.state().node.paused_until)
    say(f"The memory is free in a moment. {said}; `potluck resume` ends the pause.")
    return 0


def _leave(folders: Folders, waits: Waits) -> None:
    """Wait until the others do without this computer. Ctrl-C does not wait any longer."""
    has_said, ends_at = False, time.monotonic() + waits.leave_s
    with suppress(PotluckError):  # the node has ended
        if (client := find(folders)) is None:
            return
        try:
            while time.monotonic() < ends_at:
                node = client.state().node
                if node.role != "worker" and not node.leaving:
                    return
                if node.leaving and not has_said:
                    has_said = True
                    say(
                        f"Leaving: this computer still helps {' and '.join(node.lent_to)}, for at"
                        " most 30 seconds. Ctrl-C leaves at once."
                    )
                time.sleep(waits.poll_s)
        except KeyboardInterrupt:
            client.set_role(RoleRequest())


class _Lender:
    """Lends this computer, unless it became the main one meanwhile: then it only holds the node."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._is_main = False

    def lend(self, client: Client) -> None:
        """Lend this computer as long as the node runs."""
        lease = RoleRequest(
            worker=True,
            memory=self._options.memory,
            threads=self._options.threads,
            while_held=True,
        )
        with closing(client.states("worker")) as states:
            # From here on the node knows who holds the lease, and ends it with this process.
            state = next(states, None)
            if state is None:
                return
            if not self._is_main:
                try:
                    client.set_role(lease)
                except NotHeldError:  # it is ending, for a newer version maybe, and let us go
                    raise NodeGoneError("The node of this computer ended.") from None
                say(f"{state.node.name} lends itself. Ctrl-C ends it.")
            if state.engine is not None and state.engine.phase not in ("own", "ready"):
                say(state.engine.message)
            self._follow(client, states)

    def _follow(self, client: Client, states: Iterator[ClusterState]) -> None:
        said = ""
        answered: set[str] = set()
        for state in states:
            self._is_main |= state.node.handed_over == "main" and state.node.role != "worker"
            line = _MAIN if self._is_main else _status_line(state)
            if line != said:
                said = line
                say(line)
            for pairing in state.pairings:
                if pairing.role == "worker" and pairing.id not in answered and pairing.code:
                    answered.add(pairing.id)
                    _answer(client, pairing)


def _answer(client: Client, pairing: Pairing) -> None:
    say(f"{pairing.name} asks to use this computer. Its screen must show: {spaced(pairing.code)}")
    if not is_interactive():
        say("Nobody is at this terminal to allow it. Use `potluck invite` and --join instead.")
        return
    accept = ask(f"Does {pairing.name} show {spaced(pairing.code)}, and may it?")
    try:
        client.decide_pairing(pairing.id, accept=accept)
    except (NotFoundError, PairingError) as error:
        say(error.message)


def _status_line(state: ClusterState) -> str:
    me = state.me
    share = f", {me.progress:.0%}" if me is not None and me.progress is not None else ""
    held = _held(state)
    if state.node.paused:
        return f"{paused_line(state.node.paused_until)}. `potluck resume` ends the pause."
    if state.node.withheld is not None:
        return f"Paused by itself: this computer {SAYS[state.node.withheld]}."
    if not state.node.lent_to:
        homes = " or ".join(state.node.member_of) or "a computer to pair with"
        return f"Waiting for {homes}."
    lent = ", ".join(state.node.lent_to)
    match me.state if me is not None else "running":
        case "receiving":
            return f"Receiving{held} from {lent}{share}."
        case "loading":
            return f"Loading{held} for {lent}{share}."
        case "running":
            return f"Helping {lent}:{held}."
        case _:
            return f"Connected with {lent}."


def _held(state: ClusterState) -> str:
    """What this computer computes, with a space before it; empty: nothing."""
    me = state.me
    if me is not None and state.node.lent_as == "tower":
        return " the part that reads pictures"
    if me is None or me.layers is None:
        return ""
    ranges = [each for each in me.ranges or (me.layers,) if each[1] > each[0]]
    return f" {' and '.join(layers(*each) for each in ranges) or 'the vocabulary'}"
