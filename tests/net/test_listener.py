"""Who may connect, how many at once, and how fast they have to be."""

import asyncio
import socket
import ssl

import pytest

from potluck.errors import PairingError, PeerLostError, UnreachableError, UsageError
from potluck.net.listener import Listener, PairingLimit, client_key
from potluck.net.stream import CLOSE_TIMEOUT_S, Stream
from potluck.net.transport import Link, PairingLink, dial_pairing, identify
from potluck.wire.certificates import PAIRING_NAME, tls_name
from potluck.wire.frame import encode
from potluck.wire.messages import Address, Ping
from potluck.wire.pairing_messages import PairAccept, PairRefuse

pytestmark = pytest.mark.net


async def ends(sock: socket.socket) -> bytes:
    """What the other side says until it ends the connection."""
    loop = asyncio.get_running_loop()
    received = b""
    try:
        while data := await loop.sock_recv(sock, 1 << 16):
            received += data
    except ConnectionError:
        pass
    return received


async def close(*links: Link | PairingLink) -> None:
    for link in links:
        link.close()
        await link.wait_closed()


async def connect(address: Address) -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (address.host, address.port))
    return sock


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
        async with worker.listening(handshake_timeout_s=0.3):
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


def test_a_pairing_connection_that_says_nothing_is_dropped(house, run) -> None:
    async def main() -> None:
        master, worker, _ = house.pair()
        async with worker.listening(handshake_timeout_s=0.3):
            link = await dial_pairing([worker.address], master.identity)
            with pytest.raises(PairingError):
                await link.receive(timeout_s=5)
            await close(link)
            assert worker.pairings.empty()

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


def test_who_sends_something_else_than_pairing_is_cut_off_at_once(house, run) -> None:
    """It is not waited for until it says goodbye to TLS, which it may never do."""

    async def main() -> None:
        _, worker, _ = house.pair()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname=PAIRING_NAME)
        loop = asyncio.get_running_loop()
        async with worker.listening(handshake_timeout_s=20):
            with await connect(worker.address) as sock:
                while True:
                    try:
                        tls.do_handshake()
                        break
                    except ssl.SSLWantReadError:
                        await loop.sock_sendall(sock, outgoing.read())
                        incoming.write(await loop.sock_recv(sock, 1 << 16))
                tls.write(b"garbage" * 100)
                began = loop.time()
                await loop.sock_sendall(sock, outgoing.read())
                await ends(sock)
                assert loop.time() - began < CLOSE_TIMEOUT_S

    run(main())


def test_members_do_not_count_as_strangers(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()
        async with worker.listening(strangers_per_address=1):
            links = [await master.dial(worker, home, "weights") for _ in range(5)]
            assert worker.links.qsize() == 5
            await close(*links)

    run(main())


def test_pairings_are_limited_and_the_refusal_is_said(house, run) -> None:
    async def main() -> None:
        master, worker, _ = house.pair()
        async with worker.listening(pairings_per_minute=2):
            for _ in range(2):
                link = await dial_pairing([worker.address], master.identity)
                await link.send(PairAccept())
                await worker.pairings.get()
                await close(link)
            link = await dial_pairing([worker.address], master.identity)
            await link.send(PairAccept())
            assert await link.receive(timeout_s=5) == PairRefuse(kind="busy")
            await close(link)
            assert worker.pairings.empty()

    run(main())


def test_a_listener_without_pairing_refuses_it(house, run) -> None:
    async def main() -> None:
        master, worker, _ = house.pair()
        async with worker.listening(on_pairing=None):
            link = await dial_pairing([worker.address], master.identity)
            await link.send(PairAccept())
            assert await link.receive(timeout_s=5) == PairRefuse(kind="busy")
            await close(link)

    run(main())


def test_an_unpaired_computer_understands_nothing_but_pairing(house, run) -> None:
    """Ordinary messages on a pairing connection end it, whatever they are."""

    async def main() -> None:
        master, worker, _ = house.pair()
        async with worker.listening():
            link = await dial_pairing([worker.address], master.identity)
            link._stream.write(encode(Ping(id=1)))
            with pytest.raises(PairingError):
                await link.receive(timeout_s=5)
            await close(link)
            assert worker.pairings.empty()
            assert worker.links.empty()

    run(main())


def test_limits_of_pairing_are_per_address_and_for_a_minute() -> None:
    limit = PairingLimit(2, total=3)

    assert [limit.allows("a", 0.0), limit.allows("a", 1.0), limit.allows("a", 2.0)] == [
        True, True, False,
    ]  # fmt: skip
    assert [limit.allows("b", 3.0), limit.allows("c", 4.0)] == [True, False]  # all together
    assert not limit.allows("a", 59.0)
    assert limit.allows("a", 60.5)


def test_an_ipv6_network_is_one_client() -> None:
    assert client_key("fe80::1%3") == client_key("fe80::2%4") == "fe80::/64"
    assert client_key("192.168.1.7") == "192.168.1.7"


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


def test_a_pairing_name_with_a_members_certificate_is_still_only_pairing(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()
        context = master.identity.client_context(home)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        async with worker.listening(handshake_timeout_s=1.0):
            try:
                _, writer = await asyncio.open_connection(
                    worker.address.host, worker.port, ssl=context, server_hostname=PAIRING_NAME
                )
                writer.close()
            except (ssl.SSLError, ConnectionError):
                pass
            assert worker.links.empty()

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
            await again.request(Ping(), timeout_s=5)
            await close(*links, again, one_more)

    run(main())
