"""Plans of real stage processes, with whole layers or groups, one of which takes the place of another."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from stage_nodes import KEY, Driver, StageNode

from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.token import Usage
from potluck.cluster.processes.messages import StageLoaded
from potluck.store.registry import LocalModel
from potluck.wire.activation_messages import Sampling
from potluck.wire.messages import CacheHop, PlanBefore, RankPlace
from potluck.wire.shares import RankShare

FOLLOWING = 3  # new tokens of the next prompt


class Members:
    """Stages that have all layers: one with whole ones, or the ranks of a group."""

    def __init__(
        self,
        model: LocalModel,
        nodes: Sequence[StageNode],
        *shares: int,
        context: int = 1024,
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        """`shares` are those of the ranks, and `changes` fields of all loads."""
        self.model, self.nodes, self.shares = model, tuple(nodes), shares
        self._context, self._changes = context, changes or {}

    def hops(self, *, but: StageNode | None = None) -> tuple[CacheHop, ...]:
        """Where their caches go, or come from, but for those of this process itself."""
        return tuple(
            CacheHop(
                node_id=node.hop.node_id,
                addresses=node.hop.addresses,
                layers=(0, self.model.config.num_layers),
                share=self._share(rank),
            )
            for rank, node in enumerate(self.nodes)
            if node is not but
        )

    def _share(self, rank: int) -> RankShare | None:
        return RankShare(rank=rank, shares=self.shares) if self.shares else None

    async def load(
        self, epoch: int, before: "Members | None" = None, reads_for: "Members | None" = None
    ) -> list[StageLoaded]:
        """Load them, to go on with the conversations of the plan before."""

        async def load_rank(rank: int, node: StageNode) -> StageLoaded:
            layers, config = range(self.model.config.num_layers), self.model.config
            stage = node.stage(self.model, layers, epoch=epoch, context=self._context)
            if before is not None:
                plan = PlanBefore(epoch=epoch - 1, hops=before.hops(but=node), key=KEY)
                stage = msgspec.structs.replace(stage, before=plan)
            if reads_for is not None:
                stage = msgspec.structs.replace(stage, cache_hops=reads_for.hops())
            if self.shares:
                names = config.stage_tensors(layers, embedding=True, head=rank == 0)
                stage = msgspec.structs.replace(
                    stage,
                    head=rank == 0,
                    tensors=tuple(t for t in stage.tensors if t.name in names),
                    previous=self.nodes[0].identity.node_id if rank else None,
                    ranks=RankPlace(rank=rank, hops=tuple(node.hop for node in self.nodes)),
                    share=self._share(rank),
                )
            stage = msgspec.structs.replace(stage, **self._changes)
            return (await node.load(stage))[0]

        return await asyncio.gather(*(load_rank(*each) for each in enumerate(self.nodes)))

    def driver(self, master: StageNode, epoch: int) -> Driver:
        return Driver(master, self.nodes[0], epoch=epoch, keeps_sessions=True)


async def unload(*nodes: StageNode) -> None:
    await asyncio.gather(*(node.handle.unload() for node in nodes))


def forget_kept(*nodes: StageNode) -> None:
    for node in nodes:
        for file in node.sessions.glob("*"):
            file.unlink()


async def ask(generator: Generator, prompt: list[int]) -> list[int]:
    tokens = generator.tokens(prompt, Sampling(), limit=8, usage=Usage())
    return [token.token_id async for token in tokens]


def next_prompt(prompt: list[int], answer: list[int]) -> list[int]:
    return [*prompt, *answer, *range(5, 5 + FOLLOWING)]
