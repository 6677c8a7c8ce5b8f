"""A worker that lends several devices: a stage on each."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from fake_cluster import run, until
from fake_engine import DEVICE, assign
from memory_links import link_pair
from worker_bench import MY_HOME, OTHER, Bench

from potluck.errors import DiskFullError, PeerLostError, StaleEpochError
from potluck.store.fetch import send_tensors
from potluck.store.registry import LocalModel
from potluck.wire.messages import Need, Unload, Unloaded, WarmingUp


async def give_both(bench: Bench, model: LocalModel) -> tuple[Need, Need]:
    """The first layers to one device and the rest to the other."""
    first = await bench.need(assign(model, 0, 2, device=DEVICE.id))
    second = await bench.need(assign(model, 2, 4, device=OTHER.id))
    return first, second


async def stream_and_close(bench: Bench, need: Need, model: LocalModel) -> None:
    """As a master does: a connection for each stage, which ends when all of it is stored."""
    there, here = link_pair()
    receiving = asyncio.create_task(bench.worker.receive_weights(MY_HOME, here))
    await send_tensors(there, need.tensors, model.sources)
    await there.cut()
    with suppress(PeerLostError):  # what else is awaited comes on another connection
        await receiving


def test_each_device_has_its_stage_of_the_plan(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        first, second = await give_both(bench, model)
        assert not {t.digest for t in first.tensors} & {t.digest for t in second.tensors}
        lease = bench.worker.lease
        assert lease is not None
        assert (lease.layers, lease.awaits_weights, lease.is_loaded) == ((0, 4), True, False)
        await stream_and_close(bench, first, model)
        assert lease.awaits_weights
        await stream_and_close(bench, second, model)
        assert not lease.awaits_weights

        bench.stage.gate = asyncio.Event()
        loading = asyncio.create_task(bench.load(DEVICE.id))
        await until(lambda: bench.mine.sent)
        await bench.load(OTHER.id)  # does not wait for the other device
        assert lease.progress == 0.75
        assert not lease.is_loaded
        bench.stage.gate.set()
        await loading
        assert lease.is_loaded
        assert [s.loaded and s.loaded.layers for s in (bench.stage, bench.other)] == [
            (0, 2), (2, 4),
        ]  # fmt: skip
        reports = [m.device for m in bench.mine.sent if isinstance(m, WarmingUp)]
        assert reports == [DEVICE.id, OTHER.id]

        await bench.worker.handle(bench.mine, Unload(epoch=1))
        assert bench.stage.loaded is bench.other.loaded is None
        assert not bench.store.inventory.pinned()

    run(main())


def test_what_two_devices_need_is_sent_once(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        first = await bench.need(assign(model, 0, 2, device=DEVICE.id))
        again = await bench.need(assign(model, 0, 2, device=OTHER.id))
        assert first.tensors
        assert not again.tensors
        once_more = await bench.need(assign(model, 0, 2, device=DEVICE.id))
        assert once_more == first  # assigned anew, it is its own again
        await bench.stream(first, model)
        await bench.load(OTHER.id)
        await bench.load(DEVICE.id)

    run(main())


def test_room_is_made_for_the_stages_of_all_devices(tmp_path: Path, model: LocalModel) -> None:
    """A second stage is not promised the room of the first, of which nothing has arrived yet."""

    async def main() -> None:
        first, second = assign(model, 0, 2, device=DEVICE.id), assign(model, 2, 4, device=OTHER.id)
        sizes = [sum(info.nbytes for info in stage.tensors) for stage in (first, second)]
        bench = Bench(tmp_path / "small", quota=sum(sizes) - 1)
        await bench.need(first)
        with pytest.raises(DiskFullError):
            await bench.need(second)
        enough = Bench(tmp_path / "enough", quota=sum(sizes))
        await enough.need(first)
        await enough.need(second)

    run(main())


def test_no_device_is_the_best_one(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        need = await bench.need(assign(model, 0, 2))
        await bench.stream(need, model)
        await bench.load(DEVICE.id)
        assert bench.stage.loaded is not None
        with pytest.raises(StaleEpochError, match="device has no assignment"):
            await bench.load(OTHER.id)

    run(main())


def test_the_next_plan_takes_the_place_of_all_stages(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        first, second = await give_both(bench, model)
        await stream_and_close(bench, first, model)
        await stream_and_close(bench, second, model)
        await bench.load(OTHER.id)
        await bench.need(assign(model, 0, 2, epoch=2, device=DEVICE.id))
        assert bench.other.loaded is not None  # it may get a stage of that plan as well
        await bench.load(DEVICE.id, epoch=2)

        assert bench.other.loaded is None
        assert bench.worker.lease is not None
        assert list(bench.worker.lease.stages) == [DEVICE.id]
        with pytest.raises(StaleEpochError):
            await bench.load(OTHER.id)

    run(main())


def test_a_stage_process_that_dies_frees_the_others(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        first, second = await give_both(bench, model)
        await stream_and_close(bench, first, model)
        await stream_and_close(bench, second, model)
        await bench.load(DEVICE.id)
        bench.worker.leasing.stage_died(OTHER.id)
        await until(lambda: Unloaded(epoch=1, device=OTHER.id) in bench.mine.sent)
        await until(lambda: bench.stage.unloads)

        assert bench.worker.lease is None
        assert bench.stage.loaded is None
        assert bench.other.unloads == 0
        assert not bench.store.inventory.pinned()

    run(main())


def test_a_device_without_a_stage_may_die(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        await bench.take(assign(model, 0, 2), model)
        bench.worker.leasing.stage_died(OTHER.id)
        assert bench.worker.lease is not None

    run(main())
