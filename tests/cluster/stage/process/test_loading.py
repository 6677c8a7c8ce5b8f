"""What real stage processes load, refuse to load, and measure of what they loaded."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch
from fake_cluster import Run, until
from model_folders import CONFIG, make_folder
from stage_nodes import CHAT, Driver, StageNode, answer, reported, step

from potluck.cluster.driver.token import Token
from potluck.cluster.processes.messages import LoadStage, Start, UnloadStage
from potluck.cluster.stage import loading
from potluck.cluster.stage.loading import StageLoader
from potluck.cluster.stage.process import StageServer
from potluck.cluster.stage.ranks import Links
from potluck.cluster.stage.step_watch import StepWatch
from potluck.errors import (
    EngineError,
    IntegrityError,
    InvalidStepError,
    OutOfMemoryError,
    PeerLostError,
    PotluckError,
    StaleEpochError,
    UnreachableError,
)
from potluck.ids import SessionId
from potluck.store.registry import LocalModel, open_model
from potluck.wire.measuring_messages import Profile
from potluck.wire.messages import DeviceInfo, Hop

pytestmark = [pytest.mark.slow, pytest.mark.net]


def test_a_load_says_how_far_it_is(desk: StageNode, model: LocalModel, run: Run) -> None:
    async def main() -> None:
        loaded, progress = await desk.load(desk.stage(model, range(4)))

        assert loaded.memory_bytes >= model.manifest.nbytes
        assert progress[-1].done == progress[-1].total == model.manifest.nbytes
        await desk.handle.unload()

    run(main())


def test_the_node_knows_what_its_process_holds(
    desk: StageNode, model: LocalModel, run: Run
) -> None:
    async def main() -> None:
        await desk.load(desk.stage(model, range(4), epoch=3))
        assert desk.handle.held is not None
        assert desk.handle.held.home == desk.home
        held = desk.handle.held.stage
        assert held.device == desk.handle.devices[0].id
        assert (held.model_id, held.seed) == (model.manifest.model_id, None)
        assert (held.scheme, held.cache, held.layers) == ("f32", "full", (0, 4))
        assert (held.embedding, held.head) == (True, True)
        assert (held.epoch, held.context) == (3, 64)

        await desk.handle.unload()
        assert desk.handle.held is None

    run(main())


def test_a_file_that_was_altered_is_refused_by_its_digest(
    desk: StageNode, tmp_path: Path, run: Run
) -> None:
    folder = make_folder(tmp_path / "model", config={**CONFIG, "num_hidden_layers": 1})
    model = open_model(folder, cache_dir=tmp_path / "digests")
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)

    async def main() -> None:
        with pytest.raises(IntegrityError) as caught:
            await desk.load(desk.stage(model, range(1)))
        assert caught.value.data["digest"] in {entry.digest for entry in model.manifest.tensors}

    run(main())


def test_a_file_that_is_gone_is_an_error_and_the_process_lives_on(
    desk: StageNode, model: LocalModel, tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        stage = desk.stage(model, range(4))
        gone = tuple(
            msgspec.structs.replace(file, path=str(tmp_path / "none")) for file in stage.tensors
        )
        with pytest.raises(PotluckError):
            await desk.load(msgspec.structs.replace(stage, tensors=gone))
        await desk.load(stage)
        await desk.handle.unload()

    run(main())


def test_a_next_computer_that_cannot_be_reached_fails_the_load(
    desk: StageNode, laptop: StageNode, model: LocalModel, run: Run
) -> None:
    async def main() -> None:
        closed = Hop(
            node_id=laptop.identity.node_id,
            addresses=(msgspec.structs.replace(laptop.address, port=1),),
        )
        with pytest.raises(UnreachableError) as caught:
            await desk.load(desk.stage(model, range(2), next_hop=closed))
        assert caught.value.data["node"] == laptop.identity.node_id

    run(main())


def test_a_load_that_nobody_waits_for_any_more_is_undone(
    desk: StageNode, model: LocalModel, run: Run
) -> None:
    async def main() -> None:
        loading = asyncio.create_task(desk.load(desk.stage(model, range(4))))
        await until(lambda: desk.handle._waiting)
        loading.cancel()
        await asyncio.wait([loading])
        await desk.handle.unload()  # comes after it, since all come one after the other

        async with Driver(desk, desk) as pipeline:
            pipeline.open(CHAT)
            waiting = asyncio.create_task(step(pipeline, 0, [1]))
            await reported(desk, pipeline)
            with pytest.raises(PeerLostError, match="gave its part back"):
                await waiting

    run(main())


def test_of_two_loads_the_last_one_counts(desk: StageNode, model: LocalModel, run: Run) -> None:
    async def main() -> None:
        first = asyncio.create_task(desk.load(desk.stage(model, range(4), epoch=1)))
        second = asyncio.create_task(desk.load(desk.stage(model, range(4), epoch=2)))
        await asyncio.wait([first, second])

        await second
        async with Driver(desk, desk, epoch=2) as pipeline:
            assert len(await answer(pipeline)) == 6
        if error := first.exception():
            assert isinstance(error, EngineError)
        await desk.handle.unload()

    run(main())


def token_ids(tokens: list[Token]) -> list[int]:
    return [token.token_id for token in tokens]


def test_layers_that_are_held_and_needed_are_kept(
    desk: StageNode, model: LocalModel, run: Run
) -> None:
    async def main() -> None:
        whole, _ = await desk.load(desk.stage(model, range(4), epoch=1))
        assert (whole.layers_kept, whole.layers_loaded) == (0, 4)
        async with Driver(desk, desk, epoch=1) as pipeline:
            expected = token_ids(await answer(pipeline))

        again, progress = await desk.load(desk.stage(model, range(4), epoch=2))
        assert (again.layers_kept, again.layers_loaded, progress) == (4, 0, [])
        assert again.memory_bytes == whole.memory_bytes
        async with Driver(desk, desk, epoch=2) as pipeline:
            assert token_ids(await answer(pipeline)) == expected

        part, progress = await desk.load(desk.stage(model, range(1, 3), epoch=3))
        assert (part.layers_kept, part.layers_loaded, progress) == (2, 0, [])
        assert desk.handle.held is not None
        held = desk.handle.held.stage
        assert (held.layers, held.embedding, held.head) == ((1, 3), False, False)
        assert part.memory_bytes < whole.memory_bytes

        rest, progress = await desk.load(desk.stage(model, range(4), epoch=4))
        assert (rest.layers_kept, rest.layers_loaded) == (2, 2)
        assert progress[-1].total < model.manifest.nbytes
        assert rest.memory_bytes == whole.memory_bytes
        async with Driver(desk, desk, epoch=4) as pipeline:
            assert token_ids(await answer(pipeline)) == expected
        await desk.handle.unload()

    run(main())


@pytest.mark.parametrize(
    "changes",
    [{"seed": 8}, {"model_id": "ef" * 32}, {"scheme": "int4"}, {"cache": "int8"}],
    ids=lambda changes: next(iter(changes)),
)
def test_layers_of_another_content_are_not_kept(
    desk: StageNode, model: LocalModel, run: Run, changes: dict[str, Any]
) -> None:
    async def main() -> None:
        await desk.load(random_stage(desk, model))
        stage = msgspec.structs.replace(random_stage(desk, model, epoch=2), **changes)
        loaded, _ = await desk.load(stage)
        assert (loaded.layers_kept, loaded.layers_loaded) == (0, 4)
        await desk.handle.unload()

    run(main())


def test_after_a_load_that_failed_what_is_held_is_what_is_told_and_is_kept_by_the_next(
    desk: StageNode, model: LocalModel, tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        await desk.load(desk.stage(model, range(1, 3), epoch=1))
        stage = desk.stage(model, range(4), epoch=2)
        gone = tuple(
            msgspec.structs.replace(file, path=str(tmp_path / "none")) for file in stage.tensors
        )
        with pytest.raises(PotluckError):
            await desk.load(msgspec.structs.replace(stage, tensors=gone))
        told = desk.handle.held
        assert told is not None
        assert (told.stage.epoch, told.stage.layers) == (None, (1, 3))
        assert desk.handle.is_idle

        desk.lend(1000)
        with pytest.raises(OutOfMemoryError):
            await desk.load(stage)
        assert desk.handle.held == told
        desk.lend(None)
        loaded, _ = await desk.load(stage)
        assert (loaded.layers_kept, loaded.layers_loaded) == (2, 2)
        await desk.handle.unload()

    run(main())


def random_stage(node: StageNode, model: LocalModel, *, epoch: int = 1) -> LoadStage:
    stage = node.stage(model, range(4), epoch=epoch)
    return msgspec.structs.replace(stage, tensors=(), seed=7, scheme="int8")


def test_random_weights_are_made_and_measured(desk: StageNode, model: LocalModel, run: Run) -> None:
    async def main() -> None:
        loaded, progress = await desk.load(random_stage(desk, model))
        assert loaded.memory_bytes > 0
        assert progress[-1].done == progress[-1].total > 0
        async with Driver(desk, desk) as pipeline:
            assert len(await answer(pipeline)) == 6
            times = await desk.handle.measure(1, 16)
            again = await desk.handle.measure(1, 16)
            elsewhere = await desk.handle.measure(1, 8)
            assert len(await answer(pipeline)) == 6  # its sessions are as they were

        for each in (times, again, elsewhere):
            assert each.weight_bytes == times.weight_bytes > 0
            assert min(each.layers_ms, each.head_ms) > 0
        await desk.handle.unload()

    run(main())


def test_random_weights_that_do_not_fit_are_refused_before_they_are_made(
    desk: StageNode, model: LocalModel, run: Run
) -> None:
    async def main() -> None:
        desk.lend(1000)
        with pytest.raises(OutOfMemoryError):
            await desk.load(random_stage(desk, model))
        desk.lend(None)
        await desk.load(random_stage(desk, model))
        await desk.handle.unload()

    run(main())


def test_what_is_not_loaded_is_not_measured(desk: StageNode, model: LocalModel, run: Run) -> None:
    async def main() -> None:
        with pytest.raises(StaleEpochError):
            await desk.handle.measure(1, 0)
        await desk.load(random_stage(desk, model, epoch=2))
        with pytest.raises(StaleEpochError):
            await desk.handle.measure(1, 0)
        with pytest.raises(InvalidStepError, match="64 tokens"):
            await desk.handle.measure(2, 64)
        assert (await desk.handle.measure(2, 63)).layers_ms > 0
        await desk.handle.unload()

    run(main())


class AnyThread:
    async def call(self, function: Callable[[], object]) -> object:
        return await asyncio.to_thread(function)


def test_what_is_left_of_the_plan_before_counts_within_what_is_lent_until_it_is_given_back(
    desk: StageNode, model: LocalModel, run: Run
) -> None:
    lent = 1 << 28

    class Limited:
        def own(self, *, in_use: int) -> DeviceInfo:
            return DeviceInfo(kind="cpu", memory_total=1 << 40, memory_free=lent)

    async def main() -> None:
        loader = StageLoader(
            name="Desk",
            device=torch.device("cpu"),
            lending=cast("Any", Limited()),
            compute=cast("Any", AnyThread()),
            threads=1,
            report=lambda _: None,
        )
        message, left = desk.stage(model, range(4)), SimpleNamespace(nbytes=lent)
        await loader.prepare(message)
        stage = await loader.load(message, cast("Any", left))
        assert stage.cache_tokens == stage.context
        tokens = torch.arange(8, dtype=torch.int32)
        session = SessionId("a")
        stage.open(session, epoch=1)

        def compute() -> None:
            with pytest.raises(OutOfMemoryError):
                stage.forward(session, tokens, epoch=1, step=1, position=0)
            left.nbytes = 0
            stage.forward(session, tokens, epoch=1, step=1, position=0)

        await asyncio.to_thread(compute)

    run(main())


def test_a_load_begins_with_all_given_back_also_by_one_that_failed(
    monkeypatch: pytest.MonkeyPatch, desk: StageNode, model: LocalModel, run: Run
) -> None:
    """torch keeps a GPU's memory for itself, and what is free then is what the load may take."""

    class NothingLent:
        def own(self, *, in_use: int) -> DeviceInfo:
            assert released == [torch.device("cuda", 0)]
            return DeviceInfo(kind="cuda", memory_total=9, memory_free=in_use)

    released: list[torch.device] = []
    monkeypatch.setattr(loading, "release", released.append)

    async def main() -> None:
        loader = StageLoader(
            name="Desk",
            device=torch.device("cuda", 0),
            lending=cast("Any", NothingLent()),
            compute=cast("Any", AnyThread()),
            threads=1,
            report=lambda _: None,
        )
        with pytest.raises(OutOfMemoryError):
            await loader.prepare(desk.stage(model, range(4)))

    run(main())


