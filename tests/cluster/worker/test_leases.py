"""Whom a worker serves: one home at a time, also while its master is away."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fake_cluster import run, until
from fake_engine import DEVICE, assign
from worker_bench import ANAS_HOME, MY_HOME, OTHER, Bench, FakeMaster

from potluck.cluster.worker.worker import KEEP_LOADED_S
from potluck.errors import BusyError, NotAllowedError, StaleEpochError
from potluck.store.chunks import ChunkStore
from potluck.store.registry import LocalModel
from potluck.wire.connection import LOST_AFTER_S
from potluck.wire.measuring_messages import Profile
from potluck.wire.messages import Load, Unload


def test_only_a_master_may_ask(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        other = FakeMaster("Laptop", MY_HOME, role="worker")
        for message in (
            assign(model, 0, 2),
            Unload(epoch=1),
            Profile(config={}, scheme="f32", tokens=1),
        ):
            with pytest.raises(NotAllowedError):
                await bench.worker.handle(other, message)

    run(main())


def test_one_that_does_not_lend_itself_says_so(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        bench.worker.is_lending = False
        with pytest.raises(BusyError, match="does not lend"):
            await bench.need(assign(model, 0, 2))
        bench.worker.is_lending, bench.worker.is_paused = True, True
        with pytest.raises(BusyError, match="paused"):
            await bench.worker.handle(bench.mine, Profile(config={}, scheme="f32", tokens=1))

    run(main())


def test_the_first_home_that_comes_is_served(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        await bench.take(assign(model, 0, 2), model)
        for message in (assign(model, 0, 2), Profile(config={}, scheme="f32", tokens=1)):
            with pytest.raises(BusyError, match="lent to Desk"):
                await bench.worker.handle(bench.ana, message)
        with pytest.raises(BusyError, match="lent to Desk"):
            await bench.worker.handle(bench.ana, Load(epoch=1, next_hop=None))
        await bench.worker.handle(bench.ana, Unload(epoch=1))  # of what it does not have
        assert bench.worker.lease is not None
        await bench.worker.handle(bench.mine, Unload(epoch=1))
        await bench.need(assign(model, 0, 2), bench.ana)
        assert bench.worker.lease.master_name == "Ana's Mac"

    run(main())


def test_another_home_hears_at_once_that_the_first_one_loads(
    bench: Bench, model: LocalModel
) -> None:
    async def main() -> None:
        await bench.stream(await bench.need(assign(model, 0, 2)), model)
        bench.stage.gate = asyncio.Event()
        loading = asyncio.create_task(bench.load())
        await until(lambda: bench.mine.sent)
        with pytest.raises(BusyError, match="lent to Desk"):
            await bench.need(assign(model, 0, 2), bench.ana)
        bench.stage.gate.set()
        await loading

    run(main())


def test_one_that_is_paused_in_the_middle_of_an_assignment_is_paused(
    bench: Bench, model: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        look = ChunkStore.missing

        def pause(store: ChunkStore, tensors: Any) -> Any:
            bench.worker.is_paused = True
            return look(store, tensors)

        monkeypatch.setattr(ChunkStore, "missing", pause)
        with pytest.raises(BusyError, match="paused"):
            await bench.need(assign(model, 0, 2))
        assert bench.worker.lease is None
        assert not bench.store.inventory.pinned()

    run(main())


def test_a_master_that_comes_back_finds_its_lease(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        await bench.take(assign(model, 0, 2), model)
        bench.worker.leasing.left(bench.mine)
        assert bench.worker.lease is not None
        assert bench.worker.lease.link is None
        back = FakeMaster("Desk", MY_HOME)
        bench.worker.leasing.came(back)

        assert bench.worker.lease.link is back
        assert bench.worker.lease.release is not None
        assert bench.worker.lease.release.cancelled()
        assert bench.stage.loaded is not None

    run(main())


def test_the_end_of_an_old_connection_does_not_take_the_new_ones_lease(
    bench: Bench, model: LocalModel
) -> None:
    async def main() -> None:
        await bench.take(assign(model, 0, 2), model)
        again = FakeMaster("Desk", MY_HOME)
        bench.worker.leasing.came(again)
        bench.worker.leasing.left(bench.mine)

        assert bench.worker.lease is not None
        assert bench.worker.lease.link is again

    run(main())


def test_a_master_that_stays_away_loses_the_memory(tmp_path: Path, model: LocalModel) -> None:
    bench = Bench(tmp_path, keep_loaded_s=0.0)

    async def main() -> None:
        await bench.take(assign(model, 0, 2), model)
        bench.worker.leasing.left(bench.mine)
        await until(lambda: bench.stage.unloads)

        assert bench.worker.lease is None
        assert not bench.store.inventory.pinned()

    run(main())


def test_an_absent_masters_memory_is_given_back_within_a_minute() -> None:
    assert KEEP_LOADED_S + LOST_AFTER_S < 60


def test_another_home_gets_what_an_absent_master_left(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        await bench.take(assign(model, 0, 2), model)
        bench.worker.leasing.left(bench.mine)
        await bench.need(assign(model, 0, 2), bench.ana)

        assert bench.worker.lease is not None
        assert bench.worker.lease.home == ANAS_HOME
        assert bench.stage.loaded is None
        bench.worker.leasing.came(FakeMaster("Desk", MY_HOME))
        assert bench.worker.lease.link is bench.ana

    run(main())


def test_the_next_plan_of_the_same_home_finds_the_layers(bench: Bench, model: LocalModel) -> None:
    """Also when its master was restarted, which makes every epoch another one."""

    async def main() -> None:
        await bench.take(assign(model, 0, 2), model)
        bench.worker.leasing.left(bench.mine)
        bench.worker.leasing.came(bench.mine)
        need = await bench.need(assign(model, 0, 2, epoch=77))

        assert need.tensors == ()
        assert bench.stage.loaded is not None
        await bench.load(epoch=77)
        assert bench.stage.unloads == 0  # else the stage process had nothing that it could keep
        assert bench.stage.loaded.epoch == 77
        with pytest.raises(StaleEpochError):
            await bench.load(epoch=1)

    run(main())


def test_layers_of_the_plan_before_go_with_the_lease(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        await bench.take(assign(model, 0, 2), model)
        await bench.need(assign(model, 2, 4, epoch=2, device=OTHER.id))
        await bench.worker.handle(bench.mine, Unload(epoch=2))

        assert bench.stage.loaded is None
        assert not bench.store.inventory.pinned()

    run(main())


def test_a_plan_that_is_assigned_in_vain_leaves_the_layers_of_the_one_before(
    tmp_path: Path, model: LocalModel
) -> None:
    async def main() -> None:
        bench = Bench(tmp_path)
        await bench.take(assign(model, 0, 2), model)
        bench.worker.is_paused = True
        with pytest.raises(BusyError):
            await bench.need(assign(model, 2, 4, epoch=2))
        bench.worker.is_paused = False

        assert bench.worker.lease is not None
        assert bench.worker.lease.epoch == 1
        await bench.worker.handle(bench.mine, Unload(epoch=1))
        assert bench.stage.loaded is None

    run(main())


def test_a_worker_says_what_it_holds_to_the_home_that_it_holds_it_for(
    bench: Bench, model: LocalModel
) -> None:
    async def main() -> None:
        await bench.take(assign(model, 0, 2, epoch=7), model)
        (held,) = bench.worker.leasing.held(MY_HOME)

        assert (held.device, held.epoch, held.layers) == (DEVICE.id, 7, (0, 2))
        assert (held.model_id, held.scheme, held.cache, held.context) == (
            model.manifest.model_id, "f32", "full", 64,
        )  # fmt: skip
        assert (held.embedding, held.head) == (True, False)
        assert bench.worker.leasing.held(ANAS_HOME) == ()
        await bench.worker.leasing.release()
        assert bench.worker.leasing.held(MY_HOME) == ()

    run(main())


def test_a_connection_that_its_master_has_replaced_counts_no_more(
    bench: Bench, model: LocalModel
) -> None:
    """A process that hung for a while goes on with the plan of a master that was replaced."""

    async def main() -> None:
        stale = bench.mine
        bench.worker.leasing.came(stale)
        await bench.take(assign(model, 0, 2, epoch=9), model)
        bench.mine = FakeMaster("Desk", MY_HOME)
        bench.worker.leasing.came(bench.mine)
        for message in (
            assign(model, 0, 2, epoch=10),
            Load(epoch=9, next_hop=None),
            Unload(epoch=9),
            Profile(config={}, scheme="f32", tokens=1),
        ):
            with pytest.raises(StaleEpochError, match="connected anew"):
                await bench.worker.handle(stale, message)

        bench.worker.leasing.left(stale)
        assert bench.worker.lease is not None
        assert bench.worker.lease.link is bench.mine
        bench.worker.leasing.left(bench.mine)
        bench.mine = stale  # its node was replaced again, and connects with what it had
        bench.worker.leasing.came(stale)
        await bench.load(epoch=9)

    run(main())
