"""Links over real sockets and real TLS: messages, payloads, back-pressure."""

import asyncio

import pytest
from net_links import DIGEST, forward, linked

from potluck.errors import (
    PeerLostError,
)
from potluck.net.limits import LINK_LIMITS, LinkLimits
from potluck.net.link_kind import links
from potluck.wire.frame import encode
from potluck.wire.measuring_messages import Blob
from potluck.wire.messages import (
    Chunk,
    Ping,
    Status,
    Stored,
)

pytestmark = pytest.mark.net


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
            assert theirs._inbox_bytes <= LINK_LIMITS.inbox + len(chunk) + 1024
            assert sent < count
            for _ in range(count):
                await theirs.receive()
            await sending
            assert theirs._is_reading

    run(main())


@pytest.mark.slow
def test_a_peer_that_asks_and_never_reads_is_cut_off(house, run) -> None:
    kind = links(LinkLimits(unread_answers=50))

    async def main() -> None:
        async with linked(house, "activations", kind=kind) as (ours, theirs):
            ours._stream.pause_reading()
            payload = bytes(1 << 20)
            while theirs._stream.is_writable:  # until the way back is full
                theirs.send_nowait(forward(payload), payload)
            theirs.send_nowait(forward(payload), payload)  # more than a reader takes that pauses
            pings = [encode(Ping(id=i + 1))[0] for i in range(100)]
            ours._stream.write(pings)
            await theirs.wait_closed()
            with pytest.raises(PeerLostError, match="does not read"):
                await theirs.receive()

    run(main())


def test_blobs_are_answered_by_every_link_itself(house, run) -> None:
    async def main() -> None:
        async with linked(house, "weights") as (ours, theirs):
            answer = await ours.request(Blob(), payload=bytes(1000), timeout_s=30)
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


def test_clocks_are_compared_by_what_the_peer_said_when_the_link_was_opened(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()
        worker.clock = 5000.0
        async with worker.listening():
            ours = await master.dial(worker, home)
            theirs = await worker.links.get()

            assert ours.clock_ahead_s(4000.0) == pytest.approx(1000.0, abs=20.0)
            assert ours.clock_ahead_s(9000.0) == pytest.approx(-4000.0, abs=20.0)
            assert theirs.clock_ahead_s(4000.0) is None  # the master said no time
            ours.close()
            await ours.wait_closed()

    run(main())
