import asyncio
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from fake_cluster import run, until
from fake_engine import DEVICE, OTHER, assign
from own_computer import StageProcesses, own_computer
from worker_rig import Party, Rig, join

from potluck.cluster.computer import Patience
from potluck.cluster.device_use import DeviceUse
from potluck.cluster.membership.remote import RemoteComputer
from potluck.errors import (
    BusyError,
    PeerTimeoutError,
    RemoteError,
    RemoteProtocolError,
    UnreachableError,
)
from potluck.ids import Digest
from potluck.net.reactor import Reactor
from potluck.store.registry import LocalModel
from potluck.wire.measuring_messages import Profile
from potluck.wire.messages import Assign, Load, Message, Unloaded, WarmingUp

pytestmark = pytest.mark.net


def alone(assign: Assign) -> Load:
    """The load of a stage that is the only one."""
    return Load(epoch=assign.epoch, next_hop=None, device=assign.device)


# --- another computer


def test_a_worker_takes_its_stage_all_the_way(tmp_path: Path, model: LocalModel) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            laptop = (await rig.control()).computer
            config = model.manifest.config
            assert (
                await laptop.profile(
                    Profile(config=dict(config), scheme="f32", tokens=8, cache="int8")
                )
            ).device == DEVICE
            assert rig.engine.profiled == ["int8"]

            message = assign(model)
            need = await laptop.assign(message)
            sent: list[int] = []
            await laptop.send_weights(
                need.tensors, model.sources, lambda progress: sent.append(progress.sent)
            )
            await laptop.load(message, model.sources, alone(message), lambda _: None)

            assert sent[-1] == model.manifest.nbytes
            assert rig.engine.loaded is not None
            times = await laptop.measure(1, 16, None)
            assert (times.weight_bytes, times.layers_ms) == (1, 16)
            assert not (await laptop.assign(assign(model, epoch=2))).tensors
            await laptop.unload(2)
            assert rig.engine.loaded is None

    run(main())


def test_the_way_is_measured_from_both_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            laptop = (await rig.control()).computer
            there = await own_computer(rig.desk, StageProcesses()).measure_link_to(
                laptop.node_id, laptop.addresses
            )
            back = await laptop.measure_link_to(rig.desk.node_id, rig.desk.addresses)

            for quality in (there, back):
                assert quality.rtt_ms > 0
                assert quality.bytes_per_s > 0

    run(main())


def test_a_computer_that_the_worker_cannot_reach_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            laptop = (await rig.control()).computer
            away = Party("Away", tmp_path)
            join(rig.desk, away)
            away.port = 1
            with pytest.raises(RemoteError):
                await laptop.measure_link_to(away.node_id, away.addresses)

    run(main())


def test_a_worker_that_says_nothing_of_its_loading_is_given_up(
    tmp_path: Path, model: LocalModel
) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            control = await rig.control(patience=Patience(load_silence_s=0.2))
            laptop, message = control.computer, assign(model)
            await laptop.send_weights(
                (await laptop.assign(message)).tensors, model.sources, lambda _: None
            )
            rig.engine.gate = asyncio.Event()
            with pytest.raises(PeerTimeoutError, match="Laptop"):
                await laptop.load(message, model.sources, alone(message), lambda _: None)
            laptop.warming_up(WarmingUp(epoch=1, progress=0.9))  # too late, and harmless
            rig.engine.gate.set()

    run(main())


def test_progress_of_another_plan_is_not_this_ones(tmp_path: Path, model: LocalModel) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            laptop, message = (await rig.control()).computer, assign(model)
            await laptop.send_weights(
                (await laptop.assign(message)).tensors, model.sources, lambda _: None
            )
            rig.engine.gate = asyncio.Event()
            seen: list[float] = []
            loading = asyncio.create_task(
                laptop.load(message, model.sources, alone(message), seen.append)
            )
            await until(lambda: seen)
            laptop.warming_up(WarmingUp(epoch=9, progress=0.9))
            rig.engine.gate.set()
            await loading
            assert seen == [0.5]

    run(main())


def test_progress_of_another_device_is_not_this_ones(tmp_path: Path, model: LocalModel) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            laptop = (await rig.control()).computer
            message = msgspec.structs.replace(assign(model), device=DEVICE.id)
            need = await laptop.assign(message)
            await laptop.send_weights(need.tensors, model.sources, lambda _: None)
            rig.engine.gate = asyncio.Event()
            seen: list[float] = []
            loading = asyncio.create_task(
                laptop.load(message, model.sources, alone(message), seen.append)
            )
            await until(lambda: seen)
            laptop.warming_up(WarmingUp(epoch=1, progress=0.8, device=OTHER.id))
            laptop.warming_up(WarmingUp(epoch=1, progress=0.9, device=DEVICE.id))
            rig.engine.gate.set()
            await loading
            assert seen == [0.5, 0.9]

    run(main())


