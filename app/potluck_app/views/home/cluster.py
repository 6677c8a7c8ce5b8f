"""The Cluster page: the model and its layers, the computers, and those that could join.

While the page is visible, it asks every computer that offers itself once for its digits. They are
then shown already, and one click adds the computer. Asking decides nothing: both sides still have
to accept.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from PySide6.QtCore import QTimer
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import QGridLayout, QWidget

from potluck.api.values.schema import ClusterState
from potluck_app import wording
from potluck_app.backend import Backend
from potluck_app.theme import Theme
from potluck_app.viewmodels import cluster
from potluck_app.viewmodels.joining import JoinCard, join_cards
from potluck_app.viewmodels.model_card import model_card
from potluck_app.views.home.add_computer import AddComputerDialog
from potluck_app.views.home.cards import ComputerCardView, JoinCardView, ModelCardView
from potluck_app.views.home.computer_actions import ComputerActions
from potluck_app.views.home.doctor import DoctorDialog, open_doctor
from potluck_app.views.home.looking import Looking
from potluck_app.views.widgets.boxes import vbox
from potluck_app.views.widgets.controls import (
    ButtonIcon,
    announce,
    button,
    discard,
    fill_page,
    label,
    make_page,
    page_head,
)

_WIDTH = 1280  # pixels; wider cards have their parts too far from each other
_LOOK_MS = 10_000  # after so long without a computer, the node says what may be in the way
_TWO_COLUMNS = 700  # pixels of the page; a narrower page has one column of computers
_NARROW = 560  # pixels of the page; on a narrower one, cards have more rows

_Card = TypeVar("_Card", cluster.ComputerCard, JoinCard)
_View = TypeVar("_View", ComputerCardView, JoinCardView)


class ClusterView(QWidget):
    """The Cluster page."""

    def __init__(self, theme: Theme, backend: Backend, open_models: Callable[[], object]) -> None:
        super().__init__()
        make_page(self, "cluster-page", "Cluster")
        self._theme, self._backend = theme, backend
        self._actions = ComputerActions(self, backend, self._note)
        self._asked: set[str] = set()
        self._addresses: dict[str, str] = {}  # node id → the address that was typed
        self._ignored: frozenset[str] = frozenset()
        self._computers: dict[str, ComputerCardView] = {}
        self._joins: dict[str, JoinCardView] = {}
        self._columns, self._is_narrow = 2, False
        self._looks = QTimer(
            self, singleShot=True, interval=_LOOK_MS
        )  # the person has asked for it
        self._looks.timeout.connect(lambda: self.show_state(self._backend.live_state))

        self.subtitle = label("", "body2", wrap=True, name="cluster-subtitle")
        self.model = ModelCardView(theme, on_unload=self._unload, on_choose=open_models)
        self._grid = QGridLayout()
        self._grid.setSpacing(16)
        self._join_column = vbox(spacing=16)
        self.looking = Looking(theme, self.look_again, self.open_doctor, self._open_address)
        self._arrange()

    def _arrange(self) -> None:
        self.add = button("Add computer", "cluster-add", self.open_add_dialog)
        ButtonIcon(self.add, self._theme, "plus", lambda: self._theme.tokens.text)
        head = vbox(page_head("Home cluster", self.add), self.subtitle, spacing=4)
        parts = (head, self.model, self._grid, self._join_column, self.looking)
        fill_page(self, "Computers", *parts, width=_WIDTH)

    def show_state(self, state: ClusterState | None) -> None:
        """Show this state; None: there is none yet."""
        self.add.setEnabled(state is not None)
        if state is None:
            has_failed = self._backend.connection == "failed"
            self.subtitle.setText(wording.no_node(has_failed=has_failed))
            self.model.hide()
            self._show_computers([])
            self._show_joins([])
            self.looking.hide()
            return
        self.looking.show_search(has_ended=state.hint is not None and not self._looks.isActive())
        self.subtitle.setText(cluster.header(state))
        self.model.show()
        self.model.show_card(model_card(state))
        self._show_computers(cluster.computer_cards(state))
        joins = join_cards(state, self._ignored)
        self._show_joins(joins)
        others = any(cluster.is_member(c) and not c.is_self for c in state.computers)
        self.looking.setVisible((not others and not joins) or self._looks.isActive())
        if self.isVisible():
            self._ask_all(joins)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        state = self._backend.live_state
        if state is not None:
            self._ask_all(join_cards(state, self._ignored))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        width, px = event.size().width(), self._theme.px
        columns, is_narrow = 2 if width >= px(_TWO_COLUMNS) else 1, width < px(_NARROW)
        if columns != self._columns:
            self._columns = columns
            self._place_computers()
        if is_narrow != self._is_narrow:
            self._is_narrow = is_narrow
            self.add.setText("Add" if is_narrow else "Add computer")
            for card in (self.model, *self._joins.values()):
                card.set_narrow(is_narrow)

    def _show_computers(self, cards: list[cluster.ComputerCard]) -> None:
        def make(card: cluster.ComputerCard) -> ComputerCardView:
            return ComputerCardView(self._theme, card, self._actions.choose)

        before = list(self._computers)
        self._computers = _kept(self._computers, cards, make)
        if list(self._computers) != before:
            self._place_computers()
        for card in cards:
            self._computers[card.node_id].show_card(card)

    def _place_computers(self) -> None:
        while self._grid.takeAt(0) is not None:
            pass
        span = (
            self._columns if len(self._computers) == 1 else 1
        )  # alone, as wide as what is around it
        for number, view in enumerate(self._computers.values()):
            row, column = divmod(number, self._columns)
            self._grid.addWidget(view, row, column, 1, span)
        for column in range(2):
            self._grid.setColumnStretch(column, 1 if column < self._columns else 0)

    def _show_joins(self, cards: list[JoinCard]) -> None:
        def make(card: JoinCard) -> JoinCardView:
            view = JoinCardView(
                self._theme,
                card,
                on_ask=self._ask,
                on_decide=self._backend_decide,
                on_ignore=self._ignore,
            )
            view.set_narrow(self._is_narrow)
            self._join_column.addWidget(view)
            return view

        self._joins = _kept(self._joins, cards, make)
        for card in cards:
            self._joins[card.node_id].show_card(card)

    def _ask_all(self, joins: list[JoinCard]) -> None:
        for join in joins:
            if join.step == "found" and join.node_id not in self._asked:
                self._ask(join.node_id)

    def _ask(self, node_id: str) -> None:
        self._asked.add(node_id)
        target = self._addresses.get(node_id, node_id)
        self._backend.ask_pairing(target).then(failed=self._backend.report)

    def _backend_decide(self, pairing_id: str, accept: bool) -> None:
        self._backend.decide_pairing(pairing_id, accept).then(failed=self._backend.report)

    def _ignore(self, node_id: str) -> None:
        self._ignored |= {node_id}
        self.show_state(self._backend.live_state)

    def _unload(self) -> None:
        self._backend.unload_model().then(failed=self._backend.report)

    def _note(self, node_id: str, text: str) -> None:
        if (view := self._computers.get(node_id)) is not None:
            view.show_note(text)

    def open_add_dialog(self) -> AddComputerDialog:
        """Show the ways to add a computer that is not found by itself."""
        self._ignored = (
            frozenset()
        )  # also those that the person did not want to be asked about before
        self.show_state(self._backend.live_state)
        dialog = AddComputerDialog(self, self._theme, self._backend)
        dialog.found.connect(self._addresses.__setitem__)
        dialog.doctor_wanted.connect(self.open_doctor)
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()
        return dialog

    def look_again(self) -> None:
        """Look for other computers once more, now."""
        self._looks.start()
        self._backend.look_again().then(failed=self._backend.report)
        self.show_state(self._backend.live_state)
        announce(self.looking, self.looking.title.text())

    def _open_address(self) -> None:
        """Show the dialog with the cursor where the address is typed."""
        self.open_add_dialog().address.setFocus()

    def open_doctor(self) -> DoctorDialog:
        """Show what keeps the computers apart."""
        return open_doctor(self, self._theme, self._backend, self._open_address)


def _kept(
    views: dict[str, _View], cards: Sequence[_Card], make: Callable[[_Card], _View]
) -> dict[str, _View]:
    """Return a view of each card, in their order, by node id; views without a card are deleted."""
    kept = {card.node_id: views.get(card.node_id) or make(card) for card in cards}
    discard(*(view for node_id, view in views.items() if node_id not in kept))
    return kept
