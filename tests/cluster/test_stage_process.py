"""Real stage processes on loopback: what they load, compute, refuse and report."""

import asyncio
import hashlib
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from fake_cluster import Run, until
from model_folders import CONFIG, make_folder
from stage_nodes import Driver, StageNode

from potluck.cluster.generation import Generator, Token, Usage
from potluck.cluster.pipeline import Pipeline, token_payload
from potluck.cluster.stage_messages import LoadStage, Quantise, Start, TensorFile
from potluck.cluster.stage_tensors import tensor_info
from potluck.errors import (
    DiskFullError,
    EngineError,
    IntegrityError,
    InvalidStepError,
    NeedReplayError,
    OutOfMemoryError,
    PeerLostError,
    PotluckError,
    StaleEpochError,
    UnknownSessionError,
    UnreachableError,
    UntrustedPeerError,
)
from potluck.ids import SessionId
from potluck.net.transport import dial
from potluck.store.registry import LocalModel, open_model
from potluck.wire.messages import Attach, Forward, Hop, OpenSession, Result, Sampling, TensorHeader

pytestmark = [pytest.mark.slow, pytest.mark.net]

CHAT = SessionId("chat")
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(scope="module")
def nodes(
    runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[StageNode, StageNode]]:
    """A master and a worker of its home, both with a running process."""
    folder = tmp_path_factory.mktemp("nodes")
    desk = StageNode("Desk", folder / "desk")
    laptop = StageNode("Laptop", folder / "laptop", desk.identity)

    async def start() -> None:
        await asyncio.gather(desk.handle.start(), laptop.handle.start())

    async def stop() -> None:
        await asyncio.gather(desk.handle.stop(), laptop.handle.stop())

    runner.run(start())
    yield desk, laptop
    runner.run(stop())
    assert desk.exits == laptop.exits == []  # none died of what the tests did


@pytest.fixture
def desk(nodes: tuple[StageNode, StageNode]) -> StageNode:
    nodes[0].failures.clear()
    return nodes[0]


@pytest.fixture
def laptop(nodes: tuple[StageNode, StageNode]) -> StageNode:
    nodes[1].failures.clear()
    return nodes[1]


async def answer(
    pipeline: Pipeline, node: StageNode | None = None, *, sampling: Sampling | None = None
) -> list[Token]:
    """Six tokens after the prompt, whose prefill goes in two chunks."""
    generator = Generator(pipeline, context=64, chunk_tokens=lambda _: 5)
    stream = generator.tokens(PROMPT, sampling or Sampling(), limit=6, usage=Usage())
    return [token async for token in stream]


async def step(pipeline: Pipeline, position: int, tokens: list[int], number: int = 1) -> Result:
    future = pipeline.start_step(
        CHAT, step=number, position=position, tokens=tokens, sampling=Sampling()
    )
    return (await pipeline.finish_step(future)).result


