"""What the HTTP server asks of the node: the seam between `potluck.api` and `potluck.cluster`.

The server owns everything that is HTTP (shapes, streams, authentication, limits); the backend owns
everything that is Potluck. Every method may raise a `PotluckError`, which becomes an HTTP status and
a sentence; every iterator is closed by the server when the client goes away, and closing it cancels
what it was doing.
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

Holder: TypeAlias = Literal["window", "worker", "serve", "request"]
HOLDERS: tuple[Holder, ...] = ("window", "worker", "serve", "request")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """One message of a conversation."""

    role: str  # system, user, assistant; `developer` arrives as `system`
    content: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages for the model's own chat template."""

    turns: tuple[ChatTurn, ...]


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text as it stands, no template."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids as they stand; whether they are of the model's vocabulary is not checked yet."""

    token_ids: tuple[int, ...]


Prompt: TypeAlias = ChatPrompt | TextPrompt | TokenPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """None: as the model's `generation_config.json` says, else OpenAI's default (temperature 1)."""

    temperature: float | None = None  # 0: greedy
    top_p: float | None = None
    top_k: int | None = None  # 0: all
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None  # 0 <= seed < 2**63; None: a random one
    logprobs: int | None = None  # None: none; n: the chosen token's and those of the n best


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One prompt, and how to answer it."""

    prompt: Prompt
    model: str | None = None  # its name, where one was asked for; None: whichever is loaded
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    max_tokens: int | None = None  # None: what the context leaves
    stop: tuple[str, ...] = ()  # the answer ends before the first of these
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A token that could have come, and its log-probability."""

    token_id: int
    token: bytes  # what it adds to the text; not always whole characters
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenToken:
    """The log-probability of a token of the answer, and of the best ones at its place."""

    chosen: Candidate
    best: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The prompt is accepted: it is tokenised, fits and the model is loaded. Always the first."""

    prompt_token_ids: tuple[int, ...]
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """More of the answer. The text may be empty while characters or stop strings are held back."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[ChosenToken, ...] = ()  # one per token id, where asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The answer is whole. Always the last."""

    reason: FinishReason
    completion_tokens: int
    timings: Timings


GenerationEvent: TypeAlias = Started | Piece | Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that `/v1` answers for."""

    name: str
    created: int  # Unix time of its files
    aliases: tuple[str, ...] = ()  # its id, its folder


class Backend(Protocol):
    """A node, as its HTTP server sees it."""

    def health(self) -> Health: ...

    def state(self) -> ClusterState: ...

    async def changed(self, since: int) -> int:
        """Wait until the state's revision, a number that counts up, is not `since`; return it."""
        ...

    def hold(self, holder: Holder) -> AbstractContextManager[None]:
        """Keep the node from ending for want of work while the context is open."""
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
        """Load a model; the last event is `ready`, or an error is raised.

        Closing the iterator early cancels the load. A model that is loaded as asked is `ready` at once.
        """
        ...

    async def unload(self) -> None: ...

    def bench(self, request: BenchRequest) -> AsyncGenerator[BenchProgress, None]:
        """Load, measure and unload; the last event is `ready`, or an error is raised.

        Closing the iterator early ends it. What was loaded before is loaded again by the next prompt.
        """
        ...

    async def models(self) -> Sequence[ModelEntry]: ...

    def served_models(self) -> Sequence[ServedModel]:
        """The loaded model first; the guide where none is loaded, since it loads by itself."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        """Answer one prompt: `Started`, `Piece`…, `Finished`. Closing it cancels the generation."""
        ...

    async def listen(self, request: ListenRequest) -> Listener:
        """Open a listener for `/v1` (see `potluck.api.server.public_app` and `HttpServer`)."""
        ...

    async def close_listener(self, port: int) -> None: ...

    async def shutdown(self) -> None:
        """End the node soon after this returned."""
        ...
