"""A home whose plan changes while a generator answers: the chains of one plan after the other are fakes."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from chain_answers import attached
from fake_chain import FakeChain

from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.limits import AnswerLimits
from potluck.cluster.driver.pipeline import Pipeline

PROMPT = list(range(100))
OTHER = list(range(200, 280))


def next_chain(before: FakeChain) -> FakeChain:
    """A chain that takes over what another one has cached."""
    chain = FakeChain()
    chain.reader = before
    return chain


class Home:
    """A generator, and chains of one plan after the other."""

    def __init__(self, limits: AnswerLimits | None = None) -> None:
        self.generator = Generator(recover=self._recover, limits=limits or AnswerLimits())
        self.chain = FakeChain()
        self.is_changed = asyncio.Event()

    async def _recover(self) -> None:
        await self.is_changed.wait()

    @asynccontextmanager
    async def first(self, *, is_exact_in_chunks: bool = False) -> AsyncGenerator[Pipeline, None]:
        async with attached(
            self.generator,
            self.chain,
            context=400,
            room=400,
            is_exact_in_chunks=is_exact_in_chunks,
        ) as pipeline:
            yield pipeline

    @asynccontextmanager
    async def second(
        self,
        first: Pipeline,
        chain: FakeChain,
        *,
        room: int = 400,
        is_exact_in_chunks: bool = False,
        drain_s: float = 5.0,
    ) -> AsyncGenerator[Pipeline, None]:
        """The next plan; the first one's steps have ended, if they have within this time."""
        await first.drain(drain_s)
        first.shut()
        async with attached(
            self.generator,
            chain,
            epoch=2,
            context=400,
            room=room,
            is_exact_in_chunks=is_exact_in_chunks,
        ) as pipeline:
            yield pipeline


async def settle() -> None:
    """Let what is ready run."""
    for _ in range(20):
        await asyncio.sleep(0)


def computed(chain: FakeChain) -> int:
    """How many tokens the chain has computed."""
    return sum(forward.tensor.shape[0] for forward in chain.forwards)
