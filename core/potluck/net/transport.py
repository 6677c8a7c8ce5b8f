"""Connections with other computers: dial them, listen for them, pair with them.

`dial` returns a `Link` with a member of a home. `Listener` accepts the connections that others
dial. `dial_pairing` connects with a computer that is not in our home yet.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from potluck.errors import (
    PairingError,
    PeerLostError,
    PotluckError,
    RemoteError,
    UnreachableError,
    UntrustedPeerError,
    VersionMismatchError,
)
from potluck.ids import HomeId, NodeId
from potluck.net.addresses import Identified
from potluck.net.identity import Identity
from potluck.net.link import Link
from potluck.net.link_kind import LINKS, LinkKind, MemberLink, TlsStream, step_links
from potluck.net.listener import DEFAULT_PORT, HANDSHAKE_TIMEOUT_S, Listener
from potluck.net.pairing_link import PairingLink
from potluck.net.reactor import Reactor
from potluck.net.step_link import StepLink
from potluck.net.stream import Stream
from potluck.reasons import reason
from potluck.wire import certificates
from potluck.wire.certificates import PAIRING_NAME, tls_name
from potluck.wire.connection import Connection, Side
from potluck.wire.messages import Address, NodeInfo, Purpose

__all__ = [
    "DEFAULT_PORT",
    "Identified",
    "Link",
    "Listener",
    "PairingLink",
    "StepLink",
    "dial",
    "dial_pairing",
    "dial_steps",
    "identify",
]

DIAL_TIMEOUT_S = 8.0  # a handshake, and the time for a sleeping Wi-Fi adapter to wake up
STAGGER_S = 0.15  # until the next address is tried too; RFC 8305 has 0.25 for the Internet


async def dial(
    addresses: Sequence[Address],
    identity: Identity,
    *,
    home: HomeId,
    peer: NodeId,
    purpose: Purpose,
    me: NodeInfo,
    timeout_s: float = DIAL_TIMEOUT_S,
) -> Link:
    """Connect with a member of a home, at its first address that completes the handshake.

    The addresses are tried in their order. The next one is tried as soon as the one before has
    failed or has taken longer than `STAGGER_S`.

    Raises:
        UnreachableError: no address answers in time.
        UntrustedPeerError: one node does not accept the other as a member of the home.
        VersionMismatchError: the two programs have no protocol version in common.
        RemoteError: the peer refused for another reason.
    """
    called = _Called(identity, home, peer, purpose, me)
    return await _race(lambda address: _dial_one(address, called, LINKS), addresses, timeout_s)


async def dial_steps(
    addresses: Sequence[Address],
    identity: Identity,
    *,
    home: HomeId,
    peer: NodeId,
    me: NodeInfo,
    reactor: Reactor,
    purpose: Purpose = "activations",
    timeout_s: float = DIAL_TIMEOUT_S,
) -> StepLink:
    """Like `dial`, for a connection that threads use without an event loop. This reactor may read it."""
    called, kind = _Called(identity, home, peer, purpose, me), step_links(reactor)
    return await _race(lambda address: _dial_one(address, called, kind), addresses, timeout_s)


async def dial_pairing(
    addresses: Sequence[Address], identity: Identity, *, timeout_s: float = DIAL_TIMEOUT_S
) -> PairingLink:
    """Connect with a computer to pair with it, at its first address that answers.

    Raises:
        UnreachableError: nothing answers there, or something else than Potluck.
    """
    return await _race(lambda address: _open_pairing(address, identity), addresses, timeout_s)


async def _open_pairing(address: Address, identity: Identity) -> PairingLink:
    context = identity.pairing_client_context()
    stream = await _connect(Stream.connect, address, context, PAIRING_NAME)
    certificate = stream.tls.getpeercert(binary_form=True) or b""
    try:
        certificates.peer_certificate(certificate)
    except PairingError as error:
        stream.abort()
        raise UnreachableError(f"What answers at {show(address)} is not Potluck.") from error
    return PairingLink(stream, certificate)


async def identify(
    address: Address, identity: Identity, *, timeout_s: float = DIAL_TIMEOUT_S
) -> Identified:
    """Find out which node answers at an address; the peer does not count this as a pairing.

    Raises:
        UnreachableError: nothing answers there, or something else than Potluck.
    """
    link = await dial_pairing([address], identity, timeout_s=timeout_s)
    link.close()
    assert link.peer_certificate is not None
    certificate = certificates.peer_certificate(link.peer_certificate)
    node_id = NodeId(certificates.public_key_digest(certificate))
    return Identified(node_id=node_id, name=certificates.common_name(certificate))


def show(address: Address) -> str:
    """Format an address as people write it: `192.168.1.5:47777`, `[fd00::2]:47777`."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{host}:{address.port}"


class _HungUpError(UnreachableError):
    """The address answered, but ended the TLS handshake."""


_L = TypeVar("_L", bound=Link | StepLink | PairingLink)


async def _race(
    attempt: Callable[[Address], Awaitable[_L]], addresses: Sequence[Address], timeout_s: float
) -> _L:
    """Return the result of the first attempt that succeeds; all attempts share one deadline."""
    if not addresses:
        raise UnreachableError("No address of that computer is known.")
    race = _Race(attempt)
    try:
        async with asyncio.timeout(timeout_s):
            winner = await race.run(addresses)
    except TimeoutError:
        winner = None
        silent = ", ".join(map(show, race.silent(addresses)))
        race.errors.append(UnreachableError(f"{silent}: no answer within {timeout_s:g} seconds."))
    if winner is None:
        raise _most_telling(race.errors)
    return winner


