"""A backend that sends nothing, and homes to show, for the tests of views.

`asked` lists what a view has asked for. The test answers with the `Call`s and `Reply`s in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fake_backend import PLAN, computer

from potluck.api.values import schema
from potluck.api.values.pairing import Pairing, PairingState
from potluck_app.backend import Backend, Reply
from potluck_app.chats.values import Message, Settings
from potluck_app.http import Call, Endpoint, Http, Method

ME, MAC, STUDY = "1" * 64, "2" * 64, "3" * 64


@dataclass
class Asked:
    """One request that a view made."""

    method: Method
    path: str
    body: Any
    call: Call = field(repr=False)


def no_node() -> Endpoint:
    raise OSError("there is no node in this test")


class ScriptedBackend(Backend):
    """Shows the states that a test gives it, and records requests."""

    def __init__(self) -> None:
        super().__init__(no_node)
        self.asked: list[Asked] = []
        self.chats: list[list[Message]] = []
        self.settings: list[Settings] = []
        self.replies: list[Reply] = []

    def start(self) -> None:
        """Do nothing: there is no node to look for."""

    def say(self, state: schema.ClusterState) -> None:
        self.state = state
        self._set_connection("connected")
        self.state_changed.emit(state)

    def lose(self) -> None:
        """Behave as if the node was killed."""
        self._set_connection("restarting")

    def chat(
        self,
        messages: Sequence[Message],
        settings: Settings = Settings(),  # noqa: B008 - a value
        *,
        goes_on: bool = False,
    ) -> Reply:
        self.chats.append(list(messages))
        self.settings.append(settings)
        reply = super().chat(messages, settings, goes_on=goes_on)
        self.replies.append(reply)
        return reply

    def paths(self) -> list[str]:
        return [f"{asked.method} {asked.path}" for asked in self.asked]

    def last(self, path: str) -> Asked:
        return next(asked for asked in reversed(self.asked) if asked.path == path)

    def _call(self, method: Method, path: str, body: object = None, answer: Any = None) -> Call:
        call = Call(self)
        self.asked.append(Asked(method, path, body, call))
        return call

    def _submit(self, send: Callable[[Http], None]) -> None:
        """Keep streams open: the test sends their events."""


def home(*others: schema.Computer, **changes: Any) -> schema.ClusterState:
    """Return a home of this computer, called Desk, and these others."""
    me = computer("Desk", "1", is_self=True, paired=False, rtt_ms=None, bytes_per_s=None)
    values: dict[str, Any] = {
        "node": schema.Node(node_id=ME, name="Desk", version="0.1", addresses=("10.0.0.1:4711",)),
        "computers": (me, *others),
    }
    return schema.ClusterState(**(values | changes))


def running_model(**changes: Any) -> schema.ModelState:
    values: dict[str, Any] = {
        "name": "Qwen3 8B",
        "model_id": "ab" * 32,
        "state": "ready",
        "plan": PLAN,
        "context": 2048,
        "tokens_per_s": 7.94,
    }
    return schema.ModelState(**(values | changes))


def study_pc(**changes: Any) -> schema.Computer:
    """Return a computer that offers itself and is not paired."""
    values: dict[str, Any] = {"paired": False, "joinable": True, "state": "found", **changes}
    return computer("Study PC", "3", **values)


def pairing(state: PairingState, **changes: Any) -> Pairing:
    values: dict[str, Any] = {
        "id": "p1",
        "node_id": STUDY,
        "name": "Study PC",
        "role": "master",
        "state": state,
        "code": "427918" if state in ("confirm", "accepted") else None,
    }
    return Pairing(**(values | changes))
