"""What the node fetches in the background, shown until it is there: the engine, and newer versions of Potluck."""

from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Protocol, TypeVar

from potluck.cli.terminal import Progress, put
from potluck.client import NodeGoneError
from potluck.errors import format_bytes


class Fetched(Protocol):
    """The state of such work. Numbers are bytes."""

    @property
    def is_working(self) -> bool: ...
    @property
    def fraction(self) -> float: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def done(self) -> int: ...
    @property
    def from_home(self) -> int: ...
    @property
    def from_internet(self) -> int: ...


F = TypeVar("F", bound=Fetched)


def known(state: F | None) -> F:
    """Return what the node says of it.

    Raises:
        NodeGoneError: it says nothing: its program is older than this one.
    """
    if state is None:
        raise NodeGoneError(
            "The Potluck that runs on this computer is older. End it and try again."
        )
    return state


def follow(state: F, states: Iterable[F], describe: Callable[[F], str]) -> F:
    """Show how far the work is in each of `states`, and return the last one. Without any, it is `state`."""
    with closing(Progress()) as progress:
        for seen in states:
            state = seen
            if state.is_working:
                progress.show(describe(state), state.fraction, amount(state))
    return state


def amount(state: Fetched) -> str:
    """`120.0 MB of 200.0 MB`; empty where the size is not known."""
    return f"{format_bytes(state.done)} of {format_bytes(state.nbytes)}" if state.nbytes else ""


def put_sources(state: Fetched) -> None:
    """Print where it came from, if it came from anywhere."""
    came = [(state.from_home, "from your home"), (state.from_internet, "from the Internet")]
    if parts := [f"{format_bytes(nbytes)} {where}" for nbytes, where in came if nbytes]:
        put(f"It came: {', '.join(parts)}.")
