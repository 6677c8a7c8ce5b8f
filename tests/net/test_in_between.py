"""Somebody on the network who passes on the bytes of two members, keeps them, and alters them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from potluck.errors import PeerError
from potluck.wire.messages import Address, Ping

pytestmark = pytest.mark.net


class Relay:
    """Passes on what comes to its address, and records what the dialler said.

    Attributes:
        altered: whether each byte of the dialler is altered from now on.
    """

    def __init__(self, target: Address) -> None:
        self.target = target
        self.recorded = bytearray()
        self.altered = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Address]:
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            yield Address(host="127.0.0.1", port=server.sockets[0].getsockname()[1])

    async def _serve(self, here: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        there, on = await asyncio.open_connection(self.target.host, self.target.port)
        await asyncio.gather(self._pass_on(here, on, is_dialler=True), self._pass_on(there, back))

    async def _pass_on(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, *, is_dialler: bool = False
    ) -> None:
        try:
            while data := await source.read(1 << 16):
                if is_dialler:
                    self.recorded += data
                to.write(bytes(b ^ 1 for b in data) if is_dialler and self.altered else data)
        except ConnectionError:
            pass
        to.close()


def test_a_connection_that_was_recorded_opens_nothing_a_second_time(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()
        async with worker.listening(handshake_timeout_s=1.5):
            relay = Relay(worker.address)
            async with relay.running() as between:
                link = await master.dial(worker, home, addresses=[between])
                await link.request(Ping(), timeout_s=30)
                link.close()
                await link.wait_closed()
                await (await worker.links.get()).wait_closed()

                reader, writer = await asyncio.open_connection(worker.address.host, worker.port)
                writer.write(relay.recorded)
                with pytest.raises(asyncio.IncompleteReadError):
                    await reader.readexactly(1 << 20)
                writer.close()
                assert worker.links.empty()

    run(main())


def test_an_altered_byte_ends_the_connection_and_is_no_message(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()
        async with worker.listening():
            relay = Relay(worker.address)
            async with relay.running() as between:
                link = await master.dial(worker, home, addresses=[between])
                theirs = await worker.links.get()
                relay.altered = True
                with pytest.raises(PeerError):
                    await link.request(Ping(), timeout_s=30)
                with pytest.raises(PeerError):
                    await theirs.receive()

    run(main())
