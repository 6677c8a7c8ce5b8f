"""The interface of the node to the HTTP server: the seam of `potluck.api` and `potluck.cluster`.

The server owns everything that is HTTP (shapes, streams, authentication, limits). The backend owns
everything that is Potluck. Every method may raise a `PotluckError`, which becomes an HTTP status
and a sentence. The server closes every iterator when the client goes away; closing an iterator
cancels the work behind it.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from potluck.api.benching import BenchProgress, BenchRequest
from potluck.api.doctor import Diagnosis
from potluck.api.engine import Engine, EngineRequest
from potluck.api.library import Library
from potluck.api.openai import FinishReason, Timings
from potluck.api.schema import (
    ClusterState,
    ComputerChange,
    Error,
    HandedOver,
    Health,
    Invite,
    Joined,
    LinkTest,
    Listener,
    ListenRequest,
    LoadProgress,
    MainRequest,
    Pairing,
    PlanRequest,
    PlanView,
    RoleRequest,
    ServedModel,
)
from potluck.api.update import Update, UpdateRequest
from potluck.api.weights import Pruned, PruneRequest, VerifyProgress, VerifyRequest

Holder: TypeAlias = Literal["window", "worker", "serve", "request"]
HOLDERS: tuple[Holder, ...] = ("window", "worker", "serve", "request")


class ToolCall(Struct, frozen=True, kw_only=True):
    """A call of a tool in an earlier message of the assistant."""

    id: str
    name: str
    arguments: str  # JSON text


class GivenPicture(Struct, frozen=True, kw_only=True):
    """A picture in a message: the bytes of its file, and before which character of the text it stands."""

    data: bytes
    at: int


class ChatTurn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a conversation.

    Attributes:
        role: system, user, assistant or tool; `developer` arrives as `system`.
        content: its text.
        reasoning: of the assistant, before the text.
        calls: of tools, by the assistant.
        call_id: the call whose result this message of a tool has.
        name: of the tool, where the client says it.
        pictures: in the order in which they stand in the text.
    """

    role: str
    content: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""
    pictures: tuple[GivenPicture, ...] = ()


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A tool of the client that the model may call."""

    name: str
    description: str = ""
    parameters: str = "{}"  # JSON schema of the arguments
    is_strict: bool = False


class ToolUse(Struct, frozen=True, kw_only=True):
    """Which tools the model may call, and whether it has to.

    Attributes:
        tools: all of them. A model gets their descriptions also where it may call none.
        choice: "auto": as it likes; "none": none; "required": at least one; "named": this one.
        name: of that one.
        is_parallel: whether it may call several at once.
    """

    tools: tuple[ToolSpec, ...]
    choice: Literal["auto", "none", "required", "named"] = "auto"
    name: str = ""
    is_parallel: bool = True


class ChatPrompt(Struct, frozen=True, tag=True, omit_defaults=True):
    """Messages to format with the model's own chat template.

    Attributes:
        turns: the messages.
        tool_use: the tools that are offered; None: none.
        variables: a JSON object of other values that the template may read, such as `enable_thinking`.
        continues: whether the answer continues the last message, which is the assistant's.
    """

    turns: tuple[ChatTurn, ...]
    tool_use: ToolUse | None = None
    variables: str = "{}"
    continues: bool = False


class TextPrompt(Struct, frozen=True, tag=True):
    """Text that is used unchanged, without a template."""

    text: str
    special: bool = True  # whether the model's tokens for the beginning of a text are added
    suffix: str = ""  # what comes after the answer, for models that can fill in


class TokenPrompt(Struct, frozen=True, tag=True):
    """Token ids that are used unchanged, not yet checked against the model's vocabulary."""

    token_ids: tuple[int, ...]


Prompt: TypeAlias = ChatPrompt | TextPrompt | TokenPrompt


class SamplingOptions(Struct, frozen=True, kw_only=True):
    """How tokens are sampled. A field that is None follows the model's `generation_config.json`.

    Where that file says nothing, OpenAI's default applies (temperature 1).
    """

    temperature: float | None = None  # 0: greedy
    top_p: float | None = None
    top_k: int | None = None  # 0: all
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0  # subtracted from the logit of each token that the answer has
    frequency_penalty: float = 0.0  # the same, as often as the answer has it
    logit_bias: tuple[tuple[int, float], ...] = ()  # token ids, and what is added to their logits
    seed: int | None = None  # 0 <= seed < 2**63; None: a random one
    logprobs: int | None = None  # None: none; n: of the chosen token and of the n best tokens


