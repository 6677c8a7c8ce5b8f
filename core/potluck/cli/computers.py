"""`invite`, `pair`, `unpair`, `computer`, `make-main`, `devices`: the computers, and how they are paired."""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec

from potluck.api.values.gpus import Gpu, GpuRequest
from potluck.api.values.network import Medium
from potluck.api.values.pairing import Pairing
from potluck.api.values.schema import ClusterState, Computer, ComputerChange, Device, SpareCopy
from potluck.cli.terminal import (
    ask,
    must_be_interactive,
    put,
    put_json,
    put_table,
    say,
)
from potluck.cli.waits import Waits
from potluck.client import Client
from potluck.errors import NotFoundError, PairingError, PotluckError, UsageError, format_bytes
from potluck.ids import grouped
from potluck.launch import find, find_or_start
from potluck.settings import Folders

ID_PREFIX = 8  # that many characters of an id are enough to identify a computer


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """One computer in the output of `devices --json`."""

    node_id: str = msgspec.field(name="id")
    name: str
    address: str | None
    paired: bool
    online: bool
    devices: tuple[Device, ...]
    rtt_ms: float | None
    bytes_per_s: float | None
    medium: Medium
    spare: SpareCopy | None


def open_client(options: argparse.Namespace) -> tuple[Client, bool]:
    """Return the client, and whether the node had to be started for it."""
    folders = Folders.of(options.home)
    running = find(folders)
    if running is not None:
        return running, False
    say("Starting Potluck on this computer…")
    return find_or_start(folders), True


# --- invite, pair, unpair


def invite(options: argparse.Namespace) -> int:
    """Print a token as the only output on stdout."""
    client, _ = open_client(options)
    made = client.invite()
    if options.json:
        put_json(made)
        return 0
    put(made.token)
    say(f"On the other computer, within {made.expires_s / 60:.0f} minutes:")
    say(f"  potluck worker --join {made.token}")
    say(f"Or, where Potluck is installed with its window, open: potluck://join/{made.token}")
    return 0


def pair(options: argparse.Namespace) -> int:
    """Pair by sight with one computer, or list the computers that can be paired."""
    client, started = open_client(options)
    if options.target is None:
        return _list_pairable(client, started, options)
    if not options.yes:
        must_be_interactive("Pairing", "Use --yes where you see both screens, or `potluck invite`.")
    asked = _ask_to_pair(client, options.target, options.waits)
    say(f"Asking {asked.name} ({grouped(asked.node_id)}). Somebody there has to allow it.")
    states = _pairing_states(client, asked, options.waits)
    done = _watch_pairing(client, asked, states, lambda pairing: _same_digits(pairing, options.yes))
    if options.json:
        put_json(done)
    else:
        put(f"{done.name} is yours now.")
    return 0


def _list_pairable(client: Client, started: bool, options: argparse.Namespace) -> int:
    state = settle(client, options.waits, started=started)
    found = [computer for computer in state.computers if not computer.paired and computer.joinable]
    if options.json:
        put_json(_listed(found))
    elif found:
        put_table(("NAME", "ADDRESS", "DEVICES"), map(_pairable_row, found))
        say("Add one with: potluck pair NAME")
    else:
        say(
            "No computer that can be added was found. Start `potluck worker`, or the window, on it."
            " If it runs there already, use its address: potluck pair ADDRESS. To find out what is in"
            " the way: potluck doctor"
        )
    return 0


def _pairable_row(computer: Computer) -> tuple[str, ...]:
    return computer.name, computer.address or "", _devices(computer.devices)


def _ask_to_pair(client: Client, target: str, waits: Waits) -> Pairing:
    """Ask as soon as the computer is known: a node that has just started is still searching."""
    deadline = time.monotonic() + waits.discovery_s
    while True:
        try:
            return client.pair(target)
        except NotFoundError:
            if time.monotonic() > deadline:
                raise
            time.sleep(waits.poll_s)


