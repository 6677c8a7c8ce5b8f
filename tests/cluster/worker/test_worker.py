"""From an assignment to a loaded stage, and what goes wrong on the way."""

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest
from fake_cluster import run, until
from fake_engine import DEVICE, assign
from memory_links import link_pair
from worker_bench import ANAS_HOME, MY_HOME, Bench

from potluck.errors import (
    BrokenModelError,
    BusyError,
    DiskFullError,
    EngineError,
    IntegrityError,
    NotAllowedError,
    PeerLostError,
    RemoteProtocolError,
    StaleEpochError,
    VersionMismatchError,
)
from potluck.ids import Digest
from potluck.store.fetch import send_tensors
from potluck.store.registry import LocalModel
from potluck.wire.cache_messages import TakeSessions, TakingSessions
from potluck.wire.measuring_messages import MeasureStage, Profile, Profiled, StageMeasured
from potluck.wire.messages import Ping, PlanBefore, StepFailed, Unload, Unloaded, WarmingUp
from potluck.wire.spare_messages import Keep
from potluck.wire.versions import PROTOCOL_VERSIONS


def test_an_assignment_is_answered_with_what_is_missing(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        message = assign(model, 0, 2)
        need = await bench.need(message)

        assert {t.digest for t in need.tensors} == {t.digest for t in message.tensors}
        assert need.activation_port == bench.stage.activation_port
        assert bench.worker.lease is not None
        assert bench.worker.lease.master_name == "Desk"
        assert bench.worker.lease.awaits_weights

    run(main())


def test_what_was_streamed_is_loaded_from_the_store(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        message = assign(model, 0, 2)
        loaded = await bench.take(message, model)

        assert loaded.memory_bytes == 99
        assert bench.stage.loaded is not None
        for file in bench.stage.loaded.tensors:
            assert bench.store.has(Digest(file.digest), file.nbytes)
            assert file.path == str(bench.store.path(Digest(file.digest)))
        assert bench.stage.loaded.home == MY_HOME
        assert bench.worker.lease is not None
        assert bench.worker.lease.is_loaded
        await until(lambda: WarmingUp(epoch=1, progress=0.5) in bench.mine.sent)

    run(main())


def test_what_is_in_the_store_is_not_asked_for_again(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        await bench.take(assign(model, 0, 2), model)
        assert not (await bench.need(assign(model, 0, 2, epoch=2))).tensors
        shifted = await bench.need(assign(model, 1, 3, epoch=3))
        new = model.config.stage_tensors(range(2, 3), embedding=False, head=False)
        assert len(shifted.tensors) == len(new)

    run(main())


def test_a_stream_that_breaks_goes_on_where_it_was(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        message = assign(model, 0, 2)
        need = await bench.need(message)
        there, here = link_pair()
        receiving = asyncio.create_task(bench.worker.receive_weights(MY_HOME, here))
        some = need.tensors[:3]
        await asyncio.wait_for(send_tensors(there, some, model.sources), 10)
        await there.cut()
        with pytest.raises(PeerLostError):
            await receiving
        again = await bench.need(message)

        assert len(again.tensors) == len(need.tensors) - 3
        await bench.stream(again, model)
        await bench.load()

    run(main())


def test_a_device_is_measured_for_a_master(bench: Bench) -> None:
    async def main() -> None:
        asked = Profile(config={}, scheme="f32", tokens=8, cache="int8")
        answer = await bench.worker.handle(bench.mine, asked)
        assert answer == Profiled(device=DEVICE, decode_ms=(1.0,), prefill_ms=(2.0,), head_ms=3.0)
        assert bench.stage.profiled == ["int8"]

    run(main())


def test_a_loaded_stage_is_measured_for_its_master(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        await bench.take(assign(model, 0, 2), model)

        measured = await bench.worker.handle(bench.mine, MeasureStage(epoch=1, position=16))

        assert measured == StageMeasured(epoch=1, times=await bench.stage.measure(1, 16))
        with pytest.raises(StaleEpochError):
            await bench.worker.handle(bench.mine, MeasureStage(epoch=2, position=16))
        with pytest.raises(BusyError):
            await bench.worker.handle(bench.ana, Profile(config={}, scheme="f32", tokens=8))
        with pytest.raises(StaleEpochError):
            await bench.worker.handle(bench.ana, MeasureStage(epoch=1, position=16))

    run(main())


def test_a_loaded_stage_goes_on_with_the_sessions_of_a_replica_for_its_master_alone(
    bench: Bench, model: LocalModel
) -> None:
    async def main() -> None:
        await bench.take(assign(model, 0, 2), model)
        asked = TakeSessions(epoch=1, before=PlanBefore(epoch=1, key="ab" * 32))
        assert await bench.worker.handle(bench.mine, asked) == TakingSessions(epoch=1)
        assert bench.stage.taken_over == [asked]
        for link, other in (
            (bench.ana, asked),
            (bench.mine, msgspec.structs.replace(asked, epoch=2)),
        ):
            with pytest.raises(StaleEpochError):
                await bench.worker.handle(link, other)
        assert bench.stage.taken_over == [asked]

    run(main())


def test_random_weights_are_loaded_without_any_being_sent(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        message = msgspec.structs.replace(assign(model, 0, 2), tensors=(), seed=3)

        need = await bench.need(message)
        await bench.load()

        assert need.tensors == ()
        assert bench.stage.loaded is not None
        assert (bench.stage.loaded.seed, bench.stage.loaded.tensors) == (3, ())

    run(main())


def test_unloading_gives_the_memory_back_and_keeps_the_weights(
    bench: Bench, model: LocalModel
) -> None:
    async def main() -> None:
        await bench.take(assign(model, 0, 2), model)
        answer = await bench.worker.handle(bench.mine, Unload(epoch=1))

        assert answer == Unloaded(epoch=1)
        assert bench.worker.lease is None
        assert bench.stage.loaded is None
        assert not (await bench.need(assign(model, 0, 2, epoch=2))).tensors
        await bench.worker.leasing.release()
        assert await bench.worker.handle(bench.mine, Unload(epoch=9)) == Unloaded(epoch=9)
        assert not bench.store.inventory.pinned()

    run(main())


def test_caches_that_are_left_for_a_moment_go_when_their_home_has_them(
    bench: Bench, model: LocalModel
) -> None:
    async def main() -> None:
        await bench.take(assign(model, 0, 2), model)
        await bench.worker.leasing.release(leaves_caches=True)
        assert bench.worker.lease is None
        assert (bench.stage.unloads, bench.stage.leaves_caches) == (1, True)

        await bench.worker.handle(bench.mine, Unload(epoch=9))
        assert bench.stage.unloads == 1
        for _ in range(2):
            await bench.worker.handle(bench.mine, Unload(epoch=1))
            assert (bench.stage.unloads, bench.stage.leaves_caches) == (2, False)

    run(main())


def test_a_plan_that_is_over_is_not_loaded(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        with pytest.raises(StaleEpochError):
            await bench.load()
        await bench.need(assign(model, 0, 2, epoch=2))
        with pytest.raises(StaleEpochError):
            await bench.load()

    run(main())


def test_a_message_that_is_no_request_is_refused(bench: Bench) -> None:
    async def main() -> None:
        with pytest.raises(RemoteProtocolError):
            await bench.worker.handle(bench.mine, Ping())

    run(main())


def test_weights_that_nobody_was_told_to_expect_are_refused(
    bench: Bench, model: LocalModel
) -> None:
    async def main() -> None:
        _, here = link_pair()
        with pytest.raises(NotAllowedError):
            await bench.worker.receive_weights(MY_HOME, here)
        await bench.need(assign(model, 0, 2))
        with pytest.raises(NotAllowedError):
            await bench.worker.receive_weights(ANAS_HOME, here)

    run(main())


def test_a_full_disk_is_said_before_a_byte_is_sent(tmp_path: Path, model: LocalModel) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, quota=1000)
        with pytest.raises(DiskFullError):
            await bench.need(assign(model, 0, 2))
        assert bench.worker.lease is None
        assert not bench.store.inventory.pinned()  # else nothing of it could ever be evicted

    run(main())


@pytest.mark.usefixtures("removed_in_threads")
def test_all_that_is_damaged_or_gone_is_asked_for_again_at_once(
    bench: Bench, model: LocalModel
) -> None:
    async def main() -> None:
        message = assign(model, 0, 2)
        await bench.stream(await bench.need(message), model)
        found, altered, deleted, *_ = (Digest(tensor.digest) for tensor in message.tensors)
        bench.store.path(altered).write_bytes(b"altered")
        bench.store.path(deleted).unlink()
        bench.stage.error = IntegrityError("damaged", digest=found)
        with pytest.raises(IntegrityError):
            await bench.load()

        again = await bench.need(message)
        assert {tensor.digest for tensor in again.tensors} == {found, altered, deleted}

    run(main())


def test_weights_that_are_deleted_under_a_loaded_stage_are_sent_again_for_the_next_one(
    bench: Bench, model: LocalModel
) -> None:
    async def main() -> None:
        message = assign(model, 0, 2)
        await bench.take(message, model)
        shutil.rmtree(bench.store.root)

        again = await bench.need(message)
        assert len(again.tensors) == len(message.tensors)
        await bench.stream(again, model)
        await bench.load()

    run(main())


def test_an_engine_that_cannot_load_is_an_error_and_the_loan_lives_on(
    bench: Bench, model: LocalModel
) -> None:
    async def main() -> None:
        await bench.stream(await bench.need(assign(model, 0, 2)), model)
        bench.stage.error = EngineError("no memory")
        with pytest.raises(EngineError):
            await bench.load()
        await bench.load()

    run(main())


def test_a_stage_process_that_dies_takes_the_loan_with_it_and_the_master_hears(
    bench: Bench, model: LocalModel
) -> None:
    async def main() -> None:
        await bench.take(assign(model, 0, 2), model)
        bench.worker.leasing.stage_died(DEVICE.id)
        await until(lambda: Unloaded(epoch=1, device=DEVICE.id) in bench.mine.sent)

        assert bench.worker.lease is None
        assert not bench.store.inventory.pinned()

    run(main())


def test_a_master_that_has_just_unloaded_its_plan_hears_of_a_process_that_dies(
    bench: Bench, model: LocalModel
) -> None:
    async def main() -> None:
        bench.worker.leasing.came(bench.mine)
        await bench.take(assign(model, 0, 2), model)
        await bench.worker.handle(bench.mine, Unload(epoch=1))
        bench.worker.leasing.stage_died(DEVICE.id, is_hung=True)

        await until(lambda: Unloaded(epoch=0, device=DEVICE.id, is_hung=True) in bench.mine.sent)

    run(main())


def test_a_step_that_failed_is_told_to_the_master(bench: Bench, model: LocalModel) -> None:
    failure = StepFailed(epoch=1, session="s", step=1, kind="engine", message="No.")

    async def main() -> None:
        bench.worker.leasing.step_failed(failure)  # lent to nobody
        await bench.take(assign(model, 0, 2), model)
        bench.worker.leasing.step_failed(failure)
        await until(lambda: failure in bench.mine.sent)

    run(main())


def test_a_report_to_a_master_that_is_gone_harms_nobody(
    bench: Bench, model: LocalModel, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        await bench.take(assign(model, 0, 2), model)
        bench.mine.is_gone = True
        bench.worker.leasing.step_failed(
            StepFailed(epoch=1, session="s", step=1, kind="engine", message="No.")
        )
        sending = asyncio.all_tasks() - {asyncio.current_task()}
        assert sending
        await asyncio.wait(sending)

    run(main())
    assert "a task failed" not in caplog.text


def test_a_refused_assignment_leaves_the_loan_as_it_is(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        await bench.take(assign(model, 0, 2), model)
        with pytest.raises(BrokenModelError):
            await bench.need(msgspec.structs.replace(assign(model, 0, 2, epoch=2), tensors=()))

        assert bench.worker.lease is not None
        assert bench.worker.lease.is_loaded

    run(main())


def test_a_master_with_an_older_program_is_told_so_before_anything_is_measured_or_kept(
    bench: Bench, model: LocalModel
) -> None:
    async def main() -> None:
        bench.mine.version = min(PROTOCOL_VERSIONS)
        message = msgspec.structs.replace(assign(model, 0, 2), scheme="int4")
        config = dict(model.manifest.config)
        profile = Profile(config=config, scheme="int4", tokens=8)
        keep = Keep(config=config, scheme="int4", layers=(0,), embedding=False, head=False)
        for each in (message, profile, keep):
            with pytest.raises(
                VersionMismatchError, match="Desk cannot share weights in int4, since"
            ):
                await bench.worker.handle(bench.mine, each)
        assert bench.worker.lease is None

        await bench.take(assign(model, 0, 2), model)  # in a scheme that both know

    run(main())
