"""This process as a rank of a group of processes of one computer, which find each other in a folder.

    with joined(folder, rank=0, world=2) as ranks:
        with ranks.step(1):
            ranks.sum(rows)

They have one identity, as the stage processes of one node, and join as these do: over TLS, by a lobby. Then they
agree how they sum.
"""

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from potluck.cluster.stage.joining import Lobby, dial_above, meet
from potluck.cluster.stage.ranks import Links, Ranks
from potluck.engine.rank_sums.collective import Transport
from potluck.net.identity import Identity
from potluck.net.link_kind import step_links
from potluck.net.listener import Listener
from potluck.net.reactor import Reactor
from potluck.net.step_link import StepLink
from potluck.net.transport import dial_steps
from potluck.wire.messages import Address, Hop, NodeInfo, Purpose, RankPlace

T = TypeVar("T")
_DEADLINE_S = 60.0


@contextmanager
def joined(
    folder: Path, rank: int, world: int, *, shares: bool = True, transport: Transport | None = None
) -> Iterator[Ranks]:
    """Join the group; `shares`: in memory, if the ranks can share some, or on devices with a transport."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="loop", daemon=True)
    thread.start()

    def call(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result(_DEADLINE_S)

    member = _Member(_identity(folder), folder, rank, world)
    ranks = Ranks()
    try:
        links = call(member.join(shares=shares, transport=transport))
        ranks.join(rank, links)
        yield ranks
        ranks.join(0, None)
        call(member.leave(links))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


class _Member:
    def __init__(self, identity: Identity, folder: Path, rank: int, world: int) -> None:
        self._identity, self._folder, self._rank, self._world = identity, folder, rank, world
        self._me = NodeInfo(
            node_id=identity.node_id, name=f"Rank {rank}", version="0", os="", arch=""
        )
        self._home = next(iter(identity.homes))
        self._lobby, self._reactor = Lobby(), Reactor()
        self._listener: Listener | None = None

    async def join(self, *, shares: bool, transport: Transport | None) -> Links:
        async def on_link(link: StepLink) -> None:
            if link.purpose == "ranks":
                await self._lobby.serve(link)
            else:
                await link.wait_closed()

        self._listener = Listener(
            self._identity,
            me=lambda: self._me,
            on_link=on_link,
            kind=step_links(self._reactor),
            host="127.0.0.1",
        )
        await self._listener.__aenter__()
        _write(self._folder / f"port-{self._rank}", str(self._listener.port))
        ports = [
            int(await asyncio.to_thread(_read, self._folder / f"port-{rank}"))
            for rank in range(self._world)
        ]
        hops = tuple(
            Hop(node_id=self._identity.node_id, addresses=(Address(host="127.0.0.1", port=port),))
            for port in ports
        )
        place = RankPlace(rank=self._rank, hops=hops)
        above = await dial_above(place, 1, self._dial)
        if not shares:
            return await self._lobby.add_below(above, place, self._home, 1)
        links = await meet(self._lobby, above, place, self._home, 1, transport)
        assert links is not None
        return links

    async def leave(self, links: Links) -> None:
        links.close()
        assert self._listener is not None
        await self._listener.__aexit__(None, None, None)

    async def _dial(self, hop: Hop, purpose: Purpose = "activations") -> StepLink:
        return await dial_steps(
            hop.addresses,
            self._identity,
            home=self._home,
            peer=self._identity.node_id,
            me=self._me,
            reactor=self._reactor,
            purpose=purpose,
        )


def make_home(folder: Path) -> None:
    """Make the identity that all ranks of a group have. Call it before any of them joins."""
    Identity.load_or_create(folder / "identity", "ranks").create_home("home")


def _identity(folder: Path) -> Identity:
    return Identity.load(folder / "identity")


def _write(file: Path, text: str) -> None:
    part = file.with_suffix(".part")
    part.write_text(text)
    part.rename(file)


def _read(file: Path) -> str:
    """What another process writes to a file, as soon as it is there."""
    ends_at = time.monotonic() + _DEADLINE_S
    while not file.exists():
        if time.monotonic() > ends_at:
            raise TimeoutError(f"no {file.name}")
        time.sleep(0.01)
    return file.read_text()
