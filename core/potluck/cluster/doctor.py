"""What the node tells the doctor: who the other computers are, and whether they can connect back."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import potluck
from potluck.api.values.doctor import Diagnosis
from potluck.api.values.network import Network
from potluck.cluster.membership.membership import Members
from potluck.cluster.membership.remote import RemoteComputer
from potluck.cluster.presence import Presence
from potluck.cluster.worker.links import WorkerLinks
from potluck.doctor.diagnosis import diagnose
from potluck.doctor.examination import LOOKS, Known, Looks, look
from potluck.doctor.facts import EngineSeen, Peer, Running, Store
from potluck.doctor.looks.disks import Holds
from potluck.errors import PotluckError, RemoteError, UnreachableError, VersionMismatchError
from potluck.ids import NodeId
from potluck.net.addresses import Kept
from potluck.net.advert import Found
from potluck.net.discovery import Discovery
from potluck.net.identity import Identity
from potluck.net.link import Link
from potluck.store.chunks import ChunkStore
from potluck.wire.versions import PROTOCOL_VERSIONS

DIAL_BACK_S: Final = 12.0  # a worker gives up after eight seconds, and says so


class Doctor:
    """Examines this computer with what its node knows.

    Args:
        folders: of Potluck, by what they hold.
        identity: of this node.
        presence: where other computers reach this one.
        discovery: finds the others.
        membership: the workers of this home.
        links: the masters that this computer helps.
        store: the weights on the disk.
        engine: whether this computer can compute.
        network: what its owner chose of its networks.
        looks: look at the system.
        now: returns the Unix time of this computer.
    """

    def __init__(
        self,
        folders: Mapping[Holds, Path],
        *,
        identity: Identity,
        presence: Presence,
        discovery: Discovery,
        membership: Members,
        links: WorkerLinks,
        store: ChunkStore,
        engine: Callable[[], EngineSeen | None] = lambda: None,
        network: Callable[[], Network | None] = lambda: None,
        looks: Looks = LOOKS,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._folders = folders
        self._identity = identity
        self._presence = presence
        self._discovery = discovery
        self._membership = membership
        self._links = links
        self._store = store
        self._engine = engine
        self._network = network
        self._looks = looks
        self._now = now

    async def examine(self) -> Diagnosis:
        """Look at everything, and have the connected workers connect back meanwhile."""
        peers = self._peers()
        known = Known(
            folders=self._folders,
            peers=tuple(peers.values()),
            port=self._presence.port(),
            running=Running(
                version=potluck.__version__,
                protocols=PROTOCOL_VERSIONS,
                helped=self._links.master_names(),
                engine=self._engine(),
                network=self._network(),
            ),
            store=Store(used=self._store.nbytes, limit=self._store.quota or 0),
        )
        workers = self._membership.connected()
        facts, reached = await asyncio.gather(
            asyncio.to_thread(look, known, self._looks),
            asyncio.gather(*map(self._reaches_us, workers)),
        )
        came = dict(zip((worker.node_id for worker in workers), reached, strict=True))
        seen = zip(peers, facts.peers, strict=True)
        tried = tuple(replace(peer, reaches_us=came.get(NodeId(key))) for key, peer in seen)
        return diagnose(replace(facts, peers=tried))

    async def _reaches_us(self, worker: RemoteComputer) -> bool | None:
        """Whether a worker can connect to this computer; None: it lends nothing, or did not say."""
        addresses = self._presence.addresses()
        try:
            async with asyncio.timeout(DIAL_BACK_S):
                await worker.measure_link_to(self._identity.node_id, addresses)
        except RemoteError as error:
            return False if error.data.get("kind") == UnreachableError.code else None
        except (PotluckError, TimeoutError):
            return None
        return True

    # --- the other computers

    def _peers(self) -> dict[str, Peer]:
        """The other computers by node id, or by the address that a person typed."""
        found = {peer.node_id: peer for peer in self._discovery.peers()}
        kept = self._discovery.kept()
        masters = {h.master: h for h in self._identity.homes.values() if h.role == "worker"}
        records = self._membership.records
        connected = {worker.node_id: worker.link for worker in self._membership.connected()}
        connected |= {NodeId(link.peer.node_id): link for link in self._links.masters()}
        peers: dict[str, Peer] = {}
        for key in dict.fromkeys((*records, *masters, *found, *kept)):
            node_id = NodeId(key)
            peer = _peer(found.get(node_id), kept.get(key), connected.get(node_id), self._now())
            problem = self._membership.problem(node_id)
            record, home = records.get(node_id), masters.get(node_id)
            peers[key] = replace(
                peer,
                name=record.shown if record else home.name if home else peer.name,
                is_master=home is not None,
                mismatch=problem.message if isinstance(problem, VersionMismatchError) else "",
            )
        return peers


def _peer(found: Found | None, kept: Kept | None, link: Link | None, now: float) -> Peer:
    """What discovery, the addresses of before and an open connection say of a computer."""
    known = found or kept
    return Peer(
        name=known.name if known is not None else "",
        addresses=known.addresses if known is not None else (),
        is_found=found is not None and found.protocol is not None,
        protocol=found.protocol if found is not None else None,
        is_connected=link is not None,
        clock_ahead_s=link.clock_ahead_s(now) if link is not None else None,
    )
