"""Addresses that a person typed or that worked before, and which node answers at each."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from potluck.errors import PotluckError, UnreachableError, UsageError
from potluck.files import recall, write_atomically
from potluck.ids import NodeId, short
from potluck.net.advert import Found, parse_address
from potluck.net.listener import DEFAULT_PORT
from potluck.wire.fields import Hex, Name
from potluck.wire.messages import Address, Addresses

logger = logging.getLogger(__name__)

MAX_ENTRIES = 64  # of each kind; a new entry replaces the oldest
PROBE_TIMEOUT_S = 5.0
_MISSES_UNTIL_GONE = 2  # one lost packet does not mean that the node is gone
_SIDE_BY_SIDE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Identified:
    """The node that answers at an address, before any pairing. The peer chooses its own name."""

    node_id: NodeId
    name: str


Probe: TypeAlias = Callable[[Address], Awaitable[Identified]]
Avoids: TypeAlias = Callable[[str], bool]
"""Whether nobody is dialled at this host, because its network is not one that its owner has chosen."""


def _avoids_none(_host: str) -> bool:
    return False


class _Peer(msgspec.Struct, frozen=True, kw_only=True):
    name: Name
    addresses: Addresses


class _Book(msgspec.Struct, kw_only=True):
    """The content of the file."""

    typed: Annotated[list[Address], Meta(max_length=MAX_ENTRIES)] = []
    peers: Annotated[dict[Hex, _Peer], Meta(max_length=MAX_ENTRIES)] = {}


class Kept(NamedTuple):
    """Where a node was, and its name; of a typed address, the host."""

    name: str
    addresses: tuple[Address, ...]


class AddressBook:
    """Addresses in a JSON file. A damaged file counts as empty; trust does not depend on it."""

    def __init__(self, path: Path | None, probe: Probe | None) -> None:
        self.own: NodeId | None = None
        self._path = path
        self._probe = probe
        self._book = (recall(path, _Book) if path is not None else None) or _Book()
        self._answering: dict[Address, Identified] = {}
        self._misses: dict[Address, int] = {}

    def found(self, avoids: Avoids = _avoids_none) -> list[Found]:
        """The nodes that answer at the addresses of this book, each once."""
        by_node: dict[NodeId, list[tuple[Address, str]]] = {}
        for address, who in self._answering.items():
            if avoids(address.host):
                continue
            by_node.setdefault(who.node_id, []).append((address, who.name))
        return [
            Found(
                node_id=node_id,
                name=answers[0][1] or answers[0][0].host,
                role="idle",
                addresses=tuple(address for address, _ in answers),
                home=None,
                joinable=True,
                devices="",
                protocol=None,
            )
            for node_id, answers in by_node.items()
        ]

    async def add(self, text: str, avoids: Avoids = _avoids_none) -> Found:
        """Keep a typed address, and ask which node answers there.

        Raises:
            UsageError: the text is not an address, or it is an address of this computer.
            UnreachableError: nobody answers there now, or nobody is to be asked there.
        """
        address = parse_address(text, default_port=DEFAULT_PORT)
        if avoids(address.host):
            self._keep(address)
            raise UnreachableError(
                f"{address.host} is in a network that Potluck does not use on this computer. Choose that"
                " network, or “Automatic”, in the settings under Network."
            )
        try:
            who = await self._ask_once(address)
        except UnreachableError:
            self._keep(address)
            raise
        if who.node_id == self.own:
            raise UsageError(f"{text.strip()} is this computer's own address. Type another's.")
        self._keep(address)
        self._answering[address] = who
        return next(found for found in self.found() if found.node_id == who.node_id)

    def _keep(self, address: Address) -> None:
        if address not in self._book.typed:
            self._book.typed = [*self._book.typed, address][-MAX_ENTRIES:]
            self._write()

    async def _ask_once(self, address: Address) -> Identified:
        if self._probe is None:
            raise UnreachableError("This computer does not connect by address.")
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                return await self._probe(address)
        except TimeoutError as error:
            raise UnreachableError(
                f"Nobody has answered at {address.host} within {PROBE_TIMEOUT_S:g} seconds."
            ) from error

    def remember(self, node_id: NodeId, name: str, addresses: tuple[Address, ...]) -> None:
        """Keep the addresses at which a paired node was reached."""
        peer = _Peer(name=name[:128], addresses=addresses[:16])
        if self._book.peers.get(node_id) != peer:
            others = {n: p for n, p in self._book.peers.items() if n != node_id}
            self._book.peers = dict([*others.items(), (node_id, peer)][-MAX_ENTRIES:])
            self._write()

    def meet(self, node_id: NodeId, name: str, address: Address) -> None:
        """Keep the address at which a node was just paired: it counts as answering there."""
        self.remember(node_id, name, (address,))
        self._misses.pop(address, None)
        self._answering[address] = Identified(node_id=node_id, name=name)

    def kept(self) -> dict[str, Kept]:
        """All entries of this book, by node id. An address that was typed and belongs to no known node stands by its host."""
        known = {n: Kept(peer.name, peer.addresses) for n, peer in self._book.peers.items()}
        theirs = {address for kept in known.values() for address in kept.addresses}
        return known | {a.host: Kept(a.host, (a,)) for a in self._book.typed if a not in theirs}

    def asked(self) -> tuple[Address, ...]:
        """All addresses of this book."""
        peers = (address for peer in self._book.peers.values() for address in peer.addresses)
        return tuple(dict.fromkeys((*self._book.typed, *peers)))

    def knows(self, node_id: NodeId) -> bool:
        """Whether the node was paired."""
        return node_id in self._book.peers

    def drop(self, node_id: NodeId) -> None:
        """Forget the node's addresses, those that a person typed included."""
        there = {a for a, who in self._answering.items() if who.node_id == node_id}
        self.lost(node_id)
        typed = [address for address in self._book.typed if address not in there]
        if self._book.peers.pop(node_id, None) is not None or typed != self._book.typed:
            self._book.typed = typed
            self._write()

    def lost(self, node_id: NodeId) -> None:
        """Note that a connection showed the node to be gone; its addresses are still asked."""
        for address in [a for a, who in self._answering.items() if who.node_id == node_id]:
            del self._answering[address]

    async def probe(self, known: Collection[NodeId], avoids: Avoids = _avoids_none) -> bool:
        """Ask all addresses but those of `known` nodes. Returns whether the answers changed."""
        if self._probe is None:
            return False
        asked = [a for a in self._book.typed if self._node_at(a) not in known]
        for node_id, peer in self._book.peers.items():
            if node_id not in known:
                asked.extend(peer.addresses)
        before = dict(self._answering)
        room = asyncio.Semaphore(_SIDE_BY_SIDE)
        async with asyncio.TaskGroup() as tasks:
            for address in dict.fromkeys(asked):
                if not avoids(address.host):
                    tasks.create_task(self._ask(address, room))
        return before != self._answering

    def _node_at(self, address: Address) -> NodeId | None:
        who = self._answering.get(address)
        return who.node_id if who else None

    async def _ask(self, address: Address, room: asyncio.Semaphore) -> None:
        try:
            async with room:
                who = await self._ask_once(address)
        except PotluckError as error:
            logger.debug("nobody answers host=%s reason=%s", address.host, error)
            misses = self._misses[address] = self._misses.get(address, 0) + 1
            if misses >= _MISSES_UNTIL_GONE:
                self._answering.pop(address, None)
            return
        self._misses.pop(address, None)
        if who.node_id != self.own:
            if address not in self._answering:
                logger.info("node answers at its address node=%s", short(who.node_id))
            self._answering[address] = who

    def _write(self) -> None:
        if self._path is not None:
            write_atomically(self._path, msgspec.json.encode(self._book))
