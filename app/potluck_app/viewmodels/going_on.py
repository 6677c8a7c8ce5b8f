"""What goes on in the background when the main window is closed, and what of it is news. Pure."""

from collections.abc import Container

from potluck.api.values.schema import ClusterState
from potluck_app import wording
from potluck_app.viewmodels.other_version import to_start_again


def going_on(state: ClusterState | None) -> str:
    """Return sentences about what goes on without the window; nothing: its memory is freed at once."""
    return " ".join(sentences(state))


def sentences(state: ClusterState | None) -> list[str]:
    """Return a sentence about each thing that goes on without the window."""
    if state is None:
        return []
    found: list[str] = []
    if ports := [str(listener.port) for listener in state.listeners]:
        found.append(f"Other programs can use the model on port {wording.listing(ports)}.")
    if models := [_name(d.model) for d in state.downloads if d.state in ("queued", "running")]:
        verb = "is" if len(models) == 1 else "are"
        found.append(f"{wording.listing(models)} {verb} still being downloaded.")
    return found


def downloaded(state: ClusterState, known: Container[str]) -> str:
    """Return a sentence about the downloads that are done and not known; nothing: there are none."""
    names = [_name(d.model) for d in state.downloads if d.state == "done" and d.id not in known]
    if not names:
        return ""
    verb = "is" if len(names) == 1 else "are"
    return f"{wording.listing(names)} {verb} downloaded and ready to use."


def lost(before: ClusterState | None, state: ClusterState) -> str:
    """Return a sentence about the computers that were lost in the middle of a reply, since `before`."""
    if before is None or not before.model.answering:
        return ""
    working = {c.node_id for c in before.computers if c.layers is not None and c.state != "lost"}
    names = [c.name for c in state.computers if c.node_id in working and c.state == "lost"]
    if not names:
        return ""
    return (
        f"{wording.listing(names)} stopped answering in the middle of a reply. Potluck tries to finish"
        " it with the other computers."
    )


def offered(state: ClusterState | None) -> str:
    """Return the newer version of Potluck that is offered; nothing: none, or its owner has decided about it."""
    update = state.update if state is not None else None
    if update is None or update.phase != "offered" or update.failed or update.left:
        return ""
    return update.version


def update_button(state: ClusterState, *, has_room: bool = True) -> str:
    """Return what the button says that leads to the updates; nothing: there is none.

    Args:
        state: what the node says.
        has_room: whether it is also there while there is nothing to say of them.
    """
    if (update := state.update) is None:
        return ""
    if to_start_again(state):
        return "Another version runs…"
    if update.is_working:
        return (
            "Looking for a newer version…" if update.phase == "looking" else "Potluck is updated…"
        )
    if update.failed:
        return "The update did not work…"
    if update.phase == "fetched":
        return "A newer version is here…"
    if offered(state):
        return "A newer version is there…"
    return "Updates…" if has_room or update.left or update.before else ""


def update_line(version: str, *, has_settings: bool = True) -> str:
    """Return a sentence about a newer version of Potluck. `has_settings`: the window is not a helper's."""
    if not has_settings:
        return f"Potluck {version} is there. Open its window to have it installed."
    return f"Potluck {version} is there. You find it in the settings, under Updates."


def _name(model: str) -> str:
    return model.rpartition("/")[2]


class News:
    """What the tray has to say of a state, each thing once."""

    def __init__(self) -> None:
        self._before: ClusterState | None = None
        self._done: frozenset[str] = frozenset()  # ids of downloads that are known to be done

    def of_losses(self, state: ClusterState) -> str:
        """The computers that were lost since the last state; nothing: none."""
        before, self._before = self._before, state
        return lost(before, state)

    def of_downloads(self, state: ClusterState) -> str:
        """The downloads that are done since the last state; nothing: none."""
        done, self._done = (
            self._done,
            self._done | {d.id for d in state.downloads if d.state == "done"},
        )
        return downloaded(state, done)
