"""Workers that send weights to each other, over real TLS on loopback."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from chunk_stores import fill, is_intact
from fake_cluster import run, until
from fake_engine import assign
from worker_rig import Control, Party, Rig, join

from potluck.errors import RemoteError
from potluck.ids import Digest
from potluck.store.registry import LocalModel
from potluck.store.sender import Sender
from potluck.wire.messages import Assign, Chunk, NeedTensor

pytestmark = pytest.mark.net


class Two:
    """A laptop that has the weights of two layers, and a Mac that was assigned them now."""

    def __init__(self, laptop: Rig, mac: Rig, model: LocalModel) -> None:
        self.laptop, self.mac, self.model = laptop, mac, model
        self.message: Assign = assign(model, 0, 2)

    async def begin(self) -> None:
        self.from_laptop = await self.laptop.control()
        self.from_mac = await self.mac.control()
        await self.give(self.from_laptop)
        need = await self.from_mac.computer.assign(self.message)
        self.needed = need.tensors

    async def give(self, control: Control, message: Assign | None = None) -> None:
        """Assign and send as the master does."""
        need = await control.computer.assign(message or self.message)
        await control.computer.send_weights(need.tensors, self.model.sources, lambda _: None)

    async def pass_on(self, tensors: tuple[NeedTensor, ...] | None = None) -> int:
        return await self.from_laptop.computer.pass_on(
            self.from_mac.computer, self.needed if tensors is None else tensors, timeout_s=20
        )

    async def expect(self, tensors: tuple[NeedTensor, ...] | None = None) -> None:
        source = self.laptop.laptop.node_id
        wanted = self.needed if tensors is None else tensors
        await self.from_mac.computer.expect(self.message.epoch, source, wanted)

    @property
    def nbytes(self) -> int:
        return sum(info.nbytes for info in self.message.tensors)

    @property
    def arrived(self) -> int:
        return sum(self.mac.store.has(Digest(info.digest)) for info in self.message.tensors)


@asynccontextmanager
async def two(folder: Path, model: LocalModel) -> AsyncGenerator[Two, None]:
    async with (
        Rig(folder / "one") as laptop,
        Rig(folder / "two", name="Mac", desk=laptop.desk) as mac,
    ):
        both = Two(laptop, mac, model)
        await both.begin()
        yield both


def test_a_worker_sends_to_another_one_what_the_master_says(
    tmp_path: Path, model: LocalModel
) -> None:
    async def main() -> None:
        async with two(tmp_path, model) as both:
            await both.expect()
            assert await both.pass_on() == both.nbytes

            assert all(is_intact(both.mac.store, Digest(t.digest)) for t in both.needed)
            assert not (await both.from_mac.computer.assign(both.message)).tensors

    run(main())


def test_a_worker_that_was_not_named_can_send_nothing(tmp_path: Path, model: LocalModel) -> None:
    async def main() -> None:
        async with two(tmp_path, model) as both:
            link = await both.laptop.laptop.dial(both.mac.laptop, both.mac.home, "weights")
            info = both.message.tensors[0]
            source = model.sources[Digest(info.digest)]
            data = source.path.read_bytes()[source.offset :][: source.nbytes]
            await link.send(Chunk(digest=info.digest, offset=0, total=info.nbytes), data)
            assert both.arrived == 0
            assert both.mac.store.nbytes == 0
            link.close()

    run(main())


def test_weights_that_nobody_waits_for_are_not_expected(tmp_path: Path, model: LocalModel) -> None:
    async def main() -> None:
        async with two(tmp_path, model) as both:
            with pytest.raises(RemoteError, match="does not wait"):
                await both.expect((NeedTensor(digest="ab" * 32, offset=0),))

    run(main())


def test_a_worker_passes_on_only_what_the_same_home_has_assigned_to_it(
    tmp_path: Path, model: LocalModel
) -> None:
    """Else a master could read what another home has stored, or ask whether it is there."""

    async def main() -> None:
        async with two(tmp_path, model) as both:
            (digest,) = fill(both.laptop.store, b"of another home")
            with pytest.raises(RemoteError, match="not assigned"):
                await both.pass_on((NeedTensor(digest=digest, offset=0),))

    run(main())


def test_what_a_worker_has_lost_is_left_to_the_master(tmp_path: Path, model: LocalModel) -> None:
    async def main() -> None:
        async with two(tmp_path, model) as both:
            lost = Digest(both.message.tensors[0].digest)
            both.laptop.store.discard(lost)
            await both.expect()
            sent = await both.pass_on()

            assert sent == both.nbytes - both.message.tensors[0].nbytes
            need = await both.from_mac.computer.assign(both.message)
            assert [tensor.digest for tensor in need.tensors] == [lost]
            await both.give(both.from_mac)
            assert both.arrived == len(both.message.tensors)

    run(main())


def test_altered_weights_of_a_worker_are_refused_and_come_from_the_master(
    tmp_path: Path, model: LocalModel
) -> None:
    async def main() -> None:
        async with two(tmp_path, model) as both:
            for info in both.message.tensors:
                both.laptop.store.path(Digest(info.digest)).write_bytes(bytes(info.nbytes))
            await both.expect()
            with pytest.raises(RemoteError, match="altered"):
                await both.pass_on()
            assert both.arrived == 0
            assert not both.laptop.store.has(Digest(both.message.tensors[0].digest))

            await both.give(both.from_mac)
            assert both.arrived == len(both.message.tensors)

    run(main())


def test_a_worker_of_another_home_is_not_reached(tmp_path: Path, model: LocalModel) -> None:
    async def main() -> None:
        async with two(tmp_path, model) as both:
            stranger = Party("Ana", tmp_path)
            join(stranger, both.mac.laptop)
            computer = both.from_mac.computer
            computer.node_id = stranger.identity.node_id
            with pytest.raises(RemoteError, match="cannot be reached"):
                await both.from_laptop.computer.pass_on(computer, both.needed, timeout_s=20)

    run(main())


def test_the_next_assignment_ends_what_a_worker_sends(
    tmp_path: Path, model: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master sends these tensors by itself then, and two senders would disturb each other."""

    async def main() -> None:
        async with two(tmp_path, model) as both:
            begun = asyncio.Event()

            async def stuck(sender: Sender) -> None:
                begun.set()
                await asyncio.Event().wait()

            monkeypatch.setattr(Sender, "send", stuck)
            await both.expect()
            passing = asyncio.create_task(both.pass_on())
            await begun.wait()
            await until(lambda: both.mac.worker.peers._receiving)
            await both.from_mac.computer.assign(both.message)
            with pytest.raises(RemoteError):
                await passing
            monkeypatch.undo()

            await both.give(both.from_mac)
            assert both.arrived == len(both.message.tensors)

    run(main())


def test_nothing_is_passed_on_by_a_network_that_is_not_used(
    tmp_path: Path, model: LocalModel
) -> None:
    async def main() -> None:
        async with two(tmp_path, model) as both:
            both.laptop.links._avoids = lambda host: host == "127.0.0.1"
            await both.expect()
            with pytest.raises(RemoteError, match="cannot be reached from here"):
                await both.pass_on()
            assert both.arrived == 0

    run(main())
