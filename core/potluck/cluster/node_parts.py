"""The parts of a node: what it is made of, and what each part is given."""

import shutil
from dataclasses import dataclass

import potluck
from potluck.cluster.activity import Activity
from potluck.cluster.at_hand import ModelsAtHand
from potluck.cluster.backend import NodeBackend, Parts
from potluck.cluster.device_use import DeviceUse
from potluck.cluster.doctor import Doctor
from potluck.cluster.events import (
    Events,
    HomeLeft,
    ProgramEnded,
    StageDied,
    StepRefused,
    StillNeeded,
    StopAsked,
    SuccessorAsked,
)
from potluck.cluster.library import open_library
from potluck.cluster.master.deadlines import DEADLINES, PlanningDeadlines
from potluck.cluster.master.device_watch import DeviceWatch
from potluck.cluster.master.kept import KeptMeasurements
from potluck.cluster.master.link_watch import LinkWatch
from potluck.cluster.master.master import Master
from potluck.cluster.master.models import Models, guide_folder, reading
from potluck.cluster.master.packing import Packing
from potluck.cluster.membership.calls import MasterCalls
from potluck.cluster.membership.handover import Handover
from potluck.cluster.membership.handover_answers import HandoverParts
from potluck.cluster.membership.local import LocalComputer
from potluck.cluster.membership.membership import Members
from potluck.cluster.membership.pairing import Pairings
from potluck.cluster.own_gpus import OwnGpus
from potluck.cluster.own_network import OwnNetwork
from potluck.cluster.presence import Presence
from potluck.cluster.processes.devices import StageProcesses
from potluck.cluster.runtime.keeper import Release
from potluck.cluster.runtime.parts import EngineParts, members
from potluck.cluster.updating.here import Here
from potluck.cluster.updating.keeper import UpdateKeeper
from potluck.cluster.updating.telling import Telling
from potluck.cluster.upkeep import Upkeep
from potluck.cluster.worker.leaving import LEAVE_S
from potluck.cluster.worker.lending import LendingSettings
from potluck.cluster.worker.links import WorkerLinks
from potluck.cluster.worker.worker import Worker
from potluck.doctor.examination import LOOKS
from potluck.hub.found import KnownModels, Places, RecentFolders
from potluck.model.schemes import PACKING_VERSION
from potluck.net.discovery import Discovery
from potluck.net.identity import Identity
from potluck.net.interfaces import ChosenInterfaces, own_interfaces
from potluck.net.link import Link
from potluck.net.peer_link import open_links
from potluck.net.transport import DEFAULT_PORT, Listener, identify
from potluck.program_keys import ProgramKeys
from potluck.runtime.choice import locks_folder
from potluck.settings import Folders, cpu_threads, engine_index, engine_locks, load_settings
from potluck.store.chunks import ChunkStore
from potluck.store.throttle import Throttle
from potluck.system.awake import Awake, holding
from potluck.system.graphics import find_gpus
from potluck.system.installation import package
from potluck.system.looks import looks

SESSIONS_PART = 10  # of what may be stored on the disk, this part is for caches of conversations


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDeadlines:
    """How long a node waits, in seconds."""

    idle_s: float = 600.0  # a model or a node that nobody needs for so long is given up
    idle_check_s: float = 1.0  # between two checks of that
    leave_s: float = 3.0  # for a load that is under way to be undone when the node ends
    hand_over_s: float = LEAVE_S  # for the masters that it helps to do without this computer
    planning: PlanningDeadlines = DEADLINES