def _watch_pairing(
    client: Client, asked: Pairing, states: Iterable[Pairing], decide: Callable[[Pairing], bool]
) -> Pairing:
    """Follow a pairing to its end. `decide` is called once, when the digits are known.

    Raises:
        PairingError: the pairing was refused, failed or took too long.
    """
    try:
        for pairing in states:
            match pairing.state:
                case "confirm":
                    client.decide_pairing(pairing.id, accept=decide(pairing))
                case "paired":
                    return pairing
                case "refused":
                    raise PairingError(f"The pairing with {asked.name} was refused.")
                case "failed":
                    why = pairing.message or "It did not come about."
                    raise PairingError(f"The pairing with {asked.name} failed. {why}")
                case "asking" | "accepted":
                    continue
    except KeyboardInterrupt:
        with suppress(PotluckError):
            client.decide_pairing(asked.id, accept=False)
        raise
    raise PairingError(f"{asked.name} did not answer. Allow it there, and ask again.")


def _pairing_states(client: Client, asked: Pairing, waits: Waits) -> Iterator[Pairing]:
    """Yield the pairing at every change, until it is over or takes too long."""
    seen = None
    deadline = time.monotonic() + waits.pairing_s
    while time.monotonic() < deadline:
        now = next((each for each in client.state().pairings if each.id == asked.id), None)
        if now is None:
            raise PairingError(f"The pairing with {asked.name} is over.")
        if now != seen:
            seen = now
            yield now
        time.sleep(waits.poll_s)


def _same_digits(pairing: Pairing, yes: bool) -> bool:
    say(f"Both screens must show the same digits: {spaced(pairing.code)}")
    return yes or ask(f"Does {pairing.name} show {spaced(pairing.code)}?")


def spaced(code: str | None) -> str:
    """Return six digits as people read them out: `123 456`."""
    return f"{code[:3]} {code[3:]}" if code else ""


def unpair(options: argparse.Namespace) -> int:
    """Revoke the pairing of one computer, given by name or id."""
    client, _ = open_client(options)
    known = [c for c in client.state().computers if c.paired and not c.is_self]
    found = _named(known, options.target)
    client.forget(found.node_id)
    put(f"{found.name} is not let in any more.")
    return 0


def computer(options: argparse.Namespace) -> int:
    """Rename, pause or limit a computer of this home, or test the link to it."""
    client, started = open_client(options)
    state = settle(client, options.waits, started=started)
    found = _named([c for c in state.computers if c.paired or c.is_self], options.target)
    change = ComputerChange(name=options.rename, paused=options.paused, memory=options.memory)
    if change != ComputerChange():
        client.change_computer(found.node_id, change)
        put(f"{options.rename or found.name} is changed.")
    if options.test:
        link = client.test_link(found.node_id)
        put(f"{found.name}: {link.rtt_ms:.1f} ms, {format_bytes(link.bytes_per_s)}/s.")
    if change == ComputerChange() and not options.test:
        raise UsageError("Say what to do: --rename, --pause, --resume, --memory or --test.")
    return 0


def make_main(options: argparse.Namespace) -> int:
    """Make another computer the main one of the home."""
    client, started = open_client(options)
    state = settle(client, options.waits, started=started)
    found = _named([c for c in state.computers if c.paired and not c.is_self], options.target)
    if not options.yes:
        must_be_interactive("Making another computer the main one", "Use --yes to do it unasked.")
        say(
            f"{found.name} becomes the main computer, and this one helps it. Models and conversations"
            " of this computer stay on it; what is loaded is freed."
        )
        if not ask(f"Make {found.name} the main computer?"):
            say("Nothing was changed.")
            return 1
    done = client.make_main(found.node_id, stop_answers=options.stop_answers)
    if options.json:
        put_json(done)
        return 0
    put(f"{done.name} is the main computer now, and this one helps it.")
    if done.to_follow:
        say(f"To follow as soon as they can: {', '.join(done.to_follow)}.")
    return 0


def _named(known: Sequence[Computer], wanted: str) -> Computer:
    """The computer that a user's text names: by name, or by the beginning of its id.

    Raises:
        NotFoundError: there is none.
        UsageError: several have that name.
    """
    found = [c for c in known if wanted == c.name] or [
        c for c in known if len(wanted) >= ID_PREFIX and c.node_id.startswith(wanted.lower())
    ]
    if not found:
        names = ", ".join(computer.name for computer in known) or "none"
        raise NotFoundError(f"No paired computer is called “{wanted}”. Paired are: {names}.")
    if len(found) > 1:
        ids = ", ".join(computer.node_id[:ID_PREFIX] for computer in found)
        raise UsageError(f"Several computers are called “{wanted}”. Say which by id: {ids}.")
    return found[0]


