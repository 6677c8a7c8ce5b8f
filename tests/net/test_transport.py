"""Dialling over real sockets and real TLS, on loopback."""

import asyncio
import socket
from contextlib import ExitStack

import pytest

from potluck.errors import UnreachableError, UntrustedPeerError, VersionMismatchError
from potluck.net import transport
from potluck.net.transport import dial_pairing, identify
from potluck.wire.messages import Address
from potluck.wire.pairing_messages import PairAccept, PairDone

pytestmark = pytest.mark.net


def test_two_computers_of_a_home_connect_and_know_who_the_other_is(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()
        async with worker.listening():
            link = await master.dial(worker, home)
            seen = await worker.links.get()

            assert (link.peer, link.peer_role, link.home) == (worker.me, "worker", home)
            assert (seen.peer, seen.peer_role, seen.home) == (master.me, "master", home)
            assert (link.purpose, seen.purpose) == ("control", "control")
            assert link.remote == worker.address
            link.close()
            await link.wait_closed()

    run(main())


def test_a_workers_certificate_is_seen_as_a_workers(house, run) -> None:
    async def main() -> None:
        master, one, home = house.pair()
        two = house.computer("two")
        house.join(master, two)
        async with one.listening():
            link = await two.dial(one, home, "activations")
            seen = await one.links.get()

            assert seen.peer_role == "worker"
            link.close()
            await link.wait_closed()

    run(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_listener_on_every_address_has_both_ips(house, run, host: str) -> None:
    async def main() -> None:
        master, worker, home = house.pair()
        async with worker.listening(host="") as listener:
            link = await master.dial(
                worker, home, addresses=[Address(host=host, port=listener.port)]
            )
            assert link.remote.host == host
            link.close()
            await link.wait_closed()

    run(main())


def test_who_does_not_answer_is_named_beside_who_refused(house, run) -> None:
    async def main() -> None:
        computer = house.computer("desk")
        with silent_socket() as silent, refused_port() as refused:
            ports = (refused, silent)
            addresses = [Address(host="127.0.0.1", port=port) for port in ports]
            with pytest.raises(UnreachableError) as caught:
                await dial_pairing(addresses, computer.identity, timeout_s=0.5)

        assert f"127.0.0.1:{silent}: no answer within 0.5 seconds. Is it" in caught.value.message
        assert f"at 127.0.0.1:{refused}: " in caught.value.message

    run(main())


def test_the_first_address_that_works_is_kept(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()
        with silent_socket() as silent, refused_port() as refused:
            async with worker.listening():
                link = await master.dial(
                    worker,
                    home,
                    addresses=[
                        Address(host="127.0.0.1", port=silent),
                        Address(host="127.0.0.1", port=refused),
                        worker.address,
                    ],
                )

                assert link.remote == worker.address
                assert worker.links.qsize() == 1
                link.close()
                await link.wait_closed()

    run(main())


def test_an_address_where_nobody_is_is_named(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()
        with refused_port() as worker.port, pytest.raises(UnreachableError, match=r"127\.0\.0\.1:"):
            await master.dial(worker, home)
        with pytest.raises(UnreachableError):
            await master.dial(worker, home, addresses=[])

    run(main())


def test_dialling_somebody_silent_ends_at_the_deadline(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()
        with silent_socket() as worker.port:
            with pytest.raises(UnreachableError, match="no answer"):
                await master.dial(worker, home, timeout_s=0.05)
            with pytest.raises(UnreachableError, match="no answer"):
                await dial_pairing([worker.address], master.identity, timeout_s=0.05)

    run(main())


@pytest.mark.slow
def test_pairing_does_not_wait_for_addresses_where_nobody_answers(house, run) -> None:
    """Several of them, one after the other, would take half a minute; all have one deadline."""

    async def main() -> None:
        master, worker, _ = house.pair()
        with ExitStack() as silent:
            ports = [silent.enter_context(silent_socket()) for _ in range(5)]
            nobody = [Address(host="127.0.0.1", port=port) for port in ports]
            async with worker.listening():
                link = await dial_pairing([*nobody, worker.address], master.identity)
                assert link.remote == worker.address
                link.close()
            loop = asyncio.get_running_loop()
            began = loop.time()
            with pytest.raises(UnreachableError, match="no answer"):
                await dial_pairing(nobody, master.identity, timeout_s=0.5)
            assert loop.time() - began < 5

    run(main())


def test_what_speaks_no_tls_is_unreachable(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()

        class Mail(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                transport.write(b"220 mail.example.org ready\r\n")
                transport.close()

        server = await asyncio.get_running_loop().create_server(Mail, "127.0.0.1", 0)
        async with server:
            worker.port = server.sockets[0].getsockname()[1]
            with pytest.raises(UnreachableError):
                await master.dial(worker, home)
            with pytest.raises(UnreachableError):
                await dial_pairing([worker.address], master.identity)

    run(main())


def test_another_computer_at_the_address_is_refused(house, run) -> None:
    async def main() -> None:
        master, one, home = house.pair()
        two = house.computer("two")
        house.join(master, two)
        async with two.listening():
            with pytest.raises(UntrustedPeerError, match=r"Another computer answers.*two"):
                await master.dial(two, home, peer=one.identity.node_id)

    run(main())


def test_a_computer_that_left_the_home_says_so(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()
        worker.identity.remove_home(home)
        async with worker.listening():
            with pytest.raises(UntrustedPeerError, match="Pair the two again"):
                await master.dial(worker, home)

    run(main())


def test_a_revoked_computer_is_told_and_refused(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()
        master.identity.revoke(worker.identity.node_id)
        async with master.listening():
            with pytest.raises(UntrustedPeerError, match="was removed from this home"):
                await worker.dial(master, home)
            assert master.links.empty()

    run(main())


def test_a_certificate_of_another_home_is_refused(house, run) -> None:
    """The stranger has a certificate, of its own home, and knows all names of the other."""

    async def main() -> None:
        master, worker, home = house.pair()
        thief = house.computer("thief")
        own = thief.identity.create_home("thief's")
        context = thief.identity.client_context(own.home_id)
        context.load_verify_locations(cadata=master.identity.homes[home].ca_pem.decode())
        thief.identity.client_context = lambda _: context
        thief.identity.trusts = lambda _: True
        async with worker.listening():
            with pytest.raises(UntrustedPeerError, match="does not accept"):
                await thief.dial(worker, home)
            assert worker.links.empty()

    run(main())


def test_versions_too_far_apart_are_a_sentence_on_the_dialler(house, run, monkeypatch) -> None:
    class Newer(transport.Connection):
        def __init__(self, *args, **options) -> None:
            super().__init__(*args, versions=(99,), **options)

    monkeypatch.setattr(transport, "Connection", Newer)

    async def main() -> None:
        master, worker, home = house.pair()
        async with worker.listening():
            with pytest.raises(VersionMismatchError, match="Update Potluck on worker"):
                await master.dial(worker, home)

    run(main())


def test_pairing_sees_the_listeners_certificate_and_carries_messages(house, run) -> None:
    async def main() -> None:
        master, worker, _ = house.pair()
        async with worker.listening():
            link = await dial_pairing([worker.address], master.identity)
            await link.send(PairAccept())
            other = await worker.pairings.get()
            await other.send(PairDone())

            assert link.peer_certificate == worker.identity.certificate_der
            assert other.peer_certificate is None
            assert await other.receive(timeout_s=30) == PairAccept()
            assert await link.receive(timeout_s=30) == PairDone()
            link.close()
            await link.wait_closed()

    run(main())


def test_identifying_needs_no_pairing(house, run) -> None:
    async def main() -> None:
        master, worker, _ = house.pair()
        async with worker.listening(pairings_per_minute=1):
            for _ in range(3):
                found = await identify(worker.address, master.identity)

                assert found.node_id == worker.identity.node_id
                assert found.name == "worker"
            assert worker.pairings.empty()

    run(main())


def test_a_dial_that_is_cancelled_leaves_no_connection(house, run) -> None:
    async def main() -> None:
        master, worker, home = house.pair()
        async with worker.listening():
            task = asyncio.create_task(master.dial(worker, home))
            link = await worker.links.get()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await link.wait_closed()

            assert link.is_closed

    run(main())


def test_addresses_are_shown_as_people_write_them() -> None:
    assert transport.show(Address(host="10.0.0.1", port=1)) == "10.0.0.1:1"
    assert transport.show(Address(host="fd00::2", port=1)) == "[fd00::2]:1"


class silent_socket:  # noqa: N801 - used as a function is
    """A port that accepts and says nothing."""

    def __enter__(self) -> int:
        self._socket = socket.create_server(("127.0.0.1", 0))
        return self._socket.getsockname()[1]

    def __exit__(self, *_: object) -> None:
        self._socket.close()


class refused_port:  # noqa: N801
    """A port that is taken and where nobody listens."""

    def __enter__(self) -> int:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        return self._socket.getsockname()[1]

    def __exit__(self, *_: object) -> None:
        self._socket.close()
