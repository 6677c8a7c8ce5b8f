"""Pairing messages over real TLS, and what ends them."""

import asyncio
import ssl

import pytest
from raw_sockets import close, connect, ends

from potluck.errors import PairingError, PeerTimeoutError
from potluck.net.listener import PairingLimit, client_key
from potluck.net.stream import CLOSE_TIMEOUT_S
from potluck.net.transport import PairingLink, dial_pairing
from potluck.wire.certificates import PAIRING_NAME
from potluck.wire.frame import encode
from potluck.wire.messages import Ping, Unload
from potluck.wire.pairing_messages import PairAccept, PairBegin, PairNonce, PairRefuse

pytestmark = pytest.mark.net


def test_certificates_and_nonces_travel_unchanged(house, run) -> None:
    async def main() -> None:
        master, worker, _ = house.pair()
        begin = PairBegin(
            versions=(1,),
            name="Desktop ü",
            certificate=master.identity.certificate_der,
            commitment=bytes(range(32)),
        )
        answer = PairNonce(version=1, name="worker", nonce=bytes(range(32, 64)))
        async with worker.listening():
            ours = await dial_pairing([worker.address], master.identity)
            await ours.send(begin)
            theirs = await worker.pairings.get()
            assert await theirs.receive(timeout_s=30) == begin
            await theirs.send(answer)
            assert await ours.receive(timeout_s=30) == answer
            ours.close()
            await ours.wait_closed()

    run(main())


def test_silence_ends_at_the_deadline_and_the_link_lives(house, run) -> None:
    async def main() -> None:
        master, worker, _ = house.pair()
        async with worker.listening():
            ours = await dial_pairing([worker.address], master.identity)
            await ours.send(PairAccept())
            theirs = await worker.pairings.get()
            with pytest.raises(PeerTimeoutError, match="has not answered"):
                await ours.receive(timeout_s=0.01)
            await theirs.send(PairAccept())
            assert await ours.receive(timeout_s=30) == PairAccept()
            ours.close()
            await ours.wait_closed()

    run(main())


def test_the_other_sides_end_is_said(house, run) -> None:
    async def main() -> None:
        master, worker, _ = house.pair()
        async with worker.listening():
            ours = await dial_pairing([worker.address], master.identity)
            await ours.send(PairAccept())
            theirs = await worker.pairings.get()
            await theirs.send(PairAccept())
            theirs.close()
            assert await ours.receive(timeout_s=30) == PairAccept()  # said before it ended
            with pytest.raises(PairingError, match="ended the pairing"):
                await ours.receive(timeout_s=30)
            with pytest.raises(PairingError):
                await ours.send(PairAccept())
            await ours.wait_closed()

    run(main())


async def receive_all(link: PairingLink) -> None:
    while True:
        await link.receive(timeout_s=30)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        encode(Unload(id=1, epoch=1))[0],
        encode(PairAccept())[0] * 20,
        encode(PairAccept())[0][:-1] + b"\xff",
    ],
    ids=["nonsense", "an ordinary message", "a flood", "a broken message"],
)
def test_what_is_no_pairing_ends_it(house, run, said: bytes) -> None:
    async def main() -> None:
        master, worker, _ = house.pair()
        async with worker.listening():
            ours = await dial_pairing([worker.address], master.identity)
            await ours.send(PairAccept())
            theirs = await worker.pairings.get()
            ours._stream.write([said])
            with pytest.raises(PairingError):
                await receive_all(theirs)
            await theirs.wait_closed()
            await ours.wait_closed()

    run(main())


def test_a_pairing_connection_that_says_nothing_is_dropped(house, run) -> None:
    async def main() -> None:
        master, worker, _ = house.pair()
        async with worker.listening(handshake_timeout_s=1.5):
            link = await dial_pairing([worker.address], master.identity)
            with pytest.raises(PairingError):
                await link.receive(timeout_s=30)
            await close(link)
            assert worker.pairings.empty()

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
            assert await link.receive(timeout_s=30) == PairRefuse(kind="busy")
            await close(link)
            assert worker.pairings.empty()

    run(main())


def test_a_listener_without_pairing_refuses_it(house, run) -> None:
    async def main() -> None:
        master, worker, _ = house.pair()
        async with worker.listening(on_pairing=None):
            link = await dial_pairing([worker.address], master.identity)
            await link.send(PairAccept())
            assert await link.receive(timeout_s=30) == PairRefuse(kind="busy")
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
                await link.receive(timeout_s=30)
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
