import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_cluster import run, until
from memory_links import link_pair
from model_folders import CONFIG, GPTQ, gptq_tensors, make_folder

from potluck.cluster import worker as worker_module
from potluck.cluster.stage_messages import LayerProfiled, LoadProgress, LoadStage, StageLoaded
from potluck.cluster.stage_tensors import tensor_info
from potluck.cluster.worker import Worker, check_assignment
from potluck.errors import (
    BrokenModelError,
    BusyError,
    DiskFullError,
    EngineError,
    IntegrityError,
    ModelError,
    NotAllowedError,
    PeerLostError,
    RemoteProtocolError,
    StaleEpochError,
)
from potluck.ids import Digest, HomeId
from potluck.store.chunks import ChunkStore
from potluck.store.fetch import send_tensors
from potluck.store.registry import LocalModel, open_model
from potluck.wire.measuring_messages import (
    MeasureStage,
    Profile,
    Profiled,
    StageMeasured,
    StageTimes,
)
from potluck.wire.messages import (
    Assign,
    DeviceId,
    DeviceInfo,
    Load,
    Loaded,
    Message,
    Need,
    NodeInfo,
    Ping,
    StepFailed,
    Unload,
    Unloaded,
    WarmingUp,
)

DEVICE = DeviceInfo(kind="cpu", memory_total=10, memory_free=5)
OTHER = DeviceInfo(kind="cpu", index=1, memory_total=10, memory_free=5)
TIMES = StageTimes(
    weight_bytes=9,
    read_bytes_per_s=1e9,
    layers_ms=3.0,
    products_ms=2.0,
    attention_ms=0.5,
    head_ms=0.0,
)
MY_HOME, ANAS_HOME = HomeId("aa" * 32), HomeId("bb" * 32)


class FakeStage:
    """A stage process that computes nothing. `gate` holds a load up, `error` fails the next."""

    activation_port = 4711

    def __init__(self, device: DeviceInfo = DEVICE) -> None:
        self.devices = (device,)
        self.loaded: LoadStage | None = None
        self.gate: asyncio.Event | None = None
        self.error: Exception | None = None
        self.unloads = 0

    async def profile(self, config: object, scheme: str, tokens: int) -> LayerProfiled:
        return LayerProfiled(
            request=1, device=DEVICE, decode_ms=(1.0,), prefill_ms=(2.0,), head_ms=3.0
        )

    async def load(
        self, stage: LoadStage, on_progress: Callable[[LoadProgress], None]
    ) -> StageLoaded:
        on_progress(LoadProgress(epoch=stage.epoch, done=1, total=2))
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.loaded = stage
        return StageLoaded(request=1, seconds=0.5, memory_bytes=99, cache_tokens=64)

    async def measure(self, epoch: int, position: int) -> StageTimes:
        return TIMES

    async def unload(self) -> None:
        self.unloads += 1
        self.loaded = None


class Master:
    """A control connection as the worker sees it."""

    def __init__(self, name: str, home: HomeId, role: Any = "master") -> None:
        self.peer = NodeInfo(node_id=home, name=name, version="0", os="Linux", arch="x")
        self.peer_role = role
        self.home = home
        self.sent: list[Message] = []
        self.is_gone = False

    async def send(self, message: Message) -> None:
        if self.is_gone:
            raise PeerLostError("gone")
        self.sent.append(message)


