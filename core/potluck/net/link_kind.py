"""The two kinds of links between members of a home, as `dial` and `Listener` make them."""

import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from potluck.net.identity import Identity, PeerIdentity
from potluck.net.limits import LINK_LIMITS, LinkLimits
from potluck.net.link import Link
from potluck.net.reactor import Reactor
from potluck.net.secure_socket import SecureSocket
from potluck.net.step_link import StepLink
from potluck.net.stream import Stream
from potluck.wire.connection import Connection
from potluck.wire.messages import Address

TlsStream = TypeVar("TlsStream", bound=Stream | SecureSocket)
MemberLink = TypeVar("MemberLink", bound=Link | StepLink)


@dataclass(frozen=True, slots=True)
class LinkKind(Generic[TlsStream, MemberLink]):
    """How a connection is made, and which link it becomes after its TLS handshake."""

    connect: Callable[[Address, ssl.SSLContext, str], Awaitable[TlsStream]]
    accept: Callable[[socket.socket, ssl.SSLContext], Awaitable[TlsStream]]
    link: Callable[[TlsStream, Connection, Identity, PeerIdentity], MemberLink]


def links(limits: LinkLimits) -> LinkKind[Stream, Link]:
    """The kind of links that an event loop reads."""
    return LinkKind(Stream.connect, Stream.accept, partial(Link, limits=limits))


LINKS: Final = links(LINK_LIMITS)


def step_links(
    reactor: Reactor, limits: LinkLimits = LINK_LIMITS
) -> LinkKind[SecureSocket, StepLink]:
    """The kind of links that this reactor reads."""
    link = partial(StepLink, reactor, limits=limits)
    return LinkKind(SecureSocket.connect, SecureSocket.accept, link)
