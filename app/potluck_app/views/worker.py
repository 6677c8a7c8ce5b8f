"""The small window of a computer that lends itself: its state, its users, pause and stop."""

from collections.abc import Callable

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import QFrame, QMenu, QSlider, QWidget

from potluck.api.values.pairing import Pairing
from potluck.api.values.schema import ClusterState
from potluck_app import wording
from potluck_app.backend import Backend
from potluck_app.http import Problem
from potluck_app.language import said
from potluck_app.node_connection import Connection
from potluck_app.theme import Theme
from potluck_app.viewmodels import lending
from potluck_app.viewmodels.going_on import update_button
from potluck_app.views.home.doctor import open_doctor
from potluck_app.views.home.engine import EngineCard
from potluck_app.views.options.gpus import GpuBoxes
from potluck_app.views.options.start_box import StartBox
from potluck_app.views.options.update import UpdateDialog
from potluck_app.views.pausing import RulesMenu, offer_pauses
from potluck_app.views.widgets.banner import NewsBanner
from potluck_app.views.widgets.boxes import hbox, vbox
from potluck_app.views.widgets.controls import (
    TintedIcon,
    announce,
    button,
    label,
    make_page,
    scrolling,
)
from potluck_app.views.widgets.meter import Meter
from potluck_app.views.widgets.screens import ScreenFit
from potluck_app.views.widgets.words import Described, Menu

WIDTH, HEIGHT = 380, 520
_STEPS = 20  # of the memory slider; each is 5 %
_LEAST_STEP = 1


class JoinRequest(Described, QFrame):
    """The question of another computer that wants to use this one."""

    def __init__(self, on_decide: Callable[[str, bool], object]) -> None:
        super().__init__()
        self.setProperty("card", "attention")
        self.setObjectName("worker-request")
        self._pairing: Pairing | None = None
        self._on_decide = on_decide
        self._title = label("", "strong", wrap=True)
        self.code = label("", "code", name="worker-code")
        self._text = label("", "meta", wrap=True)
        for line in (self._title, self._text):
            line.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        self.refuse = button("Refuse", "worker-refuse", lambda: self._decide(False))
        self.allow = button("Allow", "worker-allow", lambda: self._decide(True), kind="primary")
        buttons = hbox((self.refuse, 1), (self.allow, 1), spacing=8)
        vbox(
            self._title,
            (self.code, 0, Qt.AlignmentFlag.AlignHCenter),
            self._text,
            4,
            buttons,
            parent=self,
            margins=(18, 14, 18, 16),
            spacing=6,
        )
        self.hide()

    def show_pairing(self, pairing: Pairing | None) -> None:
        self._pairing = pairing
        self.setVisible(pairing is not None)
        if pairing is None:
            return
        waits = pairing.state == "accepted"
        self._title.setText(f"{pairing.name} wants to use this computer")
        code = wording.spaced_code(pairing.code) if pairing.code else "…"
        if pairing.code and code != self.code.text():
            announce(self, f"{self._title.text()}. Code {code}")
        self.code.setText(code)
        self._text.setText(
            f"Now click Add on {pairing.name}."
            if waits
            else f"Allow it only if {pairing.name} shows the same code."
        )
        self.allow.setEnabled(not waits)
        self.refuse.setText("Cancel" if waits else "Refuse")
        self.refuse.setAccessibleName(f"{self.refuse.text()} {pairing.name}")
        self.allow.setAccessibleName(f"Allow {pairing.name}")
        self.setAccessibleName(f"{self._title.text()}. Code {self.code.text()}")

    def _decide(self, accept: bool) -> None:
        if self._pairing is not None:
            self._on_decide(self._pairing.id, accept)


