"""Whether the node runs another version than this window, and what is to be started again."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from potluck import __version__
from potluck.api.values.schema import ClusterState
from potluck.update.versions import Versions, is_newer

Again: TypeAlias = Literal["", "window", "node"]


def started_next() -> str:
    """Return the version that starts from now on, of the window as of the node."""
    versions = Versions.of_this()
    return __version__ if versions is None else versions.current


def to_start_again(state: ClusterState, started: Callable[[], str] = started_next) -> Again:
    """Return what has to be started again for both to be of one version; nothing: they are.

    Args:
        state: what the node says.
        started: tells the version that starts from now on.
    """
    runs = state.node.version
    if is_newer(runs, __version__):
        return "window"
    if is_newer(__version__, runs):
        return "window" if started() == runs else "node"  # its owner went back to it
    return ""
