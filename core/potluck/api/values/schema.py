"""The values of the local API, which the node shares with the window, commands and other programs.

The API is JSON over HTTP on loopback; every struct here is one JSON object. This file describes
`/cluster`; `potluck.api.v1.request_shapes` and `answer_shapes` describe `/v1`. The node, the CLI and the window
import this file, so it is pure. Models that can be downloaded are described in `potluck.api.values.hub`. Fields may be added; a reader
ignores fields that it does not know.

Sizes are in bytes. Durations are in seconds unless the name says `_ms`. Names of computers are for
people; programs compare `node_id`s.
"""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from potluck.api.values.engine import Engine
from potluck.api.values.errors import Error
from potluck.api.values.gpus import Gpu
from potluck.api.values.hub import Download, Fit, Format, Source
from potluck.api.values.network import Medium, Network
from potluck.api.values.pairing import Address, Pairing
from potluck.api.values.politeness import Rule, Rules
from potluck.api.values.update import Update
from potluck.api.values.vitals import Vitals
from potluck.model.schemes import AskedScheme, Cache, Scheme

MAX_NAME = 64  # characters of a computer's name
Name = Annotated[str, Meta(min_length=1, max_length=128)]
ModelName = Annotated[str, Meta(min_length=1, max_length=4096)]  # a folder's path, or a Hub id
Port = Annotated[int, Meta(ge=0, le=65535)]
Size = Annotated[int, Meta(ge=0, lt=1 << 50)]
ContextLength = Annotated[int, Meta(ge=1, le=1 << 20)]
Time = Annotated[float, Meta(ge=0, lt=1 << 40)]  # Unix
ThreadCount = Annotated[int, Meta(ge=1, le=1024)]
LayerCount = Annotated[int, Meta(ge=0, le=10_000)]

Role: TypeAlias = Literal["idle", "master", "worker"]
Became: TypeAlias = Literal["main", "helper"]
ComputerState: TypeAlias = Literal[
    "found",  # seen on the network, not paired
    "asking",  # asked to pair; it has not answered yet
    "pairing",  # both screens show the digits
    "ready",
    "receiving",  # weights are streaming to it
    "loading",  # its devices read the weights
    "running",  # part of the loaded model
    "paused",  # its owner has paused the lending
    "lost",  # paired, but it does not answer
    "version_differs",
    "blocked",  # seen, but something (a firewall, guest Wi-Fi) blocks connections to it
]
ModelPhase: TypeAlias = Literal["none", "preparing", "streaming", "loading", "ready", "failed"]
LoadPhase: TypeAlias = Literal[
    "hashing", "waiting", "planning", "quantising", "streaming", "loading", "ready", "failed"
]


# --- GET /health


class Health(Struct, frozen=True, kw_only=True):
    pid: int
    version: str


# --- GET /cluster, GET /cluster/events


