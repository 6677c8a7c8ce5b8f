"""Two real stage processes as ranks of one group: each has a share of every layer, and they sum over a link."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from fake_cluster import Run
from stage_nodes import CHAT, Driver, StageNode, answer, reported, step, until_soon

from potluck.cluster.processes.messages import StageLoaded
from potluck.errors import (
    InvalidStepError,
    NeedReplayError,
    PeerLostError,
)
from potluck.store.registry import LocalModel
from potluck.wire.activation_messages import TrimSession
from potluck.wire.messages import Ping, RankPlace
from potluck.wire.shares import RankShare

pytestmark = [pytest.mark.slow, pytest.mark.net]

SHARES = (1, 1)


async def load(
    nodes: Sequence[StageNode], model: LocalModel, *, epoch: int = 1
) -> list[StageLoaded]:
    """Load all layers as a group of these computers, in this order."""
    hops = tuple(node.hop for node in nodes)

    async def load_rank(rank: int, node: StageNode) -> StageLoaded:
        whole = node.stage(model, range(model.config.num_layers), epoch=epoch)
        if rank:  # the head is rank 0's alone
            names = model.config.stage_tensors(
                range(model.config.num_layers), embedding=True, head=False
            )
            tensors = tuple(t for t in whole.tensors if t.name in names)
            whole = msgspec.structs.replace(whole, head=False, tensors=tensors)
        stage = msgspec.structs.replace(
            whole,
            previous=nodes[0].identity.node_id if rank else None,
            ranks=RankPlace(rank=rank, hops=hops),
            share=RankShare(rank=rank, shares=SHARES),
        )
        return (await node.load(stage))[0]

    return await asyncio.gather(*(load_rank(*each) for each in enumerate(nodes)))


async def unload(*nodes: StageNode) -> None:
    await asyncio.gather(*(node.handle.unload() for node in nodes))


async def alone(desk: StageNode, model: LocalModel) -> list[int]:
    """What one process answers that has the whole model."""
    await desk.load(desk.stage(model, range(model.config.num_layers)))
    async with Driver(desk, desk) as pipeline:
        tokens = await answer(pipeline)
    await desk.handle.unload()
    return [token.token_id for token in tokens]


def test_ranks_answer_as_the_whole_model_does(
    desk: StageNode, laptop: StageNode, model: LocalModel, run: Run
) -> None:
    async def main() -> None:
        expected = await alone(desk, model)
        loaded = await load((desk, laptop), model)
        assert all(stage.memory_bytes < model.manifest.nbytes for stage in loaded)
        assert all(stage.keeps_sessions for stage in loaded)
        async with Driver(desk, desk) as pipeline:
            tokens = await answer(pipeline)
        assert [token.token_id for token in tokens] == expected

        kept = await load((desk, laptop), model, epoch=2)
        assert [stage.layers_loaded for stage in kept] == [0, 0]
        await unload(desk, laptop)
        assert desk.failures == laptop.failures == []

    run(main())


def test_a_rank_that_has_lost_a_session_has_its_tokens_sent_again(
    desk: StageNode, laptop: StageNode, model: LocalModel, run: Run
) -> None:
    async def main() -> None:
        expected = await alone(desk, model)
        await load((desk, laptop), model)
        async with Driver(desk, desk) as pipeline:
            pipeline.open(CHAT)
            await step(pipeline, 0, [1, 2, 3])
            # rank 1 hears of it from rank 0 alone; here from somebody who may say it as well
            link = await desk.connect(laptop)
            link.send_nowait(TrimSession(epoch=1, session=CHAT, position=2))
            await link.request(Ping(), timeout_s=10)  # what was sent before has arrived
            waiting = asyncio.create_task(step(pipeline, 3, [4], number=2))
            await reported(desk, pipeline)
            with pytest.raises(NeedReplayError) as raised:
                await waiting
            assert raised.value.data["position"] == 2

            tokens = await answer(pipeline)
            assert [token.token_id for token in tokens] == expected
            link.close()
        await unload(desk, laptop)

    run(main())


def test_a_rank_that_stood_still_is_reported_by_the_others_when_it_is_ended(
    desk: StageNode, model: LocalModel, tmp_path: Path, run: Run
) -> None:
    """Its node ends it (`test_handle.py`): how soon that is depends on how busy the computer is."""

    async def main() -> None:
        mac = StageNode("Mac", tmp_path, desk.identity)
        process = await mac.start()
        await load((desk, mac), model)
        async with Driver(desk, desk) as pipeline:
            pipeline.open(CHAT)
            await step(pipeline, 0, [1, 2, 3])
            process.suspend()
            waiting = asyncio.create_task(step(pipeline, 3, [4], number=2))
            process.kill()
            await reported(desk, pipeline)
            with pytest.raises(PeerLostError, match="Mac"):
                await waiting
        await until_soon(lambda: mac.exits)
        await mac.handle.stop()
        await desk.handle.unload()
        desk.failures.clear()

    run(main())


def test_a_rank_without_the_others_or_of_another_computer_is_not_loaded(
    desk: StageNode, laptop: StageNode, model: LocalModel, run: Run
) -> None:
    """Who is told that all ranks are on one computer shares memory with them: it has to be this one."""

    async def main() -> None:
        whole = desk.stage(model, range(4))
        place = RankPlace(rank=0, hops=(desk.hop, desk.hop))
        with pytest.raises(InvalidStepError, match="another share"):
            await desk.load(msgspec.structs.replace(whole, ranks=place))
        others = RankPlace(rank=0, hops=(laptop.hop, laptop.hop))
        share = RankShare(rank=0, shares=SHARES)
        with pytest.raises(InvalidStepError, match="another computer's"):
            await desk.load(msgspec.structs.replace(whole, ranks=others, share=share))
        with pytest.raises(InvalidStepError, match="another computer's"):
            await desk.handle.measure_sums(desk.home, others)

    run(main())
