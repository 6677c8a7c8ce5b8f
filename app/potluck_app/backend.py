"""The window's connection to the node: commands out, states and tokens in, as Qt signals.

Nothing here blocks. Received values are the frozen structs of `potluck.api.schema`. The node may
die at any moment: it is then found or started again, and the model in use is loaded again. Chats,
loads and the role wait for that. Every other command fails at once, since nobody wants a click to
act minutes later.
"""

import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from PySide6.QtCore import QObject, QTimer, Signal

from potluck.api.pausing import PauseLength, here, pause_end
from potluck.api.politeness import Rule
from potluck.api.schema import (
    ClusterState,
    ComputerChange,
    Invite,
    LinkTest,
    Listener,
    ListenRequest,
    ModelEntry,
    Pairing,
    PairingDecision,
    PairingRequest,
    PlanRequest,
    PlanView,
    RoleRequest,
)
from potluck.api.weights import VerifyProgress, VerifyRequest
from potluck.errors import PotluckError
from potluck.reasons import reason
from potluck_app.background import Background
from potluck_app.chats.values import Message, Settings
from potluck_app.http import Call, Endpoint, EventStream, Http, Method, Problem
from potluck_app.streams import Load, Reply

logger = logging.getLogger(__name__)

Connection: TypeAlias = Literal["starting", "connected", "restarting", "failed"]
Holder: TypeAlias = Literal[
    "window", "worker", "tray"
]  # "tray" only looks: the node holds nothing for it

_SILENCE_MS = 25_000  # the node sends a comment every 10 s; after two missed ones it hangs
_RETRY_FIRST_MS = 200
_RETRY_LAST_MS = 5_000
_PATIENT = frozenset({"/cluster/role", "/cluster/join"})  # calls that wait for a node
_AS_RECOMMENDED = Settings()
_SEED_BITS = 63  # as many as the node takes
_GONE = Problem(
    "Potluck's background process is not there. Try again in a moment.", unreachable=True
)


