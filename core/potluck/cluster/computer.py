"""A computer as the master sees it: it can be measured, and can hold stages.

`membership.local` implements it for this computer, and `membership.remote` for a connected worker.
Planning and deploying use both in the same way.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from potluck.cluster.driver.chain_ends import ActivationLink
from potluck.ids import Digest, NodeId
from potluck.net.reactor import Reactor
from potluck.store.progress import TransferProgress
from potluck.store.source import TensorSource
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
    RankPlace,
)
from potluck.wire.spare_messages import Keep, Keeping


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """The deadlines for the answers of a computer, in seconds."""

    dial_s: float = 10.0
    profile_s: float = 90.0  # the first one waits for the stage process to start
    measure_link_s: float = 20.0
    measure_sums_s: float = 12.0  # more than a worker gives its stage process
    measure_stage_s: float = 90.0  # more than the worker gives its stage process
    assign_s: float = 60.0  # the worker looks up every tensor in its store
    load_s: float = 6 * 3600.0  # a load that is stuck is ended by `load_silence_s`
    load_silence_s: float = 60.0  # a worker reports its progress all the time while it loads
    unload_s: float = 15.0
    take_sessions_s: float = 8.0  # more than the worker gives its stage process
    take_over_s: float = 15.0  # it writes a few files
    follow_s: float = 60.0  # it pairs with another computer by token


PATIENCE = Patience()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a loaded stage can do."""

    cache_tokens: int  # that one session can hold
    is_exact_in_chunks: bool = False  # whether results have the same bits in steps of any size
    keeps_sessions: bool = False  # whether it keeps caches on disk, and can restore them
    moves_caches: bool = False  # whether it sends caches to other stages, and takes them
    takes_drafts: bool = False  # whether it computes guesses at tokens, and forgets the wrong ones


# How a computer reaches its own stage processes; the port is replaced by that of the process.
LOOPBACK = (Address(host="127.0.0.1", port=1),)


class Computer(Protocol):
    """This computer or a connected worker.

    Every method asks the computer and waits for its answer, within a deadline.

    Raises:
        PeerError: the computer is lost, is silent, or sends an answer that is not valid.
        PotluckError: the computer cannot do what it was asked; the message says why.
    """

    @property
    def node_id(self) -> NodeId: ...
    @property
    def name(self) -> str: ...
    @property
    def machine(self) -> str:
        """An id that all nodes of one physical computer share; empty if it is not known."""
        ...

    @property
    def version(self) -> int:
        """Of the protocol that is spoken with it."""
        ...

    @property
    def addresses(self) -> tuple[Address, ...]: ...
    def addresses_from(self, source: NodeId) -> tuple[Address, ...]:
        """Its addresses in the order in which another computer dials them."""
        ...

    def reached(self, source: NodeId, at: Address) -> None:
        """Note which of its addresses is the best one from another computer."""
        ...

    @property
    def devices(self) -> Sequence[DeviceInfo]: ...
    @property
    def is_local(self) -> bool:
        """Whether it reads the model's own files, so that nothing has to be sent."""
        ...

    @property
    def on_wifi(self) -> bool:
        """Whether it says that it is on Wi-Fi."""
        ...

    @property
    def pause(self) -> str | None:
        """Why it lends nothing, or is about to, after its name; None: it lends, or just goes."""
        ...

    async def look(self) -> None:
        """Wait until its devices are known."""
        ...

    async def profile(self, wanted: Profile) -> Profiled:
        """Measure one layer of each kind of a model."""
        ...

    async def measure_link_to(self, peer: NodeId, addresses: tuple[Address, ...]) -> LinkMeasured:
        """Measure the link from this computer to another one, at the best of its addresses."""
        ...

    async def measure_sums(self, device: DeviceId | None, ranks: RankPlace | None) -> SumsMeasured:
        """Have the stage process of a device sum with those of other computers. None: only say where it listens."""
        ...

    async def assign(self, assign: Assign) -> Need:
        """Assign a stage. The answer says which weights the computer lacks."""
        ...

    async def send_weights(
        self,
        tensors: Sequence[NeedTensor],
        sources: Mapping[Digest, TensorSource],
        progress: Callable[[TransferProgress], None],
    ) -> None: ...

    async def keep(self, message: Keep) -> Keeping:
        """Have it keep tensors on its disk. The answer says which may be sent."""
        ...

    async def expect(self, epoch: int, source: NodeId, tensors: Sequence[NeedTensor]) -> None:
        """Have it take these tensors, which it lacks, from another worker."""
        ...

    async def pass_on(
        self, target: "Computer", tensors: Sequence[NeedTensor], *, timeout_s: float
    ) -> int:
        """Have it send those of these tensors that it has to a worker that expects them.

        Returns:
            How many bytes were sent.
        """
        ...

    async def load(
        self,
        assign: Assign,
        sources: Mapping[Digest, TensorSource],
        load: Load,
        progress: Callable[[float], None],
    ) -> Capabilities:
        """Load the assigned stage.

        Args:
            assign: the assignment of the stage.
            sources: where a local computer reads the weights; empty for workers, which have a
                store.
            load: names the stages before and after it.
            progress: called with the fraction that is loaded.

        Returns:
            What the loaded stage can do.
        """
        ...

    async def measure(self, epoch: int, position: int, device: DeviceId | None) -> StageTimes:
        """Time the parts of one token on a loaded stage."""
        ...

    async def take_sessions(self, message: TakeSessions) -> None:
        """Have a loaded stage go on with the sessions of another plan, which ends."""
        ...

    async def is_needed(self) -> None:
        """Tell it, because it leaves, that the model does not fit without it."""
        ...

    async def unload(self, epoch: int) -> None: ...
    async def connect(self, port: int, reactor: Reactor) -> ActivationLink: ...


class Computers(Protocol):
    """This computer and the workers. `changed` is notified whenever a worker comes or goes."""

    changed: asyncio.Condition

    @property
    def local(self) -> Computer: ...

    def available(self) -> Sequence[Computer]:
        """The connected workers that lend their devices now."""
        ...

    def leaving(self) -> Sequence[Computer]:
        """The connected workers that are about to leave. They go on with what they have loaded."""
        ...

    def withheld(self) -> Mapping[str, str]:
        """The connected workers that lend nothing now: name, and why as the rest of a sentence."""
        ...

    def expected(self) -> int:
        """How many paired computers may still connect shortly."""
        ...
