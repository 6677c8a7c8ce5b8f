"""The connection to this computer's node: it is found or started, its state is followed, and it is looked for again when it dies.

Nothing here blocks. Received values are the frozen structs of `potluck.api.values.schema`.
"""

import logging
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec
from PySide6.QtCore import QObject, QTimer, Signal

from potluck.api.values.schema import ClusterState
from potluck.errors import PotluckError
from potluck.reasons import reason
from potluck_app.background import Background
from potluck_app.http import Call, Endpoint, EventStream, Http, Method, Problem

logger = logging.getLogger(__name__)

Connection: TypeAlias = Literal["starting", "connected", "restarting", "failed"]
Holder: TypeAlias = Literal[
    "window", "worker", "tray"
]  # "tray" only looks: the node holds nothing for it

_SILENCE_MS = 25_000  # the node sends a comment every 10 s; after two missed ones it hangs
_RETRY_FIRST_MS = 200
_RETRY_LAST_MS = 5_000
_PATIENT = frozenset({"/cluster/role", "/cluster/join"})  # calls that wait for a node
_GONE = Problem(
    "Potluck's background process is not there. Try again in a moment.", unreachable=True
)


class NodeConnection(QObject):
    """A node that may die at any moment, and what waits until there is one.

    Signals:
        state_changed: a ClusterState, after every change.
        connection_changed: a Connection, and a sentence if it is `failed`.
    """

    state_changed = Signal(object)
    connection_changed = Signal(str, str)

    def __init__(
        self,
        find_or_start: Callable[[], Endpoint],
        *,
        holder: Holder = "window",
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self.state: ClusterState | None = None
        self.connection: Connection = "starting"
        self.connection_message = ""  # why the connection failed
        self.holder: Holder = holder
        self._find_or_start = find_or_start  # blocks; runs in the background
        self._background = Background("node-finder", self)
        self._http: Http | None = None
        self._events: EventStream | None = None
        self._waiting: list[Callable[[Http], None]] = []
        self._retry_ms = _RETRY_FIRST_MS
        self._retry = QTimer(self, singleShot=True)
        self._retry.timeout.connect(self._look_for_node)

    @property
    def endpoint(self) -> Endpoint | None:
        return None if self._http is None else self._http.endpoint

    @property
    def live_state(self) -> ClusterState | None:
        """The state, or None while there is no connection to a node."""
        return self.state if self.connection == "connected" else None

    def start(self) -> None:
        """Find or start the node, and follow its state from then on."""
        self._look_for_node()

    def set_holder(self, holder: Holder) -> None:
        """Tell the node in which role this program holds it from now on."""
        if holder != self.holder:
            self.holder = holder
            if self._http is not None and self.connection == "connected":
                self._follow(self._http)

    def close(self) -> None:
        """Disconnect and leave the node running; no signal is sent after this."""
        self.blockSignals(True)
        self._retry.stop()
        if self._events is not None:
            self._events.close()
            self._events = None
        self._background.close(timeout_s=0)

    def _look_for_node(self) -> None:
        self._background.run(self._find_or_start, self._on_found, self._on_not_found)

    def _on_found(self, endpoint: Endpoint) -> None:
        if self._http is not None:
            self._http.close()
        self._http = Http(endpoint, self)
        self._follow(self._http)

    def _on_not_found(self, error: Exception) -> None:
        logger.warning("the node could not be started: %s", error)
        known = error.message if isinstance(error, PotluckError) else ""
        why = known or f"Potluck cannot start in the background: {reason(error)}."
        self._set_connection("failed", why)
        self._schedule_retry()

    def _follow(self, http: Http) -> None:
        if self._events is not None:
            self._events.close()
        self._events = EventStream(self)
        self._events.received.connect(self._on_state)
        self._events.ended.connect(self._on_lost)
        path = "/cluster/events" + ("" if self.holder == "tray" else f"?holder={self.holder}")
        http.stream(self._events, "GET", path, silence_ms=_SILENCE_MS)

    def _on_state(self, data: bytes) -> None:
        try:
            state = msgspec.json.decode(data, type=ClusterState)
        except msgspec.MsgspecError as error:
            logger.warning("a state of the node could not be read: %s", error)
            return
        is_new = self.connection != "connected"
        before, self.state = self.state, state
        self._retry_ms = _RETRY_FIRST_MS
        self._set_connection("connected")
        self.state_changed.emit(state)
        if is_new:
            if before is not None:
                self._replaced(before)
            self._send_waiting()

    def _replaced(self, before: ClusterState) -> None:
        """A node has taken the place of one whose last state this is. Override it; here nothing is done."""

    def _send_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for send in waiting:
            self._submit(send)

    def _on_lost(self, problem: Problem | None) -> None:
        logger.info("the node is gone: %s", problem.message if problem else "it ended")
        self._events = None
        if self._http is not None:
            self._http.close()
            self._http = None
        self._set_connection("restarting" if self.state is not None else "starting")
        self._schedule_retry()

    def _schedule_retry(self) -> None:
        self._retry.start(self._retry_ms)
        self._retry_ms = min(self._retry_ms * 2, _RETRY_LAST_MS)

    def _set_connection(self, connection: Connection, message: str = "") -> None:
        if connection != self.connection or message:
            self.connection, self.connection_message = connection, message
            self.connection_changed.emit(connection, message)

    def _submit(self, send: Callable[[Http], None]) -> None:
        """Send now, or wait until there is a node."""
        if self._http is not None and self.connection == "connected":
            send(self._http)
        else:
            self._waiting.append(send)

    def call(self, method: Method, path: str, body: object = None, answer: Any = None) -> Call:
        """Send a command that has no method of its own; see `potluck.api`."""
        return self._call(method, path, body, answer)

    def _call(self, method: Method, path: str, body: object = None, answer: Any = None) -> Call:
        call = Call(self)
        if self._http is not None:
            self._http.call(call, method, path, body, answer)
        elif path in _PATIENT:
            self._waiting.append(lambda http: http.call(call, method, path, body, answer))
        else:
            QTimer.singleShot(0, call, lambda: _fail(call))
        return call


def _fail(call: Call) -> None:
    call.failed.emit(_GONE)
    call.deleteLater()
