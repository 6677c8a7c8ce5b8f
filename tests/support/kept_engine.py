"""What keeps the engine of a computer whose release lists tiny wheels, and the server that has these."""

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tiny_wheels import lock_text, make_wheels
from wheel_server import WheelServer, serving

from potluck.api.values.engine import EngineRequest
from potluck.cluster.runtime.fetching import WheelFetcher
from potluck.cluster.runtime.keeper import EngineKeeper, Release
from potluck.cluster.runtime.sharing import WheelClient
from potluck.net.identity import Identity
from potluck.runtime.choice import Machine
from potluck.runtime.download import Internet, Patience
from potluck.runtime.installed import Installed
from potluck.runtime.lock import read_lock
from potluck.store.chunks import ChunkStore
from potluck.wire.messages import NodeInfo

ME = NodeInfo(node_id="ab" * 32, name="attic", version="1", os="Linux", arch="x86_64")
INSTALL = EngineRequest(action="install")
REPAIR = EngineRequest(action="repair")


@dataclass(frozen=True, slots=True)
class KeptEngine:
    """The disk of a computer, the wheels that a release lists for it, and the server of these."""

    store: ChunkStore
    paths: Sequence[Path]
    internet: WheelServer

    @staticmethod
    @contextmanager
    def of(folder: Path) -> Generator["KeptEngine"]:
        """All of it in a folder."""
        paths = make_wheels(folder / "made", filling=100_000)
        served = WheelServer({f"/{path.name}": path.read_bytes() for path in paths})
        with (
            ChunkStore(folder / "data" / "engine" / "wheels", reserve=0) as store,
            serving(served) as internet,
        ):
            yield KeptEngine(store, paths, internet)

    def publish(self, wheel: Path) -> None:
        """Have the server give out this wheel, too."""
        self.internet.files[f"/{wheel.name}"] = wheel.read_bytes()

    @property
    def index(self) -> str:
        return f"{self.internet.address}/simple"

    def keeper(
        self,
        paths: Sequence[Path] = (),
        *,
        is_offline: bool = False,
        has_torch: bool = False,
        changed: Callable[[], None] = lambda: None,
    ) -> EngineKeeper:
        """What a node has that is started now; its release lists these files, or all that the server has."""
        lock = read_lock(lock_text(paths or self.paths).encode())
        this = Machine.of_this().environment
        machine = Machine(system="Linux", processor="x86_64", gpus=None, environment=this)
        identity = Identity.load_or_create(self.store.root.parent / "identity", "attic")
        patience = Patience(silent_s=5.0, attempts=1, pause_s=0.001)
        index = None if is_offline else self.index
        return EngineKeeper(
            self.store,
            Installed(self.store.root.parent),
            fetcher=WheelFetcher(
                self.store,
                WheelClient(identity, me=lambda: ME, store=self.store),
                sources=lambda: (),
                paired=lambda: (),
                internet=Internet(self.store, index=index, patience=patience),
            ),
            release=Release(
                locks=lambda: {"cpu": lock}, machine=lambda: machine, has_torch=lambda: has_torch
            ),
            changed=changed,
        )

    async def installed(self) -> EngineKeeper:
        """A keeper that has installed the engine."""
        its = self.keeper()
        await its.look()
        await its.change(INSTALL)
        await asyncio.wait_for(its.wait(), 60)
        return its


async def done(keeper: EngineKeeper) -> None:
    assert keeper._working is not None
    async with asyncio.timeout(60):
        await asyncio.wait([keeper._working])
