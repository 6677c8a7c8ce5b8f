import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from kept_engine import KeptEngine
from tiny_wheels import make_wheels, wheel_of

from potluck.cluster.runtime.sharing import Source, WheelClient, WheelServer
from potluck.ids import Digest, HomeId, NodeId
from potluck.net.identity import Identity
from potluck.net.link import Link
from potluck.net.transport import Listener
from potluck.runtime.lock import Wheel
from potluck.store.chunks import ChunkStore
from potluck.wire.messages import Address, NodeInfo


class Computer:
    """A member of a home with a store of wheels, which serves them."""

    def __init__(self, folder: Path, name: str) -> None:
        self.identity = Identity.load_or_create(folder / name, name)
        self.name = name
        self.store = ChunkStore(folder / f"{name}-wheels", 1 << 30, reserve=0)
        self.listed: dict[Digest, Wheel] = {}
        self.asked_to_fetch: list[Wheel] = []
        self.why_not = "This computer has no Internet."
        self.server = WheelServer(self.store, listed=lambda: self.listed, fetch=self.fetch)
        self.client = WheelClient(self.identity, me=self.me, store=self.store)
        self.listener = Listener(
            self.identity, me=self.me, on_link=self.serve, host="127.0.0.1", port=0
        )

    def fetch(self, wheels: Sequence[Wheel]) -> str:
        self.asked_to_fetch += wheels
        return self.why_not

    async def serve(self, link: Link) -> None:
        await self.server.serve(link)

    def me(self) -> NodeInfo:
        return NodeInfo(
            node_id=self.identity.node_id, name=self.name, version="1", os="Linux", arch="x86_64"
        )

    def put(self, path: Path) -> None:
        """Have a wheel here, as if it had come before."""
        wheel = wheel_of(path)
        self.store.write(wheel.digest, 0, wheel.nbytes, path.read_bytes())

    def list(self, *paths: Path) -> list[Wheel]:
        """Have a release that lists these files."""
        wheels = [wheel_of(path) for path in paths]
        self.listed |= {wheel.digest: wheel for wheel in wheels}
        return wheels

    def source(self, home: HomeId) -> Source:
        return Source(
            name=self.name,
            home=home,
            node_id=NodeId(self.identity.node_id),
            addresses=(Address(host="127.0.0.1", port=self.listener.port),),
        )


class Home:
    """A master and workers that are paired with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.master = Computer(folder, "attic")
        self.computers = [self.master]
        self.id = self.master.identity.create_home("home").home_id

    def add(self, name: str) -> Computer:
        worker = Computer(self.folder, name)
        home = self.master.identity.own_home
        assert home is not None
        worker.identity.add_home(
            ca_pem=home.ca_pem,
            certificate_pem=self.master.identity.issue(worker.identity.certificate_der),
            name="home",
            master=self.master.identity.node_id,
        )
        self.computers.append(worker)
        return worker

    def run(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run something while all computers listen."""

        async def listening() -> Any:
            for computer in self.computers:
                await computer.listener.start()
            try:
                async with asyncio.timeout(30):
                    return await work()
            finally:
                for computer in self.computers:
                    await computer.listener.stop()

        return asyncio.run(listening())


@pytest.fixture
def home(tmp_path: Path) -> Generator[Home]:
    home = Home(tmp_path)
    yield home
    for computer in home.computers:
        computer.store.close()


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    """Files of a torch of 5 MB, more than two chunks, and of a package that it needs."""
    return make_wheels(tmp_path / "made", filling=5_000_000)


@pytest.fixture
def engine(tmp_path: Path) -> Generator[KeptEngine]:
    """What keeps the engine of a computer, none of which is there yet."""
    with KeptEngine.of(tmp_path) as engine:
        yield engine
