"""A computer whose package is updated by a server of releases on loopback, with a clock and an owner of its own."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from releases import ISSUED, installed, make_root, package, signed
from wheel_server import WheelServer

import potluck
from potluck.api.values.update import Update, UpdateRequest
from potluck.cluster.runtime.fetching import WheelFetcher
from potluck.cluster.runtime.sharing import WheelClient
from potluck.cluster.updating.here import Here
from potluck.cluster.updating.keeper import DAY_S, UpdateKeeper
from potluck.net.identity import Identity
from potluck.runtime.download import Internet, Patience
from potluck.store.chunks import ChunkStore
from potluck.system.installation import Package
from potluck.wire.messages import NodeInfo

OWN, NEW = potluck.__version__, "99.0.0"
PATIENCE_S = 30.0


class Computer:
    """A computer with a package that is installed, and a server of releases on loopback."""

    def __init__(self, folder: Path, server: WheelServer) -> None:
        self.server = server
        self.root = make_root(folder / "potluck", OWN)
        self.package = installed(self.root, OWN, index=f"{server.address}/release.json")
        self.store = ChunkStore(folder / "wheels", 1 << 30, reserve=0)
        self.is_allowed, self.is_at_rest, self.restarts = False, True, 0
        self.now = ISSUED + DAY_S
        self.folder = folder / "updates"
        self.states: list[Update] = []
        # As if it had started: a process that imports all of Potluck takes two seconds.
        self.try_version: Callable[..., None] = lambda tree, version, stopped: None

    def keeper(self, package: Package | None = None) -> UpdateKeeper:
        """What a node that is started now knows."""
        identity = Identity.load_or_create(self.folder.parent / "identity", "desk")
        client = WheelClient(identity, me=_nobody, store=self.store)
        patience = Patience(silent_s=5, attempts=3, pause_s=0.01)
        fetcher = WheelFetcher(
            self.store,
            client,
            sources=lambda: (),
            paired=lambda: (),
            internet=Internet(self.store, patience=patience),
        )
        here = Here(
            installed=package or self.package,
            folder=self.folder,
            is_allowed=lambda: self.is_allowed,
            allow=lambda on: setattr(self, "is_allowed", on),
            is_at_rest=lambda: self.is_at_rest,
            restart=lambda: setattr(self, "restarts", self.restarts + 1),
            machine="x86_64",
            system="linux",
            try_version=lambda *about: self.try_version(*about),
            clock=lambda: self.now,
            rest_s=0.0,
            poll_s=0.001,
        )
        keeper = UpdateKeeper(
            here, self.store, fetcher=fetcher, changed=lambda: self.states.append(keeper.state)
        )
        return keeper

    def publish(self, archive: Path, version: str = NEW, *, issued: int = ISSUED) -> bytes:
        """Have the server publish a release; returns its envelope."""
        listed = package(archive, version, self.server.address)
        envelope = signed(version, listed, issued=issued)
        self.server.files["/release.json"] = envelope
        self.server.files[f"/potluck-{version}.tar.xz"] = archive.read_bytes()
        return envelope

    @property
    def without_a_server(self) -> Package:
        """The same package where nobody answers at the address of its list."""
        return installed(self.root, OWN, index="http://127.0.0.1:9/release.json")

    @property
    def used(self) -> str:
        return (self.root / "tree").readlink().name


def _nobody() -> NodeInfo:
    raise AssertionError("nobody is dialled")


def run(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(PATIENCE_S):
            return await work()

    return asyncio.run(bounded())


async def done(keeper: UpdateKeeper) -> Update:
    await until(lambda: not keeper.is_busy)
    return keeper.state


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.001)


def asked(keeper: UpdateKeeper, action: Any) -> Update:
    """The state after something was asked for, and done."""

    async def asking() -> Update:
        await keeper.change(UpdateRequest(action=action))
        return await done(keeper)

    return run(asking)


async def heard(keeper: UpdateKeeper, envelope: bytes) -> str:
    said = keeper.heard(envelope)
    await done(keeper)
    return said
