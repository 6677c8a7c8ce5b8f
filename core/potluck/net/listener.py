"""Accepts connections of members and for pairing: TLS, with IPv4 and IPv6 on one port.

Everybody on the network may connect. A computer that has not authenticated yet therefore gets only
a few seconds, few connections at a time, and few pairings per minute.
"""

import asyncio
import errno
import ipaddress
import logging
import socket
import ssl
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeAlias

from potluck.errors import PairingError, PotluckError, UntrustedPeerError, UsageError
from potluck.ids import HomeId, short
from potluck.net.identity import Identity
from potluck.net.link import error_message
from potluck.net.link_kind import LINKS, LinkKind, MemberLink
from potluck.net.pairing_link import PairingLink
from potluck.net.secure_socket import SecureSocket, address_of
from potluck.net.stream import Stream
from potluck.reasons import reason
from potluck.sockets import own_port
from potluck.tasks import TaskSet, end
from potluck.wire.connection import Connection, Side
from potluck.wire.frame import encode
from potluck.wire.messages import NodeInfo, Purpose
from potluck.wire.pairing_messages import PairRefuse

logger = logging.getLogger(__name__)

DEFAULT_PORT = 47777  # in the user range, not registered for any service
HANDSHAKE_TIMEOUT_S = 5.0  # TLS and hello: three round trips, and a signature on a slow computer
MAX_UNAUTHENTICATED = 64  # connections not authenticated yet, over all addresses
MAX_UNAUTHENTICATED_PER_ADDRESS = 16  # a computer of a home opens three to each peer
MAX_LINKS_PER_PEER = 8  # of one purpose; one in use, a second while it is replaced
MAX_PAIRINGS_PER_MINUTE = 6  # per address; a person needs one, or two after a typo
MAX_PAIRINGS_ALL = 30  # per minute, of all addresses together: one sender may use a whole /64
_MINUTE_S = 60.0
_BACKLOG = 64

OnLink: TypeAlias = Callable[[MemberLink], Coroutine[Any, Any, None]]
OnPairing: TypeAlias = Callable[[PairingLink], Coroutine[Any, Any, None]]