class Bench:
    """A worker that lends itself, its fake engine and its real store."""

    def __init__(self, folder: Path, *, quota: int | None = None) -> None:
        self.stage, self.other = FakeStage(), FakeStage(OTHER)
        self.store = ChunkStore(folder / "tensors", quota=quota, reserve=0)
        self.changes = 0
        self.worker = Worker(stage=self._stage, store=self.store, changed=self._changed)
        self.worker.is_lending = True
        self.mine, self.ana = Master("Desk", MY_HOME), Master("Ana's Mac", ANAS_HOME)

    async def _stage(self, device: DeviceId | None) -> Any:
        stages = {None: self.stage, DEVICE.id: self.stage, OTHER.id: self.other}
        return stages[device]

    def _changed(self) -> None:
        self.changes += 1

    async def need(self, message: Assign, master: Master | None = None) -> Need:
        answer = await self.worker.handle(master or self.mine, message)
        assert isinstance(answer, Need)
        return answer

    async def stream(self, need: Need, model: LocalModel, home: HomeId = MY_HOME) -> int:
        """Send what is needed over a connection in memory; the bytes that were sent."""
        there, here = link_pair()
        sent, _ = await asyncio.gather(
            send_tensors(there, need.tensors, model.sources),
            self.worker.receive_weights(home, here),
        )
        return sent

    async def take(self, message: Assign, model: LocalModel) -> Loaded:
        """Assign, stream and load."""
        need = await self.need(message)
        if need.tensors:
            await self.stream(need, model)
        answer = await self.worker.handle(self.mine, Load(epoch=message.epoch, next_hop=None))
        assert isinstance(answer, Loaded)
        return answer


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def assign(
    model: LocalModel, start: int = 0, stop: int = 2, *, epoch: int = 1, **changes: Any
) -> Assign:
    embedding, head = start == 0, stop == model.config.num_layers
    names = model.config.stage_tensors(range(start, stop), embedding=embedding, head=head)
    fields: dict[str, Any] = {
        "epoch": epoch,
        "model_id": model.manifest.model_id,
        "config": dict(model.manifest.config),
        "scheme": "f32",
        "layers": (start, stop),
        "embedding": embedding,
        "head": head,
        "context": 64,
        "tensors": tuple(map(tensor_info, model.manifest.stage(names))),
    }
    return Assign(**(fields | changes))


# --- the whole way


