"""How a link ends: closed, broken, revoked, or silent for too long."""

import asyncio
from dataclasses import replace

import pytest
from net_links import DIGEST, linked

from potluck.errors import (
    PeerLostError,
)
from potluck.ids import NodeId
from potluck.net.interfaces import Interface
from potluck.net.peer_link import end_avoided, open_links
from potluck.wire.connection import HEARTBEAT_INTERVAL_S, LOST_AFTER_S
from potluck.wire.frame import encode
from potluck.wire.messages import (
    Chunk,
    Error,
    Ping,
    StepFailed,
)

pytestmark = pytest.mark.net


FAILED = StepFailed(epoch=1, session="s", step=1, kind="engine", message="text")


def test_what_was_sent_before_closing_is_received_before_the_end(house, run) -> None:
    async def main() -> None:
        async with linked(house, "weights") as (ours, theirs):
            payload = bytes(8 << 20)
            ours.send_nowait(Chunk(digest=DIGEST, offset=0, total=len(payload)), payload)
            ours.close("we are done")

            _, received = await theirs.receive()
            assert received.nbytes == len(payload)
            with pytest.raises(PeerLostError, match="we are done"):
                await theirs.receive()

    run(main())


def test_links_of_every_purpose_end_in_a_network_that_is_not_used(house, run) -> None:
    async def main() -> None:
        loopback = Interface("127.0.0.1", 8, 1, is_virtual=False, name="lo")
        master, worker, home = house.pair()
        async with worker.listening():
            links = [await master.dial(worker, home, each) for each in ("control", "weights")]
            theirs = [await worker.links.get() for _ in links]
            end_avoided(open_links(worker.identity), [loopback])
            assert len(list(open_links(worker.identity))) == 2
            end_avoided(open_links(worker.identity), [replace(loopback, is_used=False)])
            assert not list(open_links(worker.identity))
            assert all(link.is_closed for link in theirs)
            for link in links:
                with pytest.raises(PeerLostError, match="uses another network now"):
                    await link.receive()

    run(main())


def test_after_the_end_everything_says_so(house, run) -> None:
    async def main() -> None:
        async with linked(house) as (ours, theirs):
            waiting = asyncio.create_task(theirs.receive())
            asking = asyncio.create_task(theirs.request(Ping(), timeout_s=30))
            await asyncio.sleep(0)
            ours.close()
            for task in (waiting, asking):
                with pytest.raises(PeerLostError):
                    await task
            await theirs.wait_closed()
            assert theirs.is_closed
            with pytest.raises(PeerLostError):
                theirs.send_nowait(FAILED)
            with pytest.raises(PeerLostError):
                await theirs.send(FAILED)
            with pytest.raises(PeerLostError):
                await theirs.request(Ping(), timeout_s=30)
            with pytest.raises(PeerLostError):
                await theirs.receive()
            theirs.close()  # without effect

    run(main())


def test_half_a_frame_and_then_the_end_is_a_lost_peer(house, run) -> None:
    async def main() -> None:
        async with linked(house, "weights") as (ours, theirs):
            header, _ = encode(Chunk(digest=DIGEST, offset=0, total=1000), bytes(1000))
            ours._stream.write([header, bytes(10)])
            ours._stream.close()
            with pytest.raises(PeerLostError, match="closed the connection unexpectedly"):
                await theirs.receive()

    run(main())


def test_a_connection_that_breaks_is_a_lost_peer(house, run) -> None:
    async def main() -> None:
        async with linked(house) as (ours, theirs):
            ours._stream.abort()
            with pytest.raises(PeerLostError):
                await theirs.receive()

    run(main())


def test_nonsense_ends_the_connection_and_says_why(house, run) -> None:
    async def main() -> None:
        async with linked(house) as (ours, theirs):
            ours._stream.write([b"GET / HTTP/1.1\r\n\r\n"])
            with pytest.raises(PeerLostError, match="is not Potluck"):
                await theirs.receive()
            told, _ = await ours.receive()
            assert isinstance(told, Error)
            assert told.kind == "remote_protocol"
            with pytest.raises(PeerLostError):
                await ours.receive()

    run(main())


def test_a_revoked_peer_is_cut_off_at_once(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()
        async with worker.listening():
            ours = await master.dial(worker, home)
            theirs = await worker.links.get()
            other = await master.dial(worker, home, "weights")
            master.identity.revoke(NodeId(worker.identity.node_id))
            for link in (ours, other):
                assert link.is_closed
                with pytest.raises(PeerLostError, match="was removed"):
                    await link.receive()
            with pytest.raises(PeerLostError):
                await theirs.receive()

    run(main())


def test_leaving_a_home_ends_its_connections(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()
        async with worker.listening():
            ours = await master.dial(worker, home)
            theirs = await worker.links.get()
            worker.identity.remove_home(home)
            assert theirs.is_closed
            with pytest.raises(PeerLostError):
                await ours.receive()

    run(main())


class Clock:
    """The event loop's clock, moved by the test."""

    def __init__(self, link) -> None:
        self._link = link
        self._loop = link._loop
        self.ahead = 0.0
        link._loop = self

    def time(self) -> float:
        return self._loop.time() + self.ahead

    def call_at(self, when, callback):
        return self._loop.call_at(self._loop.time() + 1e9, callback)  # only the test ticks

    def create_future(self):
        return self._loop.create_future()

    def pass_time(self, seconds: float) -> None:
        """In the steps in which the link wants to be called, with nothing heard meanwhile."""
        until = self.ahead + seconds
        while self.ahead < until and not self._link.is_closed:
            self.ahead = min(until, self.ahead + HEARTBEAT_INTERVAL_S / 4)
            self._link._tick()


def test_a_peer_that_is_silent_for_three_heartbeats_is_lost(house, run) -> None:
    async def main() -> None:
        async with linked(house) as (ours, _):
            clock = Clock(ours)
            clock.pass_time(2 * HEARTBEAT_INTERVAL_S + 0.2)
            assert not ours.is_closed
            clock.pass_time(LOST_AFTER_S - 2 * HEARTBEAT_INTERVAL_S)
            with pytest.raises(PeerLostError, match="has not been heard"):
                await ours.receive()
            assert LOST_AFTER_S < 3

    run(main())


def test_a_peer_that_is_heard_again_is_not_lost(house, run) -> None:
    async def main() -> None:
        async with linked(house) as (ours, _):
            clock = Clock(ours)
            for _ in range(4):
                clock.pass_time(2 * HEARTBEAT_INTERVAL_S)  # two missed
                await ours.request(Ping(), timeout_s=30)
            assert not ours.is_closed
            assert ours.rtt_s is not None

    run(main())


def test_links_without_heartbeats_may_be_silent(house, run) -> None:
    async def main() -> None:
        async with linked(house, "weights") as (ours, _):
            clock = Clock(ours)
            clock.pass_time(60)
            assert not ours.is_closed

    run(main())
