"""Which stage of this process is in force: one is loaded in the place of another, and connected with its neighbours."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

import torch

from potluck.cluster.processes.messages import (
    Holds,
    LoadStage,
    StageLoaded,
)
from potluck.cluster.stage.chain import StageChain
from potluck.cluster.stage.compute_thread import ComputeThread
from potluck.cluster.stage.connecting import Dialling
from potluck.cluster.stage.joining import check_ranks, end_meeting, meet
from potluck.cluster.stage.loaded import LoadedStage
from potluck.cluster.stage.loading import StageLoader
from potluck.cluster.stage.ranks import Ranks
from potluck.cluster.stage.remains import REMAINS_S, Remains
from potluck.cluster.stage.scheduler import Scheduler
from potluck.cluster.stage.transfers import StageBefore
from potluck.engine.caches.left_sessions import LeftSessions
from potluck.engine.rank_sums.collective import transport_of
from potluck.errors import (
    InvalidStepError,
    StaleEpochError,
    UnreachableError,
)
from potluck.ids import HomeId, NodeId
from potluck.net.identity import Identity
from potluck.net.transport import StepLink, dial_steps
from potluck.tasks import TaskSet
from potluck.wire.cache_messages import TakeSessions
from potluck.wire.measuring_messages import (
    StageTimes,
)
from potluck.wire.messages import Hop, NodeInfo, Purpose

DIAL_TIMEOUT_S = 10.0
LAST_SUM_S = 1.0  # for the last sum of a step, which the other ranks have sent
SAVE_S = 1.5  # for writing caches at the end of the process, which its node ends after 3 seconds


class StageInForce:
    """Puts one stage after the other into force.

    Args:
        identity: of this computer.
        me: what is said of it to other stages.
        chain: computes with the stage in force.
        loader: owns the weights.
        scheduler: the messages to the stage.
        ranks: the group that it is a rank of.
        compute: the only thread that uses torch.
        device: of the stage.
        tell: called with what this process holds, when that has changed.
        freed: called when memory was given back that nobody had asked for.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        me: NodeInfo,
        chain: StageChain,
        loader: StageLoader,
        scheduler: Scheduler,
        ranks: Ranks,
        compute: ComputeThread,
        device: torch.device,
        tell: Callable[[Holds], None],
        freed: Callable[[], None],
    ) -> None:
        self._identity, self._me = identity, me
        self._chain, self._loader = chain, loader
        self._scheduler, self._ranks = scheduler, ranks
        self._compute, self._device = compute, device
        self._tell = tell
        self._turn = asyncio.Lock()  # one load or unload at a time
        self._freed = freed
        self._forgetting: asyncio.Task[None] | None = None  # what is left of a stage
        self._tasks = TaskSet()  # which watch its connections

    @property
    def in_use(self) -> int:
        """Bytes of weights and caches that another load could take over."""
        loaded, remains = self._chain.loaded, self._chain.remains
        if loaded is None:
            return self._loader.nbytes + (0 if remains is None else remains.left.nbytes)
        left = None if loaded.before is None else loaded.before.left
        return loaded.stage.nbytes + (0 if left is None else left.nbytes)

    async def load(self, message: LoadStage) -> StageLoaded:
        """Load a stage in place of the one in force, and compute with it from now on."""
        async with self._turn:
            return await self._load_next(message)

    async def _load_next(self, message: LoadStage) -> StageLoaded:
        started = time.perf_counter()
        await self._forget_remains()
        check_ranks(message.ranks, message.share, self._identity.node_id)
        left = await self._leave(message)
        try:
            kept = await self._loader.prepare(message, left)
        finally:
            self._tell_held()
        home = HomeId(message.home)
        async with AsyncExitStack() as if_it_fails:
            dialling = Dialling(self.dial, if_it_fails)
            connected = await dialling.connect(message)
            # Ranks do not take equally long to load, and their deadline is shorter than that may be.
            meeting = asyncio.create_task(
                meet(
                    self._chain.lobby,
                    connected.ranks,
                    message.ranks,
                    home,
                    message.epoch,
                    transport_of(self._device),
                )
            )
            if_it_fails.push_async_callback(end_meeting, meeting)
            stage = await self._loader.load(message, left)
            links = await meeting
            if_it_fails.pop_all()
        previous = NodeId(message.previous) if message.previous is not None else None
        loaded = LoadedStage(home, message.epoch, previous, stage, connected.following)
        loaded.cache_targets = connected.targets
        loaded.rank, loaded.rank_links = _rank(message), links
        loaded.key = message.key
        if (before := message.before) is not None:
            loaded.before = StageBefore(before.epoch, left, connected.sources, before.key)
        await self._compute.call(lambda: self._put_in_force(loaded))
        ranks = links.steps if links is not None else ()
        for link in dict.fromkeys((*loaded.links, *loaded.cache_links, *ranks)):
            self._tasks.spawn(self._chain.watch(link))
        seconds = time.perf_counter() - started
        self._tell_held()
        return StageLoaded(
            seconds=seconds,
            memory_bytes=stage.nbytes,
            cache_tokens=stage.cache_tokens,
            is_exact_in_chunks=stage.is_exact_in_chunks,
            keeps_sessions=stage.keeper.has_files,
            takes_drafts=stage.takes_drafts,
            layers_kept=kept,
            layers_loaded=len(stage.weights.layers) - kept,
        )

    async def _leave(self, message: LoadStage) -> LeftSessions | None:
        """Take the stage out of force; return its sessions if the next one may go on with them."""
        if message.before is not None:
            await self._end_step()
        loaded = await self._withdraw()
        if loaded is None or message.before is None or loaded.epoch != message.before.epoch:
            return None
        if not self._loader.has_model_of(message):
            return None
        return await self._compute.call(lambda: loaded.stage.left(is_in_force=False))

    async def dial(self, home: HomeId, hop: Hop, purpose: Purpose) -> StepLink:
        """Connect with another stage process of a home.

        Raises:
            UnreachableError: it does not answer; its node is in `data`.
        """
        try:
            return await dial_steps(
                hop.addresses,
                self._identity,
                home=home,
                peer=NodeId(hop.node_id),
                me=self._me,
                reactor=self._compute.reactor,
                purpose=purpose,
                timeout_s=DIAL_TIMEOUT_S,
            )
        except UnreachableError as error:
            error.data = {**error.data, "node": hop.node_id}  # so that the master blames it
            raise

    def _put_in_force(self, loaded: LoadedStage) -> None:
        """Compute with this stage from now on. On the computing thread, between steps."""
        self._ranks.join(loaded.rank, loaded.rank_links)
        self._scheduler.in_order = loaded.rank > 0
        self._chain.loaded = loaded

    def _tell_held(self) -> None:
        self._tell(Holds(held=self._loader.held(self._chain.loaded)))

    async def save_sessions(self) -> None:
        """Have the stage in force write its conversations' caches to the disk, if it keeps any there. It ends then."""
        loaded = self._chain.loaded
        if loaded is not None and loaded.stage.keeper.has_files:
            loaded.end_sums()
            end = time.monotonic() + SAVE_S
            await self._compute.call(
                lambda: loaded.stage.keeper.save(lambda: time.monotonic() > end)
            )

    async def measure(self, epoch: int, position: int) -> StageTimes:
        """Time the parts of one token in the stage of a plan, with so many tokens cached.

        Raises:
            StaleEpochError: another one is in force.
            InvalidStepError: its context has no such token.
        """
        loaded = self._chain.loaded
        if loaded is None or loaded.epoch != epoch:
            raise StaleEpochError("The stage to be measured is not loaded here any more.")
        if position >= loaded.stage.context:
            raise InvalidStepError(
                f"The context has {loaded.stage.context} tokens: none is at {position}."
            )

        def measure() -> StageTimes:
            with self._ranks.alone():
                return loaded.measure(position)

        return await self._compute.call(measure)

    async def take_sessions(self, message: TakeSessions) -> None:
        """Have the stage in force go on with the sessions of a plan that ends, whose stages have its layers.

        Raises:
            StaleEpochError: another one is in force.
            UnreachableError: one of those stages does not answer.
        """
        async with self._turn:
            loaded = self._chain.loaded
            if loaded is None or loaded.epoch != message.epoch:
                raise StaleEpochError("The stage that is to go on is not loaded here any more.")
            async with AsyncExitStack() as if_it_fails:
                dialling = Dialling(self.dial, if_it_fails)
                sources = await dialling.all_before(message.before.hops, loaded.home)
                before = StageBefore(message.before.epoch, None, sources, message.before.key)
                await self._compute.call(lambda: loaded.take_over_from(before))
                if_it_fails.pop_all()
            for source in sources:
                self._tasks.spawn(self._chain.watch(source.link))

    async def unload(self, *, leaves_caches: bool = False) -> None:
        """Take the stage out of force, and free its memory; if wanted, its sessions stay for a moment."""
        async with self._turn:
            await self.save_sessions()
            await self._forget_remains()
            if leaves_caches:
                await self._leave_caches()
            await self._withdraw()
            await self._compute.call(lambda: self._ranks.join(0, None))  # which gives memory back
            await self._loader.drop()
        self._tell_held()

    async def _end_step(self) -> None:
        """Let a rank end the step of which rank 0 has told the result already, so that all have the same tokens.

        A step that waits for a rank that is lost does not end.
        """
        loaded = self._chain.loaded
        if loaded is not None and loaded.rank_links is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_SUM_S):
                    await self._compute.call(lambda: None)  # it comes after the step

    async def _leave_caches(self) -> None:
        """Have what remains of the stage take its place: its sessions' caches, until the next plan has them, but not for long."""
        loaded = self._chain.loaded
        if loaded is None or (key := loaded.key) is None:
            return
        await self._end_step()
        loaded.end_sums()

        def leave() -> None:  # at once: no message of a transfer comes in between
            loaded.transfers.forget_before()
            left, giving = loaded.stage.left(is_in_force=False), loaded.transfers.giving
            self._chain.remains = Remains(loaded.home, loaded.epoch, key, left, giving)
            self._chain.loaded = None

        await self._compute.call(leave)
        loaded.close()
        self._forgetting = self._tasks.spawn(self._forget_later())

    async def _forget_later(self) -> None:
        await asyncio.sleep(REMAINS_S)
        async with self._turn:
            self._forgetting = None
            await self._forget_remains()
            await self._loader.drop()
        self._freed()

    async def _forget_remains(self) -> None:
        """Give back what is left of a stage."""
        if self._forgetting is not None:
            self._forgetting.cancel()
            self._forgetting = None
        remains, self._chain.remains = self._chain.remains, None
        if remains is not None:
            await self._compute.call(remains.end)

    async def _withdraw(self) -> LoadedStage | None:
        """Take the stage out of force: its links to other stages end, and its sessions are used no more."""
        loaded, self._chain.loaded = self._chain.loaded, None
        if loaded is not None:
            loaded.close()
            await self._compute.call(loaded.transfers.giving.end)
        return loaded

    async def stop(self) -> None:
        """Watch no connection any more."""
        await self._tasks.stop()


def _rank(message: LoadStage) -> int:
    return 0 if message.ranks is None else message.ranks.rank
