"""A stage's `StageChain` between links and a stage that compute nothing."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import torch

from potluck.cluster.stage.chain import StageChain
from potluck.cluster.stage.loaded import LoadedStage
from potluck.cluster.stage.scheduler import Scheduler
from potluck.engine.sampling.sampler import Choice
from potluck.engine.session import Output, StepTokens
from potluck.errors import PeerLostError
from potluck.ids import HomeId
from potluck.wire.activation_messages import (
    Forward,
)
from potluck.wire.messages import Message, NodeInfo, StepFailed

HOME = HomeId("home")


class FakeLink:
    def __init__(
        self,
        *,
        is_closed: bool = False,
        is_revoked: bool = False,
        home: HomeId = HOME,
        role: str = "master",
        node: str = "0",
    ) -> None:
        self.is_closed, self.is_revoked = is_closed, is_revoked
        self.home, self.peer_role = home, role
        self.peer = NodeInfo(node_id=node * 64, name="Desk", version="1", os="", arch="")
        self.sent: list[Message] = []

    def send_nowait(self, message: Message, payload: bytes | memoryview = b"") -> None:
        if self.is_closed:
            raise PeerLostError("gone")
        self.sent.append(message)


class FakeStage:
    def __init__(self) -> None:
        self.opened: list[str] = []
        self.weights = SimpleNamespace(device=torch.device("cpu"))
        self.error: Exception | None = None
        self.failing = dict[str, Exception]()  # by session
        self.together: list[int] = []  # how many steps of each forward pass
        self.head: object | None = object()
        self.sends_ids = False
        self.restored: list[Callable[[int], object]] = []  # to be called when the disk is done

    def open(self, session: str, *, epoch: int, source: str | None, position: int) -> None:
        if self.error is not None:
            raise self.error
        self.opened.append(session)

    def restore(
        self, session: str, prefix: bytes, most: int, *, epoch: int, done: Callable[[int], object]
    ) -> None:
        if self.error is not None:
            raise self.error
        self.restored.append(done)

    def forward_together(self, steps: Sequence[StepTokens]) -> list[Output | Exception]:
        if self.error is not None:
            raise self.error
        self.together.append(len(steps))
        return [
            self.failing.get(step.session)
            or Output(position=step.position + 1, choice=Choice(token_id=3))
            for step in steps
        ]


class Bench:
    def __init__(self) -> None:
        self.deaths = 0
        self.scheduler, self.failed = Scheduler(), list[StepFailed]()
        self.stage = FakeStage()
        self.chain = StageChain("Laptop", self.scheduler, self.failed.append, self._die)
        self.loaded = LoadedStage(HOME, 1, None, cast("Any", self.stage), None)
        self.chain.loaded = self.loaded

    def _die(self) -> None:
        self.deaths += 1

    def receive(self, link: FakeLink, message: Message) -> None:
        tokens = message.tensor.shape[0] if isinstance(message, Forward) else 1
        self.scheduler.put(cast("Any", link), message, memoryview(bytes(4 * tokens)))
        self.go_on()

    def go_on(self) -> None:
        while (group := self.scheduler.next()) is not None:
            self.chain.run_group(group)
