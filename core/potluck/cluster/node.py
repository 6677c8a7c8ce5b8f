"""One node: a user's Potluck on one computer, from its start to its end."""

import asyncio
import logging
import os
import secrets
from contextlib import AsyncExitStack, suppress
from math import inf

import potluck
from potluck.api.server import HttpServer, local_app
from potluck.api.values.politeness import Facts
from potluck.cluster.device_names import place_name
from potluck.cluster.events import (
    Changed,
    ComputerLeaves,
    ComputerLost,
    ComputerPaired,
    DeviceChanged,
    Events,
    Holds,
    HomeJoined,
    HomeLeft,
    LinkChanged,
    ModelChanged,
    Notice,
    ProgramEnded,
    StageDied,
    StageLost,
    StepRefused,
    StillNeeded,
    StopAsked,
    SuccessorAsked,
    ThreadsChanged,
)
from potluck.cluster.loss import process_lost
from potluck.cluster.membership.calls import CALL_S
from potluck.cluster.membership.handover import LOOK_S as FOLLOW_S
from potluck.cluster.node_parts import NodeDeadlines, NodeParts
from potluck.cluster.runtime.keeper import Release
from potluck.cluster.updating.telling import LOOK_S as TELL_S
from potluck.errors import PotluckError
from potluck.heap import trim
from potluck.ids import short
from potluck.net.advert import Advert
from potluck.settings import Folders, NodeFile, remove_node_file, write_node_file
from potluck.tasks import TaskSet, end, every

logger = logging.getLogger(__name__)

LOOK_S = 10.0  # between two looks at whether a pause is over, and what the owner does
USE_S = 2.0  # between two looks at whether it is used, and so must not sleep
TRIM_S = 60.0  # between two times that free memory is given back; a plan leaves some ten MB


