"""Who may connect, how many at once, and how fast they have to be."""

import asyncio
import socket

import pytest
from raw_sockets import close, connect, ends

from potluck.errors import PeerLostError, UnreachableError, UsageError
from potluck.net.listener import Listener
from potluck.net.stream import Stream
from potluck.net.transport import dial_pairing, identify
from potluck.wire.certificates import tls_name
from potluck.wire.messages import Message, Ping

pytestmark = pytest.mark.net


def test_who_says_nothing_is_dropped(house, run) -> None:
    async def main() -> None:
        _, worker, _ = house.pair()
        async with worker.listening(handshake_timeout_s=0.05):
            with await connect(worker.address) as sock:
                assert await ends(sock) == b""

    run(main())


def test_who_sends_its_handshake_byte_by_byte_is_dropped(house, run) -> None:
    async def main() -> None:
        _, worker, _ = house.pair()
        async with worker.listening(handshake_timeout_s=0.1):
            with await connect(worker.address) as sock:
                ending = asyncio.create_task(ends(sock))
                for byte in b"\x16\x03\x01\x02\x00" + bytes(5000):
                    if ending.done():
                        break
                    try:
                        await asyncio.get_running_loop().sock_sendall(sock, bytes([byte]))
                    except ConnectionError:
                        break
                    await asyncio.sleep(0.001)
                await ending

    run(main())


