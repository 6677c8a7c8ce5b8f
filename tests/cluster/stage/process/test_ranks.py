"""Two real stage processes as ranks of one group: each has a share of every layer, and they sum over a link."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from fake_cluster import Run
from stage_nodes import Driver, StageNode, answer

from potluck.store.registry import LocalModel
from potluck.wire.messages import RankPlace, RankShare

pytestmark = [pytest.mark.slow, pytest.mark.net]

SHARES = (1, 1)


async def load(nodes: Sequence[StageNode], model: LocalModel, *, epoch: int = 1) -> None:
    """Load all layers as a group of these computers, in this order."""
    hops = tuple(node.hop for node in nodes)

    async def load_rank(rank: int, node: StageNode) -> None:
        whole = node.stage(model, range(model.config.num_layers), epoch=epoch)
        if rank:  # the head is rank 0's alone
            names = model.config.stage_tensors(
                range(model.config.num_layers), embedding=True, head=False
            )
            tensors = tuple(t for t in whole.tensors if t.name in names)
            whole = msgspec.structs.replace(whole, head=False, tensors=tensors)
        await node.load(
            msgspec.structs.replace(
                whole,
                previous=nodes[0].identity.node_id if rank else None,
                ranks=RankPlace(rank=rank, hops=hops),
                share=RankShare(rank=rank, shares=SHARES),
            )
        )

    await asyncio.gather(*(load_rank(*each) for each in enumerate(nodes)))


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
        for nodes in ((desk, laptop), (laptop, desk)):
            await load(nodes, model)
            if nodes[0] is desk:
                async with Driver(desk, desk) as pipeline:
                    tokens = await answer(pipeline)
                assert [token.token_id for token in tokens] == expected
        await asyncio.gather(desk.handle.unload(), laptop.handle.unload())
        assert desk.failures == laptop.failures == []

    run(main())