class Device(Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: str  # cuda, mps, cpu
    name: str
    memory_total: int
    memory_free: int  # what it lends now
    index: int = 0  # among the devices of this kind: 1 is `cuda:1` in a plan


Held: TypeAlias = Literal[
    "model",  # all of it
    "layers",
    "shares",  # of at least one layer, other computers compute a part
    "tower",  # no layer: it reads pictures
]


class Node(Struct, frozen=True, kw_only=True):
    """The node that answers, on this computer."""

    node_id: str
    name: str
    version: str
    addresses: tuple[str, ...] = ()  # host:port, for other computers
    role: Role = "idle"
    home_id: str | None = None  # of its own home; None before its first pairing
    paused: bool = False
    paused_until: float | None = None  # Unix time at which the pause ends by itself
    withheld: Rule | None = None  # why it lends nothing by itself
    rules: Rules = Rules()
    leaving: bool = False  # it lends nothing new, and helps until the others do without it
    # It became the home's main computer, or helps in place of being it, and nobody here has chosen its role since.
    handed_over: Became | None = None
    member_of: tuple[str, ...] = ()  # names of the homes of others that this node was paired into
    lent_to: tuple[str, ...] = ()  # names of the masters that are connected to this node now
    lent_model: str = (
        ""  # the name of the model whose layers it computes for one of them; "": not known
    )
    lent_of: int = 0  # how many layers that model has; 0: it computes none
    lent_layers: int | None = None  # how many of them it computes; None: its version does not say
    lent_as: Held = "layers"
    memory_limit: int | None = None
    upload_limit_mbit: int | None = None
    download_limit_mb: int | None = None  # MB/s
    idle_unload_s: float | None = None  # a model that answers nobody for so long is unloaded
    network: Network | None = None  # None: the node does not say
    gpus: tuple[Gpu, ...] = ()  # of which each may be kept from models


class SpareCopy(Struct, frozen=True, kw_only=True):
    """Weights that a computer has on its disk, so that the loss of another one sends nothing."""

    model: str  # its name
    layers: int
    nbytes: int  # of what it should have
    stored: int  # of what it has


class Computer(Struct, frozen=True, kw_only=True):
    node_id: str
    name: str
    address: str | None = None
    paired: bool = False
    online: bool = False
    is_self: bool = False
    joinable: bool = False  # it offers itself as a worker
    state: ComputerState = "found"
    detail: str | None = None  # a sentence, if the state needs one
    progress: float | None = None  # 0 to 1, while receiving or loading
    devices: tuple[Device, ...] = ()
    rtt_ms: float | None = None
    bytes_per_s: float | None = None
    medium: Medium = Medium()  # of its link, as it says itself
    layers: tuple[int, int] | None = None  # start, stop of its layers in the loaded model
    # The same, where others have some between them: start and stop of each range; (): it has one
    ranges: tuple[tuple[int, int], ...] = ()
    reconnecting: bool = False  # it is `lost`, but found, and being connected
    # Whether it reads pictures for the other computers of the model.
    reads_pictures: Literal["no", "soon", "yes"] = "no"
    slower: float | None = (
        None  # so many times as long as measured its layers take; None: they do not
    )
    lacked_memory: bool = False  # its memory did not suffice for what it was to load last
    vitals: Vitals | None = None
    set_aside: bool = False  # this home leaves it out of its plans
    memory_lent: int = 0  # bytes of a model's weights and caches that it holds, or is to hold
    spare: SpareCopy | None = None
    color: int = 0  # 0 to 5; stays the same as long as the computer is known


class StageView(Struct, frozen=True, kw_only=True):
    node: str  # name of its computer
    node_id: str
    device: str  # cuda:0, mps, cpu
    layers: tuple[int, int]  # start, stop
    embedding: bool
    head: bool
    predicted_ms: float  # for one token in this stage
    memory: int = 0  # bytes of its weights and KV caches
    share: float = 1.0  # of each of its layers; the others of `group` have the rest
    group: str = ""  # "Desktop + Attic": who computes these layers together; "": it does alone


class PlanView(Struct, frozen=True, kw_only=True):
    model_id: str
    model: str  # its name
    scheme: Scheme
    context: int
    epoch: int
    stages: tuple[StageView, ...]
    predicted_tokens_per_s: float  # for one user
    first_token_ms: float = 0.0  # of an answer to the prompt that was asked about, or a usual one
    # Node name → tokens per second of that node alone; None: the model does not fit.
    alone: dict[str, float | None]
    explanation: str
    warnings: tuple[str, ...] = ()  # what was asked for and is not given; also in the explanation
    users: int = 1  # for how many at once it was made
    users_tokens_per_s: float | None = None  # of all of them together, as predicted
    # A copy of the model that reads long prompts for these stages.
    readers: tuple[StageView, ...] = ()
    replicas: tuple[tuple[StageView, ...], ...] = ()  # the other times that the model is held


class ModelState(Struct, frozen=True, kw_only=True):
    """The model that is loaded or being loaded."""

    name: str | None = None
    model_id: str | None = None
    state: ModelPhase = "none"
    message: str | None = None
    progress: float | None = None  # 0 to 1, from the start to `ready`
    tokens_per_s: float | None = None  # in the last answer of this plan
    plan: PlanView | None = None
    context: int = 0
    answering: int = 0  # prompts that are being answered
    waiting: int = 0  # prompts that wait for other answers to end
    wait_s: float | None = None  # about how long the last of them waits; None: not known


class ServedModel(Struct, frozen=True, kw_only=True):
    """A model that `/v1` can answer with."""

    name: str
    created: int  # Unix time of its files
    aliases: tuple[str, ...] = ()  # its id and its folder
    is_guide: bool = False  # it is the one that comes with Potluck
    is_loaded: bool = False
    nbytes: int = 0  # of its files with weights; 0: not known, as what follows
    format: Format | None = None
    context: int = 0  # tokens; of the loaded model those that it was loaded with
    parameters: int = 0
    family: str = ""  # such as `qwen3`
    sees: bool | None = None  # whether it reads pictures
    blind: str | None = None  # why it reads none although it has files for that; a sentence


class Transfer(Struct, frozen=True, kw_only=True):
    """Weights that are being sent to one computer, for one load."""

    node_id: str
    name: str
    sent: int  # bytes sent in this load, without those that the computer already had
    total: int  # bytes that the computer lacked when the load began
    bytes_per_s: float | None = None
    eta_s: float | None = None


class Listener(Struct, frozen=True, kw_only=True):
    host: str
    port: int


class Notice(Struct, frozen=True, kw_only=True):
    """A short message about an event: "Laptop stopped answering…"."""

    id: int  # increases with every notice
    level: Literal["info", "warning", "error"]
    text: str


class ClusterState(Struct, frozen=True, kw_only=True):
    """Everything that the clients show, in one snapshot."""

    node: Node
    computers: tuple[Computer, ...] = ()
    model: ModelState = ModelState()
    transfers: tuple[Transfer, ...] = ()
    pairings: tuple[Pairing, ...] = ()
    listeners: tuple[Listener, ...] = ()
    notices: tuple[Notice, ...] = ()
    hint: str | None = None  # what may be wrong and what to do, while no other computer is found
    served: tuple[ServedModel, ...] = ()  # the loaded model, or the one that a prompt loads
    downloads: tuple[Download, ...] = ()
    engine: Engine | None = None  # None: the node does not say
    update: Update | None = None  # None: the node does not say

    @property
    def me(self) -> Computer | None:
        """This computer."""
        return next((computer for computer in self.computers if computer.is_self), None)


# --- computers


class ComputerChange(Struct, frozen=True, kw_only=True):
    """POST /cluster/computers/{node_id}. A field that is None leaves its value unchanged.

    For another computer, all of this holds in this home alone. This one's lending is `RoleRequest`'s.
    """

    name: Annotated[str, Meta(max_length=MAX_NAME)] | None = (
        None  # "": the name that it gives itself
    )
    paused: bool | None = None  # its layers go to others, and no plan uses it
    memory: Size | None = None  # bytes that plans use of it at most; 0 removes the limit


class MainRequest(Struct, frozen=True, kw_only=True):
    """POST /cluster/computers/{node_id}/main, answered by `HandedOver`: it becomes the main computer."""

    stop_answers: bool = False  # else it is refused while an answer is under way


class HandedOver(Struct, frozen=True, kw_only=True):
    """This computer helps now."""

    name: str  # of the main computer
    # The helpers that do not help it yet: they follow when they can.
    to_follow: tuple[str, ...] = ()


class LinkTest(Struct, frozen=True, kw_only=True):
    """The answer to POST /cluster/computers/{node_id}/link: the link to it, measured now."""

    rtt_ms: float
    bytes_per_s: float


class ConnectRequest(Struct, frozen=True, kw_only=True):
    """POST /cluster/connect: look for a computer at this address."""

    address: Address


class RoleRequest(Struct, frozen=True, kw_only=True):
    """POST /cluster/role. A field that is None leaves its value unchanged."""

    worker: bool | None = None
    memory: Size | None = None  # bytes that this computer lends at most; 0 removes the limit
    threads: Annotated[int, Meta(ge=0, le=1024)] | None = None  # compute threads; 0: one per core
    paused: bool | None = None
    paused_until: Time | None = None  # with `paused`: when it ends by itself; None: it does not
    rules: Rules | None = None  # when it is not lent by itself
    # Give what is lent back at once, and pause for an hour if there is no pause yet.
    free_now: bool = False
    # Mbit/s at which weights are sent at most; 0 removes the limit.
    upload_limit_mbit: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    # MB/s at which models are downloaded at most; 0 removes the limit.
    download_limit_mb: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    # Seconds after which a model that answers nobody is unloaded; 0: never.
    idle_unload_s: Annotated[float, Meta(ge=0, lt=1 << 40)] | None = None
    # Not stored: lend only until the last event stream with `holder=worker` ends.
    while_held: bool = False


# --- models


class PlanRequest(Struct, frozen=True, kw_only=True):
    """POST /cluster/plan, answered by `PlanView`; POST /cluster/model, by `LoadProgress`es."""

    # A folder, a Hub id in the local cache, or `guide`; None: the one chosen last, at first the guide.
    model: ModelName | None = None
    # In place of a model: a shape, whose layers get random weights.
    shape: Name | None = None
    scheme: AskedScheme = "auto"
    cache: Cache = "full"
    layers: tuple[tuple[Name, LayerCount], ...] | None = None  # a plan by hand, in this order
    # Who reads prompts for the others.
    prefill: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()
    pictures: Name | None = None  # who reads pictures for the others
    workers: Annotated[int, Meta(ge=0, le=64)] = 0  # wait until this many workers take part
    context: ContextLength | None = None
    # How many are answered at once: the plan gives so many the most tokens together.
    users: Annotated[int, Meta(ge=1, le=32)] = 1
    prompt: ContextLength | None = None  # tokens of the prompt that the plan tells the time of
    # How many times the model is held, each time whole and on computers of its own.
    replicas: Annotated[int, Meta(ge=1, le=16)] = 1


class LoadProgress(Struct, frozen=True, kw_only=True):
    """One server-sent event of POST /cluster/model. `ready` and `failed` are the last ones."""

    state: LoadPhase
    fraction: float = 0.0  # 0 to 1, over all states
    message: str = ""
    nodes: tuple[Transfer, ...] = ()
    plan: PlanView | None = None  # from `streaming` on
    error: Error | None = None  # with `failed`


class ModelEntry(Struct, frozen=True, kw_only=True):
    """One entry of GET /cluster/models."""

    name: str
    path: str
    nbytes: int  # of its files with weights
    current: bool = False  # whether it is the loaded model
    chosen: bool = False  # whether a prompt loads it, if none is loaded
    format: Format = "safetensors"
    source: Source = "folder"
    parameters: int | None = None
    can_be_deleted: bool = False
    # Bytes that computers have on their disks to run it, by their names; without its files.
    held: dict[str, int] = {}
    fit: Fit | None = None
    problem: str | None = None  # a sentence: why it cannot be run


# --- listeners


class ListenRequest(Struct, frozen=True, kw_only=True):
    """POST /cluster/listeners, answered by `Listener`."""

    host: Annotated[str, Meta(min_length=1, max_length=255)] = "127.0.0.1"
    port: Port = 8000  # 0: any free port; the answer names it
    # Required if other computers can reach the host.
    key: Annotated[str, Meta(min_length=16, max_length=512)] | None = None
    # Of web pages that may use it, such as http://localhost:3000.
    origins: Annotated[tuple[Annotated[str, Meta(max_length=255)], ...], Meta(max_length=16)] = ()