class Constraint(Struct, frozen=True, kw_only=True):
    """What the text of an answer has to be.

    Attributes:
        kind: what `text` is: a JSON schema (in a loose one, keywords that are not supported are ignored), a regular
            expression, a grammar in `llguidance`'s Lark or llama.cpp's GBNF, or a JSON list of the possible texts.
        opens_with: a text or special token. Until the answer has it, anything may come; then what the constraint
            allows. Empty: the whole answer has to follow it.
        is_optional: if it cannot be followed, the answer may be anything.
        repeats: when it is complete, anything may come again, until the answer has `opens_with` again.
        field: of the client's request, for messages.
    """

    kind: Literal["json_schema", "loose_json_schema", "regex", "lark", "choice"]
    text: str
    opens_with: str = ""
    repeats: bool = True
    is_optional: bool = False
    field: str = "response_format"


class GenerationRequest(Struct, frozen=True, kw_only=True):
    """One prompt, and how to answer it."""

    prompt: Prompt
    id: str = ""  # of the request; the same request with the same id has the same answer
    model: str | None = None  # its name, as in `served_models`; None: the loaded model
    sampling: SamplingOptions = SamplingOptions()
    max_tokens: int | None = None  # None: all that the context has left
    stop: tuple[str, ...] = ()  # the answer ends before the first of these
    constraint: Constraint | None = None
    ignore_eos: bool = False
    echo: bool = (
        False  # the prompt comes with `Started`, with its log-probabilities if they are asked for
    )
    embeds: bool = False  # the embedding of the prompt comes with `Started`
    known: tuple[int, ...] = ()  # the first tokens of the answer: it goes on after them


class TokensRequest(Struct, frozen=True, kw_only=True):
    """Asks for the tokens of a prompt; of one of token ids, for its text."""

    prompt: Prompt
    model: str | None = None  # as in `GenerationRequest`


class Tokens(Struct, frozen=True, kw_only=True):
    """A prompt as the model reads it."""

    token_ids: tuple[int, ...]
    pieces: tuple[bytes, ...]  # of each token; not always whole characters
    text: str  # of all of them, without special tokens
    context: int  # how many tokens a conversation may have


class Candidate(Struct, frozen=True, kw_only=True):
    """A possible token, and its log-probability."""

    token_id: int
    token: bytes  # the bytes that it adds to the text; not always whole characters
    logprob: float


class ChosenToken(Struct, frozen=True, kw_only=True):
    """The log-probability of a token of the answer, and of the best tokens at its position."""

    chosen: Candidate
    best: tuple[Candidate, ...] = ()


class Waiting(Struct, frozen=True, kw_only=True, tag=True):
    """The place in the queue: too many answers are under way.

    It comes before `Started`, and in the middle of an answer whose caches had to make room for others.

    Attributes:
        place: from 1.
        seconds: about how long it waits from now on; None: no answer has ended yet.
    """

    place: int
    seconds: float | None


class Reading(Struct, frozen=True, kw_only=True, tag=True):
    """How far the model has read: the prompt before `Started`; what a lost computer had, after that.

    Attributes:
        tokens: in the caches of all computers.
        total: that the next token needs there.
    """

    tokens: int
    total: int


class Loading(Struct, frozen=True, kw_only=True, tag=True):
    """How far the model is loaded that answers, before `Started`.

    Attributes:
        model: its name.
        fraction: 0 to 1.
        message: what is done at the moment.
    """

    model: str
    fraction: float
    message: str = ""


class Echo(Struct, frozen=True, kw_only=True):
    """The prompt of an answer.

    Attributes:
        text: of all its tokens.
        first: the bytes of its first token, which has no log-probability: nothing stands before it.
        logprobs: of the others, if requested.
    """

    text: str
    first: bytes
    logprobs: tuple[ChosenToken, ...] = ()


class Started(Struct, frozen=True, kw_only=True, tag=True):
    """The first event that belongs to the answer: its first token is there."""

    prompt_token_ids: tuple[int, ...]
    cached_tokens: int = 0
    echo: Echo | None = None
    embedding: bytes = b""  # [D] in f32, little-endian, if `GenerationRequest.embeds`


class CallPiece(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """More of a call of a tool: its first piece has the id and the name."""

    index: int  # of the call in the answer, from 0
    id: str = ""
    name: str = ""
    arguments: str = ""  # more of their JSON text


class Piece(Struct, frozen=True, kw_only=True, tag=True):
    """More of the answer. All of it may be empty while characters or stop strings are held back."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[ChosenToken, ...] = ()  # one per token id, if requested
    reasoning: str = ""
    calls: tuple[CallPiece, ...] = ()


class Finished(Struct, frozen=True, kw_only=True, tag=True):
    """The last event: the answer is complete."""

    reason: FinishReason
    completion_tokens: int
    timings: Timings
    stop_text: str | None = None  # which of `GenerationRequest.stop` ended it


Progress: TypeAlias = Waiting | Loading | Reading
"""Says why nothing comes at the moment. It is no part of the answer, and is not kept."""
GenerationEvent: TypeAlias = Progress | Started | Piece | Finished


class Failed(Struct, frozen=True, kw_only=True, tag=True):
    """The last server-sent event of POST /cluster/answers, if the answer broke off."""

    error: Error


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
        """Make a connected computer the main one of the home, which this one helps then."""
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