async def reported(node: StageNode, pipeline: Pipeline) -> None:
    """Hand on what a process reports, as its node does."""
    async with asyncio.timeout(10):
        await until_soon(lambda: node.failures)
    for failure in node.failures:
        pipeline.step_failed(failure)


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def until_soon(condition: Callable[[], object]) -> None:
    """`until`, where another process has to do something first."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def test_a_process_that_is_up_knows_its_device_and_listens(desk: StageNode) -> None:
    assert desk.handle.activation_port > 0
    assert [device.kind for device in desk.handle.devices]
    assert desk.handle.devices[0].memory_free > 0


def test_a_layer_is_measured(desk: StageNode, run: Run) -> None:
    async def main() -> None:
        profile = await desk.handle.profile(dict(CONFIG), "f32", 16)

        assert all(ms > 0 for ms in profile.decode_ms)
        assert len(profile.prefill_ms) == len(profile.decode_ms) == 1
        assert profile.head_ms > 0
        assert profile.device.kind == desk.handle.devices[0].kind
        small = await desk.handle.profile(dict(CONFIG), "int8", 16, "int8")
        assert all(ms > 0 for ms in small.decode_ms)

    run(main())


def test_what_is_no_model_cannot_be_measured_and_the_process_lives_on(
    desk: StageNode, run: Run
) -> None:
    async def main() -> None:
        with pytest.raises(PotluckError):
            await desk.handle.profile({"model_type": "toaster"}, "f32", 16)
        await desk.handle.profile(dict(CONFIG), "bf16", 8)

    run(main())


def quantising(model: LocalModel, path: Path, name: str) -> Quantise:
    (entry,) = model.manifest.stage([name])
    source = model.sources[entry.digest]
    return Quantise(
        request=0,
        config=dict(model.manifest.config),
        shape=(entry.shape[0], entry.shape[1]),
        bits=4,
        parts=(TensorFile(info=tensor_info(entry), path=str(source.path), offset=source.offset),),
        path=str(path),
    )


def test_matrices_are_quantised_into_files(
    desk: StageNode, model: LocalModel, tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        names = [f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(4)]
        jobs = [quantising(model, tmp_path / name, name) for name in names]
        made = await asyncio.gather(*map(desk.handle.quantise, jobs))

        for name, file in zip(names, made, strict=True):
            data = (tmp_path / name).read_bytes()
            assert (digest_of(data), len(data)) == (file.digest, file.nbytes)
        assert len({file.digest for file in made}) == len(names)

    run(main())


def test_a_matrix_that_cannot_be_quantised_is_an_error_that_says_why(
    desk: StageNode, model: LocalModel, tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        job = quantising(model, tmp_path / "nowhere" / "file", "model.layers.0.mlp.up_proj.weight")
        with pytest.raises(DiskFullError, match="cannot be written"):
            await desk.handle.quantise(job)
        info = msgspec.structs.replace(job.parts[0].info, digest="ab" * 32)
        damaged = msgspec.structs.replace(job.parts[0], info=info)
        with pytest.raises(IntegrityError) as caught:
            await desk.handle.quantise(
                msgspec.structs.replace(job, parts=(damaged,), path=str(tmp_path / "file"))
            )
        assert caught.value.data["digest"] == "ab" * 32

    run(main())
    assert not list(tmp_path.iterdir())


def test_a_load_says_how_far_it_is(desk: StageNode, model: LocalModel, run: Run) -> None:
    async def main() -> None:
        loaded, progress = await desk.load(desk.stage(model, range(4)))

        assert loaded.memory_bytes >= model.manifest.nbytes
        assert progress[-1].done == progress[-1].total == model.manifest.nbytes
        await desk.handle.unload()

    run(main())


def test_two_processes_in_a_chain_say_what_one_says(
    desk: StageNode, laptop: StageNode, model: LocalModel, run: Run
) -> None:
    async def main() -> None:
        await desk.load(desk.stage(model, range(4)))
        async with Driver(desk, desk) as pipeline:
            alone = await answer(pipeline)
            warm = Sampling(temperature=0.8, top_k=20, seed=5, repetition_penalty=1.2, logprobs=2)
            alone_warm = await answer(pipeline, sampling=warm)

        await laptop.load(laptop.stage(model, range(3, 4), epoch=2))
        await desk.load(desk.stage(model, range(3), next_hop=laptop.hop, epoch=2))
        async with Driver(desk, desk, laptop, epoch=2) as pipeline:
            together = await answer(pipeline)
            together_warm = await answer(pipeline, sampling=warm)

        assert [t.token_id for t in together] == [t.token_id for t in alone]
        assert [t.token_id for t in together_warm] == [t.token_id for t in alone_warm]
        assert together_warm[0].logprob == pytest.approx(alone_warm[0].logprob, abs=1e-4)
        assert len(together_warm[0].top) == 2
        assert len(together[0].compute_ms) == 2
        await asyncio.gather(desk.handle.unload(), laptop.handle.unload())

    run(main())


def test_a_stage_that_holds_less_asks_for_a_replay(
    desk: StageNode, model: LocalModel, run: Run
) -> None:
    async def main() -> None:
        await desk.load(desk.stage(model, range(4)))
        async with Driver(desk, desk) as pipeline:
            pipeline.open(CHAT)
            await step(pipeline, 0, [1, 2, 3])
            ahead = asyncio.create_task(step(pipeline, 5, [4], number=2))
            await reported(desk, pipeline)

            with pytest.raises(NeedReplayError) as caught:
                await ahead
            assert caught.value.data["position"] == 3
            result = await step(pipeline, 3, [4], number=3)
            assert result.position == 4
        await desk.handle.unload()

    run(main())


def test_a_step_sent_again_is_answered_from_memory(
    desk: StageNode, model: LocalModel, run: Run
) -> None:
    async def main() -> None:
        await desk.load(desk.stage(model, range(4)))
        async with Driver(desk, desk) as pipeline:
            pipeline.open(CHAT)
            first = await step(pipeline, 0, [1, 2, 3], number=1)
            assert (await step(pipeline, 0, [1, 2, 3], number=1)).token_id == first.token_id
        await desk.handle.unload()

    run(main())


def test_a_trim_is_seen_by_every_stage_and_an_end_frees_the_session(
    desk: StageNode, laptop: StageNode, model: LocalModel, run: Run
) -> None:
    async def main() -> None:
        await laptop.load(laptop.stage(model, range(2, 4)))
        await desk.load(desk.stage(model, range(2), next_hop=laptop.hop))
        async with Driver(desk, desk, laptop) as pipeline:
            pipeline.open(CHAT)
            await step(pipeline, 0, [1, 2, 3, 4], number=1)
            pipeline.trim(CHAT, 2)
            trimmed = await step(pipeline, 2, [3, 4], number=2)
            pipeline.close(CHAT)
            pipeline.open(CHAT)
            again = await step(pipeline, 0, [1, 2, 3, 4], number=3)
            assert trimmed.token_id == again.token_id

            pipeline.close(CHAT)
            gone = asyncio.create_task(step(pipeline, 4, [5], number=4))
            await reported(desk, pipeline)
            with pytest.raises(UnknownSessionError):
                await gone
        assert not laptop.failures
        await asyncio.gather(desk.handle.unload(), laptop.handle.unload())

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
        with pytest.raises(UnreachableError):
            await desk.load(desk.stage(model, range(2), next_hop=closed))

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


def test_a_step_of_a_plan_that_is_over_is_refused(
    desk: StageNode, model: LocalModel, run: Run
) -> None:
    async def main() -> None:
        await desk.load(desk.stage(model, range(4), epoch=2))
        async with Driver(desk, desk, epoch=1) as pipeline:
            pipeline.open(CHAT)
            waiting = asyncio.create_task(step(pipeline, 0, [1]))
            await reported(desk, pipeline)
            with pytest.raises(PotluckError):
                await waiting
        assert desk.failures[0].kind == "stale_epoch"
        await desk.handle.unload()

    run(main())


def test_tokens_beyond_the_vocabulary_fail_the_step_and_not_the_stage(
    desk: StageNode, model: LocalModel, run: Run
) -> None:
    async def main() -> None:
        await desk.load(desk.stage(model, range(4)))
        async with Driver(desk, desk) as pipeline:
            pipeline.open(CHAT)
            waiting = asyncio.create_task(step(pipeline, 0, [1_000_000]))
            await reported(desk, pipeline)
            with pytest.raises(PotluckError):
                await waiting
        async with Driver(desk, desk) as pipeline:
            assert len(await answer(pipeline)) == 6
        await desk.handle.unload()

    run(main())


def test_only_the_homes_master_gets_results(
    desk: StageNode, laptop: StageNode, model: LocalModel, run: Run
) -> None:
    """A worker of the home may bring hidden states, and may not listen to the answers."""

    async def main() -> None:
        await desk.load(desk.stage(model, range(4)))
        async with Driver(laptop, desk) as curious:
            async with Driver(desk, desk) as pipeline:
                assert len(await answer(pipeline)) == 6
            assert not curious.broken
        await desk.handle.unload()

    run(main())


def test_a_lost_next_computer_is_reported_at_the_next_step(
    desk: StageNode, laptop: StageNode, model: LocalModel, tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        mac = StageNode("Mac", tmp_path, desk.identity)
        await mac.handle.start()
        await mac.load(mac.stage(model, range(2, 4)))
        await desk.load(desk.stage(model, range(2), next_hop=mac.hop))
        async with Driver(desk, desk, mac) as pipeline:
            pipeline.open(CHAT)
            await step(pipeline, 0, [1, 2])
            assert mac.handle._process is not None
            mac.handle._process.kill()
            await until_soon(lambda: pipeline.broken and mac.exits)
            assert isinstance(pipeline.broken, PeerLostError)
        await until_soon(lambda: "next stage is lost" in desk.log.read_text())

        first = await desk.connect(desk)
        blind = Pipeline(epoch=1, first=first, last=first, stages=2)
        waiting = asyncio.create_task(step(blind, 2, [3], number=2))
        await reported(desk, blind)
        with pytest.raises(PeerLostError, match="Mac"):
            await waiting
        first.close()
        await mac.handle.stop()
        await desk.handle.unload()

    run(main())


def test_who_was_removed_from_the_home_is_cut_off_at_once(
    desk: StageNode, model: LocalModel, tmp_path: Path, run: Run
) -> None:
    async def main() -> None:
        stranger = StageNode("Stranger", tmp_path, desk.identity)
        link = await stranger.connect(desk)
        desk.identity.revoke(stranger.identity.node_id)
        desk.handle.trust_changed()

        with pytest.raises(PeerLostError):
            await link.receive()
        with pytest.raises(UntrustedPeerError):
            await stranger.connect(desk)

    run(main())


def test_a_damaged_home_leaves_the_old_trust_in_force(
    desk: StageNode, laptop: StageNode, run: Run
) -> None:
    async def main() -> None:
        file = desk.identity.folder / "homes" / desk.home / "ca.pem"
        whole = file.read_bytes()
        file.write_bytes(b"not a certificate")
        desk.handle.trust_changed()
        try:
            link = await laptop.connect(desk)
            link.close()
        finally:
            file.write_bytes(whole)
            desk.handle.trust_changed()

        assert not desk.exits

    run(main())


def test_a_stage_port_takes_activations_and_nothing_else(
    desk: StageNode, laptop: StageNode, run: Run
) -> None:
    async def main() -> None:
        link = await dial(
            [desk.address],
            laptop.identity,
            home=laptop.home,
            peer=desk.identity.node_id,
            purpose="weights",
            me=laptop.me,
        )
        with pytest.raises(PeerLostError):
            await link.receive()

    run(main())


def test_what_is_lent_follows_what_the_owner_says(desk: StageNode, run: Run) -> None:
    async def main() -> None:
        desk.handle.lend(12_345)
        await until_soon(lambda: desk.handle.devices[0].memory_free == 12_345)
        desk.handle.lend(None)
        await until_soon(lambda: desk.handle.devices[0].memory_free > 12_345)

    run(main())


def test_a_prompt_is_refused_by_what_is_free_now_and_not_when_it_was_loaded(
    desk: StageNode, model: LocalModel, run: Run
) -> None:
    async def main() -> None:
        await desk.load(desk.stage(model, range(4)))
        desk.handle.lend(1)
        await until_soon(lambda: desk.handle.devices[0].memory_free == 1)
        async with Driver(desk, desk) as pipeline:
            pipeline.open(CHAT)
            refused = asyncio.create_task(step(pipeline, 0, PROMPT, number=1))
            await reported(desk, pipeline)
            with pytest.raises(OutOfMemoryError, match=r"Desk.*: .* 8 tokens .* 0 B are free"):
                await refused

            desk.handle.lend(None)
            await until_soon(lambda: desk.handle.devices[0].memory_free > 1)
            assert (await step(pipeline, 0, PROMPT, number=2)).token_id is not None
        await desk.handle.unload()

    run(main())


def test_the_log_says_what_the_device_computes_with(desk: StageNode, run: Run) -> None:
    async def main() -> None:
        await until_soon(lambda: "device cpu" in desk.log.read_text(encoding="utf-8"))

    run(main())


def test_a_second_start_is_ignored(desk: StageNode, run: Run) -> None:
    async def main() -> None:
        desk.handle._send(Start(identity_folder="/nowhere", me=desk.me))
        await desk.handle.profile(dict(CONFIG), "f32", 8)

    run(main())


def test_a_message_that_is_no_session_message_is_ignored(
    desk: StageNode, model: LocalModel, run: Run
) -> None:
    async def main() -> None:
        await desk.load(desk.stage(model, range(4)))
        link = await desk.connect(desk)
        link.send_nowait(Result(epoch=1, session="s", step=1, position=0))
        link.send_nowait(OpenSession(epoch=1, session="chat"))
        async with Driver(desk, desk) as pipeline:
            assert len(await answer(pipeline)) == 6
        link.close()
        await desk.handle.unload()

    run(main())


def test_a_result_that_is_ready_before_its_driver_waits_for_it(
    desk: StageNode, model: LocalModel, run: Run
) -> None:
    """The driver's two connections are not in step: the first chunk may win against `attach`."""

    async def main() -> None:
        await desk.load(desk.stage(model, range(4)))
        link = await desk.connect(desk)
        link.send_nowait(OpenSession(epoch=1, session=CHAT))
        link.send_nowait(
            Forward(
                epoch=1,
                session=CHAT,
                step=1,
                position=0,
                tensor=TensorHeader(dtype="I32", shape=(2,)),
                sampling=Sampling(),
            ),
            token_payload([1, 2]),
        )
        await desk.handle.profile(dict(CONFIG), "f32", 8)  # behind the step, in the same queue
        link.send_nowait(Attach(epoch=1))

        result, _ = await link.receive()
        assert isinstance(result, Result)
        assert result.position == 2
        link.close()
        await desk.handle.unload()

    run(main())


def random_stage(node: StageNode, model: LocalModel, *, epoch: int = 1) -> LoadStage:
    stage = node.stage(model, range(4), epoch=epoch)
    return msgspec.structs.replace(stage, tensors=(), seed=7, scheme="int8")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of another process")
def test_a_process_that_crashes_says_where_in_its_log(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        node = StageNode("Desk", tmp_path)
        await node.handle.start()
        process = node.handle._process
        assert process is not None
        process.send_signal(signal.SIGSEGV)
        await until_soon(lambda: node.exits)

        assert "engine.previous.log" in node.exits[0].message
        log = node.log.with_name("engine.previous.log").read_text(encoding="utf-8")
        assert "Segmentation fault" in log
        assert 'stage_process.py", line' in log
        await node.handle.stop()

    run(main())


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
            assert min(each.layers_ms, each.attention_ms, each.head_ms) > 0
        await desk.handle.unload()

    run(main())


def test_random_weights_that_do_not_fit_are_refused_before_they_are_made(
    desk: StageNode, model: LocalModel, run: Run
) -> None:
    async def main() -> None:
        desk.handle.lend(1000)
        with pytest.raises(OutOfMemoryError):
            await desk.load(random_stage(desk, model))
        desk.handle.lend(None)
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
