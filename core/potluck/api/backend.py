"""The interface of the node to the HTTP server: the seam of `potluck.api` and `potluck.cluster`.

The server owns everything that is HTTP (shapes, streams, authentication, limits). The backend owns
everything that is Potluck. Every method may raise a `PotluckError`, which becomes an HTTP status
and a sentence. The server closes every iterator when the client goes away; closing an iterator
cancels the work behind it.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from potluck.api.openai import FinishReason, Timings
from potluck.api.schema import (
    BenchProgress,
    BenchRequest,
    ClusterState,
    Health,
    Invite,
    Joined,
    Listener,
    ListenRequest,
    LoadProgress,
    ModelEntry,
    Pairing,
    PlanRequest,
    PlanView,
    RoleRequest,
)
from potluck.api.weights import Pruned, PruneRequest, VerifyProgress, VerifyRequest

Holder: TypeAlias = Literal["window", "worker", "serve", "request"]
HOLDERS: tuple[Holder, ...] = ("window", "worker", "serve", "request")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """One message of a conversation."""

    role: str  # system, user, assistant; `developer` arrives as `system`
    content: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages to format with the model's own chat template."""

    turns: tuple[ChatTurn, ...]


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text that is used unchanged, without a template."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids that are used unchanged, not yet checked against the model's vocabulary."""

    token_ids: tuple[int, ...]


Prompt: TypeAlias = ChatPrompt | TextPrompt | TokenPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How tokens are sampled. A field that is None follows the model's `generation_config.json`.

    Where that file says nothing, OpenAI's default applies (temperature 1).
    """

    temperature: float | None = None  # 0: greedy
    top_p: float | None = None
    top_k: int | None = None  # 0: all
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None  # 0 <= seed < 2**63; None: a random one
    logprobs: int | None = None  # None: none; n: of the chosen token and of the n best tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One prompt, and how to answer it."""

    prompt: Prompt
    model: str | None = None  # the name that was requested; None: the loaded model
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    max_tokens: int | None = None  # None: all that the context has left
    stop: tuple[str, ...] = ()  # the answer ends before the first of these
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A possible token, and its log-probability."""

    token_id: int
    token: bytes  # the bytes that it adds to the text; not always whole characters
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenToken:
    """The log-probability of a token of the answer, and of the best tokens at its position."""

    chosen: Candidate
    best: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The place in the queue, before `Started`: too many answers are under way.

    Attributes:
        place: from 1.
        seconds: about how long it waits from now on; None: no answer has ended yet.
    """

    place: int
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The first event of an answer: the prompt is tokenised and fits, and the model is loaded."""

    prompt_token_ids: tuple[int, ...]
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """More of the answer. The text may be empty while characters or stop strings are held back."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[ChosenToken, ...] = ()  # one per token id, if requested


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The last event: the answer is complete."""

    reason: FinishReason
    completion_tokens: int
    timings: Timings


GenerationEvent: TypeAlias = Waiting | Started | Piece | Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that `/v1` can answer with."""

    name: str
    created: int  # Unix time of its files
    aliases: tuple[str, ...] = ()  # its id and its folder


class Backend(Protocol):
    """A node, as its HTTP server sees it."""

    def health(self) -> Health: ...

    def state(self) -> ClusterState: ...

    async def changed(self, since: int) -> int:
        """Wait until the state's revision, a counter, differs from `since`; return the revision."""
        ...

    def hold(self, holder: Holder) -> AbstractContextManager[None]:
        """Keep the node from ending as idle while the context is open."""
        ...

    async def pair(self, target: str) -> Pairing:
        """Ask a computer (node id, name or host[:port]) to pair by sight; do not wait for it."""
        ...

    async def decide_pairing(self, pairing_id: str, accept: bool) -> Pairing: ...

    async def invite(self) -> Invite: ...

    async def join(self, token: str) -> Joined: ...

    async def connect(self, address: str) -> None: ...

    async def forget(self, node_id: str) -> None: ...

    async def set_role(self, request: RoleRequest) -> None: ...

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

    async def models(self) -> Sequence[ModelEntry]: ...

    def verify_models(self, request: VerifyRequest) -> AsyncGenerator[VerifyProgress, None]:
        """Compute the digests of the weights on this disk again. The last event is `ready`."""
        ...

    async def prune_models(self, request: PruneRequest) -> Pruned:
        """Delete stored weights that no known model and no plan needs."""
        ...

    def served_models(self) -> Sequence[ServedModel]:
        """Return the loaded model first. If none is loaded, return the guide: a prompt loads it."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        """Answer one prompt with `Waiting`…, `Started`, `Piece`…, `Finished`.

        Closing the iterator cancels.
        """
        ...

    async def listen(self, request: ListenRequest) -> Listener:
        """Open a listener for `/v1` (see `potluck.api.server.public_app` and `HttpServer`)."""
        ...

    async def close_listener(self, port: int) -> None: ...

    async def shutdown(self) -> None:
        """End the node soon after this call has returned."""
        ...
