"""The choices of when and how long this computer pauses, for the tray and the worker window."""

from functools import partial

from PySide6.QtWidgets import QMenu, QWidget

from potluck.api.values.pausing import PauseLength
from potluck.api.values.politeness import Rules
from potluck_app.backend import Backend
from potluck_app.viewmodels import lending
from potluck_app.views.widgets.words import Menu


def offer_pauses(menu: QMenu, backend: Backend) -> None:
    """Add an action for each length of a pause."""
    for length, text in lending.PAUSES:
        action = menu.addAction(text)
        action.setObjectName(f"pause-{length}")
        action.triggered.connect(partial(_pause, backend, length))


class RulesMenu(Menu):
    """The reasons for which this computer pauses by itself, each on or off."""

    def __init__(self, parent: QWidget, backend: Backend) -> None:
        super().__init__(parent)
        self.setAccessibleName("When it pauses by itself")
        for rule, text in lending.RULES:
            action = self.addAction(text)
            action.setObjectName(f"rule-{rule}")
            action.setData(rule)
            action.setCheckable(True)

        self.triggered.connect(lambda action: backend.set_rule(action.data(), action.isChecked()))

    def show_rules(self, rules: Rules) -> None:
        for action in self.actions():
            action.setChecked(getattr(rules, action.data()))


def _pause(backend: Backend, length: PauseLength, _checked: bool = False) -> None:
    backend.pause(length)
