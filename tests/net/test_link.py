"""Links over real sockets and real TLS: messages, requests, back-pressure, heartbeats, the end."""

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest

from potluck.errors import (
    LocalProtocolError,
    NotEnoughMemoryError,
    PeerLostError,
    PeerTimeoutError,
    RemoteError,
)
from potluck.ids import NodeId
from potluck.net import link as link_module
from potluck.net.control_link import ControlLink
from potluck.wire.connection import HEARTBEAT_INTERVAL_S, LOST_AFTER_S
from potluck.wire.frame import encode
from potluck.wire.measuring_messages import Blob, Profile
from potluck.wire.messages import (
    Chunk,
    CloseSession,
    Error,
    Forward,
    Ping,
    Pong,
    Revoked,
    Status,
    StepFailed,
    Stored,
    TensorHeader,
    Unload,
    Unloaded,
)

pytestmark = pytest.mark.net

DIGEST = "ab" * 32
FAILED = StepFailed(epoch=1, session="s", step=1, kind="engine", message="text")


@asynccontextmanager
async def linked(house, purpose="control"):
    """The master's link to the worker, and the worker's of the same connection."""
    master, worker, home = house.pair()
    async with worker.listening():
        ours = await master.dial(worker, home, purpose)
        theirs = await worker.links.get()
        try:
            yield ours, theirs
        finally:
            ours.close()
            await ours.wait_closed()


def forward(payload: bytes) -> Forward:
    shape = (len(payload),)
    return Forward(
        epoch=1, session="s", step=1, position=0, tensor=TensorHeader(dtype="U8", shape=shape)
    )


def test_messages_and_payloads_arrive_in_order(house, run) -> None:
    async def main() -> None:
        async with linked(house, "activations") as (ours, theirs):
            payloads = [bytes([i]) * (1 + 99_991 * i) for i in range(20)]
            for payload in payloads:
                await ours.send(forward(payload), payload)

            for payload in payloads:
                message, received = await theirs.receive()
                assert message == forward(payload)
                assert received == payload

    run(main())


def test_a_payload_may_be_changed_after_it_was_sent(house, run) -> None:
    async def main() -> None:
        async with linked(house, "weights") as (ours, theirs):
            data = bytearray(b"x" * (4 << 20))
            ours.send_nowait(Chunk(digest=DIGEST, offset=0, total=len(data)), data)
            data[:] = b"y" * len(data)

            _, received = await theirs.receive()
            assert received == b"x" * len(data)

    run(main())


def test_a_receiver_gets_what_waits_and_what_comes(house, run) -> None:
    async def main() -> None:
        async with linked(house, "activations") as (ours, theirs):
            got: asyncio.Queue[Any] = asyncio.Queue()
            ours.send_nowait(CloseSession(epoch=1, session="first"))
            ours.send_nowait(CloseSession(epoch=1, session="second"))
            message, _ = await theirs.receive()
            theirs.deliver_to(lambda message, _: got.put_nowait(message))
            ours.send_nowait(CloseSession(epoch=1, session="third"))

            names = [message.session, (await got.get()).session, (await got.get()).session]
            assert names == ["first", "second", "third"]

    run(main())


def test_a_sender_waits_while_the_receiver_does_not_receive(house, run) -> None:
    """Neither side's memory grows with what is sent: the sender stops, and goes on when received."""
    chunk = bytes(4 << 20)
    count = 32  # 128 MiB, far above what both sides and the kernel hold

    async def main() -> None:
        async with linked(house, "weights") as (ours, theirs):
            sent = 0

            async def send() -> None:
                nonlocal sent
                for _ in range(count):
                    await ours.send(Chunk(digest=DIGEST, offset=0, total=len(chunk)), chunk)
                    sent += 1

            sending = asyncio.create_task(send())
            while theirs._is_reading:  # noqa: ASYNC110 - until the receiver's inbox is full
                await asyncio.sleep(0)
            assert theirs._inbox_bytes <= link_module.INBOX_LIMIT + len(chunk) + 1024
            assert sent < count
            for _ in range(count):
                await theirs.receive()
            await sending
            assert theirs._is_reading

    run(main())


def test_a_request_gets_its_own_answer(house, run) -> None:
    async def handler(message, payload):
        await released[message.epoch].wait()
        return Unloaded(epoch=message.epoch)

    released = {1: asyncio.Event(), 2: asyncio.Event()}

    async def main() -> None:
        async with linked(house) as (ours, theirs), asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(serve(theirs, handler))
            first = tasks.create_task(ours.request(Unload(epoch=1), timeout_s=5))
            second = tasks.create_task(ours.request(Unload(epoch=2), timeout_s=5))
            released[2].set()
            assert (await second).epoch == 2
            released[1].set()
            assert (await first).epoch == 1
            ours.close()
            await serving

    run(main())


async def serve(link, handler) -> None:
    with pytest.raises(PeerLostError):
        await ControlLink(link).run(handler)