def test_who_shows_its_certificate_and_never_says_hello_is_dropped(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()
        async with worker.listening(handshake_timeout_s=1.5):
            reader, writer = await asyncio.open_connection(
                worker.address.host,
                worker.port,
                ssl=master.identity.client_context(home),
                server_hostname=tls_name(worker.identity.node_id, home),
            )
            assert await reader.read() == b""
            writer.close()
            assert worker.links.empty()

    run(main())


def test_what_is_no_tls_is_dropped(house, run) -> None:
    async def main() -> None:
        _, worker, _ = house.pair()
        async with worker.listening():
            with await connect(worker.address) as sock:
                await asyncio.get_running_loop().sock_sendall(sock, b"GET / HTTP/1.1\r\n\r\n")
                await ends(sock)

    run(main())


def test_strangers_take_a_bounded_number_of_places(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()
        async with worker.listening(strangers_per_address=3):
            silent = [await connect(worker.address) for _ in range(3)]
            with await connect(worker.address) as one_more:
                assert await ends(one_more) == b""
            with pytest.raises(UnreachableError):
                await master.dial(worker, home)
            for sock in silent:
                sock.close()
            while True:  # their places are free again as soon as their end is noticed
                try:
                    link = await master.dial(worker, home)
                    break
                except UnreachableError:
                    continue
            await close(link)

    run(main())


def test_a_stranger_takes_its_place_until_its_socket_is_closed(house, run, monkeypatch) -> None:
    """What it sent was no pairing, and then it neither reads nor closes."""

    async def main() -> None:
        master, worker, _ = house.pair()
        closing, closed = asyncio.Event(), asyncio.Event()

        async def wait_closed(stream: Stream) -> None:
            closing.set()
            await closed.wait()

        monkeypatch.setattr(Stream, "wait_closed", wait_closed)
        async with worker.listening(strangers_per_address=1):
            link = await dial_pairing([worker.address], master.identity)
            link._stream.write([b"garbage" * 100])
            await closing.wait()
            with await connect(worker.address) as one_more:
                assert await ends(one_more) == b""
            with pytest.raises(UnreachableError):
                await dial_pairing([worker.address], master.identity)
            closed.set()
            link._stream.abort()
            again = await dial_pairing([worker.address], master.identity)
            again._stream.abort()

    run(main())


def test_members_do_not_count_as_strangers(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()
        async with worker.listening(strangers_per_address=1):
            links = [await master.dial(worker, home, "weights") for _ in range(5)]
            assert worker.links.qsize() == 5
            await close(*links)

    run(main())


def test_the_preferred_port_is_taken_if_free_else_another(house, run) -> None:
    async def main() -> None:
        _, worker, _ = house.pair()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            preferred = probe.getsockname()[1]
        async with worker.listening(preferred_port=preferred) as first:
            assert first.port == preferred
            async with worker.listening(preferred_port=preferred) as second:
                assert second.port not in (0, preferred)

    run(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "", "192.0.2.77"])
def test_a_port_that_cannot_be_had_is_said_so(house, run, host: str) -> None:
    async def main() -> None:
        _, worker, _ = house.pair()
        async with worker.listening(host="") as first:
            with pytest.raises(UsageError, match="cannot listen"):
                async with worker.listening(host=host, port=first.port):
                    pass

    run(main())


def test_stopping_ends_every_connection_and_its_handler(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()
        ended = asyncio.Event()

        async def on_link(link) -> None:
            await worker.links.put(link)
            try:
                await link.receive()
            finally:
                ended.set()

        async with worker.listening(on_link=on_link):
            link = await master.dial(worker, home)
            silent = await connect(worker.address)
            await worker.links.get()
        assert ended.is_set()
        await link.wait_closed()
        with silent:
            assert await ends(silent) == b""
        with pytest.raises(UnreachableError):
            await identify(worker.address, master.identity)

    run(main())


def test_a_handler_that_fails_ends_its_own_connection_alone(house, run, caplog) -> None:
    async def main() -> None:
        master, worker, home = house.pair()

        async def on_link(link) -> None:
            if link.purpose == "weights":
                raise ZeroDivisionError
            await link.wait_closed()

        async with worker.listening(on_link=on_link):
            good = await master.dial(worker, home, "activations")
            bad = await master.dial(worker, home, "weights")
            await bad.wait_closed()
            assert not good.is_closed
            await close(good)

    run(main())

    assert "ZeroDivisionError" in caplog.text


def test_the_listener_takes_a_home_that_was_joined_later(house, run) -> None:
    async def main() -> None:
        master, worker = house.computer("master"), house.computer("worker")
        async with worker.listening():
            home = house.join(master, worker)
            link = await master.dial(worker, home)
            await close(link)

    run(main())


def test_a_listener_needs_no_context_manager(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()

        async def on_link(link) -> None:
            await link.wait_closed()

        listener = Listener(
            worker.identity, me=lambda: worker.me, on_link=on_link, host="127.0.0.1"
        )
        await listener.start()
        worker.port = listener.port
        link = await master.dial(worker, home)
        await close(link)
        await listener.stop()
        await listener.stop()

    run(main())


def test_a_member_has_a_few_links_of_each_purpose_at_once(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()
        async with worker.listening():
            links = [await master.dial(worker, home, "weights") for _ in range(8)]
            one_more = await master.dial(worker, home, "weights")
            with pytest.raises(PeerLostError, match="too many"):
                await one_more.receive()
            links.append(await master.dial(worker, home, "control"))
            assert not any(link.is_closed for link in links)

            served = await worker.links.get()
            links[0].close()
            await served.wait_closed()
            again = await master.dial(worker, home, "weights")
            await again.request(Ping(), timeout_s=30)
            await close(*links, again, one_more)

    run(main())


def test_it_moves_to_another_port_and_keeps_its_connections(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()
        async with worker.listening() as listener:
            link = await master.dial(worker, home)
            before = worker.address
            await listener.move(before.port)
            with socket.create_server(("127.0.0.1", 0)) as other:
                with pytest.raises(UsageError, match="another program uses it"):
                    await listener.move(other.getsockname()[1])
                assert listener.port == before.port
                free = other.getsockname()[1]
            await listener.move(free)
            worker.port = listener.port
            assert isinstance(await link.request(Ping(), timeout_s=5), Message)
            (await master.dial(worker, home)).close()
            with pytest.raises(UnreachableError):
                await master.dial(worker, home, addresses=[before])
            link.close()

    run(main())


def test_nobody_is_answered_at_an_address_that_is_closed(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()
        closed = {"127.0.0.1"}
        async with worker.listening(is_closed_at=closed.__contains__):
            with pytest.raises(UnreachableError):
                await master.dial(worker, home)
            closed.clear()
            (await master.dial(worker, home)).close()

    run(main())


def test_a_stranger_who_is_one_too_many_costs_no_look_at_the_networks(house, run) -> None:
    async def main() -> None:
        _, worker, _ = house.pair()
        asked: list[str] = []

        def is_closed_at(host: str) -> bool:
            asked.append(host)
            return False

        async with worker.listening(strangers_per_address=1, is_closed_at=is_closed_at):
            with await connect(worker.address):
                for _ in range(3):
                    with await connect(worker.address) as one_more:
                        assert await ends(one_more) == b""
            assert asked == ["127.0.0.1"]

    run(main())