# --- devices


def devices(options: argparse.Namespace) -> int:
    """List all computers, after a choice among the GPUs of this one if it was asked for."""
    client, started = open_client(options)
    if options.off is not None or options.on is not None:
        _choose_gpus(client, options)
    state = settle(client, options.waits, started=started)
    if options.json:
        put_json(_listed(state.computers))
        return 0
    head = ("NAME", "STATE", "ADDRESS", "DEVICES", "FREE", "ROUND TRIP", "RATE")
    put_table(head, map(_device_row, state.computers))
    for computer in state.computers:
        if computer.detail is not None:
            put(f"{computer.name}: {computer.detail}")
    if off := [gpu.name for gpu in state.node.gpus if not gpu.used]:
        put(f"Not used for models, as chosen: {', '.join(off)}.")
    put_spares(state.computers)
    if state.hint is not None:
        put(f"\n{state.hint}")
    return 0


def _choose_gpus(client: Client, options: argparse.Namespace) -> None:
    """Turn GPUs of this computer on or off for models. They are given by name, or a part of it that no other has."""
    for name, used in ((options.off, False), (options.on, True)):
        if name is None:
            continue
        gpus = _gpus(client, options.waits)
        same = [gpu for gpu in gpus if gpu.name.casefold() == name.casefold()]
        found = same or [gpu for gpu in gpus if name.casefold() in gpu.name.casefold()]
        if len(found) != 1:
            there = ", ".join(gpu.name for gpu in found or gpus) or "none that can be turned off"
            known = "several such GPUs" if found else f"no GPU “{name}”"
            raise UsageError(f"This computer has {known}. It has: {there}.")
        client.use_gpu(GpuRequest(id=found[0].id, used=used))
        does = "uses" if used else "does not use"
        say(f"Potluck {does} {found[0].name} for models.")


def _gpus(client: Client, waits: Waits) -> Sequence[Gpu]:
    """The GPUs of this computer. A node that has just been started is still looking for them."""
    deadline = time.monotonic() + waits.devices_s
    while not (found := client.state().node.gpus) and time.monotonic() < deadline:
        time.sleep(waits.poll_s)
    return found


def put_spares(computers: Iterable[Computer]) -> None:
    """Print what computers have on their disks in case another one is lost."""
    for computer in computers:
        if (spare := computer.spare) is None:
            continue
        stored, wanted = format_bytes(spare.stored), format_bytes(spare.nbytes)
        size = stored if spare.stored >= spare.nbytes else f"{stored} of {wanted}"
        layers = f"{spare.layers} layer{'' if spare.layers == 1 else 's'}"
        put(f"Spare copies: {layers} of {spare.model} on {computer.name} ({size}).")


def _listed(computers: Iterable[Computer]) -> list[Listed]:
    return msgspec.convert(list(computers), list[Listed], from_attributes=True)


def settle(client: Client, waits: Waits, *, started: bool) -> ClusterState:
    """Return the state once the devices of this computer are known.

    If the node has just been started, also wait until the paired computers answer or the time for
    discovery is over.
    """
    began = time.monotonic()
    while True:
        state = client.state()
        waited = time.monotonic() - began
        others = [c for c in state.computers if c.paired and not c.is_self]
        answered = bool(others) and all(computer.online for computer in others)
        looked = not started or answered or waited > waits.discovery_s
        known = state.me is not None and state.me.devices
        if looked and (known or waited > waits.devices_s):
            return state
        time.sleep(waits.poll_s)


def _device_row(computer: Computer) -> tuple[str, ...]:
    state = "this computer" if computer.is_self else computer.state.replace("_", " ")
    return (
        computer.name,
        state,
        computer.address or "",
        _devices(computer.devices),
        _free(computer.devices),
        "" if computer.rtt_ms is None else f"{computer.rtt_ms:.1f} ms",
        "" if computer.bytes_per_s is None else f"{format_bytes(computer.bytes_per_s)}/s",
    )


def _devices(devices: tuple[Device, ...]) -> str:
    """Return the names of the devices; equal ones are counted."""
    counts = Counter(device.name or device.kind for device in devices)
    return ", ".join(name if count == 1 else f"{count}x {name}" for name, count in counts.items())


def _free(devices: tuple[Device, ...]) -> str:
    return format_bytes(sum(device.memory_free for device in devices)) if devices else ""
