"""A node that lends itself: it answers a master's control messages and receives its weights.

Only a peer whose certificate has the role master may ask for anything. `leasing.py` decides how long
what it was lent stays in memory.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from potluck.api.values.politeness import SAYS, Rule
from potluck.api.values.vitals import Vitals
from potluck.cluster.device_use import DeviceUse
from potluck.cluster.processes.handle import StageHandle
from potluck.cluster.processes.messages import LoadProgress, LoadStage, TensorFile
from potluck.cluster.worker.assignments import check_assignment, check_spares
from potluck.cluster.worker.contents import Content, files_read
from potluck.cluster.worker.lease import Lease, LeasedStage, MasterLink
from potluck.cluster.worker.leasing import Leasing
from potluck.cluster.worker.spares import SpareTensors
from potluck.cluster.worker.weights import PeerWeights, drop_damaged
from potluck.errors import (
    BusyError,
    IntegrityError,
    NotAllowedError,
    RemoteProtocolError,
    StaleEpochError,
)
from potluck.ids import Digest, HomeId, NodeId
from potluck.model.config import ModelConfig
from potluck.store.chunks import ChunkStore, Missing
from potluck.store.fetch import WeightsLink, receive_tensors
from potluck.store.progress import TransferProgress
from potluck.store.throttle import Throttle
from potluck.tasks import together
from potluck.wire.cache_messages import TakeSessions, TakingSessions
from potluck.wire.measuring_messages import (
    MeasureStage,
    MeasureSums,
    Profile,
    StageMeasured,
)
from potluck.wire.messages import (
    Assign,
    DeviceId,
    Load,
    Loaded,
    Message,
    Need,
    NeedTensor,
    TensorInfo,
    Unload,
    Unloaded,
    WarmingUp,
)
from potluck.wire.passing_messages import Expect, Expecting
from potluck.wire.spare_messages import Keep
from potluck.wire.versions import PROTOCOL_VERSIONS, check_age

logger = logging.getLogger(__name__)

KEEP_LOADED_S = 45.0  # without a master: a node that is started again is there after seconds


class Worker:
    """Lends this computer's stage processes and store."""

    def __init__(
        self,
        *,
        stage: Callable[[DeviceId | None], Awaitable[StageHandle]],
        store: ChunkStore,
        changed: Callable[[], None],
        use: DeviceUse | None = None,
        keep_loaded_s: float = KEEP_LOADED_S,
        throttle: Throttle | None = None,
    ) -> None:
        """Make a worker that does not lend yet.

        Args:
            stage: returns the stage process of a device (None: the best one); waits while it
                starts.
            store: where the weights of other computers' models are kept.
            changed: called when the displayed state has changed.
            keep_loaded_s: how long layers stay in memory after the master's connection has ended.
            throttle: limits how fast weights are passed on; None: there is no limit.
            use: tells what this computer's own master uses, and is told what the worker lends.
        """
        self.is_lending = False
        self.is_paused = False
        self.withheld: Rule | None = None  # why it is not lent by itself
        self.is_renewing = False  # its stage processes are started anew
        self.is_leaving = False  # what is loaded goes on although this computer is away
        self.vitals = Vitals()
        self._stage = stage
        self._store = store
        self.peers = PeerWeights(store, throttle)
        self.spares = SpareTensors(store)
        self._use = use if use is not None else DeviceUse()
        self.leasing = Leasing(store, self._use, changed=changed, keep_loaded_s=keep_loaded_s)
        self._turn = asyncio.Lock()  # one assignment at a time
        self._giving_back = asyncio.Lock()  # a load waits until unused layers are freed

    @property
    def lease(self) -> Lease | None:
        """What this computer lends now, and to whom."""
        return self.leasing.lease

    @property
    def is_idle(self) -> asyncio.Event:
        """Set while no connected master has a lease."""
        return self.leasing.is_idle

    @property
    def is_away(self) -> bool:
        """Whether it lends nothing now."""
        return self.reason is not None or self.is_renewing or not self.is_lending

    @property
    def reason(self) -> str | None:
        """Why it lends nothing although it is a worker: `owner`, who has paused it, or a rule."""
        return "owner" if self.is_paused else self.withheld

    @property
    def is_gone(self) -> bool:
        """Whether it lends nothing, and has finished what it had begun."""
        return self.is_away and not self.is_leaving

    async def handle(self, link: MasterLink, message: Message) -> Message:
        """Answer one request of a master.

        Raises:
            NotAllowedError: the peer is no master of that home.
            StaleEpochError: the home's master has connected anew since.
            BusyError: this computer is paused, does not lend itself, or is lent to another home.
            VersionMismatchError: the master's program is too old for this model.
            PotluckError: the request failed. The link sends the error as the answer and stays open.
        """
        if link.peer_role != "master":
            raise NotAllowedError("Only a home's main computer may ask this.")
        if self.leasing.is_outdated(link):
            raise StaleEpochError("This home's main computer has connected anew, and asks there.")
        match message:
            case Profile():
                self._check_free(link)
                _check_age(link, message)
                return await (await self._stage(message.device)).profile(message)
            case Assign():
                self._check_free(link)  # refuse at once, without waiting for the turn
                async with self._turn:
                    self._check_free(link)
                    return await self._assign(link, message)
            case Keep():
                self._check_free(link)
                _check_age(link, message)
                spares = await asyncio.to_thread(check_spares, message)
                keeping = await self.spares.keep(link.home, spares)
                self.peers.may_pass_on(link.home, spares)
                return keeping
            case Load():  # takes no turn: several devices load at once
                self._check_free(link)
                return await self._load(link, message)
            case MeasureSums():
                self._check_free(link)
                stage = await self._stage(message.device)
                return await stage.measure_sums(link.home, message.ranks)
            case MeasureStage():
                return await self._measure(link, message)
            case TakeSessions():
                stage = await self._stage(message.device)
                self.leasing.stage(link, message.epoch, stage.devices[0].id)
                await stage.take_sessions(message)
                return TakingSessions(epoch=message.epoch)
            case Expect():
                self.peers.expect(link.home, message, self.lease)
                return Expecting(epoch=message.epoch)
            case Unload():  # takes no turn: it ends a load that is under way
                await self.leasing.unload(link.home, message.epoch)
                return Unloaded(epoch=message.epoch)
            case _:
                raise RemoteProtocolError(f"{type(message).__name__} is no request to a worker.")

    def _check_free(self, link: MasterLink) -> None:
        if not self.is_lending or self.is_renewing:
            raise BusyError("This computer does not lend itself just now.")
        if self.is_paused:
            raise BusyError("This computer is paused by its owner.")
        if self.withheld is not None:
            raise BusyError(f"This computer {SAYS[self.withheld]}.")
        if self._use.own:
            raise BusyError("This computer runs a model of its own just now.")
        lease = self.lease
        if lease is not None and lease.home != link.home and lease.link is not None:
            raise BusyError(f"This computer is lent to {lease.master_name}.")

    async def _measure(self, link: MasterLink, message: MeasureStage) -> StageMeasured:
        stage = await self._stage(message.device)
        self.leasing.stage(link, message.epoch, stage.devices[0].id)
        times = await stage.measure(message.epoch, message.position)
        return StageMeasured(epoch=message.epoch, times=times)

    async def _assign(self, link: MasterLink, message: Assign) -> Need:
        _check_age(link, message)
        tensors = await asyncio.to_thread(check_assignment, message)
        handle = await self._stage(message.device)
        device = handle.devices[0].id
        files = await asyncio.to_thread(files_read, self._store, tensors)
        found = self.lease
        if found is not None and found.home != link.home:
            await self.leasing.release()
            found = None
        is_of_this_plan = found is not None and found.epoch == message.epoch
        if found is not None and not is_of_this_plan:
            # Its layers are in memory, so the store may delete its tensors.
            self.leasing.unpin(found)
        self._store.inventory.pin(files)
        self.peers.assigned(link.home, tensors)
        try:
            awaited = found.awaited(besides=device) if found is not None and is_of_this_plan else {}
            missing = await self._make_room(tensors, awaited)
            self._check_free(link)  # the owner may have paused this computer meanwhile
            if self.lease is not found:
                raise StaleEpochError("This plan was unloaded while it was being assigned.")
        except BaseException:
            self._store.inventory.unpin(files)
            raise
        lease = (
            found
            if found is not None and is_of_this_plan
            else self.leasing.begin(link, message.epoch)
        )
        if (before := lease.stages.get(device)) is not None:
            # Assigned again, because the missing tensors changed.
            self._store.inventory.unpin(before.files)
        lease.stages[device] = LeasedStage(
            handle=handle,
            assign=message,
            tensors=tensors,
            files=files,
            missing=missing,
            layer_count=ModelConfig.from_dict(message.config).num_layers,
        )
        self.leasing.changed()
        return Need(
            epoch=message.epoch,
            tensors=tuple(NeedTensor(digest=m.digest, offset=m.offset) for m in missing),
            activation_port=handle.activation_port,
        )

    async def _make_room(
        self, tensors: Mapping[Digest, Content], awaited: Mapping[Digest, int]
    ) -> Sequence[Missing]:
        """Make room in the store, and return the tensors that it lacks.

        Tensors in `awaited` (digest: bytes) are sent for another device already: they need their
        room as well, and are left out.
        """
        lacking = await asyncio.to_thread(self._lacking, tensors)
        missing = [tensor for tensor in lacking if tensor.digest not in awaited]
        needed = sum(tensor.nbytes - tensor.offset for tensor in missing)
        needed += await asyncio.to_thread(self._to_come, awaited)
        await asyncio.to_thread(self._store.free_for, needed)
        return missing

    def _lacking(self, tensors: Mapping[Digest, Content]) -> Sequence[Missing]:
        """Those whose bytes are not on the disk; the files of the others are used now."""
        files = {digest: content.file(self._store) for digest, content in tensors.items()}
        wholes = {file for digest, file in files.items() if file is not None and file != digest}
        self._store.use(wholes)
        own = (digest for digest, file in files.items() if file not in wholes)
        return self._store.missing((digest, tensors[digest].nbytes) for digest in own)

    def _to_come(self, awaited: Mapping[Digest, int]) -> int:
        """The bytes of these tensors (digest: bytes) that are not on the disk yet."""
        lacking = (digest for digest in awaited if not self._store.has(digest))
        return sum(max(0, awaited[digest] - self._store.offset(digest)) for digest in lacking)

    async def _load(self, link: MasterLink, message: Load) -> Loaded:
        handle = await self._stage(message.device)
        lent = self.leasing.stage(link, message.epoch, handle.devices[0].id)
        await self._give_back_unused()
        assign = lent.assign
        files = (self._file(info, lent) for info in assign.tensors)
        stage = LoadStage.of(assign, message, home=link.home, tensors=files)

        def report() -> WarmingUp:
            done = lent.progress or 0.0
            return WarmingUp(epoch=assign.epoch, progress=done, device=message.device)

        def warming_up(progress: LoadProgress) -> None:
            lent.progress = progress.done / max(progress.total, 1)
            self.leasing.changed()
            self.leasing.tell(link, report())

        try:
            loaded = await handle.load(stage, warming_up)
        except IntegrityError as error:
            # The master sends again what is not here, so all that is damaged must go at once.
            if isinstance(digest := error.data.get("digest"), str):
                content = lent.tensors.get(Digest(digest))
                file = None if content is None else content.file(self._store)
                await asyncio.to_thread(self._store.discard, file or Digest(digest))
            await drop_damaged(self._store, lent.files, lambda: self.leasing.tell(link, report()))
            raise
        logger.info(
            "stage loaded layers_kept=%d layers_loaded=%d", loaded.layers_kept, loaded.layers_loaded
        )
        lent.is_loaded, lent.progress = True, None
        self.leasing.changed()
        return Loaded(
            epoch=assign.epoch,
            seconds=loaded.seconds,
            memory_bytes=loaded.memory_bytes,
            cache_tokens=loaded.cache_tokens,
            is_exact_in_chunks=loaded.is_exact_in_chunks,
            keeps_sessions=loaded.keeps_sessions,
            moves_caches=True,
            takes_drafts=loaded.takes_drafts,
        )

    def _file(self, info: TensorInfo, lent: LeasedStage) -> TensorFile:
        """Where a tensor is; where it should be, if it is not here."""
        content = lent.tensors.get(Digest(info.digest))
        source = None if content is None else content.source(self._store)
        if source is None:
            return TensorFile.of(info, self._store.path(Digest(info.digest)))
        return TensorFile.of(info, source.path, source.offset, source.runs)

    async def _give_back_unused(self) -> None:
        """Free the layers on devices without a stage. Call it when all stages are assigned."""
        lease = self.lease
        assert lease is not None
        async with self._giving_back:
            unused = [lease.before[device] for device in lease.before.keys() - lease.stages.keys()]
            lease.before = {}
            await together(handle.unload() for handle in unused)

    async def receive_weights(
        self, home: HomeId, link: WeightsLink, source: NodeId | None = None
    ) -> None:
        """Receive tensors that the lease lacks from a worker, or (`source` None) from the master.

        Each stage may have a connection of its own.
        """
        lease = self.lease
        if lease is None or lease.home != home:
            raise NotAllowedError("This computer was assigned nothing.")

        def progressed(progress: TransferProgress) -> None:
            lease.transfer = progress
            self.leasing.changed()

        awaited = self.peers.awaited_from(source, lease)
        try:
            await receive_tensors(link, self._store, awaited, progress=progressed)
        finally:
            arrived = await asyncio.to_thread(self._stored, awaited)
            for stage in lease.stages.values():
                stage.missing = [m for m in stage.missing if m.digest not in arrived]
            lease.transfer = None
            self.leasing.changed()

    def _stored(self, sizes: Mapping[Digest, int]) -> set[Digest]:
        return {digest for digest, nbytes in sizes.items() if self._store.has(digest, nbytes)}


def _check_age(link: MasterLink, message: Profile | Assign | Keep) -> None:
    """Refuse a master whose older program would have something else computed than this one computes.

    Raises:
        VersionMismatchError: names the master's computer.
    """
    if link.version < max(PROTOCOL_VERSIONS):
        config = ModelConfig.from_dict(message.config)
        check_age(link.peer.name, link.version, config, message.scheme)
