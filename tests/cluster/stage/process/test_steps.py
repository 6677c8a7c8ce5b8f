"""Steps through real stage processes: computed, sent again, refused, and lost on the way."""

import asyncio
from math import prod
from pathlib import Path
from random import Random

import msgspec
import pytest
from fake_cluster import Run
from model_folders import CONFIG
from random_messages import random_message
from stage_nodes import (
    CHAT,
    PROMPT,
    Driver,
    StageNode,
    answer,
    chatting,
    reported,
    step,
    until_soon,
)

from potluck.cluster.driver.payload import token_payload
from potluck.cluster.driver.pipeline import Pipeline
from potluck.errors import (
    NeedReplayError,
    OutOfMemoryError,
    PeerLostError,
    PotluckError,
    UnknownSessionError,
)
from potluck.net.reactor import Reactor
from potluck.store.registry import LocalModel
from potluck.wire.activation_messages import (
    Attach,
    CloseSession,
    Forward,
    KeepSession,
    OpenSession,
    RestoreSession,
    Result,
    Sampling,
    TensorHeader,
    TrimSession,
)
from potluck.wire.measuring_messages import Profile

pytestmark = [pytest.mark.slow, pytest.mark.net]


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
        async with chatting(desk, model) as pipeline:
            await step(pipeline, 0, [1, 2, 3])
            ahead = asyncio.create_task(step(pipeline, 5, [4], number=2))
            await reported(desk, pipeline)

            with pytest.raises(NeedReplayError) as caught:
                await ahead
            assert caught.value.data["position"] == 3
            result = await step(pipeline, 3, [4], number=3)
            assert result.position == 4

    run(main())


def test_a_step_sent_again_is_answered_from_memory(
    desk: StageNode, model: LocalModel, run: Run
) -> None:
    async def main() -> None:
        async with chatting(desk, model) as pipeline:
            first = await step(pipeline, 0, [1, 2, 3], number=1)
            assert (await step(pipeline, 0, [1, 2, 3], number=1)).token_id == first.token_id

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


def test_a_stage_survives_whatever_a_driver_sends(
    desk: StageNode, model: LocalModel, run: Run
) -> None:
    """Random steps of two sessions, some of which a stage can do: each is done or reported."""
    random = Random(1)
    kinds = (OpenSession, TrimSession, CloseSession, KeepSession, RestoreSession)

    async def main() -> None:
        await desk.load(desk.stage(model, range(4)))
        link = await desk.connect(desk)
        for _ in range(300):
            if random.random() < 0.5:
                message, payload = random_message(random.choice(kinds), random), b""
            else:
                message, payload = random_forward(random)
            await link.send(message, payload)
        async with Driver(desk, desk) as pipeline:
            pipeline.open(CHAT)
            assert (await step(pipeline, 0, PROMPT)).position == len(PROMPT)
        link.close()
        await desk.handle.unload()
        assert {failure.kind for failure in desk.failures} >= {"invalid_step", "unknown_session"}
        assert "Traceback" not in desk.log.read_text()

    run(main())


def random_forward(random: Random) -> tuple[Forward, bytes]:
    """A step of plan 1, with a payload of the length that its header says."""
    shape = random.choice(((), (0,), (1,), (1,), (5,), (600,), (1, 64), (2, 3, 4)))
    message = random_message(Forward, random)
    assert isinstance(message, Forward)
    tensor = TensorHeader(dtype=random.choice(("I32", "F32")), shape=shape)
    position, session = random.choice((0, 1, message.position)), random.choice("ab")
    changed = {"epoch": 1, "session": session, "position": position, "tensor": tensor}
    payload = bytes(4 * prod(shape))
    return msgspec.structs.replace(message, **changed), payload


def test_a_prompt_is_refused_by_what_is_free_now_and_not_when_it_was_loaded(
    desk: StageNode, model: LocalModel, run: Run
) -> None:
    async def main() -> None:
        async with chatting(desk, model) as pipeline:
            desk.lend(1)
            await until_soon(lambda: desk.handle.devices[0].memory_free == 1)
            refused = asyncio.create_task(step(pipeline, 0, PROMPT, number=1))
            await reported(desk, pipeline)
            with pytest.raises(OutOfMemoryError, match=r"Desk.*: .* 8 tokens .* 0 B are free"):
                await refused

            desk.lend(None)
            await until_soon(lambda: desk.handle.devices[0].memory_free > 1)
            assert (await step(pipeline, 0, PROMPT, number=2)).token_id is not None

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
        await until_soon(lambda: "a stage is lost" in desk.log.read_text())

        reactor = Reactor()
        first = await desk.connect_steps(desk, reactor)
        blind = Pipeline(epoch=1, first=first, last=first, stages=2)
        waiting = asyncio.create_task(step(blind, 2, [3], number=2))
        await reported(desk, blind)
        with pytest.raises(PeerLostError, match="Mac"):
            await waiting
        first.close()
        reactor.close()
        await mac.handle.stop()
        await desk.handle.unload()

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
        await desk.handle.profile(
            Profile(config=dict(CONFIG), scheme="f32", tokens=8)
        )  # behind the step, in the same queue
        link.send_nowait(Attach(epoch=1))

        result, _ = await link.receive()
        assert isinstance(result, Result)
        assert result.position == 2
        link.close()
        await desk.handle.unload()

    run(main())