class Node(NodeParts):
    """Starts the parts in order, stops them in reverse order, and has them hear of each other's events."""

    def __init__(
        self,
        folders: Folders,
        *,
        deadlines: NodeDeadlines | None = None,
        release: Release | None = None,
    ) -> None:
        self._folders = folders
        self._deadlines = deadlines if deadlines is not None else NodeDeadlines()
        self._stop = asyncio.Event()
        self._is_interrupted = False
        self.has_successor = False  # whether another one is to be started when this one has ended
        self._is_left = False  # the programs that used the model for a person have ended
        self._tasks = TaskSet()
        super().__init__(folders, self._deadlines, release)
        self._connect(self.events)

    def _connect(self, events: Events) -> None:
        """Add the handlers of all events."""
        events.on(Changed, lambda _: self._changed())
        events.on(ModelChanged, lambda _: self.activity.touch())
        events.on(Notice, lambda notice: self.backend.notice(notice.level, notice.text))
        events.on(
            ThreadsChanged,
            lambda _: self.master.measurements.forget_profiles(self.identity.node_id),
        )
        events.on(ComputerPaired, self.membership.admit)
        events.on(HomeJoined, self._joined)
        events.on(ComputerLeaves, lambda _: self.master.weigh())
        events.on(ComputerLost, self.master.lost)
        events.on(StageLost, self.master.lost)
        events.on(Holds, self.master.happened)
        events.on(LinkChanged, self.master.happened)
        events.on(DeviceChanged, self.master.happened)
        events.on(StepRefused, self._step_refused)
        events.on(StageDied, self._stage_died)
        events.on(StillNeeded, self._needed)
        events.on(HomeLeft, self._removed)
        events.on(ProgramEnded, self._let_go)
        events.on(StopAsked, lambda _: self.stop())
        events.on(SuccessorAsked, lambda _: self.succeed())

    # --- start and end

    async def run(self) -> None:
        """Serve until `stop` is called, or until nobody has needed the node for `idle_s`."""
        async with AsyncExitStack() as stack:
            stack.callback(self.store.close)
            stack.callback(self.awake.end)
            stack.callback(self.engine.store.close)
            stack.push_async_callback(self.engine.keeper.stop)
            stack.push_async_callback(self.updates.stop)
            processes = self._tasks.spawn(self.processes.run())
            stack.push_async_callback(end, processes)
            stack.push_async_callback(self.packing.stop)
            stack.push_async_callback(self.gpus.stop)
            await self.network.listen()
            stack.push_async_callback(self.listener.stop)
            await self.discovery.start(self._advert())
            stack.push_async_callback(self.discovery.stop)
            stack.push_async_callback(self.membership.stop)
            stack.push_async_callback(self._leave)
            http = HttpServer()
            token = secrets.token_urlsafe(32)
            port = await http.start(local_app(self.backend, token), "127.0.0.1", 0)
            stack.push_async_callback(http.stop)
            stack.push_async_callback(self.backend.close)
            node_file = NodeFile(
                pid=os.getpid(), port=port, token=token, version=potluck.__version__
            )
            write_node_file(self._folders, node_file)
            stack.callback(self._remove, node_file)
            idle = every(self._deadlines.idle_check_s, self._end_if_idle, what="ending when idle")
            calls = every(CALL_S, self.calls.call, what="calling main computers")
            for work in (
                idle,
                calls,
                every(LOOK_S, self._look, what="looking at this computer"),
                self.network.run(),
                self.gpus.look(),
                every(USE_S, self._look_at_use, what="keeping this computer awake"),
                every(FOLLOW_S, self.handover.look, what="following the main computer"),
                every(TRIM_S, _trim, what="giving memory back"),
                self.link_watch.run(),
                self.device_watch.run(),
                self.library.downloads.run(),
                self.engine.start(),
                self.updates.start(),
                every(TELL_S, self.telling.look, what="telling of a newer release"),
            ):
                stack.push_async_callback(end, self._tasks.spawn(work))
            logger.info("node is up node=%s port=%d", short(self.identity.node_id), port)
            await self._stop.wait()
            logger.info("node ends")
            await self.lending.stop()

    def _remove(self, node_file: NodeFile) -> None:
        """Remove the file by which the node is found, unless programs are to start it again."""
        if not self._is_interrupted:
            remove_node_file(self._folders, node_file)

    async def _leave(self) -> None:
        """Take the model out of force, and free its memory unless a program starts this node again."""
        with suppress(PotluckError, TimeoutError):
            async with asyncio.timeout(self._deadlines.leave_s):
                await self.master.leave(keeps_layers=self._is_interrupted)

    async def _end_if_idle(self) -> None:
        """Unload the model if it answers nobody, or nobody needs it; some time after that, end the node."""
        await self.at_hand.look(self.lending.settings.idle_unload_s)
        idle_s = self._deadlines.idle_s
        if self.activity.idle_s() < idle_s:
            return
        if self.master.holds_anything:
            logger.info("unloading the model, unused for %.0f seconds", self.activity.idle_s())
            await self.master.unload()
            if self.activity.idle_s() < inf:
                self.activity.use()
        elif not self.worker.is_lending and not self._fetches:
            logger.info("no program needs the node any more")
            self._stop.set()

    @property
    def _fetches(self) -> bool:
        return self.is_fetching() or self.updates.is_busy

    async def _look(self) -> None:
        """See whether this computer may be lent now, and then what it says of itself: that decides nothing."""
        facts = Facts()
        if self.worker.is_lending:
            facts = await asyncio.to_thread(self.looks.at, self.lending.settings.rules)
        self.lending.look(facts, asyncio.get_running_loop().time())
        vitals = await asyncio.to_thread(self.looks.vitals, self.worker.vitals)
        if vitals != self.worker.vitals:
            self.worker.vitals = vitals
            self.links.announce()
            self.activity.touch()

    async def _look_at_use(self) -> None:
        """Keep this computer awake while it answers, loads or helps."""
        self.awake.look(is_used=self.is_used(), now_s=asyncio.get_running_loop().time())

    def stop(self) -> None:
        """End as the owner wishes: no program starts the node again.

        The computers that it helps go on without it first. Called again, it ends at once.
        """
        if self._stop.is_set():
            self.lending.go()
        self._stop.set()

    def interrupt(self) -> None:
        """End as `stop` does, because the system says so: a program that uses it starts it again."""
        self._is_interrupted = True
        self.stop()

    def succeed(self) -> None:
        """End, so that whoever runs this process starts the version that is in use now."""
        self.has_successor = True
        self.interrupt()

    def _advert(self) -> Advert:
        return self.presence.advert(self.backend.role(), is_lending=self.worker.is_lending)

    # --- handlers of events

    def _let_go(self, event: ProgramEnded) -> None:
        """A program that held the node has ended: a node that only it needed ends as well.

        A `serve` that was killed, and a window that was closed, have unloaded nothing. Their last
        request may end a moment after them.
        """
        self.lending.let_go(event.holder)
        is_only_lent = event.holder == "worker" and not self.master.holds_anything
        self._is_left |= event.holder in ("window", "serve")
        if is_only_lent or (self._is_left and not self.activity.is_held()):
            self._is_left = False
            self.activity.done()

    def _changed(self) -> None:
        self.presence.has(self.processes.devices)
        self.activity.touch()
        self.links.announce()
        if self.presence.port():
            self._tasks.spawn(self.discovery.announce(self._advert()))

    def _joined(self, event: HomeJoined) -> None:
        self.backend.notice("info", f"This computer helps {event.master_name} now.")
        self.events.changed()

    def _removed(self, event: HomeLeft) -> None:
        """The master of a home has removed this computer from it."""
        home = self.identity.homes.get(event.home_id)
        if self.worker.lease is not None and self.worker.lease.home == event.home_id:
            self._tasks.spawn(self.worker.leasing.release())
        self.identity.remove_home(event.home_id)
        if home is not None:
            self.discovery.drop(home.master)
        name = home.name if home is not None else "A home"
        if not self.handover.home_left(event.home_id):
            self.backend.notice("info", f"{name} has removed this computer.")
        self.events.changed()

    def _needed(self, event: StillNeeded) -> None:
        """A master's model does not fit without this computer, which is about to lend nothing."""
        told = (
            f"{event.master_name}'s model does not fit without this computer, which leaves all the same within"
            f" {self._deadlines.hand_over_s:.0f} seconds."
        )
        if self.worker.withheld is None:
            told += " To go on helping, resume sharing."
        self.backend.notice("warning", told)

    def _step_refused(self, event: StepRefused) -> None:
        if event.node_id is None and self.worker.lease is not None:
            self.worker.leasing.step_failed(event.failure)  # all stages of this computer are lent
        else:
            self.master.step_refused(event)

    def _stage_died(self, event: StageDied) -> None:
        """A stage process of this computer ended without being asked, and its layers are gone."""
        is_hung = event.error.data.get("is_hung") is True
        self.worker.leasing.stage_died(event.device, is_hung=is_hung)
        place = place_name(self.presence.name(), event.device, self.processes.devices)
        self.master.lost(
            StageLost(
                node_id=self.identity.node_id,
                place=place,
                how=process_lost(is_hung=is_hung),
                device=event.device,
            )
        )
        self.backend.notice("error", event.error.message)


async def _trim() -> None:
    trim()
