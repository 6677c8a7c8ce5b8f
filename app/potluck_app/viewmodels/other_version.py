"""Whether the node runs another version than this window, and what is to be started again."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from potluck import __version__
from potluck.api.values.schema import ClusterState

Again: TypeAlias = Literal["", "window", "node"]


def started_next() -> str:
    """Return the version that starts from now on, of the window as of the node."""
    from potluck.update.versions import Versions  # as below

    versions = Versions.of_this()
    return __version__ if versions is None else versions.current


def to_start_again(state: ClusterState, started: Callable[[], str] = started_next) -> Again:
    """Return what has to be started again for both to be of one version; nothing: they are.

    Args:
        state: what the node says.
        started: tells the version that starts from now on.
    """
    runs = state.node.version
    if runs == __version__:
        return ""
    from potluck.update.versions import is_newer  # a window that opens needs none of it

    if is_newer(runs, __version__):
        return "window"
    if is_newer(__version__, runs):
        return "window" if started() == runs else "node"  # its owner went back to it
    return ""