async def served(node: StageNode, config: dict[str, Any]) -> StageServer:
    """The server of a stage process, here in this one, with one layer of numbers by chance."""
    start = Start(identity_folder=str(node.identity.folder), me=node.me, threads=2)
    server = StageServer(start, lambda _: None, StepWatch())
    server._compute.start()
    stage = LoadStage(
        home=node.home, epoch=1, model_id="ab" * 32, config=config, scheme="int8", layers=(0, 1),
        embedding=False, head=False, context=16, tensors=(), seed=0, next_hop=None,
    )  # fmt: skip
    await server._load(stage)
    return server


def test_a_profile_of_another_model_leaves_what_is_loaded_its_threads(
    tmp_path: Path, run: Run
) -> None:
    """A plan of a small model, which one thread measures, must not slow down the large one in use."""

    async def main() -> None:
        large = {**CONFIG, "hidden_size": 256, "intermediate_size": 2500}
        server = await served(StageNode("Desk", tmp_path), large)
        assert await server._compute.call(torch.get_num_threads) == 2

        wanted = Profile(config=dict(CONFIG), scheme="int8", tokens=8)
        await server._profile(wanted)

        assert await server._compute.call(torch.get_num_threads) == 2

    run(main())


def test_a_rank_that_waits_for_a_lost_one_gives_its_part_back_at_once(
    tmp_path: Path, run: Run
) -> None:
    """Its thread is free only when the connections with the others end."""
    has_ended = threading.Event()

    def wait() -> None:
        has_ended.wait()

    class SumLink:
        def close(self) -> None:
            has_ended.set()

    async def main() -> None:
        server = await served(StageNode("Desk", tmp_path), {**CONFIG})
        loaded = server._chain.loaded
        assert loaded is not None
        loaded.rank_links = Links(sums={1: cast("Any", SumLink())}, steps=())
        server._compute.submit(wait)

        try:
            async with asyncio.timeout(10):
                await server._unload(UnloadStage())
        finally:
            has_ended.set()

    run(main())