class NodeParts:
    """All parts of a node.

    Each is given the parts that it uses, which were made before it. It tells the others what has
    happened through `events`.
    """

    def __init__(
        self, folders: Folders, deadlines: NodeDeadlines, release: Release | None = None
    ) -> None:
        self.events = Events()
        folders.config.mkdir(parents=True, exist_ok=True)
        settings = load_settings(folders.settings_file)
        use = DeviceUse()
        identity_folder = folders.identity
        self.identity = Identity.load_or_create(identity_folder, settings.shown_name)
        interfaces = ChosenInterfaces(settings.interfaces, own_interfaces)
        self.presence = Presence(self.identity, settings.shown_name, interfaces)
        self.activity = Activity(
            let_go=lambda holder: self.events.publish(ProgramEnded(holder=holder))
        )
        folders.cache.mkdir(parents=True, exist_ok=True)
        limit = settings.store_limit or shutil.disk_usage(folders.cache).total // 2
        sessions_limit = limit // SESSIONS_PART if settings.keep_conversations else 0
        self.store = ChunkStore(folders.cache / "tensors", limit - sessions_limit)
        self.throttle = Throttle(settings.upload_limit_mbit)
        self.engine = EngineParts(
            folders.data,
            release=release or Release.in_folder(engine_locks() or locks_folder()),
            identity=self.identity,
            me=self.presence.me,
            found=lambda: self.discovery.peers(),
            members=lambda: self.membership.names(),
            shared=Folders.usual().data if folders.home is not None and release is None else None,
            index=engine_index(settings),
            throttle=self.throttle,
            also=lambda: self.updates.known.listed(),
            heard=lambda envelope: self.updates.heard(envelope),
            changed=self.events.changed,
        )
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
            engine=self.engine.keeper,
            environment=lambda: self.gpus.environment(),
            step_failed=lambda failure: self.events.publish(StepRefused(failure=failure)),
            died=lambda device, error: self.events.publish(StageDied(device=device, error=error)),
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
            leave_s=deadlines.hand_over_s,
        )
        self.gpus = OwnGpus(
            node_id=self.identity.node_id,
            presence=self.presence,
            lending=self.lending,
            processes=self.processes,
            events=self.events,
            find=find_gpus,
        )
        self.updates = UpdateKeeper(
            Here(
                installed=package(),
                folder=folders.data / "updates",
                is_allowed=lambda: self.lending.saved.updates,
                allow=self.lending.allow_updates,
                is_at_rest=lambda: not (self.is_used() or self.is_fetching()),
                restart=lambda: self.events.publish(SuccessorAsked()),
            ),
            self.engine.store,
            fetcher=self.engine.fetcher,
            changed=self.events.changed,
        )
        self.telling = Telling(
            self.engine.client,
            members=lambda: members(self.identity, self.discovery.peers(), self.membership.names()),
            envelope=lambda: self.updates.known.to_tell,
            heard=self.updates.tells,
        )
        self.looks, self.awake = looks(), Awake(holding())
        self.links = WorkerLinks(
            worker=self.worker,
            identity=self.identity,
            me=self.presence.me,
            devices=lambda: self.processes.devices,
            removed=lambda home_id: self.events.publish(HomeLeft(home_id=home_id)),
            changed=self.events.changed,
            handed_over=lambda link, message: self.handover.answer(link, message),
            needed=lambda master: self.events.publish(StillNeeded(master_name=master)),
            avoids=lambda host: self.network.avoids(host),
            medium_to=lambda host: self.network.medium_to(host),
        )
        self.discovery = Discovery(
            on_change=lambda: self.membership.look(),
            remembered=folders.config / "addresses.json",
            probe=lambda address: identify(address, self.identity),
            interfaces=interfaces,
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
            on_link=self.serve_link,
            on_pairing=self.pairings.serve,
            preferred_port=DEFAULT_PORT,
            is_closed_at=lambda host: self.network.is_closed_at(host),
        )
        self.network = OwnNetwork(
            interfaces,
            listener=self.listener,
            discovery=self.discovery,
            presence=self.presence,
            lending=self.lending,
            links=lambda: open_links(self.identity),
            stages=self.processes.running,
            events=self.events,
        )
        local = LocalComputer(
            identity=self.identity,
            me=self.presence.me,
            processes=self.processes,
            addresses=self.presence.addresses,
            use=use,
            on_wifi=lambda: self.network.medium().kind == "wifi",
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
            deadlines=deadlines.planning,
            kept=KeptMeasurements(
                folders.cache / "measurements.json",
                measured_as=f"{potluck.__version__} {PACKING_VERSION} {settings.threads} {cpu_threads()}",
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
        self.library.downloads.limit(settings.download_limit_mb)
        self.at_hand = ModelsAtHand(
            master=self.master,
            library=self.library,
            activity=self.activity,
            text_log=folders.state / "text.log",
        )
        upkeep = Upkeep(
            store=self.store,
            packed=self.packing.memory,
            digests=folders.cache / "digests",
            sessions=folders.sessions,
            models=lambda: [model.path for model in self.known.list()],
            find=self.known.find,
        )
        self.handover = Handover(
            HandoverParts(
                identity=self.identity,
                membership=self.membership,
                discovery=self.discovery,
                lending=self.lending,
                events=self.events,
                join=self.pairings.join,
                invite=lambda only: self.pairings.invite(self.presence.addresses(), only)[0],
                masters=self.links.masters,
                check=lambda link, addresses: self.links.check_addresses(link, "", addresses),
                is_asked=lambda: self.at_hand.is_asked,
                unload=self.master.unload,
                rename=lambda name: self.presence.rename(self.lending.rename(name)),
            ),
            folders.config / "handover.json",
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
        doctor = Doctor(
            folders.by_content,
            identity=self.identity,
            presence=self.presence,
            discovery=self.discovery,
            membership=self.membership,
            links=self.links,
            store=self.store,
            engine=self.engine.keeper.seen,
            network=self.network.view,
            looks=LOOKS,
        )
        self.backend = NodeBackend(
            Parts(
                presence=self.presence,
                network=self.network,
                gpus=self.gpus,
                masters=self.links.master_names,
                stop=lambda: self.events.publish(StopAsked()),
                activity=self.activity,
                discovery=self.discovery,
                membership=self.membership,
                worker=self.worker,
                lending=self.lending,
                master=self.master,
                pairings=self.pairings,
                handover=self.handover,
                upkeep=upkeep,
                library=self.library,
                doctor=doctor,
                engine=self.engine.keeper,
                updates=self.updates,
                slower=self.device_watch.slower,
                at_hand=self.at_hand,
                program_keys=ProgramKeys(folders.program_keys, folders.program_key_uses),
            )
        )

    def is_used(self) -> bool:
        """Whether it answers, loads or helps at this moment."""
        lease = self.worker.lease
        return (
            self.master.is_used
            or (lease is not None and lease.transfer is not None)
            or any(process.is_busy for process in self.processes.running())
        )

    def is_fetching(self) -> bool:
        """Whether a model or the engine is fetched at this moment."""
        return self.library.downloads.is_busy or self.engine.keeper.is_busy

    async def serve_link(self, link: Link) -> None:
        """Serve a link that another computer has made, until it ends."""
        self.membership.called(link)
        if link.purpose == "wheels":
            await self.engine.server.serve(link)
            return
        with self.calls.during(link):
            await self.links.serve(link)
