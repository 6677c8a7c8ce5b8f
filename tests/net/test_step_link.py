"""Step links over real sockets and real TLS: steps in and out, back-pressure, the end, strangers."""

import asyncio
import socket
import ssl
from contextlib import asynccontextmanager, suppress

import pytest

from potluck.errors import PeerLostError, UnreachableError, UntrustedPeerError
from potluck.net.limits import LINK_LIMITS, LinkLimits
from potluck.net.link_kind import step_links
from potluck.net.reactor import ReactorThread
from potluck.net.secure_socket import SecureSocket
from potluck.net.transport import dial_steps, identify
from potluck.wire.activation_messages import Attach, CloseSession, Forward, Result, TensorHeader
from potluck.wire.certificates import tls_name
from potluck.wire.frame import encode
from potluck.wire.messages import Address, Ping

pytestmark = pytest.mark.net


class Ends:
    """A stage's listener whose links a thread reads, and who dials it."""

    def __init__(self, house, limits: LinkLimits = LINK_LIMITS) -> None:
        self._limits = limits  # of the links that are accepted
        self.master, self.worker, self.home = house.pair()
        self.threads = [ReactorThread("worker"), ReactorThread("master")]
        self.accepted: asyncio.Queue = asyncio.Queue()

    async def __aenter__(self) -> "Ends":
        for thread in self.threads:
            thread.start()

        async def on_link(link) -> None:
            self.accepted.put_nowait(link)
            await link.wait_closed()

        kind = step_links(self.threads[0].reactor, self._limits)
        self._listening = self.worker.listening(on_link=on_link, on_pairing=None, kind=kind)
        await self._listening.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listening.__aexit__(None, None, None)
        for thread in self.threads:
            thread.stop()
            thread.join(10)

    async def dial(self, **options):
        link = await dial_steps(
            options.pop("addresses", [self.worker.address]),
            self.master.identity,
            home=self.home,
            peer=options.pop("peer", self.worker.identity.node_id),
            me=self.master.me,
            reactor=self.threads[1].reactor,
        )
        return link, await self.accepted.get()


@asynccontextmanager
async def linked(house, **limits):
    async with Ends(house, LinkLimits(**limits)) as ends:
        ours, theirs = await ends.dial()
        try:
            yield ours, theirs
        finally:
            ours.close()


def inbox(link) -> asyncio.Queue:
    """What a link brings, from its thread into the test's loop."""
    loop, got = asyncio.get_running_loop(), asyncio.Queue()
    link.deliver_to(
        lambda message, payload: loop.call_soon_threadsafe(got.put_nowait, (message, payload))
    )
    return got


def forward(payload: bytes, step: int = 1) -> Forward:
    tensor = TensorHeader(dtype="U8", shape=(len(payload),))
    return Forward(epoch=1, session="s", step=step, position=0, tensor=tensor)


def test_both_know_each_other_as_their_certificates_say(house, run) -> None:
    async def main() -> None:
        async with linked(house) as (ours, theirs):
            assert (ours.peer.name, theirs.peer.name) == ("worker", "master")
            assert (ours.peer_role, theirs.peer_role) == ("worker", "master")
            assert ours.purpose == theirs.purpose == "activations"
            assert ours.home == theirs.home

    run(main())


def test_steps_arrive_in_order_both_ways(house, run) -> None:
    async def main() -> None:
        async with linked(house) as (ours, theirs):
            payloads = [bytes([i]) * (1 + 99_991 * i) for i in range(12)]
            got, back = inbox(theirs), inbox(ours)
            for payload in payloads:
                ours.send_nowait(forward(payload), payload)
                theirs.send_nowait(Result(epoch=1, session="s", step=len(payload), position=1))
            for payload in payloads:
                message, received = await got.get()
                assert message == forward(payload)
                assert received == payload
                assert (await back.get())[0].step == len(payload)

    run(main())