@pytest.mark.parametrize(
    ("raised", "kind"),
    [(NotEnoughMemoryError(2, 1), "not_enough_memory"), (KeyError("secret"), "internal")],
)
def test_a_handlers_error_is_the_answer_and_the_link_lives(house, run, raised, kind) -> None:
    async def handler(message, payload):
        if message.epoch == 1:
            raise raised
        return Unloaded(epoch=message.epoch)

    async def main() -> None:
        async with linked(house) as (ours, theirs), asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(serve(theirs, handler))
            with pytest.raises(RemoteError) as caught:
                await ours.request(Unload(epoch=1), timeout_s=5)
            assert caught.value.data["kind"] == kind
            assert "secret" not in caught.value.message
            assert (await ours.request(Unload(epoch=2), timeout_s=5)).epoch == 2
            ours.close()
            await serving

    run(main())


def test_a_hostile_errors_data_is_only_data(house, run) -> None:
    async def main() -> None:
        async with linked(house) as (ours, theirs):
            asking = asyncio.create_task(ours.request(Unload(epoch=1), timeout_s=5))
            message, _ = await theirs.receive()
            data: dict[str, str | int | float | bool | None] = {"message": "x", "self": 1}
            theirs.send_nowait(Error(re=message.id, kind="k", message="m", data=data))
            with pytest.raises(RemoteError) as caught:
                await asking
            assert caught.value.data == {"message": "x", "self": 1, "kind": "k"}

    run(main())


def test_a_request_that_nobody_handles_is_answered_so(house, run) -> None:
    async def handler(message, payload):
        return None

    async def main() -> None:
        async with linked(house) as (ours, theirs), asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(serve(theirs, handler))
            with pytest.raises(RemoteError, match="not answered"):
                await ours.request(Unload(epoch=1), timeout_s=5)
            ours.close()
            await serving

    run(main())


def test_notices_are_handled_in_order_and_before_later_requests(house, run) -> None:
    handled: list[int] = []

    async def handler(message, payload):
        await asyncio.sleep(0)
        match message:
            case Revoked(node_ids=node_ids):
                handled.append(len(node_ids))
            case Unload(epoch=epoch):
                handled.append(-epoch)
                return Unloaded(epoch=epoch)
        return None

    async def main() -> None:
        async with linked(house) as (ours, theirs), asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(serve(theirs, handler))
            for count in range(5):
                ours.send_nowait(Revoked(node_ids=(DIGEST,) * count))
            await ours.request(Unload(epoch=7), timeout_s=5)
            ours.close()
            await serving

    run(main())

    assert handled == [0, 1, 2, 3, 4, -7]


def test_a_request_without_an_answer_ends_and_the_late_answer_is_dropped(house, run) -> None:
    async def main() -> None:
        async with linked(house) as (ours, theirs):
            with pytest.raises(PeerTimeoutError, match="worker has not answered"):
                await ours.request(Unload(epoch=1), timeout_s=0.02)
            message, _ = await theirs.receive()
            theirs.send_nowait(Unloaded(re=message.id, epoch=1))

            assert isinstance(await theirs.request(Ping(), timeout_s=5), Pong)
            assert not ours.is_closed

    run(main())


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


def test_after_the_end_everything_says_so(house, run) -> None:
    async def main() -> None:
        async with linked(house) as (ours, theirs):
            waiting = asyncio.create_task(theirs.receive())
            asking = asyncio.create_task(theirs.request(Ping(), timeout_s=5))
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
                await theirs.request(Ping(), timeout_s=5)
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


def test_what_is_not_for_the_peers_role_is_unknown_to_it(house, run) -> None:
    async def main() -> None:
        async with linked(house) as (ours, theirs):
            with pytest.raises(RemoteError) as caught:
                await theirs.request(
                    Profile(config={}, scheme="f32", tokens=1), timeout_s=5
                )  # a worker asks its master
            assert caught.value.data["kind"] == "unknown_op"
            assert not ours.is_closed

    run(main())


def test_our_own_mistake_is_ours_and_ends_nothing(house, run) -> None:
    async def main() -> None:
        async with linked(house) as (ours, _):
            with pytest.raises(LocalProtocolError):
                await ours.request(FAILED, timeout_s=1)
            assert not ours.is_closed

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
                await ours.request(Ping(), timeout_s=5)
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


@pytest.mark.slow
def test_a_peer_that_asks_and_never_reads_is_cut_off(house, run, monkeypatch) -> None:
    monkeypatch.setattr(link_module, "MAX_UNREAD_ANSWERS", 50)

    async def main() -> None:
        async with linked(house, "activations") as (ours, theirs):
            ours._stream.pause_reading()
            payload = bytes(1 << 20)
            while theirs._stream.is_writable:  # until the way back is full
                theirs.send_nowait(forward(payload), payload)
            pings = [encode(Ping(id=i + 1))[0] for i in range(100)]
            ours._stream.write(pings)
            await theirs.wait_closed()
            with pytest.raises(PeerLostError, match="does not read"):
                await theirs.receive()

    run(main())


def test_blobs_are_answered_by_every_link_itself(house, run) -> None:
    async def main() -> None:
        async with linked(house, "weights") as (ours, theirs):
            answer = await ours.request(Blob(), payload=bytes(1000), timeout_s=5)
            assert answer.nbytes == 1000
            theirs.send_nowait(Stored(digest=DIGEST))
            assert (await ours.receive())[0] == Stored(digest=DIGEST)

    run(main())


def test_a_worker_tells_what_it_lends(house, run) -> None:
    async def main() -> None:
        async with linked(house) as (ours, theirs):
            theirs.send_nowait(Status(devices=()))
            assert (await ours.receive())[0] == Status(devices=())

    run(main())
