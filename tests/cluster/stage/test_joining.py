"""What a rank does if the others choose what it cannot do, or do not come in time."""

import asyncio
import threading
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from chain_bench import FakeLink
from fake_cluster import run, until
from transfer_wire import NOTHING

from potluck.cluster.stage.joining import agree
from potluck.cluster.stage.ranks import Links
from potluck.engine.rank_sums.collective import Transport, end_communicator, new_communicator
from potluck.errors import PeerTimeoutError, RemoteProtocolError
from potluck.wire.messages import Address, Hop, Message, RankPlace
from potluck.wire.rank_messages import ChooseSums, OfferSums

HOP = Hop(node_id="9" * 64, addresses=(Address(host="127.0.0.1", port=4000),))
PLACE = RankPlace(rank=1, hops=(HOP, HOP))


class RankZero(FakeLink):
    """The connection with rank 0, which says these."""

    def __init__(self, *says: Message) -> None:
        super().__init__()
        self._says = deque(says)

    def send_nowait(self, message: Message, payload: bytes | memoryview = NOTHING) -> None:
        super().send_nowait(message, payload)

    async def receive(self) -> list[tuple[Message, memoryview]]:
        return [(self._says.popleft(), NOTHING)]

    def close(self, reason: str = "") -> None:
        self.is_closed = True


class Meeting:
    """A group of devices, which others join late."""

    def __init__(self) -> None:
        self.may_go_on, self.is_aborted = threading.Event(), False

    def join(self, *_: object) -> "Meeting":
        self.may_go_on.wait(10)
        return self

    def allreduce(self, rows: torch.Tensor) -> SimpleNamespace:
        rows.fill_(2)
        return SimpleNamespace(is_completed=lambda: True, wait=lambda: None)

    def abort(self) -> None:
        self.is_aborted = True


def links_of(link: RankZero) -> Links:
    return Links(sums=cast("Any", {0: link}), steps=())


@pytest.mark.parametrize("by", ["memory", "devices"])
def test_a_rank_does_not_sum_in_another_way_than_the_others(by: Any) -> None:
    async def main() -> None:
        link = RankZero(OfferSums(), ChooseSums(by=by))
        with pytest.raises(RemoteProtocolError, match=f"by {by}, which this rank cannot do"):
            await agree(links_of(link), PLACE)
        assert link.is_closed

    run(main())


def test_devices_that_meet_when_nobody_waits_any_more_part_again() -> None:
    async def main() -> None:
        meeting, communicator = Meeting(), new_communicator()
        transport = Transport(device=torch.device("cpu"), join=meeting.join)
        link = RankZero(OfferSums(communicator=communicator), ChooseSums(by="devices"))
        try:
            with pytest.raises(PeerTimeoutError):
                await agree(links_of(link), PLACE, transport, patience_s=0.05)
            assert link.is_closed
            meeting.may_go_on.set()
            async with asyncio.timeout(10):
                await until(lambda: meeting.is_aborted)
        finally:
            end_communicator(communicator)

    run(main())