class Listener(Generic[MemberLink]):
    """Accepts connections from `start` to `stop`, or inside `async with`.

    A connection's handler runs in a task of the listener. The link is closed when the handler
    returns, and the task is cancelled when the listener stops.

    Args:
        identity: whose homes are served.
        me: returns this node's own description; called for each connection.
        on_link: handles each open link with a member of a home.
        kind: the kind of the links that `on_link` gets.
        on_pairing: handles each connection for pairing, once its first message has arrived; None:
            pairing is not served.
        host: an IP address to listen on; empty for all of them.
        port: 0 means `preferred_port` if that is free, otherwise any free port.
        is_closed_at: whether nobody is answered who connects with this address of this computer.
        pairings_per_minute: the limit for one address.
        strangers_per_address: connections from one address that are not authenticated yet.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        me: Callable[[], NodeInfo],
        on_link: OnLink[MemberLink],
        kind: LinkKind[Any, MemberLink] = LINKS,
        on_pairing: OnPairing | None = None,
        host: str = "",
        port: int = 0,
        preferred_port: int | None = None,
        is_closed_at: Callable[[str], bool] = lambda _: False,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
        pairings_per_minute: int = MAX_PAIRINGS_PER_MINUTE,
        strangers_per_address: int = MAX_UNAUTHENTICATED_PER_ADDRESS,
    ) -> None:
        self.port = 0
        self._identity = identity
        self._me = me
        self._on_link = on_link
        self._kind = kind
        self._on_pairing = on_pairing
        self._host = host
        self._wanted = port
        self._preferred_port = preferred_port
        self._is_closed_at = is_closed_at
        self._handshake_timeout_s = handshake_timeout_s
        self._strangers_per_address = strangers_per_address
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._waiting: set[socket.socket] = set()  # accepted, but not yet taken over by a task
        self._tasks = TaskSet()
        self._unauthenticated: Counter[str] = Counter()
        self._links: Counter[tuple[HomeId, str, Purpose]] = Counter()
        self._pairings = PairingLimit(pairings_per_minute)
        self._context: ssl.SSLContext | None = None

    async def start(self, port: int | None = None) -> None:
        """Begin to listen. `port`: another one than it was made with.

        Raises:
            UsageError: the requested port is taken, or the host is not an address of this computer.
        """
        self._context = self._identity.server_context()
        self._open(self._wanted if port is None else port)

    async def move(self, port: int) -> None:
        """Listen at another port. The connections of before go on.

        Args:
            port: as at the start; 0 means `preferred_port` if that is free, otherwise any free port.

        Raises:
            UsageError: the port is taken. It listens where it did.
        """
        if port == self.port or (not port and self.port == self._preferred_port):
            return
        before, accepting = self._sockets, self._accepting
        self._open(port)
        for task in accepting:
            await end(task)
        for listening in before:
            listening.close()

    def _open(self, port: int) -> None:
        self._sockets = open_sockets(self._host, port, self._preferred_port)
        self.port = self._sockets[0].getsockname()[1]
        self._accepting = [self._tasks.spawn(self._accept(each)) for each in self._sockets]
        logger.info("listening port=%d", self.port)

    async def stop(self) -> None:
        """Close the sockets, cancel every connection's handler and wait for it."""
        await self._tasks.stop()
        for sock in (*self._sockets, *self._waiting):
            sock.close()
        self._sockets.clear()
        self._waiting.clear()

    async def __aenter__(self) -> "Listener[MemberLink]":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        is_failing = False
        while True:
            try:
                accepted, name = await loop.sock_accept(listening)
            except OSError as error:  # no file descriptors left, or the client is gone
                if not is_failing:
                    logger.warning("cannot accept a connection: %s", error)
                is_failing = True
                await asyncio.sleep(0.1)
                continue
            is_failing = False
            key = client_key(address_of(name).host)
            if (
                self._unauthenticated.total() >= MAX_UNAUTHENTICATED
                or self._unauthenticated[key] >= self._strangers_per_address
            ):
                logger.debug("too many connections that do not say who they are address=%s", key)
                accepted.close()
                continue
            if self._is_refused(accepted):
                accepted.close()
                continue
            self._unauthenticated[key] += 1
            self._waiting.add(accepted)
            self._tasks.spawn(self._serve(accepted, key))

    def _is_refused(self, accepted: socket.socket) -> bool:
        try:
            return self._is_closed_at(accepted.getsockname()[0])
        except OSError:  # the client is gone
            return True

    async def _serve(self, accepted: socket.socket, key: str) -> None:
        """Serve one connection, from its first byte to its end.

        A stranger keeps its place until its socket is closed, or until it has shown who it is.
        """
        stream: Stream | SecureSocket | None = None
        link: MemberLink | PairingLink | None = None
        try:
            async with asyncio.timeout(self._handshake_timeout_s):
                stream = await self._handshake(accepted)
                link = await self._authenticate(stream, key)
            if link is not None:
                self._release(key)
            if isinstance(link, PairingLink):
                if self._on_pairing is not None:
                    await self._on_pairing(link)
            elif link is not None:
                await self._serve_link(link)
        except (TimeoutError, OSError, PotluckError) as error:  # expected of strangers
            logger.info("connection ended address=%s reason=%s", key, error or "too slow")
        except Exception:
            logger.exception("a connection's handler failed address=%s", key)
        finally:
            if link is not None:
                link.close()
            elif stream is not None:
                stream.close()  # it may have been told why
            if stream is not None:
                await stream.wait_closed()
            if link is None:
                self._release(key)

    async def _handshake(self, accepted: socket.socket) -> Stream | SecureSocket:
        assert self._context is not None
        self._waiting.discard(accepted)
        return await self._kind.accept(accepted, self._context)

    async def _authenticate(
        self, stream: Stream | SecureSocket, key: str
    ) -> MemberLink | PairingLink | None:
        """Return an open link with a member, a pairing link with its first message, or None."""
        try:
            peer = self._identity.authenticate(stream.tls)
        except UntrustedPeerError as error:
            stream.write(encode(error_message(error)))
            raise
        if peer is None:
            if not isinstance(stream, Stream):
                return None  # it only asked which node this is, and has our certificate
            return await self._begin_pairing(PairingLink(stream, None), key)
        connection = Connection(
            Side.LISTENER,
            self._me(),
            now=asyncio.get_running_loop().time(),
            peer_id=peer.node_id,
            peer_role=peer.role,
        )
        link = self._kind.link(stream, connection, self._identity, peer)
        await link.open()
        return link

    async def _serve_link(self, link: MemberLink) -> None:
        key = (link.home, link.peer.node_id, link.purpose)
        if self._links[key] >= MAX_LINKS_PER_PEER:
            logger.warning("too many %s links peer=%s", link.purpose, short(link.peer.node_id))
            link.close("This computer has too many connections with you already.")
            return
        self._links[key] += 1
        try:
            await self._on_link(link)
        finally:
            self._links[key] -= 1
            if not self._links[key]:
                del self._links[key]

    async def _begin_pairing(self, link: PairingLink, key: str) -> PairingLink | None:
        """Wait for the first message. A peer that uses `identify` sends none and is not counted."""
        try:
            await link.wait_first()
        except PairingError:
            return None
        now = asyncio.get_running_loop().time()
        if self._on_pairing is None or not self._pairings.allows(key, now):
            logger.warning("too many pairings address=%s", key)
            await link.send(PairRefuse(kind="busy"))
            link.close()
            return None
        return link

    def _release(self, key: str) -> None:
        self._unauthenticated[key] -= 1
        if not self._unauthenticated[key]:
            del self._unauthenticated[key]