class WorkerWindow(QWidget):
    """The window of a computer that lends itself.

    `on_close` decides what closing means: hide in the tray, or ask whether to stop.
    """

    def __init__(
        self,
        theme: Theme,
        backend: Backend,
        *,
        on_close: Callable[[], bool],
        on_stop: Callable[[], object],
        on_chat: Callable[[], object],
        on_open_again: Callable[[], object] | None = None,
    ) -> None:
        super().__init__()
        make_page(self, "worker-window", "Potluck")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setWindowTitle("Potluck")
        size = QSize(WIDTH, HEIGHT)
        ScreenFit(self, size, size, theme)
        self._theme, self._backend, self._on_close = theme, backend, on_close
        self._view = self._without_node()
        self._wanted: int | None = None  # the requested limit, until the node reports it
        restarting = "Potluck stopped in the background and starts again."
        self.banner = NewsBanner(theme, backend, restarting)
        self._name = label("", "meta")
        self.address = label("", "meta", name="worker-address")
        self.address.setAccessibleName("Address of this computer")
        self.address.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.address.hide()
        self._icon = TintedIcon(theme, "cluster", 56, self._icon_color)
        self.title = label("", "title", wrap=True, name="worker-title")
        self.title.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        self.text = label("", "body2", wrap=True, name="worker-text")
        self.text.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        self.doctor = button("Not found? Find out why", "worker-doctor", self._open_doctor)
        self.update_button = button("Updates…", "worker-update", self._open_update)
        self._on_open_again = on_open_again
        self._meter = Meter(theme, "Progress")
        self.request = JoinRequest(self._decide)
        self.pauses = Menu(self)
        self.pauses.setAccessibleName("Pause sharing")
        offer_pauses(self.pauses, backend)
        self.rules = RulesMenu(self, backend)
        self.pause = button("Pause", "worker-pause", self._pause)
        self.when = button(
            "Pauses by itself…", "worker-rules", lambda: _open(self.rules, self.when)
        )
        self.gpus = GpuBoxes(backend)
        self.start = StartBox()
        self.free = button("Free memory now", "worker-free", backend.free_memory)
        self.free.setToolTip(wording.tip(lending.FREE_MEMORY))
        self._arrange(on_stop, on_chat)
        backend.state_changed.connect(self.show_state)
        backend.connection_changed.connect(self._on_connection)
        self.show_state(backend.live_state)
        self.banner.follow()
        self.setFocus()

    def _arrange(self, on_stop: Callable[[], object], on_chat: Callable[[], object]) -> None:
        center = Qt.AlignmentFlag.AlignHCenter
        self._engine = EngineCard(self._theme, self._backend, (0, 10, 0, 2))
        inner = QWidget()
        vbox(
            (self._name, 0, center),
            (self.address, 0, center),
            6,
            self.banner,
            self._engine,
            (None, 2),
            (self._icon, 0, center),
            14,
            self.title,
            6,
            self.text,
            10,
            vbox((self.doctor, 0, center), (self.update_button, 0, center), spacing=6),
            self._meter,
            (None, 2),
            self.request,
            14,
            self._make_choices(),
            8,
            hbox(
                (button("Chat here instead", "worker-chat", on_chat), 1),
                (button("Stop sharing", "worker-stop", on_stop), 1),
                spacing=8,
            ),
            parent=inner,
            margins=(24, 16, 24, 18),
        )
        vbox(scrolling(inner, "Potluck"), parent=self)

    def _make_choices(self) -> QWidget:
        """What the owner decides about the lending; hidden while there is a question to answer."""
        self._choices = QWidget()
        vbox(
            self._make_memory(),
            12,
            vbox(self.gpus, self.start, spacing=8),
            12,
            hbox((self.pause, 1), (self.free, 1), spacing=8),
            8,
            self.when,
            parent=self._choices,
        )
        return self._choices

    def _make_memory(self) -> QWidget:
        self._memory_line = label("", "meta", name="worker-memory-line")
        self.memory = QSlider(Qt.Orientation.Horizontal)
        self.memory.setObjectName("worker-memory")
        self.memory.setAccessibleName(said("Memory that this computer lends"))
        self.memory.setRange(_LEAST_STEP, _STEPS)
        self.memory.setValue(_STEPS)
        self.memory.setPageStep(2)
        self.memory.valueChanged.connect(self._show_memory)
        self.memory.sliderReleased.connect(self._set_memory)
        self.memory.actionTriggered.connect(self._on_slider_key)
        part = QWidget()
        vbox(self._memory_line, self.memory, parent=part, spacing=4)
        return part

    def show_state(self, state: ClusterState | None) -> None:
        """Show this state; None: there is none yet."""
        if state is not None:
            self._view = lending.lend_view(state)
            self._name.setText(state.node.name)
            self.address.setText(self._view.address)
            self.address.setVisible(bool(self._view.address))
            requests = lending.worker_requests(state)
            self.request.show_pairing(requests[0] if requests else None)
            self._choices.setVisible(not requests)  # one question at a time
            waits = not (state.node.lent_to or state.node.paused or state.node.withheld or requests)
            self.doctor.setVisible(waits and self._engine.isHidden())  # one thing after the other
            self._show_update(state)
            me = state.me
            is_moving = me is not None and me.progress is not None and not state.node.paused
            self._meter.setVisible(is_moving)
            self._meter.show_fraction((me.progress if me else None) or 0.0)
            paused = state.node.paused
            self.pause.setText("Resume" if paused else "Pause")
            self.pause.setAccessibleName("Resume sharing" if paused else "Pause sharing")
            self.rules.show_rules(state.node.rules)
            self._follow_memory(state)
        else:
            self._view = self._without_node()
            self._meter.hide()
            self.address.hide()
            self.doctor.hide()
            self.update_button.hide()
            self.request.show_pairing(None)
        self.gpus.show_state(state)
        self.pause.setEnabled(state is not None)
        self.free.setEnabled(state is not None)
        self.when.setEnabled(state is not None)
        self.memory.setEnabled(state is not None)
        self._icon.set_icon(self._view.icon, self._icon_color)
        self._icon.setVisible(self._engine.isHidden())  # its card needs the room
        self.title.setText(self._view.title)
        self.text.setText(self._view.text)
        self._show_memory()

    def _without_node(self) -> lending.LendView:
        """What is shown while there is no node; the line at the top says why."""
        has_failed = self._backend.connection == "failed"
        text = "It is tried again by itself." if has_failed else ""
        title = wording.no_node(has_failed=has_failed)
        return lending.LendView("cluster", "err" if has_failed else "neutral", title, text)

    def _open_doctor(self) -> None:
        open_doctor(self, self._theme, self._backend)

    def _show_update(self, state: ClusterState) -> None:
        """Say what there is about newer versions: this window has no settings that would."""
        text = update_button(state, has_room=self.doctor.isHidden())
        self.update_button.setText(text)
        self.update_button.setVisible(bool(text))

    def _open_update(self) -> UpdateDialog:
        dialog = UpdateDialog(self, self._theme, self._backend, self._on_open_again)
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()
        return dialog

    def _icon_color(self) -> str:
        return self._theme.tokens.color(self._view.tone)

    def closeEvent(self, event: QCloseEvent) -> None:
        event.setAccepted(self._on_close())

    def _pause(self) -> None:
        """End the pause, or ask how long one is to be."""
        state = self._backend.live_state
        if state is not None and state.node.paused:
            self._backend.resume()
        else:
            _open(self.pauses, self.pause)

    # --- memory

    def _follow_memory(self, state: ClusterState) -> None:
        total = _memory_total(state)
        limit = state.node.memory_limit or 0
        if self._wanted == limit:
            self._wanted = None
        if total and self._wanted is None and not self.memory.isSliderDown():
            step = _STEPS if not limit else round(limit / total * _STEPS)
            self.memory.blockSignals(True)
            self.memory.setValue(min(max(step, _LEAST_STEP), _STEPS))
            self.memory.blockSignals(False)

    def _show_memory(self) -> None:
        state = self._backend.state
        total = _memory_total(state)
        limit = state.node.memory_limit or 0 if state is not None else 0
        if self.memory.isSliderDown():
            limit = self._slider_limit()
        elif self._wanted is not None:
            limit = self._wanted
        if not total:
            self._memory_line.setText("Lends its free memory")
        elif not limit:
            self._memory_line.setText(f"Lends all that is free of {wording.size(total)}")
        else:
            amount = wording.gigabytes(limit)
            self._memory_line.setText(f"Lends at most {amount} of {wording.size(total)}")

    def _slider_limit(self) -> int:
        """Return the limit that the slider shows, in bytes; 0 removes the limit."""
        share = self.memory.value() / _STEPS
        return 0 if share >= 1 else int(_memory_total(self._backend.state) * share)

    def _set_memory(self) -> None:
        self._wanted = self._slider_limit()
        self._show_memory()
        call = self._backend.set_role(worker=True, memory=self._wanted)
        call.then(failed=self._on_memory_refused)

    def _on_memory_refused(self, problem: Problem) -> None:
        self._wanted = None
        self.show_state(self._backend.live_state)
        self._backend.report(problem)

    def _on_slider_key(self, _action: int) -> None:
        if not self.memory.isSliderDown():  # moved by the keyboard or by a click beside the handle
            self.memory.setValue(self.memory.sliderPosition())
            self._set_memory()

    # --- decisions

    def _decide(self, pairing_id: str, accept: bool) -> None:
        self._backend.decide_pairing(pairing_id, accept).then(failed=self._backend.report)

    def _on_connection(self, _connection: Connection, _message: str) -> None:
        self.show_state(self._backend.live_state)


def _open(menu: QMenu, below: QWidget) -> None:
    menu.popup(below.mapToGlobal(below.rect().bottomLeft()))


def _memory_total(state: ClusterState | None) -> int:
    """Return the memory that the limit is a share of.

    It is the RAM, or the memory of a graphics card that has more than that.
    """
    me = state.me if state is not None else None
    devices = me.devices if me is not None else ()
    ram = sum(device.memory_total for device in devices if device.kind != "cuda")
    return max([ram, *(device.memory_total for device in devices if device.kind == "cuda")])
