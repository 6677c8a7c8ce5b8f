"""One node: all parts of a user's Potluck on one computer."""

import asyncio
import logging
import os
import secrets
import shutil
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from math import inf

import potluck
from potluck.api.backend import Holder
from potluck.api.server import HttpServer, local_app
from potluck.cluster.activity import Activity
from potluck.cluster.backend import NodeBackend, Parts
from potluck.cluster.device_names import place_name
from potluck.cluster.device_use import DeviceUse
from potluck.cluster.events import (
    Changed,
    ComputerLeaves,
    ComputerLost,
    ComputerPaired,
    DeviceChanged,
    Events,
    Holds,
    HomeJoined,
    LinkChanged,
    ModelChanged,
    Notice,
    StageLost,
    StepRefused,
    ThreadsChanged,
)
from potluck.cluster.library import open_library
from potluck.cluster.loss import process_lost
from potluck.cluster.master.deadlines import DEADLINES, PlanningDeadlines
from potluck.cluster.master.device_watch import DeviceWatch
from potluck.cluster.master.kept import KeptMeasurements
from potluck.cluster.master.link_watch import LinkWatch
from potluck.cluster.master.master import Master
from potluck.cluster.master.models import Models, guide_folder, reading
from potluck.cluster.master.packing import Packing
from potluck.cluster.membership.calls import CALL_S, MasterCalls
from potluck.cluster.membership.local import LocalComputer
from potluck.cluster.membership.membership import Members
from potluck.cluster.membership.pairing import Pairings
from potluck.cluster.presence import Presence
from potluck.cluster.processes.devices import StageProcesses
from potluck.cluster.upkeep import Upkeep
from potluck.cluster.worker.leaving import LEAVE_S
from potluck.cluster.worker.lending import LendingSettings
from potluck.cluster.worker.links import WorkerLinks
from potluck.cluster.worker.worker import Worker
from potluck.errors import PotluckError
from potluck.hub.found import KnownModels, Places, RecentFolders
from potluck.ids import HomeId, short
from potluck.net.advert import Advert
from potluck.net.discovery import Discovery
from potluck.net.identity import Identity
from potluck.net.link import Link
from potluck.net.transport import DEFAULT_PORT, Listener, identify
from potluck.settings import (
    Folders,
    NodeFile,
    cpu_threads,
    load_settings,
    remove_node_file,
    write_node_file,
)
from potluck.store.chunks import ChunkStore
from potluck.store.throttle import Throttle
from potluck.tasks import TaskSet, end, every
from potluck.wire.messages import DeviceId

logger = logging.getLogger(__name__)

SESSIONS_PART = 10  # of what may be stored on the disk, this part is for caches of conversations


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDeadlines:
    """How long a node waits, in seconds."""

    idle_s: float = 600.0  # a model or a node that nobody needs for so long is given up
    idle_check_s: float = 1.0  # between two checks of that
    leave_s: float = 3.0  # for a load that is under way to be undone when the node ends
    hand_over_s: float = LEAVE_S  # for the masters that it helps to do without this computer
    planning: PlanningDeadlines = DEADLINES


