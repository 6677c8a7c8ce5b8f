"""One node: everything that a user's Potluck is on one computer, put together.

    run(folders)        serve until told to stop, or until nobody needs the node any more

The parts know nothing of each other; who hears of what is decided here.
"""

import asyncio
import logging
import logging.handlers
import os
import platform
import secrets
import shutil
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import potluck
from potluck.api.server import HttpServer, local_app
from potluck.cluster.activity import IDLE_S, Activity
from potluck.cluster.backend import NodeBackend, Parts
from potluck.cluster.device_names import describe
from potluck.cluster.machine import machine_id
from potluck.cluster.master.master import DEPLOYING, Master
from potluck.cluster.master.packing import Packing
from potluck.cluster.master.planning import DEADLINES, PlanningDeadlines
from potluck.cluster.membership.local import LocalComputer
from potluck.cluster.membership.membership import Membership, MembershipEvents
from potluck.cluster.membership.pairing import Pairings
from potluck.cluster.processes.devices import StageProcesses
from potluck.cluster.tasks import TaskSet
from potluck.cluster.worker.lending import Lending
from potluck.cluster.worker.links import WorkerLinks
from potluck.cluster.worker.worker import Worker
from potluck.errors import PotluckError
from potluck.ids import HomeId, NodeId, short
from potluck.net.advert import Advert
from potluck.net.discovery import Discovery
from potluck.net.identity import Identity
from potluck.net.interfaces import announced, own_interfaces
from potluck.net.transport import DEFAULT_PORT, Listener, identify
from potluck.settings import (
    Folders,
    NodeFile,
    cpu_threads,
    exclusive,
    load_settings,
    remove_node_file,
    write_node_file,
)
from potluck.store.chunks import ChunkStore
from potluck.store.hub import RecentFolders, find_model
from potluck.store.registry import LocalModel, open_model
from potluck.wire.messages import Address, DeviceId, NodeInfo, StepFailed
from potluck.wire.pairing import Admitted, Member
from potluck.wire.versions import PROTOCOL_VERSIONS

logger = logging.getLogger(__name__)

_IDLE_CHECK_S = 5.0
_LOG_BYTES = 2_000_000