class PairingLimit:
    """Limits how many pairings may begin in a minute, from one address and from all."""

    def __init__(self, per_address: int, total: int = MAX_PAIRINGS_ALL) -> None:
        self._per_address = per_address
        self._total = total
        self._begun: deque[tuple[float, str]] = deque()

    def allows(self, key: str, now: float) -> bool:
        """Return whether one more pairing may begin now, and count it if so."""
        while self._begun and self._begun[0][0] <= now - _MINUTE_S:
            self._begun.popleft()
        same = sum(1 for _, other in self._begun if other == key)
        if same >= self._per_address or len(self._begun) >= self._total:
            return False
        self._begun.append((now, key))
        return True


def client_key(host: str) -> str:
    """The key of one client: its IPv4 address, or its IPv6 /64, where it may use any address."""
    ip = ipaddress.ip_address(host.partition("%")[0])
    if ip.version == 4:
        return str(ip)
    return str(ipaddress.ip_network(f"{ip}/64", strict=False))


def open_sockets(host: str, port: int, preferred_port: int | None) -> list[socket.socket]:
    """Open listening sockets on one port, one per address family that this computer has."""
    candidates = [port] if port else [preferred_port or 0, 0, 0, 0]
    why = ""
    for candidate in candidates:
        try:
            return _bind(host, candidate)
        except OSError as error:
            why = reason(error)
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                break
    if port:
        raise UsageError(f"Potluck cannot listen at port {port}: {why}. Choose another.")
    raise UsageError(f"Potluck cannot listen at any port of this computer: {why}.")


def _bind(host: str, port: int) -> list[socket.socket]:
    if host:
        version = ipaddress.ip_address(host).version
        return [_listen(socket.AF_INET if version == 4 else socket.AF_INET6, host, port)]
    sockets = [_listen(socket.AF_INET, "0.0.0.0", port)]  # noqa: S104 - TLS, and members alone
    if socket.has_ipv6:
        try:
            sockets.append(_listen(socket.AF_INET6, "::", sockets[0].getsockname()[1]))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                sockets[0].close()
                raise
            logger.info("no IPv6 on this computer: %s", error)
    return sockets


def _listen(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        own_port(listening)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening
