"""Puts the parts of the engine together, and says which paired computers may have its files."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from potluck.cluster.runtime.fetching import WheelFetcher
from potluck.cluster.runtime.keeper import EngineKeeper, Release
from potluck.cluster.runtime.sharing import Source, WheelClient, WheelServer
from potluck.ids import Digest, HomeId, NodeId
from potluck.net.advert import Found
from potluck.net.identity import Identity
from potluck.runtime.download import Internet
from potluck.runtime.installed import Installed
from potluck.runtime.lock import Wheel
from potluck.store.chunks import ChunkStore
from potluck.store.throttle import Throttle
from potluck.wire.messages import NodeInfo

KEPT_BYTES: Final = 24 << 30  # of wheels: CUDA for two systems and Pythons takes 10 GB


class EngineParts:
    """The engine of one node: its store, what it takes and gives, and who decides.

    Args:
        data: Potluck's data folder.
        release: what may be installed.
        identity: of this node.
        me: describes this node.
        found: the computers that are found.
        members: names of the computers of this node's own home.
        shared: the data folder whose engine is used as long as this one has none; None: there is no other.
        index: of the owner, in place of the Internet; None: the addresses of the locks.
        throttle: limits how fast wheels are sent.
        also: other files that are kept, given out and fetched as wheels are: packages of a newer Potluck.
        heard: a main computer tells of a newer release; returns what is done about it.
        changed: called when the state has changed.
    """

    def __init__(
        self,
        data: Path,
        *,
        release: Release,
        identity: Identity,
        me: Callable[[], NodeInfo],
        found: Callable[[], Sequence[Found]],
        members: Callable[[], Mapping[NodeId, str]],
        shared: Path | None,
        index: str | None,
        throttle: Throttle,
        also: Callable[[], Mapping[Digest, Wheel]],
        heard: Callable[[bytes], str],
        changed: Callable[[], None],
    ) -> None:
        installed = Installed.below(data)
        self.store = ChunkStore(installed.wheels, KEPT_BYTES)
        self.client = WheelClient(identity, me=me, store=self.store)
        self.fetcher = WheelFetcher(
            self.store,
            self.client,
            sources=lambda: sources(identity, found(), members()),
            paired=lambda: _paired(identity, members()).keys() - {identity.node_id},
            internet=Internet(self.store, index=index),
        )
        self.keeper = EngineKeeper(
            self.store,
            installed,
            fetcher=self.fetcher,
            release=release,
            also=also,
            shared=None if shared is None else Installed.below(shared),
            changed=changed,
        )
        self.server = WheelServer(
            self.store,
            listed=lambda: {**self.keeper.listed(), **also()},
            fetch=self.keeper.fetch_for_others,
            heard=heard,
            throttle=throttle,
        )

    async def start(self) -> None:
        """Look at this computer, and tidy up."""
        await self.keeper.look()
        await self.keeper.clean()


def members(
    identity: Identity, found: Sequence[Found], names: Mapping[NodeId, str]
) -> list[Source]:
    """The computers of the own home that are found."""
    own = identity.own_home
    if own is None:
        return []
    return [each for each in sources(identity, found, names) if each.node_id in names]


def sources(
    identity: Identity, found: Sequence[Found], members: Mapping[NodeId, str]
) -> list[Source]:
    """The paired computers that are found: members of the own home, and masters of the others."""
    homes = _paired(identity, members)
    return [
        Source(
            name=peer.name or homes[node_id][0],
            home=homes[node_id][1],
            node_id=node_id,
            addresses=peer.addresses,
        )
        for peer in found
        if (node_id := NodeId(peer.node_id)) in homes and peer.addresses
    ]


def _paired(
    identity: Identity, members: Mapping[NodeId, str]
) -> Mapping[NodeId, tuple[str, HomeId]]:
    """A name and the home of each paired computer."""
    paired: dict[NodeId, tuple[str, HomeId]] = {}
    if (own := identity.own_home) is not None:
        paired |= {node_id: (name, own.home_id) for node_id, name in members.items()}
    for home in identity.homes.values():
        if home.role == "worker":
            paired.setdefault(home.master, (home.name, home.home_id))
    return paired