def test_what_is_sent_before_anybody_listens_is_kept(house, run) -> None:
    async def main() -> None:
        async with linked(house) as (ours, theirs):
            ours.send_nowait(Attach(epoch=1))
            ours.send_nowait(forward(b"abc"), b"abc")
            got = inbox(theirs)
            assert (await got.get())[0] == Attach(epoch=1)
            assert (await got.get())[1] == b"abc"

    run(main())


def test_a_payload_may_be_changed_after_it_was_sent(house, run) -> None:
    async def main() -> None:
        async with linked(house) as (ours, theirs):
            inbox(ours)
            data = bytearray(b"x" * (32 << 20))
            ours.send_nowait(forward(bytes(data)), data)
            assert ours.has_backlog  # more than the kernel takes at once
            data[:] = b"y" * len(data)
            _, received = await inbox(theirs).get()
            assert received == b"x" * len(data)

    run(main())


def test_who_takes_nothing_is_given_up_at_some_point(house, run) -> None:
    data = bytes(32 << 20)

    async def main() -> None:
        async with linked(house, backlog=96 << 20) as (_, theirs):
            for _ in range(3):  # the kernel takes some of it
                theirs.send_nowait(forward(data), data)
            with pytest.raises(PeerLostError, match="takes nothing"):
                theirs.send_nowait(forward(data), data)

    run(main())


def test_who_has_taken_nothing_for_a_while_is_given_up(house, run) -> None:
    data = bytes(32 << 20)  # more than the kernel takes

    async def main() -> None:
        async with linked(house, stall_s=0.0) as (_, theirs):
            with pytest.raises(PeerLostError, match="takes nothing"):
                theirs.send_nowait(forward(data), data)

    run(main())


def test_who_asks_and_never_reads_is_cut_off(house, run) -> None:
    data = bytes(32 << 20)

    async def main() -> None:
        async with linked(house, unread_answers=50) as (ours, theirs):
            theirs.send_nowait(forward(data), data)  # so that the way back is full
            assert theirs.has_backlog
            inbox(theirs)
            with ours._lock, suppress(OSError):  # it may be cut off before all is asked
                for number in range(100):
                    ours._stream.write(encode(Ping(id=number + 1)))
            await theirs.wait_closed()
            assert "does not read" in str(theirs.error)

    run(main())


def test_a_step_is_not_held_back_to_be_sent_with_the_next_one(house, run) -> None:
    async def main() -> None:
        async with linked(house) as links:
            for link in links:
                sock = link._stream._socket
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    run(main())


def test_a_link_that_nobody_serves_closes_its_socket_itself(house, run) -> None:
    async def main() -> None:
        async with linked(house) as (ours, _):
            ours.close()
            assert ours.fileno() == -1

    run(main())


def test_the_next_address_of_a_name_is_tried_where_nobody_answers_at_the_first(
    house, run, monkeypatch
) -> None:
    async def main() -> None:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            async with Ends(house) as ends:
                both = [nobody.getsockname(), ("127.0.0.1", ends.worker.address.port)]

                async def resolve(*_: object, **__: object) -> list:
                    return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", name) for name in both]

                monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
                ours, _ = await ends.dial(addresses=[Address(host="worker.local", port=1)])
                ours.close()

    run(main())


def test_a_failure_of_ours_ends_one_link_and_no_thread(house, run, monkeypatch) -> None:
    async def main() -> None:
        async with Ends(house) as ends:
            ours, theirs = await ends.dial()
            inbox(theirs)

            def fail() -> None:
                raise MemoryError

            monkeypatch.setattr(theirs._connection, "next_event", fail)
            ours.send_nowait(Attach(epoch=1))
            await theirs.wait_closed()
            again, accepted = await ends.dial()
            got = inbox(accepted)
            again.send_nowait(Attach(epoch=2))
            assert (await got.get())[0] == Attach(epoch=2)
            ours.close()
            again.close()

    run(main())


