"""A worker alone: the connection of its master and its stage processes are fakes."""

import asyncio
from pathlib import Path
from typing import Any

from fake_engine import DEVICE, OTHER, FakeEngine
from memory_links import link_pair

from potluck.cluster.worker.worker import KEEP_LOADED_S, Worker
from potluck.errors import PeerLostError
from potluck.ids import HomeId
from potluck.store.chunks import ChunkStore
from potluck.store.fetch import send_tensors
from potluck.store.registry import LocalModel
from potluck.wire.messages import (
    Assign,
    DeviceId,
    Load,
    Loaded,
    Message,
    Need,
    NodeInfo,
)
from potluck.wire.versions import PROTOCOL_VERSIONS

MY_HOME, ANAS_HOME = HomeId("aa" * 32), HomeId("bb" * 32)


class FakeMaster:
    """A control connection, as the worker sees it."""

    def __init__(self, name: str, home: HomeId, role: Any = "master") -> None:
        self.peer = NodeInfo(node_id=home, name=name, version="0", os="Linux", arch="x")
        self.peer_role = role
        self.home = home
        self.version = max(PROTOCOL_VERSIONS)
        self.sent: list[Message] = []
        self.is_gone = False

    async def send(self, message: Message) -> None:
        if self.is_gone:
            raise PeerLostError("gone")
        self.sent.append(message)


class Bench:
    """A worker that lends itself, with fake stage processes and a real store."""

    def __init__(
        self, folder: Path, *, quota: int | None = None, keep_loaded_s: float = KEEP_LOADED_S
    ) -> None:
        self.stage, self.other = FakeEngine(), FakeEngine(OTHER)
        self.store = ChunkStore(folder / "tensors", quota=quota, reserve=0)
        self.changes = 0
        self.worker = Worker(
            stage=self._stage,
            store=self.store,
            changed=self._changed,
            keep_loaded_s=keep_loaded_s,
        )
        self.worker.is_lending = True
        self.mine, self.ana = FakeMaster("Desk", MY_HOME), FakeMaster("Ana's Mac", ANAS_HOME)

    async def _stage(self, device: DeviceId | None) -> Any:
        stages = {None: self.stage, DEVICE.id: self.stage, OTHER.id: self.other}
        return stages[device]

    def _changed(self) -> None:
        self.changes += 1

    async def need(self, message: Assign, master: FakeMaster | None = None) -> Need:
        answer = await self.worker.handle(master or self.mine, message)
        assert isinstance(answer, Need)
        return answer

    async def stream(self, need: Need, model: LocalModel, home: HomeId = MY_HOME) -> int:
        """Send the needed tensors over a connection in memory; return the bytes sent."""
        there, here = link_pair()
        sent, _ = await asyncio.gather(
            send_tensors(there, need.tensors, model.sources),
            self.worker.receive_weights(home, here),
        )
        return sent

    async def take(self, message: Assign, model: LocalModel) -> Loaded:
        """Assign a stage, send its weights and load it."""
        need = await self.need(message)
        if need.tensors:
            await self.stream(need, model)
        return await self.load(epoch=message.epoch)

    async def load(self, device: DeviceId | None = None, *, epoch: int = 1) -> Loaded:
        load = Load(epoch=epoch, next_hop=None, device=device)
        answer = await self.worker.handle(self.mine, load)
        assert isinstance(answer, Loaded)
        return answer