def test_an_answer_of_the_wrong_kind_is_an_error(tmp_path: Path) -> None:
    class Confused:
        peer = Party("Laptop", tmp_path).me()

        async def request(self, message: Message, *, timeout_s: float) -> Message:
            return Unloaded(epoch=1)

    async def main() -> None:
        party = Party("Desk", tmp_path)
        laptop = RemoteComputer(
            cast("Any", Confused()), identity=party.identity, me=party.me, addresses=()
        )
        with pytest.raises(RemoteProtocolError, match="Laptop answered with Unloaded"):
            await laptop.profile(Profile(config={}, scheme="f32", tokens=8))

    run(main())


def test_a_stage_that_does_not_listen_cannot_be_connected(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            laptop = (await rig.control()).computer
            reactor = Reactor()
            with pytest.raises(UnreachableError):
                await laptop.connect(1, reactor)
            reactor.close()

    run(main())


# --- this computer


def test_this_computer_reads_the_models_own_files(tmp_path: Path, model: LocalModel) -> None:
    party, processes = Party("Desk", tmp_path), StageProcesses()
    desk = own_computer(party, processes)

    async def main() -> None:
        message = assign(model)
        assert not (await desk.assign(message)).tensors
        loaded: list[float] = []
        await desk.load(message, model.sources, alone(message), loaded.append)

        stage = processes.engine.loaded
        assert stage is not None
        assert loaded == [0.5]
        for file in stage.tensors:
            source = model.sources[Digest(file.digest)]
            assert (file.path, file.offset) == (str(source.path), source.offset)
        await desk.unload(1)
        assert processes.engine.loaded is None
        assert desk.name == "Desk"
        assert desk.devices == (DEVICE, OTHER)
        assert (await desk.profile(Profile(config={}, scheme="f32", tokens=8))).device == DEVICE

    run(main())


def test_this_computer_knows_its_devices_once_its_engine_is_up(tmp_path: Path) -> None:
    class Starting(StageProcesses):
        devices = ()

        async def look(self) -> None:
            self.devices = (DEVICE,)

    party = Party("Desk", tmp_path)
    desk = own_computer(party, Starting())

    async def main() -> None:
        assert not desk.devices
        await desk.look()
        assert desk.devices == (DEVICE,)

    run(main())


def test_each_device_of_this_computer_has_its_stage(tmp_path: Path, model: LocalModel) -> None:
    party, processes = Party("Desk", tmp_path), StageProcesses()
    processes.other.activation_port = 4712
    desk = own_computer(party, processes)

    async def main() -> None:
        on_other = msgspec.structs.replace(assign(model), device=OTHER.id)
        assert (await desk.assign(assign(model))).activation_port == 4711
        assert (await desk.assign(on_other)).activation_port == 4712
        await desk.load(on_other, model.sources, alone(on_other), lambda _: None)
        assert processes.engine.loaded is None
        assert processes.other.loaded is not None
        await desk.load(assign(model), model.sources, alone(assign(model)), lambda _: None)
        await desk.unload(1)
        assert processes.engine.loaded is processes.other.loaded is None

    run(main())


def test_a_device_without_a_stage_of_the_next_plan_gives_its_layers_back(
    tmp_path: Path, model: LocalModel
) -> None:
    party, processes = Party("Desk", tmp_path), StageProcesses()
    desk = own_computer(party, processes)

    async def main() -> None:
        first = assign(model)
        await desk.assign(first)
        await desk.load(first, model.sources, alone(first), lambda _: None)
        second = msgspec.structs.replace(first, epoch=2, device=OTHER.id)
        await desk.assign(second)
        assert processes.engine.loaded is not None  # it may get a stage of that plan as well
        await desk.load(second, model.sources, alone(second), lambda _: None)

        assert processes.engine.loaded is None
        assert processes.other.loaded is not None

    run(main())


def test_a_computer_that_works_alone_makes_a_home_for_its_own_connections(
    tmp_path: Path, model: LocalModel
) -> None:
    party, processes = Party("Desk", tmp_path), StageProcesses()
    desk = own_computer(party, processes)

    async def main() -> None:
        await desk.load(assign(model), model.sources, alone(assign(model)), lambda _: None)
        home = party.identity.own_home
        assert home is not None
        assert processes.engine.loaded is not None
        assert processes.engine.loaded.home == home.home_id

    run(main())


def test_a_computer_that_is_lent_is_not_its_own_masters(tmp_path: Path, model: LocalModel) -> None:
    party, processes = Party("Desk", tmp_path), StageProcesses()
    desk = own_computer(party, processes, use=DeviceUse(lent_to="Ana's Mac"))

    async def main() -> None:
        with pytest.raises(BusyError, match="Ana's Mac"):
            await desk.assign(assign(model))
        processes.engine.loaded = cast("Any", "what Ana loaded")
        await desk.unload(1)
        assert processes.engine.loaded == "what Ana loaded"

    run(main())
