"""A worker of this node's own home as the master uses it: over its control connection."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar, get_args

import msgspec

from potluck.api.values.network import Medium, MediumKind
from potluck.api.values.politeness import says
from potluck.cluster.computer import PATIENCE, Capabilities, Computer, Patience
from potluck.errors import PeerTimeoutError, PotluckError, RemoteProtocolError
from potluck.ids import Digest, NodeId
from potluck.net.identity import Identity
from potluck.net.link import Link
from potluck.net.reactor import Reactor
from potluck.net.step_link import StepLink
from potluck.net.transport import dial, dial_steps
from potluck.store.fetch import send_tensors
from potluck.store.progress import TransferProgress
from potluck.store.source import TensorSource
from potluck.store.throttle import Throttle
from potluck.tasks import reschedule
from potluck.wire import messages as wire
from potluck.wire.cache_messages import TakeSessions, TakingSessions
from potluck.wire.handover_messages import (
    Follow,
    Followed,
    Invite,
    Invited,
    Known,
    TakenOver,
    TakeOver,
)
from potluck.wire.measuring_messages import (
    LinkMeasured,
    MeasureLink,
    MeasureStage,
    MeasureSums,
    Profile,
    Profiled,
    StageMeasured,
    StageTimes,
    SumsMeasured,
)
from potluck.wire.messages import (
    Address,
    Assign,
    DeviceId,
    DeviceInfo,
    HeldStage,
    Load,
    Loaded,
    Message,
    Need,
    NeedTensor,
    NodeInfo,
    RankPlace,
    StillNeeded,
    Unload,
    Unloaded,
    Vitals,
    WarmingUp,
)
from potluck.wire.passing_messages import Expect, Expecting, PassedOn, PassOn
from potluck.wire.spare_messages import Keep, Keeping

logger = logging.getLogger(__name__)

_Answer = TypeVar("_Answer", bound=Message)
_MEDIA: Sequence[MediumKind] = get_args(MediumKind)


class RemoteComputer:
    """A connected worker of this node's own home."""

    is_local = False

    def __init__(
        self,
        link: Link,
        *,
        identity: Identity,
        me: Callable[[], NodeInfo],
        addresses: tuple[Address, ...],
        patience: Patience = PATIENCE,
        throttle: Throttle | None = None,
    ) -> None:
        self.link = link
        self.node_id = NodeId(link.peer.node_id)
        self.name = link.peer.name
        self.machine = link.peer.machine
        self.addresses = addresses  # as they are now: an interface may come or go
        self.set_aside = False  # this home's owner leaves it out of plans
        self.limit: int | None = None  # bytes of each device that plans of this home use at most
        self.offered: Sequence[DeviceInfo] = link.peer.devices
        self.is_paused = False
        self.reason: str | None = None  # why it is or will be paused
        self.is_leaving = False  # it goes on for a moment with what it has loaded
        self.lent_to: str | None = None  # name of another home's master that has it
        self.held: tuple[HeldStage, ...] = ()  # for this home, as last reported
        self.vitals: Vitals | None = None
        self.medium = Medium()
        self._best: dict[NodeId, Address] = {}  # the best address, from each computer
        self._identity = identity
        self._patience = patience
        self._throttle = throttle
        self._me = me
        self._sending = asyncio.Lock()  # its stages share one link, so they are sent one by one
        self._loading: dict[tuple[int, DeviceId | None], Callable[[WarmingUp], None]] = {}

    @property
    def devices(self) -> Sequence[DeviceInfo]:
        """What it offers, within the limit of this home."""
        if (limit := self.limit) is None:
            return self.offered
        return [
            msgspec.structs.replace(device, memory_free=min(device.memory_free, limit))
            for device in self.offered
        ]

    @property
    def pause(self) -> str | None:
        if self.set_aside:
            return "is paused by you"
        if self.reason == "owner":
            return "is paused by its owner"
        return says(self.reason)

    @property
    def on_wifi(self) -> bool:
        return self.medium.kind == "wifi"

    @property
    def withheld(self) -> str | None:
        """Why it takes no part in plans, after its name; None: it does."""
        if self.lent_to is not None:
            return f"helps {self.lent_to} just now"
        if self.is_leaving:
            return self.pause or "is about to leave"
        if self.set_aside or self.is_paused:
            return self.pause or "does not lend itself just now"
        return None

    @property
    def version(self) -> int:
        return self.link.version

    async def look(self) -> None:
        """Do nothing: the devices are known from the first message."""

    def warming_up(self, message: WarmingUp) -> None:
        """Take a worker's report of how far it is with loading a stage."""
        if (report := self._loading.get((message.epoch, message.device))) is not None:
            report(message)

    async def _ask(self, message: Message, answer: type[_Answer], timeout_s: float) -> _Answer:
        reply = await self.link.request(message, timeout_s=timeout_s)
        if not isinstance(reply, answer):
            raise RemoteProtocolError(f"{self.name} answered with {type(reply).__name__}.")
        return reply

    async def profile(self, wanted: Profile) -> Profiled:
        return await self._ask(wanted, Profiled, self._patience.profile_s)

    @property
    def least_rtt_s(self) -> float | None:
        return self.link.least_rtt_s

    def addresses_from(self, source: NodeId) -> tuple[Address, ...]:
        best = self._best.get(source)
        return tuple(sorted(self.addresses, key=lambda address: address != best))

    def reached(self, source: NodeId, at: Address) -> None:
        self._best[source] = at

    async def measure_link_to(self, peer: NodeId, addresses: tuple[Address, ...]) -> LinkMeasured:
        message = MeasureLink(node_id=peer, addresses=addresses)
        measured = await self._ask(message, LinkMeasured, self._patience.measure_link_s)
        logger.info(
            "link measured from=%s to=%s rtt_ms=%.1f rtt_p95_ms=%.1f",
            self.name,
            measured.address.host,
            measured.rtt_ms,
            measured.rtt_p95_ms,
        )
        return measured

    async def measure_sums(self, device: DeviceId | None, ranks: RankPlace | None) -> SumsMeasured:
        message = MeasureSums(device=device, ranks=ranks)
        return await self._ask(message, SumsMeasured, self._patience.measure_sums_s)

    async def assign(self, assign: Assign) -> Need:
        return await self._ask(assign, Need, self._patience.assign_s)

    async def send_weights(
        self,
        tensors: Sequence[NeedTensor],
        sources: Mapping[Digest, TensorSource],
        progress: Callable[[TransferProgress], None],
    ) -> None:
        async with self._sending:
            link = await dial(
                self.addresses_from(self._identity.node_id),
                self._identity,
                home=self.link.home,
                peer=self.node_id,
                purpose="weights",
                me=self._me(),
                timeout_s=self._patience.dial_s,
            )
            try:
                await send_tensors(
                    link, tensors, sources, progress=progress, throttle=self._throttle
                )
            finally:
                link.close()

    async def keep(self, message: Keep) -> Keeping:
        return await self._ask(message, Keeping, self._patience.assign_s)

    async def expect(self, epoch: int, source: NodeId, tensors: Sequence[NeedTensor]) -> None:
        message = Expect(epoch=epoch, node_id=source, tensors=tuple(tensors))
        await self._ask(message, Expecting, self._patience.assign_s)

    async def pass_on(
        self, target: Computer, tensors: Sequence[NeedTensor], *, timeout_s: float
    ) -> int:
        message = PassOn(node_id=target.node_id, addresses=target.addresses, tensors=tuple(tensors))
        return (await self._ask(message, PassedOn, timeout_s)).nbytes

    async def load(
        self,
        assign: Assign,
        sources: Mapping[Digest, TensorSource],
        load: Load,
        progress: Callable[[float], None],
    ) -> Capabilities:
        """Load the stage. The deadline moves with every report of progress."""
        stage = (assign.epoch, assign.device)
        try:
            async with asyncio.timeout(self._patience.load_silence_s) as deadline:

                def warming_up(message: WarmingUp) -> None:
                    reschedule(deadline, self._patience.load_silence_s)
                    progress(message.progress)

                self._loading[stage] = warming_up
                loaded = await self._ask(load, Loaded, timeout_s=self._patience.load_s)
                logger.info(
                    "stage loaded name=%s seconds=%.1f bytes=%d",
                    self.name,
                    loaded.seconds,
                    loaded.memory_bytes,
                )
                return Capabilities(
                    cache_tokens=loaded.cache_tokens,
                    is_exact_in_chunks=loaded.is_exact_in_chunks,
                    keeps_sessions=loaded.keeps_sessions,
                    moves_caches=loaded.moves_caches,
                    takes_drafts=loaded.takes_drafts,
                )
        except TimeoutError:
            raise PeerTimeoutError(
                f"{self.name} has said nothing of its loading for {self._patience.load_silence_s:.0f} seconds."
            ) from None
        finally:
            self._loading.pop(stage, None)  # a late report must not move a deadline

    async def measure(self, epoch: int, position: int, device: DeviceId | None) -> StageTimes:
        message = MeasureStage(epoch=epoch, position=position, device=device)
        return (await self._ask(message, StageMeasured, self._patience.measure_stage_s)).times

    async def take_sessions(self, message: TakeSessions) -> None:
        await self._ask(message, TakingSessions, self._patience.take_sessions_s)

    async def is_needed(self) -> None:
        """Tell it, because it leaves, that the model does not fit without it."""
        if self.set_aside:
            return  # it does not leave by itself
        with suppress(PotluckError):  # it is gone already
            await self.link.send(StillNeeded())

    async def would_take_over(self) -> None:
        """Ask whether it can be the main computer, and change nothing."""
        await self._ask(TakeOver(only_asks=True), TakenOver, self._patience.take_over_s)

    async def take_over(self, known: Known | None = None) -> str:
        """Have it be the main computer. Returns a token of its home, for this computer."""
        message = TakeOver(known=known)
        token = (await self._ask(message, TakenOver, self._patience.take_over_s)).token
        if token is None:
            raise RemoteProtocolError(f"{self.name} gave no token of its home.")
        return token

    async def invite(self, node_id: NodeId, known: Known | None = None) -> str:
        """A token of its home, for one more computer, when it has taken over."""
        message = Invite(node_id=node_id, known=known)
        return (await self._ask(message, Invited, self._patience.take_over_s)).token

    async def follow(self, token: str) -> None:
        """Have it join the home of this token."""
        await self._ask(Follow(token=token), Followed, self._patience.follow_s)

    async def unload(self, epoch: int) -> None:
        await self._ask(Unload(epoch=epoch), Unloaded, self._patience.unload_s)

    async def connect(self, port: int, reactor: Reactor) -> StepLink:
        return await dial_steps(
            [
                Address(host=address.host, port=port)
                for address in self.addresses_from(self._identity.node_id)
            ],
            self._identity,
            home=self.link.home,
            peer=self.node_id,
            me=self._me(),
            reactor=reactor,
            timeout_s=self._patience.dial_s,
        )


def known_medium(said: wire.Medium | None) -> Medium:
    """What a computer says of its network; a kind of a later version is not known."""
    kind: MediumKind | None = next((k for k in _MEDIA if said is not None and k == said.kind), None)
    return Medium(kind=kind, mbit=said.mbit) if said is not None and kind is not None else Medium()
