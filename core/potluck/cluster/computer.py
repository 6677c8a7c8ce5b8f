"""A computer as the master sees it: it can be measured, and can hold stages.

`membership.local` is this one and `membership.remote` another one. Whoever plans and deploys cannot
tell them apart.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from potluck.cluster.driver.pipeline import ActivationLink
from potluck.ids import Digest, NodeId
from potluck.model.schemes import Cache, Scheme
from potluck.net.reactor import Reactor
from potluck.plan.cost import LinkCost
from potluck.store.progress import TransferProgress
from potluck.store.registry import TensorSource
from potluck.wire.measuring_messages import Profiled, StageTimes
from potluck.wire.messages import Address, Assign, DeviceId, DeviceInfo, Hop, Need


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Between whom a stage stands: None is the driver."""

    previous: NodeId | None
    next_hop: Hop | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long each answer of a computer is waited for, in seconds."""

    dial_s: float = 10.0
    profile_s: float = 90.0  # the first one waits for the stage process to start
    measure_link_s: float = 20.0
    measure_stage_s: float = 90.0  # more than its stage process is given
    assign_s: float = 60.0  # the worker looks at every tensor of its store
    load_s: float = 6 * 3600.0  # the silence below ends a load that is stuck
    load_silence_s: float = 60.0  # a worker that loads says so all the time
    unload_s: float = 15.0


PATIENCE = Patience()


class Computer(Protocol):
    """This computer or a connected worker.

    Every method asks the computer and waits for its answer, within a deadline.

    Raises:
        PeerError: the computer is lost, silent, or answers nonsense.
        PotluckError: it cannot do what it was asked; the message says why.
    """

    @property
    def node_id(self) -> NodeId: ...
    @property
    def name(self) -> str: ...
    @property
    def machine(self) -> str:
        """Equal for all nodes of one physical computer; empty where it is not known."""
        ...

    @property
    def addresses(self) -> tuple[Address, ...]: ...
    @property
    def devices(self) -> Sequence[DeviceInfo]: ...
    @property
    def is_local(self) -> bool:
        """Whether it reads the model's own files, so that nothing has to be sent."""
        ...

    async def look(self) -> None:
        """Wait until its devices are known."""
        ...

    async def profile(
        self,
        config: Mapping[str, object],
        scheme: Scheme,
        tokens: int,
        device: DeviceId | None = None,
        cache: Cache = "full",
    ) -> Profiled:
        """Measure one layer of each kind of a model.

        Args:
            config: the model's `config.json`.
            scheme: how weights are held.
            tokens: of the prefill chunk that is timed.
            device: None is the best one.
            cache: how keys and values are held.
        """
        ...

    async def measure_link_to(self, peer: NodeId, addresses: tuple[Address, ...]) -> LinkCost:
        """Measure the link from it to another computer."""
        ...

    async def assign(self, assign: Assign) -> Need:
        """Give it a stage; it says which weights it lacks."""
        ...

    async def send_weights(
        self,
        need: Need,
        sources: Mapping[Digest, TensorSource],
        progress: Callable[[TransferProgress], None],
    ) -> None: ...

    async def load(
        self,
        assign: Assign,
        sources: Mapping[Digest, TensorSource],
        neighbours: Neighbours,
        progress: Callable[[float], None],
    ) -> int:
        """Have the assigned stage loaded.

        Args:
            assign: as it was assigned.
            sources: where this computer reads the weights; empty for others, which have a store.
            neighbours: who sends it steps, and whom it sends its results.
            progress: told which fraction is loaded.

        Returns:
            How many tokens of one session its cache can hold.
        """
        ...

    async def measure(self, epoch: int, position: int, device: DeviceId | None) -> StageTimes:
        """Time the parts of one token on a loaded stage."""
        ...

    async def unload(self, epoch: int) -> None: ...
    async def connect(self, port: int, reactor: Reactor) -> ActivationLink: ...
