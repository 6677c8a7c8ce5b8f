"""The values of the local API: what the node tells the window, the commands and other programs.

JSON over HTTP on loopback; every struct here is one JSON object. `/cluster` is described in this
file, `/v1` (OpenAI's shapes) in `potluck.api.openai`. Pure: the node, the CLI and the window import
it, so it imports nothing but msgspec. Fields may be added; a reader ignores those it does not know.

Sizes are bytes, durations seconds unless the name says `_ms`; names of computers are for people,
`node_id`s are what a program compares.
"""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from potluck.model.schemes import AskedScheme, Cache, Scheme

Scalar: TypeAlias = str | int | float | bool | None
Name = Annotated[str, Meta(min_length=1, max_length=128)]
Address = Annotated[str, Meta(min_length=1, max_length=261)]  # host[:port]; a host has 255 at most
ModelName = Annotated[str, Meta(min_length=1, max_length=4096)]  # a folder's path, or a Hub id
Token = Annotated[str, Meta(min_length=1, max_length=4096)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Size = Annotated[int, Meta(ge=0, lt=1 << 50)]
ContextLength = Annotated[int, Meta(ge=1, le=1 << 20)]
ThreadCount = Annotated[int, Meta(ge=1, le=1024)]
LayerCount = Annotated[int, Meta(ge=0, le=10_000)]

Role: TypeAlias = Literal["idle", "master", "worker"]
ComputerState: TypeAlias = Literal[
    "found",  # seen on the network, not paired
    "asking",  # asked to pair, no answer yet
    "pairing",  # both screens show the digits
    "ready",
    "receiving",  # weights are streaming to it
    "loading",  # its devices read the weights
    "running",  # part of the loaded model
    "paused",  # its owner wants it back for a while
    "lost",  # paired and does not answer
    "version_differs",
    "blocked",  # there, but something (a firewall, guest Wi-Fi) keeps connections out
]
ModelPhase: TypeAlias = Literal["none", "preparing", "streaming", "loading", "ready", "failed"]
LoadPhase: TypeAlias = Literal[
    "hashing", "waiting", "planning", "quantising", "streaming", "loading", "ready", "failed"
]
PairingState: TypeAlias = Literal[
    "asking",  # the other side has not answered; no digits yet
    "confirm",  # the digits are here, and this side has to say yes or no
    "accepted",  # this side said yes and waits for the other
    "paired",
    "refused",  # one of the two said no
    "failed",  # time ran out, the connection broke, or something stood between; see `message`
]


# --- errors


class Error(Struct, frozen=True, kw_only=True):
    """`code` is stable (see `potluck.errors`), `message` a sentence for a person."""

    code: str
    message: str
    data: dict[str, Scalar] = {}


class ErrorBody(Struct, frozen=True, kw_only=True):
    error: Error


# --- GET /health


class Health(Struct, frozen=True, kw_only=True):
    pid: int
    version: str


# --- GET /cluster, GET /cluster/events


class Device(Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: str  # cuda, mps, cpu
    name: str
    memory_total: int
    memory_free: int  # what it lends, now
    index: int = 0  # among those of its kind: 1 is `cuda:1` in a plan


class Node(Struct, frozen=True, kw_only=True):
    """The node that answers: this computer."""

    node_id: str
    name: str
    version: str
    addresses: tuple[str, ...] = ()  # host:port where other computers reach it
    role: Role = "idle"
    home_id: str | None = None  # of its own home, once something was paired with it
    paused: bool = False
    member_of: tuple[str, ...] = ()  # names of others' homes that it was paired into
    lent_to: tuple[str, ...] = ()  # names of the masters that are connected with it now
    memory_limit: int | None = None


class Computer(Struct, frozen=True, kw_only=True):
    node_id: str
    name: str
    address: str | None = None
    paired: bool = False
    online: bool = False
    is_self: bool = False
    joinable: bool = False  # it offers itself as a worker
    state: ComputerState = "found"
    detail: str | None = None  # a sentence, when the state needs one
    progress: float | None = None  # 0 to 1, while receiving or loading
    devices: tuple[Device, ...] = ()
    rtt_ms: float | None = None
    bytes_per_s: float | None = None
    layers: tuple[int, int] | None = None  # start, stop of the loaded model
    color: int = 0  # 0 to 5, the same for this computer as long as it is known


class StageView(Struct, frozen=True, kw_only=True):
    node: str  # name
    node_id: str
    device: str  # cuda:0, mps, cpu
    layers: tuple[int, int]  # start, stop
    embedding: bool
    head: bool
    predicted_ms: float  # of one token in this stage


class PlanView(Struct, frozen=True, kw_only=True):
    model_id: str
    model: str  # name
    scheme: Scheme
    context: int
    epoch: int
    stages: tuple[StageView, ...]
    predicted_tokens_per_s: float
    alone: dict[str, float | None]  # node name: tokens per second alone; None: it does not fit
    explanation: str


class ModelState(Struct, frozen=True, kw_only=True):
    """The model that is loaded, or on its way."""

    name: str | None = None
    model_id: str | None = None
    state: ModelPhase = "none"
    message: str | None = None
    progress: float | None = None  # 0 to 1 of the whole way to ready
    tokens_per_s: float | None = None  # measured in the last answer
    plan: PlanView | None = None
    context: int = 0


class Transfer(Struct, frozen=True, kw_only=True):
    """Weights on their way to one computer, in one load."""

    node_id: str
    name: str
    sent: int  # bytes sent in this load; what the computer had already is not among them
    total: int  # bytes that it lacked when the load began
    bytes_per_s: float | None = None
    eta_s: float | None = None


class Pairing(Struct, frozen=True, kw_only=True):
    """A pairing by sight, as this side sees it."""

    id: str
    node_id: str  # of the other side
    name: str  # of the other side
    role: Literal["master", "worker"]  # what this side will be
    state: PairingState
    code: str | None = None  # six digits
    message: str | None = None  # why it failed


class Listener(Struct, frozen=True, kw_only=True):
    host: str
    port: int


class Notice(Struct, frozen=True, kw_only=True):
    """A calm line about something that happened: "Laptop stopped answering…"."""

    id: int  # counts up
    level: Literal["info", "warning", "error"]
    text: str


class ClusterState(Struct, frozen=True, kw_only=True):
    """Everything a face shows, in one snapshot."""

    node: Node
    computers: tuple[Computer, ...] = ()
    model: ModelState = ModelState()
    transfers: tuple[Transfer, ...] = ()
    pairings: tuple[Pairing, ...] = ()
    listeners: tuple[Listener, ...] = ()
    notices: tuple[Notice, ...] = ()


# --- pairing


class PairingRequest(Struct, frozen=True, kw_only=True):
    """POST /cluster/pairings, answered by `Pairing`."""

    target: Address  # node id, name, or host[:port]


class PairingDecision(Struct, frozen=True, kw_only=True):
    """POST /cluster/pairings/{id}, answered by `Pairing`; both sides decide."""

    accept: bool


class Invite(Struct, frozen=True, kw_only=True):
    """The answer to POST /cluster/invites."""

    token: str
    expires_s: float


class JoinRequest(Struct, frozen=True, kw_only=True):
    """POST /cluster/join, answered by `Joined`."""

    token: Token


class Joined(Struct, frozen=True, kw_only=True):
    home_id: str
    name: str  # of the home's main computer


class ConnectRequest(Struct, frozen=True, kw_only=True):
    """POST /cluster/connect: look for a computer at this address."""

    address: Address


class RoleRequest(Struct, frozen=True, kw_only=True):
    """POST /cluster/role. None leaves what was set before."""

    worker: bool
    memory: Size | None = None  # bytes that this computer lends at most; 0 lifts the limit
    threads: Annotated[int, Meta(ge=0, le=1024)] | None = None  # that compute; 0: one for each core
    paused: bool | None = None
    while_held: bool = False  # until the last event stream with `holder=worker` ends; not kept


# --- models


class PlanRequest(Struct, frozen=True, kw_only=True):
    """POST /cluster/plan, answered by `PlanView`; POST /cluster/model, by `LoadProgress`es."""

    model: ModelName | None = None  # a folder, a Hub id in the local cache, or None: the guide
    shape: Name | None = None  # in place of a model: of this shape, with random weights
    scheme: AskedScheme = "auto"
    cache: Cache = "full"
    layers: tuple[tuple[Name, LayerCount], ...] | None = None  # by hand: in this order
    workers: Annotated[int, Meta(ge=0, le=64)] = 0  # wait until so many take part
    context: ContextLength | None = None


class LoadProgress(Struct, frozen=True, kw_only=True):
    """One server-sent event of POST /cluster/model. `ready` and `failed` are the last ones."""

    state: LoadPhase
    fraction: float = 0.0  # 0 to 1 of the whole way
    message: str = ""
    nodes: tuple[Transfer, ...] = ()
    plan: PlanView | None = None  # from `streaming` on
    error: Error | None = None  # with `failed`


class BenchRequest(Struct, frozen=True, kw_only=True):
    """POST /cluster/bench, answered by `BenchProgress`es."""

    plan: PlanRequest
    prompt: Annotated[int, Meta(ge=1, le=1 << 20)] = 512  # tokens of a prompt
    tokens: Annotated[int, Meta(ge=1, le=1 << 16)] = 64  # decoded after a short prompt
    repeat: Annotated[int, Meta(ge=1, le=1000)] = 5  # of both
    threads: ThreadCount | None = None  # that this computer computes with, for as long as it takes


class BenchStage(Struct, frozen=True, kw_only=True):
    """What one computer did. Milliseconds are of one token, medians."""

    node: str  # name
    device: str
    layers: tuple[int, int]  # start, stop
    weight_bytes: int  # that one token reads: not the embedding, nor experts that are not chosen
    read_bytes_per_s: float  # of reading just these, in the same run
    floor_ms: float  # the first divided by the second
    compute_ms: float
    predicted_ms: float
    layer_ms: float  # one layer; 0 where there is none
    head_ms: float  # 0 where there is no head


class BenchResult(Struct, frozen=True, kw_only=True):
    """What was measured, and what it could be at best. Medians."""

    shape: str  # or the model's name
    scheme: Scheme
    prompt: int
    tokens: int
    repeat: int
    stages: tuple[BenchStage, ...]
    weight_bytes: int  # of all stages
    decode_tokens_per_s: float  # after a short prompt
    prompt_decode_tokens_per_s: float  # after the long one
    prefill_tokens_per_s: float
    floor_tokens_per_s: (
        float  # if every stage did nothing but read its weights, and hops took no time
    )
    floor_fraction: float  # decode / floor
    token_ms: float  # one token through the pipeline
    hop_ms: float  # of that, all that is not a stage's computing
    link_ms: float  # what the links alone take, as they were measured before the tokens
    layer_ms: float  # one layer, the mean of all
    predicted_tokens_per_s: float


class BenchProgress(Struct, frozen=True, kw_only=True):
    """One server-sent event of POST /cluster/bench. `ready` and `failed` are the last ones."""

    state: Literal["loading", "measuring", "ready", "failed"]
    fraction: float = 0.0  # 0 to 1 of this state
    message: str = ""
    load: LoadProgress | None = None  # with `loading`
    result: BenchResult | None = None  # with `ready`
    error: Error | None = None  # with `failed`


class ModelEntry(Struct, frozen=True, kw_only=True):
    """One of GET /cluster/models."""

    name: str
    path: str
    nbytes: int
    current: bool = False  # it is the loaded one


# --- listeners


class ListenRequest(Struct, frozen=True, kw_only=True):
    """POST /cluster/listeners, answered by `Listener`."""

    host: Annotated[str, Meta(min_length=1, max_length=255)] = "127.0.0.1"
    port: Port = 8000  # 0: any free one; the answer says which
    key: Annotated[str, Meta(min_length=8, max_length=512)] | None = None  # must, beyond loopback
