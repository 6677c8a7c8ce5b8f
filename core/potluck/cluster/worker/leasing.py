"""How long a worker's lease lasts.

All devices are lent to one home at a time; first come, first served. Layers stay in memory while they
may be of use. A lease outlives its master's connection for a while, unless another home asks. The same
home's next plan takes over the layers that it needs: if a master is restarted and makes the same plan,
nothing is loaded again.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from potluck.cluster.device_use import DeviceUse
from potluck.cluster.processes.handle import StageHandle
from potluck.cluster.worker.lease import Lease, LeasedStage, MasterLink
from potluck.errors import PotluckError, StaleEpochError
from potluck.ids import HomeId, NodeId
from potluck.store.chunks import ChunkStore
from potluck.tasks import TaskSet
from potluck.wire.messages import DeviceId, HeldStage, Message, StepFailed, Unloaded

logger = logging.getLogger(__name__)


class Leasing:
    """Begins and ends the lease, of which there is one at most.

    Args:
        store: ends what the lease's tensors are kept for.
        use: is told what is lent.
        changed: called when the displayed state has changed.
        keep_loaded_s: how long layers stay in memory after the master's connection has ended.

    Attributes:
        lease: None: nothing is lent.
        is_idle: set while no connected master has a lease.
    """

    def __init__(
        self,
        store: ChunkStore,
        use: DeviceUse,
        *,
        changed: Callable[[], None],
        keep_loaded_s: float,
    ) -> None:
        self.lease: Lease | None = None
        self.is_idle = asyncio.Event()
        self.is_idle.set()
        self._store = store
        self._use = use
        self._changed = changed
        self._keep_loaded_s = keep_loaded_s
        self._left: Lease | None = None  # the last one, if caches of its plan may still be here
        self._masters: dict[HomeId, MasterLink] = {}  # the last connection of each
        self._tasks = TaskSet()

    # --- masters

    def came(self, link: MasterLink) -> None:
        """Continue the lease of a home when its master connects.

        From now on, only this connection counts: the one before may be of a process that was
        replaced.
        """
        self._masters[link.home] = link
        lease = self.lease
        if lease is not None and lease.home == link.home:
            lease.link = link
            if lease.release is not None:
                lease.release.cancel()
            self._note_idle()

    def left(self, link: MasterLink) -> None:
        """Keep the layers for a while when a master disconnects: it may come back."""
        if self._masters.get(link.home) is link:
            del self._masters[link.home]
        lease = self.lease
        if lease is not None and lease.link is link:
            lease.link = None
            self._note_idle()
            loop = asyncio.get_running_loop()
            lease.release = loop.call_later(self._keep_loaded_s, self._expire, lease)

    def is_outdated(self, link: MasterLink) -> bool:
        """Whether this home's master has connected anew since."""
        return self._masters.get(link.home, link) is not link

    def tell(self, link: MasterLink, message: Message) -> None:
        """Send a master what it need not answer."""
        self._tasks.spawn(_send(link, message))

    def step_failed(self, failure: StepFailed) -> None:
        """Report a failed step to the master, since the chain itself may be broken."""
        if self.lease is not None and self.lease.link is not None:
            self.tell(self.lease.link, failure)

    # --- the lease

    def begin(self, link: MasterLink, epoch: int) -> Lease:
        """Make the lease for a new plan in place of the same home's lease for the previous one."""
        before, self._left = self.lease, None
        if before is not None:
            self._end(before)
        self.lease = Lease(
            home=link.home,
            master=NodeId(link.peer.node_id),
            master_name=link.peer.name,
            epoch=epoch,
            link=link,
            before=before.handles if before is not None else {},
        )
        return self.lease

    def stage(self, link: MasterLink, epoch: int, device: DeviceId) -> LeasedStage:
        """The stage that a device has in this plan.

        Raises:
            StaleEpochError: there is none.
        """
        lease = self.lease
        if lease is None or (lease.home, lease.epoch) != (link.home, epoch):
            raise StaleEpochError("This computer has no assignment of that plan.")
        if (stage := lease.stages.get(device)) is None:
            raise StaleEpochError("That device has no assignment of this plan.")
        return stage

    def held(self, home: HomeId) -> tuple[HeldStage, ...]:
        """What the devices hold for a home."""
        lease = self.lease
        if lease is None or lease.home != home:
            return ()
        all_held = (handle.held for handle in lease.handles.values())
        return tuple(held.stage for held in all_held if held is not None and held.home == home)

    def changed(self) -> None:
        """Tell the others that the lease has changed."""
        lease = self.lease
        self._use.lent = frozenset(lease.handles) if lease is not None else frozenset()
        self._use.lent_to = lease.master_name if lease is not None else None
        self._note_idle()
        self._changed()

    def _note_idle(self) -> None:
        if self.lease is None or self.lease.link is None:
            self.is_idle.set()
        else:
            self.is_idle.clear()

    def unpin(self, lease: Lease) -> None:
        """Let the store delete the tensors of a lease."""
        for stage in lease.stages.values():
            self._store.inventory.unpin(stage.files)
            stage.tensors, stage.files = {}, ()

    async def release(self, *, leaves_caches: bool = False) -> None:
        """End the lease and free its memory. Weights stay in the store.

        `leaves_caches`: conversations' caches stay for a moment, so that they can move to other computers.
        """
        lease, self.lease = self.lease, None
        if lease is None:
            return
        self._end(lease)
        self.changed()
        self._left = lease if leaves_caches else None
        await _unload_all(lease, leaves_caches=leaves_caches)
        self.changed()

    async def unload(self, home: HomeId, epoch: int) -> None:
        """Free what a home's plan has here: the stages of its lease, or what these have left."""
        lease, left = self.lease, self._left
        if lease is not None and (lease.home, lease.epoch) == (home, epoch):
            await self.release()
        elif lease is None and left is not None and (left.home, left.epoch) == (home, epoch):
            self._left = None
            await _unload_all(left)

    def stage_died(self, device: DeviceId, *, is_hung: bool = False) -> None:
        """End the lease if the process of one of its stages died: the other stages are useless.

        The master is told, also if it has just unloaded its plan: the next one is not to wait until the
        process is started again.

        `is_hung`: the process did not answer any more, and was ended.
        """
        lease = self.lease
        if lease is None:
            for link in self._masters.values():
                self.tell(link, Unloaded(epoch=0, device=device, is_hung=is_hung))
            return
        lease.before.pop(device, None)
        if device not in lease.stages:
            return
        self.lease = None
        if lease.link is not None:
            self.tell(lease.link, Unloaded(epoch=lease.epoch, device=device, is_hung=is_hung))
        self._end(lease)
        for other in lease.handles.keys() - {device}:
            self._tasks.spawn(_unload(lease.handles[other]))
        self.changed()

    def _expire(self, lease: Lease) -> None:
        if self.lease is lease and lease.link is None:
            self._tasks.spawn(self.release())

    def _end(self, lease: Lease) -> None:
        if lease.release is not None:
            lease.release.cancel()
        self.unpin(lease)


async def _unload_all(lease: Lease, *, leaves_caches: bool = False) -> None:
    handles = lease.handles.values()
    unloading = (handle.unload(leaves_caches=leaves_caches) for handle in handles)
    for result in await asyncio.gather(*unloading, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def _unload(handle: StageHandle) -> None:
    with suppress(PotluckError):  # this process died as well, so its layers are gone
        await handle.unload()


async def _send(link: MasterLink, message: Message) -> None:
    try:
        await link.send(message)
    except PotluckError:
        logger.debug("report is late, the master is gone op=%s", type(message).__name__)