def test_an_assignment_is_answered_with_what_is_missing(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        message = assign(model)
        need = await bench.need(message)

        assert {t.digest for t in need.tensors} == {t.digest for t in message.tensors}
        assert need.activation_port == bench.stage.activation_port
        assert bench.worker.loan is not None
        assert bench.worker.loan.master_name == "Desk"
        assert bench.worker.loan.awaits_weights

    run(main())


def test_what_was_streamed_is_loaded_from_the_store(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        message = assign(model)
        loaded = await bench.take(message, model)

        assert loaded.memory_bytes == 99
        assert bench.stage.loaded is not None
        for file in bench.stage.loaded.tensors:
            assert bench.store.has(Digest(file.info.digest), file.info.nbytes)
            assert file.path == str(bench.store.path(Digest(file.info.digest)))
        assert bench.stage.loaded.home == MY_HOME
        assert bench.worker.loan is not None
        assert bench.worker.loan.is_loaded
        await until(lambda: WarmingUp(epoch=1, progress=0.5) in bench.mine.sent)

    run(main())


def test_what_is_in_the_store_is_not_asked_for_again(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        await bench.take(assign(model), model)
        assert not (await bench.need(assign(model, epoch=2))).tensors
        shifted = await bench.need(assign(model, 1, 3, epoch=3))
        new = model.config.stage_tensors(range(2, 3), embedding=False, head=False)
        assert len(shifted.tensors) == len(new)

    run(main())


def test_a_stream_that_breaks_goes_on_where_it_was(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        message = assign(model)
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
        await bench.worker.handle(bench.mine, Load(epoch=1, next_hop=None))

    run(main())


def test_a_device_is_measured_for_a_master(bench: Bench) -> None:
    async def main() -> None:
        answer = await bench.worker.handle(bench.mine, Profile(config={}, scheme="f32", tokens=8))
        assert answer == Profiled(device=DEVICE, decode_ms=(1.0,), prefill_ms=(2.0,), head_ms=3.0)

    run(main())


def test_a_loaded_stage_is_measured_for_its_master(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        await bench.take(assign(model), model)

        measured = await bench.worker.handle(bench.mine, MeasureStage(epoch=1, position=16))

        assert measured == StageMeasured(epoch=1, times=TIMES)
        with pytest.raises(StaleEpochError):
            await bench.worker.handle(bench.mine, MeasureStage(epoch=2, position=16))
        with pytest.raises(BusyError):
            await bench.worker.handle(bench.ana, Profile(config={}, scheme="f32", tokens=8))
        with pytest.raises(StaleEpochError):
            await bench.worker.handle(bench.ana, MeasureStage(epoch=1, position=16))

    run(main())


def test_random_weights_are_loaded_without_any_being_sent(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        message = msgspec.structs.replace(assign(model), tensors=(), seed=3)

        need = await bench.need(message)
        await bench.worker.handle(bench.mine, Load(epoch=1, next_hop=None))

        assert need.tensors == ()
        assert bench.stage.loaded is not None
        assert (bench.stage.loaded.seed, bench.stage.loaded.tensors) == (3, ())

    run(main())


def test_random_weights_have_no_tensors(model: LocalModel) -> None:
    with pytest.raises(BrokenModelError):
        check_assignment(msgspec.structs.replace(assign(model), seed=3))


def test_unloading_gives_the_memory_back_and_keeps_the_weights(
    bench: Bench, model: LocalModel
) -> None:
    async def main() -> None:
        await bench.take(assign(model), model)
        answer = await bench.worker.handle(bench.mine, Unload(epoch=1))

        assert answer == Unloaded(epoch=1)
        assert bench.worker.loan is None
        assert bench.stage.loaded is None
        assert not (await bench.need(assign(model, epoch=2))).tensors
        await bench.worker.release()
        assert await bench.worker.handle(bench.mine, Unload(epoch=9)) == Unloaded(epoch=9)
        assert not bench.store._pins

    run(main())


# --- a stage on each device


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


async def load_on(bench: Bench, device: DeviceId, *, epoch: int = 1) -> Message:
    return await bench.worker.handle(bench.mine, Load(epoch=epoch, next_hop=None, device=device))


def test_each_device_has_its_stage_of_the_plan(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        first, second = await give_both(bench, model)
        assert not {t.digest for t in first.tensors} & {t.digest for t in second.tensors}
        loan = bench.worker.loan
        assert loan is not None
        assert (loan.layers, loan.awaits_weights, loan.is_loaded) == ((0, 4), True, False)
        await stream_and_close(bench, first, model)
        assert loan.awaits_weights
        await stream_and_close(bench, second, model)
        assert not loan.awaits_weights

        bench.stage.gate = asyncio.Event()
        loading = asyncio.create_task(load_on(bench, DEVICE.id))
        await until(lambda: bench.mine.sent)
        await load_on(bench, OTHER.id)  # does not wait for the other device
        assert loan.progress == 0.75
        assert not loan.is_loaded
        bench.stage.gate.set()
        await loading
        assert loan.is_loaded
        assert [s.loaded and s.loaded.layers for s in (bench.stage, bench.other)] == [
            (0, 2), (2, 4),
        ]  # fmt: skip
        reports = [m.device for m in bench.mine.sent if isinstance(m, WarmingUp)]
        assert reports == [DEVICE.id, OTHER.id]

        await bench.worker.handle(bench.mine, Unload(epoch=1))
        assert bench.stage.loaded is bench.other.loaded is None
        assert not bench.store._pins

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
        await load_on(bench, OTHER.id)
        await load_on(bench, DEVICE.id)

    run(main())


def test_no_device_is_the_best_one(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        need = await bench.need(assign(model, 0, 2))
        await bench.stream(need, model)
        await load_on(bench, DEVICE.id)
        assert bench.stage.loaded is not None
        with pytest.raises(StaleEpochError, match="device has no assignment"):
            await load_on(bench, OTHER.id)

    run(main())


def test_the_next_plan_takes_the_place_of_all_stages(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        first, second = await give_both(bench, model)
        await stream_and_close(bench, first, model)
        await stream_and_close(bench, second, model)
        await load_on(bench, OTHER.id)
        await bench.need(assign(model, 0, 2, epoch=2, device=DEVICE.id))

        assert bench.other.loaded is None
        assert bench.worker.loan is not None
        assert list(bench.worker.loan.stages) == [DEVICE.id]
        with pytest.raises(StaleEpochError):
            await load_on(bench, OTHER.id)

    run(main())


def test_a_stage_process_that_dies_frees_the_others(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        first, second = await give_both(bench, model)
        await stream_and_close(bench, first, model)
        await stream_and_close(bench, second, model)
        await load_on(bench, DEVICE.id)
        bench.worker.stage_died(OTHER.id)
        await until(lambda: Unloaded(epoch=1, device=OTHER.id) in bench.mine.sent)
        await until(lambda: bench.stage.unloads)

        assert bench.worker.loan is None
        assert bench.stage.loaded is None
        assert bench.other.unloads == 0
        assert not bench.store._pins

    run(main())


def test_a_device_without_a_stage_may_die(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        await bench.take(assign(model), model)
        bench.worker.stage_died(OTHER.id)
        assert bench.worker.loan is not None

    run(main())


# --- whom it serves


def test_only_a_master_may_ask(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        other = Master("Laptop", MY_HOME, role="worker")
        for message in (assign(model), Unload(epoch=1), Profile(config={}, scheme="f32", tokens=1)):
            with pytest.raises(NotAllowedError):
                await bench.worker.handle(other, message)

    run(main())


def test_one_that_does_not_lend_itself_says_so(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        bench.worker.is_lending = False
        with pytest.raises(BusyError, match="does not lend"):
            await bench.need(assign(model))
        bench.worker.is_lending, bench.worker.is_paused = True, True
        with pytest.raises(BusyError, match="paused"):
            await bench.worker.handle(bench.mine, Profile(config={}, scheme="f32", tokens=1))

    run(main())


def test_the_first_home_that_comes_is_served(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        await bench.take(assign(model), model)
        for message in (assign(model), Profile(config={}, scheme="f32", tokens=1)):
            with pytest.raises(BusyError, match="lent to Desk"):
                await bench.worker.handle(bench.ana, message)
        with pytest.raises(BusyError, match="lent to Desk"):
            await bench.worker.handle(bench.ana, Load(epoch=1, next_hop=None))
        await bench.worker.handle(bench.ana, Unload(epoch=1))  # of what it does not have
        assert bench.worker.loan is not None
        await bench.worker.handle(bench.mine, Unload(epoch=1))
        await bench.need(assign(model), bench.ana)
        assert bench.worker.loan.master_name == "Ana's Mac"

    run(main())


def test_another_home_hears_at_once_that_the_first_one_loads(
    bench: Bench, model: LocalModel
) -> None:
    async def main() -> None:
        await bench.stream(await bench.need(assign(model)), model)
        bench.stage.gate = asyncio.Event()
        loading = asyncio.create_task(bench.worker.handle(bench.mine, Load(epoch=1, next_hop=None)))
        await until(lambda: bench.mine.sent)
        with pytest.raises(BusyError, match="lent to Desk"):
            await bench.need(assign(model), bench.ana)
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
            await bench.need(assign(model))
        assert bench.worker.loan is None
        assert not bench.store._pins

    run(main())


def test_a_plan_that_is_over_is_not_loaded(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        with pytest.raises(StaleEpochError):
            await bench.worker.handle(bench.mine, Load(epoch=1, next_hop=None))
        await bench.need(assign(model, epoch=2))
        with pytest.raises(StaleEpochError):
            await bench.worker.handle(bench.mine, Load(epoch=1, next_hop=None))

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
        await bench.need(assign(model))
        with pytest.raises(NotAllowedError):
            await bench.worker.receive_weights(ANAS_HOME, here)

    run(main())


# --- what goes wrong


def test_a_full_disk_is_said_before_a_byte_is_sent(tmp_path: Path, model: LocalModel) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, quota=1000)
        with pytest.raises(DiskFullError):
            await bench.need(assign(model))
        assert bench.worker.loan is None
        assert not bench.store._pins  # else nothing of it could ever be evicted

    run(main())


def test_a_damaged_file_is_thrown_away_and_asked_for_again(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        message = assign(model)
        await bench.stream(await bench.need(message), model)
        damaged = Digest(message.tensors[0].digest)
        bench.stage.error = IntegrityError("damaged", digest=damaged)
        with pytest.raises(IntegrityError):
            await bench.worker.handle(bench.mine, Load(epoch=1, next_hop=None))

        again = await bench.need(message)
        assert [tensor.digest for tensor in again.tensors] == [damaged]

    run(main())


def test_an_engine_that_cannot_load_is_an_error_and_the_loan_lives_on(
    bench: Bench, model: LocalModel
) -> None:
    async def main() -> None:
        await bench.stream(await bench.need(assign(model)), model)
        bench.stage.error = EngineError("no memory")
        with pytest.raises(EngineError):
            await bench.worker.handle(bench.mine, Load(epoch=1, next_hop=None))
        await bench.worker.handle(bench.mine, Load(epoch=1, next_hop=None))

    run(main())


def test_a_stage_process_that_dies_takes_the_loan_with_it_and_the_master_hears(
    bench: Bench, model: LocalModel
) -> None:
    async def main() -> None:
        bench.worker.stage_died(DEVICE.id)  # nothing was lent: nothing happens
        await bench.take(assign(model), model)
        bench.worker.stage_died(DEVICE.id)
        await until(lambda: Unloaded(epoch=1, device=DEVICE.id) in bench.mine.sent)

        assert bench.worker.loan is None
        assert not bench.store._pins

    run(main())


def test_a_step_that_failed_is_told_to_the_master(bench: Bench, model: LocalModel) -> None:
    failure = StepFailed(epoch=1, session="s", step=1, kind="engine", message="No.")

    async def main() -> None:
        bench.worker.step_failed(failure)  # lent to nobody
        await bench.take(assign(model), model)
        bench.worker.step_failed(failure)
        await until(lambda: failure in bench.mine.sent)

    run(main())


def test_a_report_to_a_master_that_is_gone_harms_nobody(
    bench: Bench, model: LocalModel, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        await bench.take(assign(model), model)
        bench.mine.is_gone = True
        bench.worker.step_failed(
            StepFailed(epoch=1, session="s", step=1, kind="engine", message="No.")
        )
        sending = asyncio.all_tasks() - {asyncio.current_task()}
        assert sending
        await asyncio.wait(sending)

    run(main())
    assert "a task failed" not in caplog.text


# --- the master leaves and returns


def test_a_master_that_comes_back_finds_its_loan(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        await bench.take(assign(model), model)
        bench.worker.master_left(bench.mine)
        assert bench.worker.loan is not None
        assert bench.worker.loan.link is None
        back = Master("Desk", MY_HOME)
        bench.worker.master_came(back)

        assert bench.worker.loan.link is back
        assert bench.worker.loan.release is not None
        assert bench.worker.loan.release.cancelled()
        assert bench.stage.loaded is not None

    run(main())


def test_the_end_of_an_old_connection_does_not_take_the_new_ones_loan(
    bench: Bench, model: LocalModel
) -> None:
    async def main() -> None:
        await bench.take(assign(model), model)
        again = Master("Desk", MY_HOME)
        bench.worker.master_came(again)
        bench.worker.master_left(bench.mine)

        assert bench.worker.loan is not None
        assert bench.worker.loan.link is again

    run(main())


def test_a_master_that_stays_away_loses_the_memory(
    bench: Bench, model: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "KEEP_LOADED_S", 0.0)

    async def main() -> None:
        await bench.take(assign(model), model)
        bench.worker.master_left(bench.mine)
        await until(lambda: bench.stage.unloads)

        assert bench.worker.loan is None
        assert not bench.store._pins

    run(main())


def test_another_home_gets_what_an_absent_master_left(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        await bench.take(assign(model), model)
        bench.worker.master_left(bench.mine)
        await bench.need(assign(model), bench.ana)

        assert bench.worker.loan is not None
        assert bench.worker.loan.home == ANAS_HOME
        assert bench.stage.loaded is None
        bench.worker.master_came(Master("Desk", MY_HOME))
        assert bench.worker.loan.link is bench.ana

    run(main())


# --- assignments that are not what they should be


def test_an_assignment_must_name_exactly_the_tensors_of_its_layers(model: LocalModel) -> None:
    good = assign(model)
    assert len(check_assignment(good)) == len(good.tensors)
    first, *rest = good.tensors
    for tensors in ((), tuple(rest), (first, *good.tensors), (msgspec.structs.replace(first, name="x"), *rest)):  # fmt: skip
        with pytest.raises(BrokenModelError, match="the assignment"):
            check_assignment(msgspec.structs.replace(good, tensors=tensors))


@pytest.mark.parametrize(
    "changes", [{"shape": (1, 1)}, {"nbytes": 4}, {"nbytes": 1 << 49}, {"dtype": "I64"}]
)
def test_a_tensor_of_the_wrong_size_is_refused(model: LocalModel, changes: Any) -> None:
    good = assign(model)
    first = msgspec.structs.replace(good.tensors[0], **changes)
    with pytest.raises(BrokenModelError, match="in the assignment"):
        check_assignment(msgspec.structs.replace(good, tensors=(first, *good.tensors[1:])))


def test_an_assignment_of_a_quantised_model_names_the_parts_of_its_matrices(tmp_path: Path) -> None:
    config = {**CONFIG, **GPTQ, "num_hidden_layers": 4}
    folder = make_folder(tmp_path / "model", config=config, tensors=gptq_tensors(config))
    good = assign(open_model(folder, cache_dir=tmp_path / "cache"))

    assert len(good.tensors) == 1 + 2 * (7 * 4 + 2)
    assert set(check_assignment(good)) == {info.digest for info in good.tensors}
    for which in ("o_proj.qweight", "up_proj.scales"):
        fewer = tuple(info for info in good.tensors if not info.name.endswith(f"0.mlp.{which}"))
        fewer = tuple(info for info in fewer if not info.name.endswith(f"0.self_attn.{which}"))
        with pytest.raises(BrokenModelError, match=which.replace(".", r"\.")):
            check_assignment(msgspec.structs.replace(good, tensors=fewer))


@pytest.mark.parametrize("layers", [(2, 2), (3, 1), (0, 5), (4, 6)])
def test_layers_that_the_model_does_not_have_are_refused(
    model: LocalModel, layers: tuple[int, int]
) -> None:
    with pytest.raises(BrokenModelError, match="4 layers"):
        check_assignment(msgspec.structs.replace(assign(model), layers=layers))


@pytest.mark.parametrize("config", [{}, {"model_type": "toaster"}, {"architectures": 3}])
def test_a_config_of_no_model_is_refused(model: LocalModel, config: Any) -> None:
    with pytest.raises(ModelError):
        check_assignment(msgspec.structs.replace(assign(model), config=config))


def test_a_refused_assignment_leaves_the_loan_as_it_is(bench: Bench, model: LocalModel) -> None:
    async def main() -> None:
        await bench.take(assign(model), model)
        with pytest.raises(BrokenModelError):
            await bench.need(msgspec.structs.replace(assign(model, epoch=2), tensors=()))

        assert bench.worker.loan is not None
        assert bench.worker.loan.is_loaded

    run(main())