class Backend(QObject):
    """The node, as the views see it.

    Signals:
        state_changed: a ClusterState, after every change.
        connection_changed: a Connection, and a sentence if it is `failed`.
        problem: a sentence about a failed command that no other part of the window reports.
    """

    state_changed = Signal(object)
    connection_changed = Signal(str, str)
    problem = Signal(str)

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
        self._keys: dict[int, str] = {}  # by port, of the listeners that other computers reach
        self._retry_ms = _RETRY_FIRST_MS
        self._retry = QTimer(self, singleShot=True)
        self._retry.timeout.connect(self._look_for_node)

    # --- the connection

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
                self._load_again(before)
                self._open_again(before)
            self._send_waiting()

    def _load_again(self, before: ClusterState) -> None:
        """Have a node that was started again load the model that the one before had loaded."""
        assert self.state is not None
        if before.model.state != "none" and self.state.model.state == "none":
            load = Load(self)
            load.failed.connect(self.report)
            self._stream_load(load, PlanRequest())

    def _open_again(self, before: ClusterState) -> None:
        """Have a node that was started again listen for other programs as the one before.

        Of those that other computers reach only the ones whose keys this window has made.
        """
        assert self.state is not None
        for listener in before.listeners:
            key = self.key_of(listener) or None
            is_known = is_local(listener) or key is not None
            if is_known and listener not in self.state.listeners:
                call = Call(self)
                call.failed.connect(self.report)
                body = ListenRequest(host=listener.host, port=listener.port, key=key)
                self._submit(
                    lambda http, call=call, body=body: http.call(
                        call, "POST", "/cluster/listeners", body, Listener
                    )
                )

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

    def _call(self, method: Method, path: str, body: object = None, answer: Any = None) -> Call:
        call = Call(self)
        if self._http is not None:
            self._http.call(call, method, path, body, answer)
        elif path in _PATIENT:
            self._waiting.append(lambda http: http.call(call, method, path, body, answer))
        else:
            QTimer.singleShot(0, call, lambda: _fail(call))
        return call

    # --- commands

    def call(self, method: Method, path: str, body: object = None, answer: Any = None) -> Call:
        """Send a command that has no method of its own here; see `potluck.api`."""
        return self._call(method, path, body, answer)

    def chat(self, messages: Sequence[Message], settings: Settings = _AS_RECOMMENDED) -> Reply:
        """Ask for a reply to these messages, below the system prompt of the settings."""
        turns: list[dict[str, object]] = [
            {"role": m.role, "content": _content(m)} for m in messages
        ]
        if settings.system.strip():
            turns.insert(0, {"role": "system", "content": settings.system})
        body: dict[str, object] = {
            "messages": turns,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,  # they are counted
        }
        for name in ("temperature", "top_k", "top_p", "min_p", "max_tokens", "seed"):
            if (value := getattr(settings, name)) is not None:
                body[name] = value
        body.setdefault("seed", secrets.randbits(_SEED_BITS))  # the same if it is asked for again
        reply = Reply(self, body)
        reply.asks.connect(self._ask)
        self.state_changed.connect(reply.show_model)
        if self.live_state is not None:
            reply.show_model(self.live_state)
        reply.begin()
        return reply

    def _ask(self, stream: EventStream, body: object) -> None:
        self._submit(lambda http: http.stream(stream, "POST", "/v1/chat/completions", body))

    def ask_pairing(self, target: str) -> Call:
        """Ask a computer to pair. The digits arrive with the answer or with a later state."""
        return self._call("POST", "/cluster/pairings", PairingRequest(target=target), Pairing)

    def decide_pairing(self, pairing_id: str, accept: bool) -> Call:
        """Say that the digits match, or refuse."""
        path = f"/cluster/pairings/{pairing_id}"
        return self._call("POST", path, PairingDecision(accept=accept), Pairing)

    def invite(self) -> Call:
        """Ask for a token with which a computer without a screen joins."""
        return self._call("POST", "/cluster/invites", answer=Invite)

    def remove_computer(self, node_id: str) -> Call:
        """Revoke a computer: it loses all access."""
        return self._call("DELETE", f"/cluster/computers/{node_id}")

    def change_computer(self, node_id: str, change: ComputerChange) -> Call:
        """Rename, pause or limit a computer."""
        return self._call("POST", f"/cluster/computers/{node_id}", change)

    def test_link(self, node_id: str) -> Call:
        """Measure the link to a computer now."""
        return self._call("POST", f"/cluster/computers/{node_id}/link", answer=LinkTest)

    def look_again(self) -> Call:
        """Look for other computers once more. Those that are found come with the state."""
        return self._call("POST", "/cluster/search")

    def set_role(self, *, worker: bool, memory: int | None = None) -> Call:
        """Lend this computer, or stop lending it."""
        return self._call("POST", "/cluster/role", RoleRequest(worker=worker, memory=memory))

    def pause(self, length: PauseLength) -> None:
        """Pause the lending of this computer."""
        self._change_role(RoleRequest(paused=True, paused_until=pause_end(length, here())))

    def resume(self) -> None:
        """End the pause of this computer."""
        self._change_role(RoleRequest(paused=False))

    def free_memory(self) -> None:
        """Give back at once what this computer lends; it is paused then, for an hour or longer."""
        self._change_role(RoleRequest(free_now=True))

    def set_rule(self, rule: Rule, on: bool) -> None:
        """Let a reason count for which this computer lends nothing by itself, or not."""
        if self.state is not None:
            rules = msgspec.structs.replace(self.state.node.rules, **{rule: on})
            self._change_role(RoleRequest(rules=rules))

    def set_unloading(self, seconds: float) -> None:
        """Have a model unloaded that nobody asks for so long; 0: never."""
        self._change_role(RoleRequest(idle_unload_s=seconds))

    def set_sending(self, mbit: int) -> None:
        """Have weights sent to other computers at so many Mbit/s at most; 0: as fast as it goes."""
        self._change_role(RoleRequest(upload_limit_mbit=mbit))

    def _change_role(self, request: RoleRequest) -> None:
        self._call("POST", "/cluster/role", request).then(failed=self.report)

    def models(self) -> Call:
        """Ask for the models on this computer."""
        return self._call("GET", "/cluster/models", answer=tuple[ModelEntry, ...])

    def check_model(self, path: str) -> Load:
        """Read all weights of a model on this computer, and compare them with what they were."""
        check = Load(self, VerifyProgress)
        body = VerifyRequest(model=path)
        self._submit(lambda http: http.stream(check.stream, "POST", "/cluster/models/verify", body))
        return check

    def load_model(self, model: str | None) -> Load:
        """Load a model on the computers of the home; None is the guide."""
        load = Load(self)
        self._stream_load(load, PlanRequest(model=model or "guide"))
        return load

    def _stream_load(self, load: Load, body: PlanRequest) -> None:
        self._submit(lambda http: http.stream(load.stream, "POST", "/cluster/model", body))

    def plan_context(self, context: int) -> Call:
        """Ask whether the chosen model fits with this context, and how fast it is then."""
        return self._call("POST", "/cluster/plan", PlanRequest(context=context), PlanView)

    def load_context(self, context: int) -> Load:
        """Load the chosen model again, with this context."""
        load = Load(self)
        self._stream_load(load, PlanRequest(context=context))
        return load

    def unload_model(self) -> Call:
        """Unload the model and free its memory on all computers."""
        return self._call("DELETE", "/cluster/model")

    def open_listener(self, port: int, host: str = "127.0.0.1", key: str | None = None) -> Call:
        """Answer other programs on a fixed port; with a key also those of other computers."""
        body = ListenRequest(host=host, port=port, key=key)
        call = self._call("POST", "/cluster/listeners", body, Listener)
        if key is not None:
            self._keys[port] = key
        return call

    def key_of(self, listener: Listener) -> str:
        """Return the key of a listener; nothing if it has none, or this window did not make it."""
        return "" if is_local(listener) else self._keys.get(listener.port, "")

    def close_listener(self, port: int) -> Call:
        return self._call("DELETE", f"/cluster/listeners/{port}")

    def shut_down(self) -> Call:
        """End the node, and so the lending."""
        return self._call("POST", "/cluster/shutdown")

    def report(self, problem: Problem) -> None:
        """Show the person the problem of a command."""
        self.problem.emit(problem.message)


def is_local(listener: Listener) -> bool:
    """Return whether only this computer reaches a listener."""
    return listener.host in ("127.0.0.1", "::1")


def _fail(call: Call) -> None:
    call.failed.emit(_GONE)
    call.deleteLater()


def _content(message: Message) -> object:
    """The text of a message, or its pictures and then its text."""
    if not message.attachments:
        return message.text
    urls = (f"data:image;base64,{each.picture}" for each in message.attachments)
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [*pictures, {"type": "text", "text": message.text}]