class _Race(Generic[_L]):
    """Parallel attempts; each begins when the one before has failed or is slow, and one wins."""

    def __init__(self, attempt: Callable[[Address], Awaitable[_L]]) -> None:
        self.errors: list[PotluckError] = []
        self._attempt = attempt
        self._winner: _L | None = None
        self._failed: list[asyncio.Event] = []  # set for each address that has failed
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, addresses: Sequence[Address]) -> _L | None:
        failed = self._failed = [asyncio.Event() for _ in addresses]
        try:
            async with asyncio.TaskGroup() as tasks:
                for index, address in enumerate(addresses):
                    work = self._run_one(address, index, failed)
                    self._tasks.append(tasks.create_task(work))
        except BaseException:
            if self._winner is not None:
                self._winner.close()
            raise
        return self._winner

    def silent(self, addresses: Sequence[Address]) -> Sequence[Address]:
        """Those that have neither answered nor failed."""
        tried = zip(addresses, self._failed, strict=True)
        return [address for address, failed in tried if not failed.is_set()]

    async def _run_one(self, address: Address, index: int, failed: list[asyncio.Event]) -> None:
        if index:
            with suppress(TimeoutError):
                async with asyncio.timeout(index * STAGGER_S):
                    await failed[index - 1].wait()
        try:
            link = await self._attempt(address)
        except PotluckError as error:
            self.errors.append(error)
            failed[index].set()
            return
        if self._winner is not None:
            link.close()
            return
        self._winner = link
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()


@dataclass(frozen=True, slots=True)
class _Called:
    """The peer to connect with, and the purpose of the connection."""

    identity: Identity
    home: HomeId
    peer: NodeId
    purpose: Purpose
    me: NodeInfo


async def _dial_one(
    address: Address, called: _Called, kind: LinkKind[TlsStream, MemberLink]
) -> MemberLink:
    """Try one address. If the peer ends the handshake, ask which node it is to explain why.

    asyncio drops the TLS alert that would give the reason: a `Link` only sees a reset connection.
    """
    try:
        return await _open_link(address, called, kind)
    except (_HungUpError, PeerLostError) as error:
        try:
            found = await identify(address, called.identity)
        except PotluckError:
            raise error from None
        if found.node_id == called.peer:
            raise UntrustedPeerError(
                f"{found.name} does not accept this computer as one of the home. Pair the two again.",
                node_id=called.peer,
            ) from error
        raise UntrustedPeerError(
            f"Another computer answers at {show(address)}: {found.name}.", node_id=found.node_id
        ) from error


async def _open_link(
    address: Address, called: _Called, kind: LinkKind[TlsStream, MemberLink]
) -> MemberLink:
    context = called.identity.client_context(called.home)
    name = tls_name(called.peer, called.home)
    stream = await _connect(kind.connect, address, context, name)
    try:
        member = called.identity.authenticate(stream.tls, called.home)
        assert member is not None
        connection = Connection(
            Side.DIALLER,
            called.me,
            now=asyncio.get_running_loop().time(),
            purpose=called.purpose,
            peer_id=called.peer,
            peer_role=member.role,
        )
        link = kind.link(stream, connection, called.identity, member)
        connection.start()
        await link.open()
    except RemoteError as error:
        stream.close()
        if error.data.get("kind") == UntrustedPeerError.code:
            raise UntrustedPeerError(error.message) from error
        raise
    except BaseException:
        stream.abort()
        raise
    return link


async def _connect(
    connect: Callable[[Address, ssl.SSLContext, str], Awaitable[TlsStream]],
    address: Address,
    context: ssl.SSLContext,
    name: str,
) -> TlsStream:
    """Return a stream after its TLS handshake."""
    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
            return await connect(address, context, name)
    except TimeoutError as error:
        raise UnreachableError(f"{show(address)}: no handshake in time.") from error
    except ssl.SSLCertVerificationError as error:
        raise UntrustedPeerError(
            f"What answers at {show(address)} is not the computer that was called:"
            " it shows another certificate."
        ) from error
    except ssl.SSLError as error:
        if _is_alert(error):
            raise _HungUpError(f"{show(address)}: it ended the handshake.") from error
        raise UnreachableError(f"{show(address)}: what answers there is not Potluck.") from error
    except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError) as error:
        raise _HungUpError(f"{show(address)}: it hung up during the handshake.") from error
    except (
        socket.gaierror,
        UnicodeError,
    ) as error:  # UnicodeError: the host name is not valid in DNS
        raise UnreachableError(f"{show(address)}: no computer has that name.") from error
    except OSError as error:
        why = reason(error, "nothing answers there")
        raise UnreachableError(f"{show(address)}: {why}.") from error


def _is_alert(error: ssl.SSLError) -> bool:
    """Whether the peer refused us by a TLS alert."""
    reason = error.reason or ""
    return "_ALERT_" in reason or reason == "TLSV1_UNRECOGNIZED_NAME"


_TELLING = (UntrustedPeerError, VersionMismatchError, RemoteError)


def _most_telling(errors: Sequence[PotluckError]) -> PotluckError:
    """The most helpful error: a refusal says more than an address that does not answer."""
    for kind in _TELLING:
        for error in errors:
            if isinstance(error, kind):
                return error
    reasons = "; ".join(dict.fromkeys(error.message.rstrip(".") for error in errors))
    return UnreachableError(
        f"The computer cannot be reached at {reasons}. Is it switched on, in the same"
        " network, and does its firewall let Potluck in?"
    )
