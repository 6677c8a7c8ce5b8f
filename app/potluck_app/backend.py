"""What the window asks of the node: commands out, answers and tokens in, as Qt signals.

Chats, loads and the role wait for a node if there is none. Every other command fails at once, since nobody
wants a click to act minutes later. Of a node that took the place of another one, the model in use is asked for again.
"""

import secrets
from collections.abc import Callable, Sequence

import msgspec
from PySide6.QtCore import QObject, Signal

from potluck.api.values.pairing import Invite, Pairing, PairingDecision, PairingRequest
from potluck.api.values.pausing import PauseLength, here, pause_end
from potluck.api.values.politeness import Rule
from potluck.api.values.schema import (
    ClusterState,
    ComputerChange,
    LinkTest,
    Listener,
    ListenRequest,
    ModelEntry,
    PlanRequest,
    PlanView,
    RoleRequest,
)
from potluck.api.values.weights import VerifyProgress, VerifyRequest
from potluck_app.chats.values import Message, Settings
from potluck_app.http import Call, Endpoint, EventStream, Problem
from potluck_app.node_connection import Holder, NodeConnection
from potluck_app.streams import Load, Reply

_AS_RECOMMENDED = Settings()
_SEED_BITS = 63  # as many as the node takes


class Backend(NodeConnection):
    """The node, as the views see it.

    Signals:
        problem: a sentence about a failed command that no other part of the window reports.
    """

    problem = Signal(str)

    def __init__(
        self,
        find_or_start: Callable[[], Endpoint],
        *,
        holder: Holder = "window",
        parent: QObject | None = None,
    ) -> None:
        super().__init__(find_or_start, holder=holder, parent=parent)
        self._keys: dict[int, str] = {}  # by port, of the listeners that other computers reach

    # --- after the node was lost

    def _replaced(self, before: ClusterState) -> None:
        self._load_again(before)
        self._open_again(before)

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

    # --- commands

    def chat(
        self,
        messages: Sequence[Message],
        settings: Settings = _AS_RECOMMENDED,
        *,
        goes_on: bool = False,
    ) -> Reply:
        """Ask for a reply to these messages, below the system prompt of the settings.

        With `goes_on`, for the rest of a reply, which is the last of them.
        """
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
        if goes_on:
            body["continue_final_message"] = True
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


def _content(message: Message) -> object:
    """The text of a message, or its pictures and then its text."""
    if not message.attachments:
        return message.text
    urls = (f"data:image;base64,{each.picture}" for each in message.attachments)
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [*pictures, {"type": "text", "text": message.text}]
