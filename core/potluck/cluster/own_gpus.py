"""Which GPUs of this computer models use, as its owner has chosen."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from potluck.api.values import gpus as schema
from potluck.api.values.gpus import MAX_OFF
from potluck.cluster.events import Events, StageLost
from potluck.cluster.loss import RENEWED
from potluck.cluster.presence import Presence
from potluck.cluster.processes.devices import StageProcesses
from potluck.cluster.worker.lending import LendingSettings
from potluck.errors import EngineError, NotFoundError, UsageError
from potluck.ids import NodeId
from potluck.system.graphics import Gpu, hiding
from potluck.tasks import TaskSet


class OwnGpus:
    """Hides the GPUs that are off from the stage processes.

    All processes see the same GPUs, since a device is known by its number among those that are seen. So all of
    them end and start anew when the choice changes, while this computer lends nothing.

    Args:
        node_id: of this computer.
        presence: has its name.
        lending: keeps the choice.
        processes: ask for `environment` when they start.
        events: receives the loss of what this computer has loaded for its own master, and changes of `view`.
        find: finds the GPUs; it is called in a thread.
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        presence: Presence,
        lending: LendingSettings,
        processes: StageProcesses,
        events: Events,
        find: Callable[[], tuple[Gpu, ...]],
    ) -> None:
        self._node_id = node_id
        self._presence = presence
        self._lending = lending
        self._processes = processes
        self._events = events
        self._find = find
        self._gpus: tuple[Gpu, ...] = ()  # as they were found last
        self._hides: Mapping[str, str] | None = None  # for the processes that run; None: none does
        self._turn = asyncio.Lock()
        self._tasks = TaskSet()

    async def look(self) -> None:
        """Find the GPUs. Those found before stay if there seem to be none: a driver does not always answer."""
        found = await asyncio.to_thread(self._find)
        if found and found != self._gpus:
            self._gpus = found
            self._events.changed()

    async def environment(self) -> Mapping[str, str]:
        """The variables of a stage process, which hide the GPUs that are off."""
        if self._hides is None or not self._gpus:
            self._hides = await self._wanted()
        return self._hides

    async def _wanted(self) -> Mapping[str, str]:
        if not self._lending.saved.gpus_off:
            return {}
        await self.look()
        return hiding(self._gpus, self._lending.saved.gpus_off)

    def use(self, request: schema.GpuRequest) -> None:
        """Use a GPU for models, or not, from now on.

        Raises:
            NotFoundError: it is not in this computer.
            UsageError: too many are off.
        """
        if request.id not in {gpu.id for gpu in self._gpus}:
            raise NotFoundError("This computer has no such GPU now.")
        off = [gpu for gpu in self._lending.saved.gpus_off if gpu != request.id]
        if not request.used:
            off.append(request.id)
        if len(off) > MAX_OFF:
            raise UsageError(f"No more than {MAX_OFF} GPUs can be off.")
        self._lending.keep(gpus_off=tuple(off))
        self._events.changed()
        self._tasks.spawn(self._renew())

    async def _renew(self) -> None:
        """Start the stage processes anew if they are to see other GPUs."""
        async with self._turn:
            if await self._wanted() == self._hides:
                return  # what was changed was changed back
            async with self._lending.away():
                self._hides = await self._wanted()  # the choice may have changed meanwhile
                lost = StageLost(node_id=self._node_id, place=self._presence.name(), how=RENEWED)
                self._events.publish(lost)
                self._processes.renew()
                with suppress(EngineError):  # it is said where the devices are shown
                    await self._processes.look()

    async def stop(self) -> None:
        """End what is under way, because the node ends."""
        await self._tasks.stop()

    def view(self) -> tuple[schema.Gpu, ...]:
        """What clients are shown."""
        off = self._lending.saved.gpus_off
        return tuple(
            schema.Gpu(id=gpu.id, name=gpu.name, used=gpu.id not in off) for gpu in self._gpus
        )