def test_the_end_is_told_with_its_reason_after_what_came_before(house, run) -> None:
    async def main() -> None:
        async with linked(house) as (ours, theirs):
            got = inbox(theirs)
            ours.send_nowait(CloseSession(epoch=1, session="last"))
            ours.close("the plan changed")
            await theirs.wait_closed()
            assert (await got.get())[0].session == "last"
            assert "the plan changed" in str(theirs.error)
            with pytest.raises(PeerLostError):
                theirs.send_nowait(Attach(epoch=1))
            with pytest.raises(PeerLostError):
                ours.send_nowait(Attach(epoch=1))

    run(main())


def test_a_peer_that_vanishes_is_lost(house, run) -> None:
    async def main() -> None:
        async with linked(house) as (ours, theirs):
            inbox(theirs)
            ours._stream.abort()
            await theirs.wait_closed()
            assert isinstance(theirs.error, PeerLostError)

    run(main())


def test_what_is_no_frame_ends_the_link_and_says_why(house, run) -> None:
    async def main() -> None:
        async with linked(house) as (ours, theirs):
            inbox(theirs)
            back = inbox(ours)
            with ours._lock:
                ours._stream.write([b"nonsense, and enough of it"])
            await theirs.wait_closed()
            await ours.wait_closed()
            assert "is not Potluck" in str(theirs.error)
            assert (await back.get())[0].kind == "remote_protocol"

    run(main())


def test_what_does_not_belong_here_is_answered_and_the_link_lives(house, run) -> None:
    async def main() -> None:
        async with linked(house) as (ours, theirs):
            got = inbox(theirs)
            back = inbox(ours)
            with ours._lock:
                ours._connection.request(Ping())
            ours.send_nowait(Attach(epoch=2))
            assert (await got.get())[0] == Attach(epoch=2)
            assert back.empty()

    run(main())


def test_who_was_removed_is_cut_off_at_once(house, run) -> None:
    async def main() -> None:
        async with Ends(house) as ends:
            ours, theirs = await ends.dial()
            inbox(ours)
            inbox(theirs)
            ends.master.identity.revoke(ends.worker.identity.node_id)
            assert ours.is_closed
            assert ours.is_revoked
            await theirs.wait_closed()
            with pytest.raises(PeerLostError, match="removed from the home"):
                ours.send_nowait(Attach(epoch=1))

    run(main())


def test_who_was_removed_while_it_connected_is_cut_off_too(house, run, monkeypatch) -> None:
    async def main() -> None:
        async with Ends(house) as ends:
            trusted = iter([True])  # by the handshake of TLS, and then no more
            monkeypatch.setattr(ends.master.identity, "trusts", lambda peer: next(trusted, False))
            ours, _ = await ends.dial()
            assert ours.is_revoked

    run(main())


def test_another_computer_at_the_address_is_told_from_the_one_called(house, run) -> None:
    async def main() -> None:
        async with Ends(house) as ends:
            other = house.computer("other")
            house_peer = other.identity.node_id
            with pytest.raises(UntrustedPeerError, match="Another computer answers"):
                await ends.dial(peer=house_peer)

    run(main())


def test_who_only_asks_who_is_there_is_told(house, run) -> None:
    async def main() -> None:
        async with Ends(house) as ends:
            found = await identify(ends.worker.address, ends.master.identity)
            assert found.node_id == ends.worker.identity.node_id

    run(main())


def test_nobody_there_is_an_error_with_the_address(house, run) -> None:
    async def main() -> None:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            port = nobody.getsockname()[1]
            async with Ends(house) as ends:
                with pytest.raises(UnreachableError, match=str(port)):
                    await ends.dial(addresses=[Address(host="127.0.0.1", port=port)])

    run(main())


def test_what_speaks_no_tls_is_not_potluck(house, run) -> None:
    async def main() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        master, worker, home = house.pair()
        context = master.identity.client_context(home)
        with pytest.raises(ssl.SSLError):
            await SecureSocket.connect(
                Address(host="127.0.0.1", port=port),
                context,
                tls_name(worker.identity.node_id, home),
            )
        server.close()
        await server.wait_closed()

    run(main())
