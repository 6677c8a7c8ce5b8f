"""Who fetches caches of a stage that goes out of force gets all of them, or hears at once that no more comes."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import msgspec
import pytest
import torch
from chain_bench import HOME, Bench
from fake_cluster import run
from tiny_models import SESSION, Reference, make_model
from transfer_wire import UnderWay, Wire

from potluck.cluster.processes.messages import LoadStage
from potluck.cluster.stage import giving, in_force
from potluck.cluster.stage.in_force import StageInForce
from potluck.cluster.stage.loaded import LoadedStage
from potluck.cluster.stage.ranks import Links, Ranks
from potluck.cluster.stage.transfers import StageBefore
from potluck.engine.stage import Stage
from potluck.errors import OutOfMemoryError
from potluck.wire.cache_messages import (
    CacheGivenUp,
    CacheReceived,
    CacheRows,
    CacheSent,
    FetchCache,
)
from potluck.wire.messages import Message, PlanBefore

T = TypeVar("T")
KEY = "ab" * 32
FETCH = FetchCache(epoch=2, session=SESSION, transfer="t", layers=(0, 4), end=9, key=KEY)
NEXT = LoadStage(
    home=HOME,
    epoch=3,
    model_id="b",
    config={},
    scheme="f32",
    layers=(0, 4),
    embedding=True,
    head=True,
    context=64,
    next_hop=None,
)


class HereAndNow:
    """Computes on this thread."""

    async def call(self, function: Callable[[], T]) -> T:
        return function()


class FullLoader:
    """Has no room for another stage."""

    nbytes = 0

    def has_model_of(self, message: LoadStage) -> bool:
        return True

    async def prepare(self, message: LoadStage, left: object) -> int:
        raise OutOfMemoryError("The device is full.")

    async def drop(self) -> None:
        pass

    def held(self, loaded: LoadedStage | None) -> None:
        pass


class Fetching(UnderWay):
    """A stage in force, whose caches another one is fetching, one piece at a time."""

    def __init__(self, reference: Reference) -> None:
        super().__init__()
        self.bench = Bench()
        stage, before = (self._stage(reference, epoch) for epoch in (2, 1))
        self.bench.chain.loaded = LoadedStage(HOME, 2, None, stage, None, key=KEY)
        loaded = self.bench.chain.loaded
        loaded.before = StageBefore(1, before.left(is_in_force=False), key=KEY)
        self.bench.chain.loaded = loaded  # with what it takes over
        self.there, self._here = Wire(self), Wire(self)
        self.there.other, self._here.other = self._here, self.there
        self.there.receive = lambda link, message, _: self.bench.receive(link, message)
        self._here.receive = self._received
        self.rows, self.said = 0, list[Message]()
        self.freed = asyncio.Event()
        self.in_force = StageInForce(
            identity=cast("Any", SimpleNamespace(node_id="cd" * 32)),
            me=self.there.peer,
            chain=self.bench.chain,
            loader=cast("Any", FullLoader()),
            scheduler=self.bench.scheduler,
            ranks=Ranks(),
            compute=cast("Any", HereAndNow()),
            device=torch.device("cpu"),
            tell=lambda _: None,
            freed=self.freed.set,
        )

    @staticmethod
    def _stage(reference: Reference, epoch: int) -> Stage:
        stage = reference.stage(epoch=epoch)
        stage.open(SESSION, epoch=epoch)
        stage.forward(SESSION, reference.prompt(9), epoch=epoch, step=1, position=0)
        return stage

    def _received(self, link: Wire, message: Message, payload: memoryview) -> None:
        if not isinstance(message, CacheRows):
            self.said.append(message)
            return
        self.rows += payload.nbytes
        self._here.send_nowait(CacheReceived(epoch=3, transfer="t", nbytes=self.rows))

    def begin(self, fetch: FetchCache = FETCH) -> None:
        """The first piece has come, and the stage has not heard of that."""
        self.bench.receive(self.there, fetch)
        assert self.pass_on(1) == [CacheRows]

    @property
    def answer(self) -> type[Message]:
        self.pass_on()
        (said,) = self.said
        return type(said)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return make_model("llama", tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def one_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giving, "UNWRITTEN", 1)


def test_what_is_being_fetched_still_comes_when_the_memory_is_freed_meanwhile(
    llama: Reference,
) -> None:
    async def main() -> None:
        undisturbed = Fetching(llama)
        undisturbed.begin()
        assert undisturbed.answer is CacheSent
        fetching = Fetching(llama)
        fetching.begin()
        await fetching.in_force.unload(leaves_caches=True)
        assert fetching.bench.chain.loaded is None
        assert fetching.answer is CacheSent
        assert fetching.rows == undisturbed.rows
        await fetching.in_force.stop()

    run(main())


def test_a_rank_leaves_its_part_without_waiting_for_those_of_its_group(llama: Reference) -> None:
    async def main() -> None:
        fetching = Fetching(llama)
        other = Wire(fetching)
        loaded = fetching.bench.chain.loaded
        assert loaded is not None
        loaded.rank_links = Links(sums={1: cast("Any", other)}, steps=())
        fetching.begin()
        await fetching.in_force.unload(leaves_caches=True)
        assert other.is_closed
        assert fetching.answer is CacheSent
        await fetching.in_force.stop()

    run(main())


@pytest.mark.parametrize("how", ["memory now", "load"])
def test_a_rank_ends_the_step_of_which_rank_0_has_the_result_before_its_connections_end(
    llama: Reference, how: str
) -> None:
    async def main() -> None:
        fetching = Fetching(llama)
        other, was_open = Wire(fetching), list[bool]()

        class Busy(HereAndNow):
            async def call(self, function: Callable[[], T]) -> T:
                was_open.append(not other.is_closed)
                return function()

        fetching.in_force._compute = cast("Any", Busy())  # pyright: ignore[reportPrivateUsage]
        loaded = fetching.bench.chain.loaded
        assert loaded is not None
        loaded.rank_links = Links(sums={1: cast("Any", other)}, steps=())
        if how == "memory now":
            await fetching.in_force.unload(leaves_caches=True)
        else:
            before = PlanBefore(epoch=2, key=KEY)
            with pytest.raises(OutOfMemoryError):
                await fetching.in_force.load(msgspec.structs.replace(NEXT, before=before))
        assert other.is_closed
        assert was_open[0]
        await fetching.in_force.stop()

    run(main())


def test_who_is_fetching_hears_that_the_time_of_what_remained_is_over(
    llama: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_force, "REMAINS_S", 0.0)

    async def main() -> None:
        fetching = Fetching(llama)
        await fetching.in_force.unload(leaves_caches=True)
        fetching.begin()
        await fetching.freed.wait()
        assert fetching.answer is CacheGivenUp
        await fetching.in_force.stop()

    run(main())


def test_who_is_fetching_hears_that_the_next_load_takes_the_memory_of_what_remained(
    llama: Reference,
) -> None:
    async def main() -> None:
        fetching = Fetching(llama)
        await fetching.in_force.unload(leaves_caches=True)
        fetching.begin()
        with pytest.raises(OutOfMemoryError):
            await fetching.in_force.load(NEXT)
        assert fetching.answer is CacheGivenUp
        await fetching.in_force.stop()

    run(main())


@pytest.mark.parametrize("epoch", [1, 2], ids=["the plan before", "in force"])
@pytest.mark.parametrize("how", ["unload", "load", "load that takes over"])
def test_who_is_fetching_hears_that_the_stage_is_out_of_force(
    llama: Reference, how: str, epoch: int
) -> None:
    async def main() -> None:
        fetching = Fetching(llama)
        fetching.begin(msgspec.structs.replace(FETCH, epoch=epoch))
        if how == "unload":
            await fetching.in_force.unload()
        else:
            before = PlanBefore(epoch=2, key=KEY) if how == "load that takes over" else None
            with pytest.raises(OutOfMemoryError):
                await fetching.in_force.load(msgspec.structs.replace(NEXT, before=before))
        assert fetching.answer is CacheGivenUp

    run(main())


def test_what_was_left_of_the_plan_before_goes_when_the_memory_is_freed(llama: Reference) -> None:
    async def main() -> None:
        fetching = Fetching(llama)
        fetching.begin(msgspec.structs.replace(FETCH, epoch=1))
        await fetching.in_force.unload(leaves_caches=True)
        assert fetching.answer is CacheGivenUp
        await fetching.in_force.stop()

    run(main())
