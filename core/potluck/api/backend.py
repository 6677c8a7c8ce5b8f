"""The interface of the node to the HTTP server: the seam of `potluck.api` and `potluck.cluster`.

The server owns everything that is HTTP (shapes, streams, authentication, limits). The backend owns
everything that is Potluck. Every method may raise a `PotluckError`, which becomes an HTTP status
and a sentence. The server closes every iterator when the client goes away; closing an iterator
cancels the work behind it.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol, TypeAlias

from potluck.api.events import GenerationEvent, Tokens
from potluck.api.library import Library
from potluck.api.prompts import GenerationRequest, TokensRequest
from potluck.api.values.benching import BenchProgress, BenchRequest
from potluck.api.values.doctor import Diagnosis
from potluck.api.values.engine import Engine, EngineRequest
from potluck.api.values.gpus import GpuRequest
from potluck.api.values.network import NetworkRequest
from potluck.api.values.pairing import Invite, Joined, Pairing
from potluck.api.values.schema import (
    ClusterState,
    ComputerChange,
    HandedOver,
    Health,
    LinkTest,
    Listener,
    ListenRequest,
    LoadProgress,
    MainRequest,
    PlanRequest,
    PlanView,
    RoleRequest,
    ServedModel,
)
from potluck.api.values.update import Update, UpdateRequest
from potluck.api.values.weights import Pruned, PruneRequest, VerifyProgress, VerifyRequest

Holder: TypeAlias = Literal["window", "worker", "serve", "request"]
HOLDERS: tuple[Holder, ...] = ("window", "worker", "serve", "request")


class Answering(Protocol):
    """What `/v1` needs: a node, or what stands in front of one."""

    async def served_models(self) -> Sequence[ServedModel]:
        """Every model at hand, each name once; the first is the loaded one, or else the one that a prompt loads."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        """Answer one prompt with `Started`, `Piece`…, `Finished`, and `Progress` before and between.

        Closing the iterator cancels.
        """
        ...

    async def tokens(self, request: TokensRequest) -> Tokens:
        """The tokens of a prompt. Nothing is computed."""
        ...

    def hold(self, holder: Holder) -> AbstractContextManager[None]:
        """Keep the node from ending as idle while the context is open."""
        ...


class Backend(Answering, Protocol):
    """A node, as its HTTP server sees it."""

    def health(self) -> Health: ...

    def state(self) -> ClusterState: ...

    async def changed(self, since: int) -> int:
        """Wait until the state's revision, a counter, differs from `since`; return the revision."""
        ...

    async def pair(self, target: str) -> Pairing:
        """Ask a computer (node id, name or host[:port]) to pair by sight; do not wait for it."""
        ...

    async def decide_pairing(self, pairing_id: str, accept: bool) -> Pairing: ...

    async def invite(self) -> Invite: ...

    async def join(self, token: str) -> Joined: ...

    async def connect(self, address: str) -> None: ...

    async def forget(self, node_id: str) -> None: ...

    async def change_computer(self, node_id: str, change: ComputerChange) -> None:
        """Rename, pause or limit a computer of this home, or this one."""
        ...

    async def test_link(self, node_id: str) -> LinkTest:
        """Measure the link to a connected computer now."""
        ...

    async def make_main(self, node_id: str, request: MainRequest) -> HandedOver:
        """Make a connected computer the main one of the home. This one helps it from then on."""
        ...

    async def search(self) -> None:
        """Look for computers once more. Those that are found come with the state."""
        ...

    async def examine(self) -> Diagnosis:
        """Look at this computer and its network, and say what may keep computers apart."""
        ...

    async def change_engine(self, request: EngineRequest) -> Engine:
        """Install, stop installing or remove the engine. Returns its state, which goes on changing."""
        ...

    async def change_update(self, request: UpdateRequest) -> Update:
        """Look for a newer Potluck, install it, stop that, or go back. Returns the state, which goes on changing."""
        ...

    async def set_role(self, request: RoleRequest) -> None: ...

    async def change_network(self, request: NetworkRequest) -> None:
        """Use other networks, or another port."""
        ...

    async def use_gpu(self, request: GpuRequest) -> None:
        """Use a GPU of this computer for models, or not any more."""
        ...

    async def plan(self, request: PlanRequest) -> PlanView: ...

    def load(self, request: PlanRequest) -> AsyncGenerator[LoadProgress, None]:
        """Load a model. The last event is `ready`; a load that fails raises an error.

        Closing the iterator early cancels the load. If the same model is already loaded in the
        requested way, `ready` comes at once.
        """
        ...

    async def unload(self) -> None: ...

    def bench(self, request: BenchRequest) -> AsyncGenerator[BenchProgress, None]:
        """Load a model, measure it and unload it. The last event is `ready`.

        A failure raises an error. Closing the iterator early ends the bench. The next prompt loads
        again what was loaded before.
        """
        ...

    @property
    def library(self) -> Library:
        """The models on this computer, and those of the Hub."""
        ...

    def verify_models(self, request: VerifyRequest) -> AsyncGenerator[VerifyProgress, None]:
        """Compute the digests of the weights on this disk again. The last event is `ready`."""
        ...

    async def prune_models(self, request: PruneRequest) -> Pruned:
        """Delete stored weights that no known model and no plan needs."""
        ...

    async def listen(self, request: ListenRequest) -> Listener:
        """Open a listener for `/v1` (see `potluck.api.server.public_app` and `HttpServer`)."""
        ...

    async def close_listener(self, port: int) -> None: ...

    async def shutdown(self) -> None:
        """End the node soon after this call has returned."""
        ...