class Node:
    """Starts the parts in order, connects them, and takes them down again."""

    def __init__(self, folders: Folders, *, deadlines: PlanningDeadlines = DEADLINES) -> None:
        self._folders = folders
        folders.config.mkdir(parents=True, exist_ok=True)
        settings = load_settings(folders.settings_file)
        self._machine = machine_id()
        self._stop = asyncio.Event()
        self._tasks = TaskSet()
        self.activity = Activity(let_go=lambda holder: self.lending.let_go(holder))
        identity_folder = folders.data / "identity"
        self.identity = Identity.load_or_create(identity_folder, settings.shown_name)
        folders.cache.mkdir(parents=True, exist_ok=True)
        half = shutil.disk_usage(folders.cache).total // 2
        self.store = ChunkStore(folders.cache / "tensors", settings.store_limit or half)
        self.recent = RecentFolders(folders.config / "recent.json")
        self.processes = StageProcesses(
            identity_folder=identity_folder,
            me=self.me,
            log_folder=folders.state,
            memory_limit=settings.memory_limit,
            threads=settings.threads,
            cpus=cpu_threads(),
            step_failed=self._step_failed,
            died=self._engine_died,
            changed=self._changed,
            is_used=self._is_used,
        )
        self.identity.watch(self.processes)
        self.packing = Packing(
            store=self.store, memory=folders.cache / "packed", engine=self.processes.handle
        )
        self.worker = Worker(
            stage=self.processes.handle,
            store=self.store,
            changed=self._changed,
            in_own_use=lambda: self.master.uses_this_computer,
        )
        self.lending = Lending(
            settings,
            folders.settings_file,
            activity=self.activity,
            worker=self.worker,
            processes=self.processes,
            forget_profiles=lambda: self.master.measurements.forget_profiles(self.identity.node_id),
            changed=self._changed,
        )
        self.links = WorkerLinks(
            worker=self.worker,
            identity=self.identity,
            me=self.me,
            devices=lambda: self.processes.devices,
            removed=self._removed,
            changed=self._changed,
        )
        self.discovery = Discovery(
            on_change=self._found_changed,
            remembered=folders.config / "addresses.json",
            probe=lambda address: identify(address, self.identity),
        )
        self.pairings = Pairings(
            self.identity,
            name=lambda: self.lending.settings.shown_name,
            port=lambda: self.listener.port,
            may_join=lambda: self.worker.is_lending,
            admitted=self._admitted,
            joined=self._joined,
            changed=self._changed,
        )
        self.listener = Listener(
            self.identity,
            me=self.me,
            on_link=self.links.serve,
            on_pairing=self.pairings.serve,
            preferred_port=DEFAULT_PORT,
        )
        local = LocalComputer(
            identity=self.identity,
            me=self.me,
            processes=self.processes,
            addresses=self.addresses,
            lent_to=lambda: self.worker.lease.master_name if self.worker.lease else None,
        )
        self.membership = Membership(
            identity=self.identity,
            discovery=self.discovery,
            local=local,
            me=self.me,
            record_file=folders.config / "computers.json",
            events=MembershipEvents(
                changed=self._changed,
                lost=self._lost,
                step_failed=lambda node_id, failure: self.master.step_failed(node_id, failure),
                unloaded=self._unloaded,
            ),
        )
        self.master = Master(
            computers=self.membership,
            open_model=self._open_model,
            resolve=self._resolve_model,
            changed=self.activity.touch,
            packing=self.packing,
            deadlines=deadlines,
        )
        self.backend = NodeBackend(
            Parts(
                name=lambda: self.lending.settings.shown_name,
                addresses=self.addresses,
                set_role=self.lending.set_role,
                memory_limit=lambda: self.lending.settings.memory_limit,
                homes=self._others_homes,
                computing_with=self.lending.computing_with,
                masters=self.links.master_names,
                stop=self._stop.set,
                guide=guide_folder(),
                activity=self.activity,
                discovery=self.discovery,
                membership=self.membership,
                worker=self.worker,
                master=self.master,
                pairings=self.pairings,
                recent=self.recent,
            )
        )

    # --- life

    async def run(self) -> None:
        """Serve until `shutdown` is asked for, or nobody has needed the node for long."""
        async with AsyncExitStack() as stack:
            stack.callback(self.store.close)
            engine = self._tasks.spawn(self.processes.run())
            stack.push_async_callback(_end, engine)
            stack.push_async_callback(self.packing.stop)
            await self.listener.start()
            stack.push_async_callback(self.listener.stop)
            await self.discovery.start(self._advert())
            stack.push_async_callback(self.discovery.stop)
            stack.push_async_callback(self.membership.stop)
            stack.push_async_callback(self._leave)
            http = HttpServer()
            token = secrets.token_urlsafe(32)
            port = await http.start(local_app(self.backend, token), "127.0.0.1", 0)
            stack.push_async_callback(http.stop)
            stack.push_async_callback(self.backend.close_listeners)
            node_file = NodeFile(
                pid=os.getpid(), port=port, token=token, version=potluck.__version__
            )
            write_node_file(self._folders, node_file)
            stack.callback(remove_node_file, self._folders, node_file)
            for work in (self._end_when_idle(), self._measure_new_links()):
                stack.push_async_callback(_end, self._tasks.spawn(work))
            logger.info("node is up node=%s port=%d", short(self.identity.node_id), port)
            await self._stop.wait()
            logger.info("node ends")

    async def _leave(self) -> None:
        """Free the others' memory; what cannot be reached frees itself later."""
        with suppress(PotluckError, TimeoutError):
            async with asyncio.timeout(3.0):
                await self.master.unload()

    async def _end_when_idle(self) -> None:
        """Give back first the model's memory, then the process, when nobody needs them."""
        while True:
            await asyncio.sleep(_IDLE_CHECK_S)
            if self.activity.idle_s() < IDLE_S:
                continue
            if self.master.deployment is not None:
                logger.info("unloading the model, unused for %.0f seconds", IDLE_S)
                await self.master.unload()
                self.activity.use()
            elif not self.worker.is_lending:
                logger.info("nobody has needed the node for %.0f seconds", IDLE_S)
                self._stop.set()

    async def _measure_new_links(self) -> None:
        """Know how fast a computer's link is as soon as it is there, before a model needs it."""
        measurements, local, revision = self.master.measurements, self.membership.local, -1
        while True:
            revision = await self.activity.changed(revision)
            for computer in self.membership.connected():
                is_busy = self.master.state.phase in DEPLOYING
                if is_busy or measurements.link(local.node_id, computer.node_id) is not None:
                    continue
                if await measurements.measure_in_passing(local, computer):
                    self.activity.touch()

    def stop(self) -> None:
        self._stop.set()

    # --- who this node is

    def me(self) -> NodeInfo:
        return NodeInfo(
            node_id=self.identity.node_id,
            name=self.lending.settings.shown_name,
            version=potluck.__version__,
            os=f"{platform.system()} {platform.release()}"[:64],
            arch=platform.machine()[:32],
            machine=self._machine,
            devices=self.processes.devices,
        )

    def addresses(self) -> tuple[Address, ...]:
        """Where other computers reach this one."""
        port = self.listener.port
        return tuple(Address(host=host, port=port) for host in announced(own_interfaces()))

    def _advert(self) -> Advert:
        home = self.identity.own_home
        return Advert(
            node_id=self.identity.node_id,
            name=self.lending.settings.shown_name,
            role=self.backend.role(),
            port=self.listener.port,
            home=home.home_id if home is not None else None,
            joinable=self.worker.is_lending and not self._others_homes(),
            devices=", ".join(describe(device) for device in self.processes.devices),
            protocol=PROTOCOL_VERSIONS[-1],
        )

    def _others_homes(self) -> tuple[str, ...]:
        """The names of other computers' homes that have this one already."""
        return tuple(h.name for h in self.identity.homes.values() if h.role == "worker")

    # --- who hears of what

    def _changed(self) -> None:
        self.activity.touch()
        self.links.announce()
        if self.listener.port:
            self._tasks.spawn(self.discovery.announce(self._advert()))

    def _found_changed(self) -> None:
        self.activity.touch()
        self.membership.look()

    def _admitted(self, admitted: Admitted, address: Address) -> None:
        self.membership.admit(admitted.node_id, admitted.name, address)
        self._changed()

    def _joined(self, member: Member) -> None:
        self.backend.notice("info", f"This computer helps {member.master_name} now.")
        self._changed()

    def _removed(self, home: HomeId) -> None:
        name = self.identity.homes[home].name if home in self.identity.homes else "A home"
        if self.worker.lease is not None and self.worker.lease.home == home:
            self._tasks.spawn(self.worker.release())
        self.identity.remove_home(home)
        self.backend.notice("info", f"{name} has removed this computer.")
        self._changed()

    def _lost(self, node_id: NodeId, name: str, how: str) -> None:
        if self.master.lost(node_id, name, how):
            self.backend.notice("warning", f"{name} {how}. The next message runs without it.")

    def _unloaded(self, node_id: NodeId, name: str, epoch: int) -> None:
        if self.master.unloaded(node_id, name, epoch):
            self.backend.notice("warning", f"{name} lost its part of the model.")

    def _step_failed(self, failure: StepFailed) -> None:
        """Of the own stage process, which works for one master at a time."""
        if self.worker.lease is not None:
            self.worker.step_failed(failure)
        else:
            self.master.step_failed(self.identity.node_id, failure)

    def _is_used(self, device: DeviceId) -> bool:
        lease = self.worker.lease
        return self.master.uses(device) or (lease is not None and device in lease.stages)

    def _engine_died(self, device: DeviceId, error: PotluckError) -> None:
        self.worker.stage_died(device)
        self.master.stage_died(device)
        self.backend.notice("error", error.message)

    # --- models

    async def _open_model(self, folder: Path, progress: Callable[[int, int], None]) -> LocalModel:
        loop = asyncio.get_running_loop()

        def report(done: int, total: int) -> None:
            loop.call_soon_threadsafe(progress, done, total)

        cache = self._folders.cache / "digests"
        return await asyncio.to_thread(open_model, folder, cache_dir=cache, progress=report)

    def _resolve_model(self, words: str | None) -> Path:
        return find_model(words, default=guide_folder(), recent=self.recent.folders())


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def guide_folder() -> Path:
    """The model that comes with Potluck: in the package, or in the checkout."""
    package = Path(potluck.__file__).parent
    installed = package / "_assets" / "guide"
    return installed if installed.is_dir() else package.parent.parent / "assets" / "guide"


def run(folders: Folders) -> None:
    """Be this user's node on this computer.

    Raises:
        AlreadyRunningError: there is one.
    """
    with exclusive(folders.node_lock):
        _log_to(folders.log_file)
        asyncio.run(_run(folders))


async def _run(folders: Folders) -> None:
    node = Node(folders)
    loop = asyncio.get_running_loop()
    for name in ("SIGINT", "SIGTERM"):
        with suppress(NotImplementedError, AttributeError):  # Windows has its own way
            loop.add_signal_handler(getattr(signal, name), node.stop)
    await node.run()


def _log_to(path: Path) -> None:
    handler = logging.handlers.RotatingFileHandler(
        path, maxBytes=_LOG_BYTES, backupCount=1, encoding="utf-8"
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
