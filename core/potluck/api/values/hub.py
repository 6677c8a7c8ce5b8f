"""The values of the local API for models that can be had: found, searched, downloaded, and how they fit.

See `potluck.api.values.schema`. The Hub is huggingface.co, or what `HF_ENDPOINT` names in its place.
"""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from potluck.model.schemes import Scheme

Source: TypeAlias = Literal["potluck", "folder", "hub", "ollama", "lmstudio"]
"""Where a model on this computer comes from: with Potluck, a folder of the user, the Hugging Face cache,
or the store of another program."""
Format: TypeAlias = Literal["safetensors", "gguf"]
DownloadState: TypeAlias = Literal[
    "queued",  # another one is downloaded first
    "running",
    "paused",  # by its user
    "offline",  # the Hub cannot be reached; it is tried again by itself
    "failed",  # see `message`; `resume` tries again
    "done",
]
DownloadAction: TypeAlias = Literal["pause", "resume", "cancel"]
RepositoryName = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][\w.-]{0,95}/\w[\w.-]{0,95}$")
]  # org/name


# --- how a model fits


class Speed(Struct, frozen=True, kw_only=True):
    """Tokens per second for one user. Both are the same if this model's own layers were measured."""

    low: float
    high: float


class OneMore(Struct, frozen=True, kw_only=True):
    """What it would be with one paired computer more, which is not there now."""

    name: str
    speed: Speed | None = None  # None: its speed is not known


class Fit(Struct, frozen=True, kw_only=True):
    """How a model fits on the computers that are there now. Nothing is loaded or measured for it."""

    fits: bool | None = None  # None: the memory of a computer is not known yet
    text: str = ""  # one or two sentences
    scheme: Scheme | None = None  # the best that fits; the smallest if none does
    needed: int = 0  # bytes of memory in this scheme, with the cache of a context
    missing: int = 0  # bytes of memory that one more computer would have to lend
    computers: tuple[str, ...] = ()  # names of those that would compute; empty if it does not fit
    speed: Speed | None = None  # None: nothing was measured that tells it
    alone: bool = False  # whether it fits on this computer
    alone_speed: Speed | None = None
    one_more: OneMore | None = None  # if that is faster, or only then it fits


# --- models of the Hub


class Variant(Struct, frozen=True, kw_only=True):
    """One of the forms in which a repository has its model. Its files are downloaded together."""

    name: str  # safetensors, Q4_K_M, …
    format: Format
    nbytes: int  # of all its files
    path: str | None = None  # the model on this computer, if it is whole there
    fit: Fit | None = None


class HubModel(Struct, frozen=True, kw_only=True):
    """A model of the Hub. What a list does not know is None; the details of one model know it."""

    name: str  # org/name of its repository
    page: str  # its address, for a browser
    about: str = ""  # a sentence, for models that Potluck recommends
    parameters: int | None = None
    license: str | None = None
    gated: bool = False  # its terms must be accepted on its page, and a token given
    downloads: int | None = None  # in the last month
    architecture: str | None = None
    context: int | None = None  # tokens that it was made for
    has_chat_template: bool | None = None
    problem: str | None = None  # a sentence: why it cannot be run
    variants: tuple[Variant, ...] = ()  # the best quality first
    best: str | None = None  # the name of the variant to choose here
    fit: Fit | None = None  # of the best variant


class HubAnswer(Struct, frozen=True, kw_only=True):
    """The answer to GET /cluster/hub/recommended and /search."""

    models: tuple[HubModel, ...] = ()
    offline: bool = False  # the Hub cannot be reached, which is no error
    message: str | None = None  # a sentence, if there is something to say
    measuring: bool = False  # speeds are being measured: ask again when the state has changed


class HubToken(Struct, frozen=True, kw_only=True):
    """PUT /cluster/hub/token. An empty token removes the one that was given."""

    token: Annotated[str, Meta(max_length=512, pattern=r"^[\x21-\x7e]*$")]


class HubUser(Struct, frozen=True, kw_only=True):
    """The answer to PUT and GET /cluster/hub/token."""

    has_token: bool
    name: str | None = None  # of the user whose token it is, when it was just checked


# --- downloads


class DownloadRequest(Struct, frozen=True, kw_only=True):
    """POST /cluster/downloads, answered by `Download`."""

    model: RepositoryName
    variant: Annotated[str, Meta(min_length=1, max_length=200)] | None = None  # None: the best here


class DownloadChange(Struct, frozen=True, kw_only=True):
    """POST /cluster/downloads/{id}, answered by `Download`. `cancel` also removes one from the list."""

    action: DownloadAction


class Download(Struct, frozen=True, kw_only=True):
    """A model that is being downloaded, or waits for it."""

    id: str
    model: str  # org/name
    variant: str
    state: DownloadState
    done: int  # bytes that are on the disk
    total: int
    bytes_per_s: float | None = None
    eta_s: float | None = None
    place: int | None = None  # in the queue, from 1, while it is `queued`
    message: str | None = None  # why it is `offline` or `failed`
    path: str | None = None  # the model, once it is `done`


# --- models on this computer


class DeleteRequest(Struct, frozen=True, kw_only=True):
    """POST /cluster/models/delete, answered by `Deleted`. Nobody is asked."""

    model: Annotated[str, Meta(min_length=1, max_length=4096)]  # its name or path


class Deleted(Struct, frozen=True, kw_only=True):
    name: str
    nbytes: int  # that are free on the disk now


class FolderRequest(Struct, frozen=True, kw_only=True):
    """POST /cluster/models/folders: search this folder for models, too; answered by `Found`."""

    path: Annotated[str, Meta(min_length=1, max_length=4096)]


class Found(Struct, frozen=True, kw_only=True):
    models: tuple[str, ...]  # names