class Node:
    """Starts the parts in order, and stops them in reverse order.

    Each part is given the parts that it uses, which were made before it. It tells the others what
    has happened through `events`. `_connect` adds the handlers.
    """

    def __init__(self, folders: Folders, *, deadlines: NodeDeadlines | None = None) -> None:
        self._folders = folders
        self._deadlines = deadlines if deadlines is not None else NodeDeadlines()
        folders.config.mkdir(parents=True, exist_ok=True)
        settings = load_settings(folders.settings_file)
        self._stop = asyncio.Event()
        self._is_interrupted = False
        self._is_left = False  # the programs that used the model for a person have ended
        self._tasks = TaskSet()
        self.events = Events()
        use = DeviceUse()
        identity_folder = folders.data / "identity"
        self.identity = Identity.load_or_create(identity_folder, settings.shown_name)
        self.presence = Presence(self.identity, settings.shown_name)
        self.activity = Activity(let_go=self._let_go)
        folders.cache.mkdir(parents=True, exist_ok=True)
        limit = settings.store_limit or shutil.disk_usage(folders.cache).total // 2
        sessions_limit = limit // SESSIONS_PART if settings.keep_conversations else 0
        self.store = ChunkStore(folders.cache / "tensors", limit - sessions_limit)
        self.throttle = Throttle(settings.upload_limit_mbit)
        self.known = KnownModels(
            guide_folder(), RecentFolders(folders.config / "recent.json"), Places.of()
        )
        self.processes = StageProcesses(
            identity_folder=identity_folder,
            me=self.presence.me,
            log_folder=folders.state,
            memory_limit=settings.memory_limit,
            threads=settings.threads,
            cpus=cpu_threads(),
            step_failed=lambda failure: self.events.publish(StepRefused(failure=failure)),
            died=self._stage_died,
            changed=self.events.changed,
            is_used=use.has,
            sessions=folders.sessions if settings.keep_conversations else None,
            sessions_limit=sessions_limit,
            kernels=folders.state / "kernels",
        )
        self.identity.watch(self.processes)
        self.packing = Packing(
            store=self.store,
            memory=folders.cache / "packed",
            engine=self.processes.handle,
            throttle=self.throttle,
        )
        self.worker = Worker(
            stage=self.processes.handle,
            store=self.store,
            changed=self.events.changed,
            use=use,
            throttle=self.throttle,
        )
        self.lending = LendingSettings(
            settings,
            folders.settings_file,
            activity=self.activity,
            worker=self.worker,
            processes=self.processes,
            throttle=self.throttle,
            events=self.events,
            leave_s=self._deadlines.hand_over_s,
        )
        self.links = WorkerLinks(
            worker=self.worker,
            identity=self.identity,
            me=self.presence.me,
            devices=lambda: self.processes.devices,
            removed=self._removed,
            changed=self.events.changed,
            needed=self._needed,
        )
        self.discovery = Discovery(
            on_change=lambda: self.membership.look(),
            remembered=folders.config / "addresses.json",
            probe=lambda address: identify(address, self.identity),
        )
        self.pairings = Pairings(
            self.identity,
            name=self.presence.name,
            port=self.presence.port,
            may_join=lambda: self.worker.is_lending,
            events=self.events,
        )
        self.listener = Listener(
            self.identity,
            me=self.presence.me,
            on_link=self._serve_link,
            on_pairing=self.pairings.serve,
            preferred_port=DEFAULT_PORT,
        )
        local = LocalComputer(
            identity=self.identity,
            me=self.presence.me,
            processes=self.processes,
            addresses=self.presence.addresses,
            use=use,
        )
        self.membership = Members(
            identity=self.identity,
            discovery=self.discovery,
            local=local,
            me=self.presence.me,
            record_file=folders.config / "computers.json",
            events=self.events,
            throttle=self.throttle,
        )
        self.calls = MasterCalls(
            identity=self.identity, addresses=self.discovery, me=self.presence.me
        )
        self.models = Models(
            resolve=self.known.find,
            read=reading(folders.cache / "digests"),
        )
        self.master = Master(
            computers=self.membership,
            models=self.models,
            events=self.events,
            packing=self.packing,
            use=use,
            deadlines=self._deadlines.planning,
            kept=KeptMeasurements(
                folders.cache / "measurements.json",
                measured_as=f"{potluck.__version__} {settings.threads} {cpu_threads()}",
            ),
        )
        self.library = open_library(
            config=folders.config,
            log=folders.state / "download.log",
            master=self.master,
            computers=self.membership,
            absent=self.membership.absent,
            known=self.known,
            changed=self.activity.touch,
        )
        upkeep = Upkeep(
            store=self.store,
            packed=self.packing.memory,
            digests=folders.cache / "digests",
            sessions=folders.sessions,
            models=lambda: [model.path for model in self.known.list()],
            find=self.known.find,
        )
        self.link_watch = LinkWatch(
            local=local,
            connected=self.membership.connected,
            master=self.master,
            events=self.events,
        )
        self.device_watch = DeviceWatch(
            computers=self.membership, master=self.master, events=self.events
        )
        self.backend = NodeBackend(
            Parts(
                presence=self.presence,
                masters=self.links.master_names,
                stop=self.stop,
                text_log=folders.state / "text.log",
                activity=self.activity,
                discovery=self.discovery,
                membership=self.membership,
                worker=self.worker,
                lending=self.lending,
                master=self.master,
                pairings=self.pairings,
                upkeep=upkeep,
                library=self.library,
            )
        )
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

    # --- start and end

    async def run(self) -> None:
        """Serve until `stop` is called, or until nobody has needed the node for `idle_s`."""
        async with AsyncExitStack() as stack:
            stack.callback(self.store.close)
            processes = self._tasks.spawn(self.processes.run())
            stack.push_async_callback(end, processes)
            stack.push_async_callback(self.packing.stop)
            await self.listener.start()
            self.presence.listens(self.listener.port)
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
                self.link_watch.run(),
                self.device_watch.run(),
                self.library.downloads.run(),
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
        """Unload the model if nobody needs it; some time after that, end the node."""
        idle_s = self._deadlines.idle_s
        if self.activity.idle_s() < idle_s:
            return
        if self.master.holds_anything:
            logger.info("unloading the model, unused for %.0f seconds", self.activity.idle_s())
            await self.master.unload()
            if self.activity.idle_s() < inf:
                self.activity.use()
        elif not self.worker.is_lending and not self.library.downloads.is_busy:
            logger.info("no program needs the node any more")
            self._stop.set()

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

    def _advert(self) -> Advert:
        return self.presence.advert(self.backend.role(), is_lending=self.worker.is_lending)

    async def _serve_link(self, link: Link) -> None:
        self.membership.called(link)
        with self.calls.during(link):
            await self.links.serve(link)

    # --- handlers of events

    def _let_go(self, holder: Holder) -> None:
        """A program that held the node has ended: a node that only it needed ends as well.

        A `serve` that was killed, and a window that was closed, have unloaded nothing. Their last
        request may end a moment after them.
        """
        self.lending.let_go(holder)
        is_only_lent = holder == "worker" and not self.master.holds_anything
        self._is_left |= holder in ("window", "serve")
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

    def _removed(self, home_id: HomeId) -> None:
        """The master of a home has removed this computer from it."""
        home = self.identity.homes.get(home_id)
        if self.worker.lease is not None and self.worker.lease.home == home_id:
            self._tasks.spawn(self.worker.leasing.release())
        self.identity.remove_home(home_id)
        if home is not None:
            self.discovery.drop(home.master)
        name = home.name if home is not None else "A home"
        self.backend.notice("info", f"{name} has removed this computer.")
        self.events.changed()

    def _needed(self, master: str) -> None:
        self.backend.notice(
            "warning",
            f"{master}'s model does not fit without this computer, which leaves all the same within"
            f" {self._deadlines.hand_over_s:.0f} seconds. To go on helping, resume sharing.",
        )

    def _step_refused(self, event: StepRefused) -> None:
        if event.node_id is None and self.worker.lease is not None:
            self.worker.leasing.step_failed(event.failure)  # all stages of this computer are lent
        else:
            self.master.step_refused(event)

    def _stage_died(self, device: DeviceId, error: PotluckError) -> None:
        """A stage process of this computer ended without being asked, and its layers are gone."""
        is_hung = error.data.get("is_hung") is True
        self.worker.leasing.stage_died(device, is_hung=is_hung)
        place = place_name(self.presence.name(), device, self.processes.devices)
        self.master.lost(
            StageLost(
                node_id=self.identity.node_id,
                place=place,
                how=process_lost(is_hung=is_hung),
                device=device,
            )
        )
        self.backend.notice("error", error.message)
