"""Flow control and the end of a byte stream."""

import array
import asyncio

import pytest
from net_links import linked

from potluck.errors import PeerLostError, PeerTimeoutError
from potluck.net.limits import LinkLimits
from potluck.net.link import Link
from potluck.net.link_kind import links
from potluck.net.secure_socket import address_of
from potluck.wire.messages import Chunk

pytestmark = pytest.mark.net


async def send_for_ever(link: Link, chunk: bytes) -> None:
    while True:
        await link.send(Chunk(digest="ab" * 32, offset=0, total=len(chunk)), chunk)


def test_a_peer_that_takes_nothing_any_more_is_given_up(house, run) -> None:
    chunk = bytes(8 << 20)
    kind = links(LinkLimits(stall_s=0.05))

    async def main() -> None:
        async with linked(house, "weights", kind=kind) as (ours, theirs):
            ours._stream.pause_reading()
            with pytest.raises(PeerTimeoutError, match="has taken nothing"):
                await send_for_ever(theirs, chunk)
            await theirs.wait_closed()

    run(main())


def test_who_waits_to_write_hears_of_the_end(house, run) -> None:
    chunk = bytes(8 << 20)

    async def main() -> None:
        master, worker, home = house.pair()
        async with worker.listening():
            ours = await master.dial(worker, home, "weights")
            theirs = await worker.links.get()
            theirs._stream.pause_reading()

            sending = asyncio.create_task(send_for_ever(ours, chunk))
            while ours._stream.is_writable:  # noqa: ASYNC110 - until it has to wait
                await asyncio.sleep(0)
            theirs._stream.abort()
            with pytest.raises(PeerLostError):
                await sending
            await ours.wait_closed()

    run(main())


def test_a_view_of_numbers_is_sent_as_its_bytes(house, run) -> None:
    numbers = array.array("f", range(1000))

    async def main() -> None:
        master, worker, home = house.pair()
        async with worker.listening():
            ours = await master.dial(worker, home, "weights")
            theirs = await worker.links.get()
            await ours.send(Chunk(digest="ab" * 32, offset=0, total=4000), memoryview(numbers))
            await ours.send(Chunk(digest="ab" * 32, offset=0, total=3), b"end")

            assert (await theirs.receive())[1] == numbers.tobytes()
            assert (await theirs.receive())[1] == b"end"
            ours.close()
            await ours.wait_closed()

    run(main())


def test_an_address_keeps_the_zone_that_it_needs() -> None:
    assert address_of(("10.0.0.1", 5)).host == "10.0.0.1"
    assert address_of(("fe80::1", 5, 0, 3)).host == "fe80::1%3"
    assert address_of(("fd00::1", 5, 0, 0)).host == "fd00::1"
    assert address_of(("::ffff:10.0.0.1", 5, 0, 0)).host == "10.0.0.1"
