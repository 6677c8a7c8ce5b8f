"""This computer as its own master uses it: over the pipes to its stage processes."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence

from potluck.cluster.computer import PATIENCE, Capabilities, Computer, Patience
from potluck.cluster.device_use import DeviceUse
from potluck.cluster.processes.devices import StageProcesses
from potluck.cluster.processes.messages import LoadProgress as StageProgress
from potluck.cluster.processes.messages import LoadStage, TensorFile
from potluck.errors import BusyError
from potluck.ids import Digest, HomeId, NodeId
from potluck.net.identity import Identity
from potluck.net.measure import measure_to
from potluck.net.reactor import Reactor
from potluck.net.step_link import StepLink
from potluck.net.transport import dial_steps
from potluck.store.progress import TransferProgress
from potluck.store.source import TensorSource
from potluck.tasks import together
from potluck.wire.cache_messages import TakeSessions
from potluck.wire.measuring_messages import (
    LinkMeasured,
    Profile,
    Profiled,
    StageTimes,
    SumsMeasured,
)
from potluck.wire.messages import (
    Address,
    Assign,
    DeviceId,
    DeviceInfo,
    Load,
    Need,
    NeedTensor,
    NodeInfo,
    RankPlace,
)
from potluck.wire.spare_messages import Keep, Keeping
from potluck.wire.versions import PROTOCOL_VERSIONS


class LocalComputer:
    """The master's own stage processes."""

    is_local = True
    version = max(PROTOCOL_VERSIONS)
    pause = None  # its own master uses it, whatever it lends to others

    def __init__(
        self,
        *,
        identity: Identity,
        me: Callable[[], NodeInfo],
        processes: StageProcesses,
        addresses: Callable[[], tuple[Address, ...]],
        use: DeviceUse | None = None,
        on_wifi: Callable[[], bool] = lambda: False,
        patience: Patience = PATIENCE,
    ) -> None:
        """Make this computer known to its own master.

        Args:
            identity: of this node.
            me: describes this node to peers.
            processes: the stage processes of this node.
            addresses: where other computers reach this one.
            use: tells whether another home's master has the stage processes now.
            on_wifi: whether others reach this computer by Wi-Fi alone.
            patience: deadlines for answers.
        """
        self._on_wifi = on_wifi
        self.node_id = identity.node_id
        self._identity = identity
        self._patience = patience
        self._me = me
        self._processes = processes
        self._addresses = addresses
        self._epoch = 0  # of the plan that is in force or being assigned
        self._assigned: set[DeviceId] = set()  # the devices that have a stage of that plan
        self._giving_back = asyncio.Lock()  # a load waits until unused layers are freed
        self._use = use if use is not None else DeviceUse()

    @property
    def name(self) -> str:
        return self._me().name

    @property
    def machine(self) -> str:
        return self._me().machine

    @property
    def on_wifi(self) -> bool:
        return self._on_wifi()

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where the other computers reach this one."""
        return self._addresses()

    @property
    def devices(self) -> Sequence[DeviceInfo]:
        return self._processes.devices

    async def look(self) -> None:
        """Wait until the devices are known, and what they lend by the last settings.

        Raises:
            EngineError: no stage process starts on this computer.
        """
        await self._processes.look()

    async def profile(self, wanted: Profile) -> Profiled:
        stage = await self._processes.handle(wanted.device)
        return await stage.profile(wanted)

    def addresses_from(self, source: NodeId) -> tuple[Address, ...]:
        return self.addresses

    def reached(self, source: NodeId, at: Address) -> None:
        raise AssertionError("links are measured towards the other computers")

    async def measure_link_to(self, peer: NodeId, addresses: tuple[Address, ...]) -> LinkMeasured:
        return await measure_to(
            addresses,
            self._identity,
            home=self._home(),
            peer=peer,
            me=self._me(),
            dial_s=self._patience.dial_s,
            measure_s=self._patience.measure_link_s,
        )

    async def measure_sums(self, device: DeviceId | None, ranks: RankPlace | None) -> SumsMeasured:
        stage = await self._processes.handle(device)
        return await stage.measure_sums(self._home(), ranks)

    def _home(self) -> HomeId:
        """This node's own home. It is made if needed: a node's links to itself need one too."""
        home = self._identity.own_home
        if home is None:
            home = self._identity.create_home(self.name)
        return home.home_id

    async def assign(self, assign: Assign) -> Need:
        """Assign a stage. No weights are missing: the stage process reads the model's own files.

        Raises:
            BusyError: another home's master has the stage processes; first come, first served.
        """
        if (master := self._use.lent_to) is not None:
            raise BusyError(
                f"{self.name} helps {master} just now. Pause sharing to use it yourself, or wait."
            )
        stage = await self._processes.handle(assign.device)
        if assign.epoch != self._epoch:
            self._epoch, self._assigned = assign.epoch, set()
        self._assigned.add(stage.devices[0].id)
        return Need(epoch=assign.epoch, tensors=(), activation_port=stage.activation_port)

    async def send_weights(
        self,
        tensors: Sequence[NeedTensor],
        sources: Mapping[Digest, TensorSource],
        progress: Callable[[TransferProgress], None],
    ) -> None:
        raise AssertionError("this computer needs no weights of its own model")

    async def keep(self, message: Keep) -> Keeping:
        raise AssertionError("this computer has the files of its own models")

    async def expect(self, epoch: int, source: NodeId, tensors: Sequence[NeedTensor]) -> None:
        raise AssertionError("this computer needs no weights of its own model")

    async def pass_on(
        self, target: Computer, tensors: Sequence[NeedTensor], *, timeout_s: float
    ) -> int:
        raise AssertionError("this computer sends its own model as the master")

    async def load(
        self,
        assign: Assign,
        sources: Mapping[Digest, TensorSource],
        load: Load,
        progress: Callable[[float], None],
    ) -> Capabilities:
        def loaded(report: StageProgress) -> None:
            progress(report.done / max(report.total, 1))

        files = _files(assign, sources)
        stage = LoadStage.of(assign, load, home=self._home(), tensors=files)
        await self._give_back_unused()
        handle = await self._processes.handle(assign.device)
        result = await handle.load(stage, loaded)
        return Capabilities(
            cache_tokens=result.cache_tokens,
            is_exact_in_chunks=result.is_exact_in_chunks,
            keeps_sessions=result.keeps_sessions,
            moves_caches=True,
            takes_drafts=result.takes_drafts,
        )

    async def _give_back_unused(self) -> None:
        """Free the layers of an earlier plan on devices that have no stage of this plan."""
        async with self._giving_back:
            await together(
                stage.unload()
                for stage in self._processes.running()
                if stage.held is not None and stage.devices[0].id not in self._assigned
            )

    async def measure(self, epoch: int, position: int, device: DeviceId | None) -> StageTimes:
        stage = await self._processes.handle(device)
        return await stage.measure(epoch, position)

    async def take_sessions(self, message: TakeSessions) -> None:
        await (await self._processes.handle(message.device)).take_sessions(message)

    async def is_needed(self) -> None:
        raise AssertionError("this computer does not leave its own master")

    async def unload(self, epoch: int) -> None:
        if self._use.lent_to is None:  # else the loaded layers are another home's
            await together(stage.unload() for stage in self._processes.running())

    async def connect(self, port: int, reactor: Reactor) -> StepLink:
        return await dial_steps(
            (Address(host="127.0.0.1", port=port),),
            self._identity,
            home=self._home(),
            peer=self.node_id,
            me=self._me(),
            reactor=reactor,
            timeout_s=self._patience.dial_s,
        )


def _files(assign: Assign, sources: Mapping[Digest, TensorSource]) -> Iterator[TensorFile]:
    for info in assign.tensors:
        source = sources[Digest(info.digest)]
        yield TensorFile.of(info, source.path, source.offset, source.runs)
