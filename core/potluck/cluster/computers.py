"""This computer and the others, as the master asks them: measure, hold a stage, let it go.

The two classes do the same things; one over the pipe to its own stage process, the other over a
control connection. Whoever plans and deploys cannot tell them apart.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from potluck.cluster.engines import Engines
from potluck.cluster.stage_messages import LoadProgress as StageProgress
from potluck.cluster.stage_messages import LoadStage, TensorFile
from potluck.cluster.stage_task import Neighbours
from potluck.cluster.survey import LinkQuality
from potluck.cluster.tasks import together
from potluck.errors import BusyError, PeerTimeoutError, RemoteProtocolError
from potluck.ids import Digest, HomeId, NodeId
from potluck.model.schemes import Cache, Scheme
from potluck.net.identity import Identity
from potluck.net.link import Link
from potluck.net.measure import measure
from potluck.net.reactor import Reactor
from potluck.net.step_link import StepLink
from potluck.net.transport import dial, dial_steps
from potluck.store.fetch import send_tensors
from potluck.store.progress import TransferProgress
from potluck.store.registry import TensorSource
from potluck.wire.measuring_messages import (
    LinkMeasured,
    MeasureLink,
    MeasureStage,
    Profile,
    Profiled,
    StageMeasured,
    StageTimes,
)
from potluck.wire.messages import (
    Address,
    Assign,
    DeviceId,
    DeviceInfo,
    Load,
    Loaded,
    Message,
    Need,
    NodeInfo,
    Purpose,
    Unload,
    Unloaded,
    WarmingUp,
)

DIAL_TIMEOUT_S = 10.0
PROFILE_TIMEOUT_S = 90.0  # the first one waits for the worker's engine to start
MEASURE_TIMEOUT_S = 20.0
MEASURE_STAGE_TIMEOUT_S = 90.0  # more than its engine is given
ASSIGN_TIMEOUT_S = 60.0  # the worker looks at every tensor of its store
LOAD_TIMEOUT_S = 6 * 3600.0  # the silence below ends a load that is stuck
LOAD_SILENCE_S = 60.0  # a worker that loads says so all the time
UNLOAD_TIMEOUT_S = 15.0

_Answer = TypeVar("_Answer", bound=Message)


class Neighbour(Protocol):
    """Who a link can be measured to."""

    @property
    def node_id(self) -> NodeId: ...
    @property
    def addresses(self) -> tuple[Address, ...]: ...


class LocalComputer:
    """The master's own stage processes."""

    is_local = True

    def __init__(
        self,
        *,
        identity: Identity,
        me: Callable[[], NodeInfo],
        engines: Engines,
        addresses: Callable[[], tuple[Address, ...]],
        lent_to: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Make this computer known to its own master.

        Args:
            identity: of this node.
            me: what this node says of itself.
            engines: its stage processes.
            addresses: where other computers reach this one.
            lent_to: the name of another home's master that has the stage processes now.
        """
        self.node_id = identity.node_id
        self._identity = identity
        self._me = me
        self._engines = engines
        self._addresses = addresses
        self._lent_to = lent_to

    @property
    def name(self) -> str:
        return self._me().name

    @property
    def machine(self) -> str:
        return self._me().machine

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where the other computers reach this one."""
        return self._addresses()

    @property
    def devices(self) -> Sequence[DeviceInfo]:
        return self._engines.devices

    async def look(self) -> None:
        """Wait until the devices are known.

        Raises:
            EngineError: no engine starts on this computer.
        """
        if not self.devices:
            await self._engines.handle()

    async def profile(
        self,
        config: Mapping[str, object],
        scheme: Scheme,
        tokens: int,
        device: DeviceId | None = None,
        cache: Cache = "full",
    ) -> Profiled:
        stage = await self._engines.handle(device)
        profile = await stage.profile(dict(config), scheme, tokens, cache)
        return Profiled(
            device=profile.device,
            decode_ms=profile.decode_ms,
            prefill_ms=profile.prefill_ms,
            head_ms=profile.head_ms,
        )

    async def measure_link_to(self, other: Neighbour) -> LinkQuality:
        link = await self._dial(self._home(), other.node_id, other.addresses, "weights")
        try:
            async with asyncio.timeout(MEASURE_TIMEOUT_S):
                quality = await measure(link)
        except TimeoutError:
            raise PeerTimeoutError(
                f"{link.peer.name} does not answer fast enough to be measured."
            ) from None
        finally:
            link.close()
        return LinkQuality(rtt_ms=1000 * quality.rtt_s, bytes_per_s=quality.bytes_per_s)

    def _home(self) -> HomeId:
        """The own home. A computer that works alone makes one, for the connections with itself."""
        home = self._identity.own_home
        if home is None:
            home = self._identity.create_home(self.name)
        return home.home_id

    async def _dial(
        self, home: HomeId, peer: NodeId, addresses: Sequence[Address], purpose: Purpose
    ) -> Link:
        return await dial(
            addresses,
            self._identity,
            home=home,
            peer=peer,
            purpose=purpose,
            me=self._me(),
            timeout_s=DIAL_TIMEOUT_S,
        )

    async def assign(self, assign: Assign) -> Need:
        """Nothing is missing: the stage reads the model's own files.

        Raises:
            BusyError: another home has the stage processes; first come, first served.
        """
        if (master := self._lent_to()) is not None:
            raise BusyError(
                f"{self.name} helps {master} just now. Pause sharing to use it yourself, or wait."
            )
        stage = await self._engines.handle(assign.device)
        return Need(epoch=assign.epoch, tensors=(), activation_port=stage.activation_port)

    async def send_weights(
        self,
        need: Need,
        sources: Mapping[Digest, TensorSource],
        progress: Callable[[TransferProgress], None],
    ) -> None:
        raise AssertionError("this computer needs no weights of its own model")

    async def load(
        self,
        assign: Assign,
        sources: Mapping[Digest, TensorSource],
        neighbours: Neighbours,
        progress: Callable[[float], None],
    ) -> int:
        def loaded(report: StageProgress) -> None:
            progress(report.done / max(report.total, 1))

        stage = LoadStage(
            request=0,
            home=self._home(),
            epoch=assign.epoch,
            config=assign.config,
            scheme=assign.scheme,
            cache=assign.cache,
            layers=assign.layers,
            embedding=assign.embedding,
            head=assign.head,
            context=assign.context,
            tensors=tuple(_files(assign, sources)),
            next_hop=neighbours.next_hop,
            previous=neighbours.previous,
            seed=assign.seed,
        )
        handle = await self._engines.handle(assign.device)
        return (await handle.load(stage, loaded)).cache_tokens

    async def measure(self, epoch: int, position: int, device: DeviceId | None) -> StageTimes:
        stage = await self._engines.handle(device)
        return await stage.measure(epoch, position)

    async def unload(self, epoch: int) -> None:
        if self._lent_to() is None:  # else what is loaded there is not ours
            await together(stage.unload() for stage in self._engines.running())

    async def connect(self, port: int, reactor: Reactor) -> StepLink:
        return await dial_steps(
            (Address(host="127.0.0.1", port=port),),
            self._identity,
            home=self._home(),
            peer=self.node_id,
            me=self._me(),
            reactor=reactor,
            timeout_s=DIAL_TIMEOUT_S,
        )


def _files(assign: Assign, sources: Mapping[Digest, TensorSource]) -> Sequence[TensorFile]:
    files: list[TensorFile] = []
    for info in assign.tensors:
        source = sources[Digest(info.digest)]
        files.append(TensorFile(info=info, path=str(source.path), offset=source.offset))
    return files


class RemoteComputer:
    """A worker of the own home, over its control connection."""

    is_local = False

    def __init__(
        self,
        link: Link,
        *,
        identity: Identity,
        me: Callable[[], NodeInfo],
        addresses: tuple[Address, ...],
    ) -> None:
        self.link = link
        self.node_id = NodeId(link.peer.node_id)
        self.name = link.peer.name
        self.machine = link.peer.machine
        self.addresses = addresses
        self.devices: Sequence[DeviceInfo] = link.peer.devices
        self.is_paused = False
        self.lent_to: str | None = None  # another home's master
        self._identity = identity
        self._me = me
        self._sending = asyncio.Lock()  # its stages share the link, and its store awaits them all
        self._loading: dict[tuple[int, DeviceId | None], Callable[[WarmingUp], None]] = {}

    def warming_up(self, message: WarmingUp) -> None:
        """The worker reports how far it is with loading a stage."""
        if (report := self._loading.get((message.epoch, message.device))) is not None:
            report(message)

    async def _ask(self, message: Message, answer: type[_Answer], timeout_s: float) -> _Answer:
        reply = await self.link.request(message, timeout_s=timeout_s)
        if not isinstance(reply, answer):
            raise RemoteProtocolError(f"{self.name} answered with {type(reply).__name__}.")
        return reply

    async def profile(
        self,
        config: Mapping[str, object],
        scheme: Scheme,
        tokens: int,
        device: DeviceId | None = None,
        cache: Cache = "full",
    ) -> Profiled:
        message = Profile(
            config=dict(config), scheme=scheme, tokens=tokens, cache=cache, device=device
        )
        return await self._ask(message, Profiled, PROFILE_TIMEOUT_S)

    async def measure_link_to(self, other: Neighbour) -> LinkQuality:
        message = MeasureLink(node_id=other.node_id, addresses=other.addresses)
        measured = await self._ask(message, LinkMeasured, MEASURE_TIMEOUT_S)
        return LinkQuality(rtt_ms=measured.rtt_ms, bytes_per_s=measured.bytes_per_s)

    async def assign(self, assign: Assign) -> Need:
        return await self._ask(assign, Need, ASSIGN_TIMEOUT_S)

    async def send_weights(
        self,
        need: Need,
        sources: Mapping[Digest, TensorSource],
        progress: Callable[[TransferProgress], None],
    ) -> None:
        async with self._sending:
            link = await self._dial(self.addresses, "weights")
            try:
                await send_tensors(link, need.tensors, sources, progress=progress)
            finally:
                link.close()

    async def load(
        self,
        assign: Assign,
        sources: Mapping[Digest, TensorSource],
        neighbours: Neighbours,
        progress: Callable[[float], None],
    ) -> int:
        """Have the stage loaded. As long as it says that it is warming up, it is waited for."""
        loop, stage = asyncio.get_running_loop(), (assign.epoch, assign.device)
        message = Load(
            epoch=assign.epoch,
            next_hop=neighbours.next_hop,
            previous=neighbours.previous,
            device=assign.device,
        )
        try:
            async with asyncio.timeout(LOAD_SILENCE_S) as deadline:

                def warming_up(message: WarmingUp) -> None:
                    deadline.reschedule(loop.time() + LOAD_SILENCE_S)
                    progress(message.progress)

                self._loading[stage] = warming_up
                loaded = await self._ask(message, Loaded, timeout_s=LOAD_TIMEOUT_S)
                return loaded.cache_tokens
        except TimeoutError:
            raise PeerTimeoutError(
                f"{self.name} has said nothing of its loading for {LOAD_SILENCE_S:.0f} seconds."
            ) from None
        finally:
            self._loading.pop(stage, None)  # a late report finds no deadline to move

    async def measure(self, epoch: int, position: int, device: DeviceId | None) -> StageTimes:
        message = MeasureStage(epoch=epoch, position=position, device=device)
        return (await self._ask(message, StageMeasured, MEASURE_STAGE_TIMEOUT_S)).times

    async def unload(self, epoch: int) -> None:
        await self._ask(Unload(epoch=epoch), Unloaded, UNLOAD_TIMEOUT_S)

    async def connect(self, port: int, reactor: Reactor) -> StepLink:
        return await dial_steps(
            [Address(host=a.host, port=port) for a in self.addresses],
            self._identity,
            home=self.link.home,
            peer=self.node_id,
            me=self._me(),
            reactor=reactor,
            timeout_s=DIAL_TIMEOUT_S,
        )

    async def _dial(self, addresses: Sequence[Address], purpose: Purpose) -> Link:
        return await dial(
            addresses,
            self._identity,
            home=self.link.home,
            peer=self.node_id,
            purpose=purpose,
            me=self._me(),
            timeout_s=DIAL_TIMEOUT_S,
        )
