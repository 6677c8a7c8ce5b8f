"""What a stage does with messages whose links have ended. The rest is tested with real processes."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from fake_cluster import run

from potluck.cluster.compute_thread import ComputeThread
from potluck.cluster.stage_chain import LoadedStage, StageChain
from potluck.errors import PeerLostError
from potluck.ids import HomeId
from potluck.wire.messages import Attach, Message, NodeInfo, OpenSession, Result, StepFailed

HOME = HomeId("home")
RESULT = Result(epoch=1, session="s", step=1, position=2, token_id=3)


class FakeLink:
    home, peer_role = HOME, "master"
    peer = NodeInfo(node_id="0" * 64, name="Desk", version="1", os="", arch="")

    def __init__(self, *, is_closed: bool = False, is_revoked: bool = False) -> None:
        self.is_closed, self.is_revoked = is_closed, is_revoked
        self.sent: list[Message] = []

    def send_nowait(self, message: Message, payload: memoryview) -> None:
        if self.is_closed:
            raise PeerLostError("gone")
        self.sent.append(message)


class FakeStage:
    def __init__(self) -> None:
        self.opened: list[str] = []
        self.weights = SimpleNamespace(device=torch.device("cuda", 0))
        self.error: Exception | None = None

    def open(self, session: str, *, epoch: int) -> None:
        if self.error is not None:
            raise self.error
        self.opened.append(session)


class Bench:
    def __init__(self) -> None:
        self.deaths = 0
        self.thread, self.failed = ComputeThread(self._die), list[StepFailed]()
        self.stage = FakeStage()
        self.chain = StageChain("Laptop", self.thread, self.failed.append)
        self.loaded = LoadedStage(HOME, 1, None, cast("Any", self.stage), None)
        self.chain.loaded = self.loaded

    def _die(self) -> None:
        self.deaths += 1

    def receive(self, link: FakeLink, message: Message) -> None:
        self.chain._receive(cast("Any", link), message, memoryview(b""))


def test_results_that_are_held_go_to_the_driver_that_attaches() -> None:
    async def main() -> None:
        bench, link = Bench(), FakeLink()
        bench.loaded.held.extend([RESULT, RESULT])
        bench.receive(link, Attach(epoch=1))
        assert link.sent == [RESULT, RESULT]
        assert not bench.loaded.held
        bench.thread.reactor.close()

    run(main())


def test_a_driver_that_is_gone_when_it_attaches_leaves_them_to_the_next() -> None:
    async def main() -> None:
        bench, link = Bench(), FakeLink()
        bench.loaded.held.append(RESULT)
        bench.receive(FakeLink(is_closed=True), Attach(epoch=1))
        bench.receive(link, Attach(epoch=1))
        assert link.sent == [RESULT]
        bench.thread.reactor.close()

    run(main())


def test_what_a_removed_computer_had_sent_is_not_done() -> None:
    async def main() -> None:
        bench = Bench()
        bench.receive(FakeLink(is_closed=True, is_revoked=True), OpenSession(epoch=1, session="a"))
        bench.receive(FakeLink(), OpenSession(epoch=1, session="b"))
        await asyncio.sleep(0)
        assert bench.stage.opened == ["b"]
        bench.thread.reactor.close()

    run(main())


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_process_whose_gpu_is_lost_ends_and_one_that_failed_in_a_step_does_not(
    monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    def synchronize(_: torch.device) -> None:
        if is_lost:
            raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)

    async def main() -> None:
        bench = Bench()
        bench.stage.error = RuntimeError("CUDA error: unspecified launch failure")
        bench.receive(FakeLink(), OpenSession(session="s", epoch=1))
        assert bench.deaths == int(is_lost)
        bench.thread.reactor.close()

    run(main())
