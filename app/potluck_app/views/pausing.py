"""The choices of how long this computer pauses, for the tray and the worker window."""

from functools import partial

from PySide6.QtWidgets import QMenu

from potluck.api.pausing import PauseLength
from potluck_app.backend import Backend
from potluck_app.viewmodels import cluster


def offer_pauses(menu: QMenu, backend: Backend) -> None:
    """Add an action for each length of a pause."""
    for length, text in cluster.PAUSES:
        action = menu.addAction(text)
        action.setObjectName(f"pause-{length}")
        action.triggered.connect(partial(_pause, backend, length))


def _pause(backend: Backend, length: PauseLength, _checked: bool = False) -> None:
    backend.pause(length)
