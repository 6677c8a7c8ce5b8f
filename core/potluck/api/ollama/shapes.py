"""Ollama's requests and responses, as far as Potluck supports them.

The fields are those of Ollama's `docs/api.md`. Unknown fields are ignored, as Ollama ignores them; a known one that
would change the meaning of the answer and that is not offered is refused. `num_ctx` and `keep_alive` change no answer:
the context and the time that a model stays loaded are settings of the cluster. Pure, like `potluck.api.v1.request_shapes`.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from potluck.api.v1.request_shapes import MAX_INPUTS, MAX_TOKENS, CallsOfTools, Stop

VERSION = "0.12.0"
"""Of Ollama, whose API this is: clients compare it with what they need."""
_NOTHING = msgspec.Raw(b"null")
_Name = Annotated[str, Meta(max_length=4096)]


# --- requests


class Options(Struct, frozen=True, kw_only=True):
    """How tokens are sampled. None means: as the model recommends."""

    num_predict: Annotated[int, Meta(ge=-2, le=MAX_TOKENS)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=1 << 31)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stop: Stop = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    typical_p: float | None = None
    mirostat: int | None = None


class Message(Struct, frozen=True, kw_only=True):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    images: list[str] | None = None  # base64
    thinking: str | None = None
    tool_calls: CallsOfTools | None = None  # their arguments are objects
    tool_name: Annotated[str, Meta(max_length=256)] | None = None  # whose result this is


class Request(Struct, frozen=True, kw_only=True):
    """The fields that both kinds of request share."""

    model: _Name
    stream: bool | None = None  # None: yes
    format: msgspec.Raw = _NOTHING  # "json", or a JSON schema
    options: Options | None = None
    think: bool | str | None = None
    logprobs: bool | None = None


class ChatRequest(Request, frozen=True, kw_only=True):
    """POST /api/chat. Without messages, it only loads the model."""

    messages: Annotated[list[Message], Meta(max_length=4096)] | None = None
    tools: msgspec.Raw = _NOTHING


class GenerateRequest(Request, frozen=True, kw_only=True):
    """POST /api/generate. Without a prompt, it only loads the model."""

    prompt: str = ""
    system: str = ""
    suffix: str = ""
    template: str = ""
    raw: bool | None = None  # the prompt is used as it is, without the model's template
    images: list[str] | None = None  # base64
    context: msgspec.Raw = _NOTHING


class EmbedRequest(Struct, frozen=True, kw_only=True):
    """POST /api/embed."""

    model: _Name
    input: str | Annotated[list[str], Meta(min_length=1, max_length=MAX_INPUTS)]
    dimensions: Annotated[int, Meta(ge=1)] | None = None


class EmbeddingsRequest(Struct, frozen=True, kw_only=True):
    """POST /api/embeddings, of older clients."""

    model: _Name
    prompt: str


class ShowRequest(Struct, frozen=True, kw_only=True):
    """POST /api/show. Older clients write `name`."""

    model: _Name = ""
    name: _Name = ""


# --- responses


class CalledFunction(Struct, frozen=True, kw_only=True):
    name: str
    arguments: msgspec.Raw  # an object
    index: int  # of the call in the answer


class Call(Struct, frozen=True, kw_only=True):
    """A call of a tool, always whole."""

    id: str
    function: CalledFunction


class AnswerMessage(Struct, frozen=True, kw_only=True):
    content: str
    role: Literal["assistant"] = "assistant"
    thinking: str | UnsetType = UNSET
    tool_calls: tuple[Call, ...] | UnsetType = UNSET


class Chunk(Struct, frozen=True, kw_only=True):
    """One line of an answer, or all of it. Durations are in nanoseconds; they are in the last line."""

    model: str
    created_at: str
    response: str | UnsetType = UNSET  # of /api/generate, as is `thinking`
    thinking: str | UnsetType = UNSET
    message: AnswerMessage | UnsetType = UNSET  # of /api/chat
    done: bool = False
    done_reason: Literal["stop", "length", "load"] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class Details(Struct, frozen=True, kw_only=True):
    format: str
    family: str
    families: tuple[str, ...]
    parameter_size: str  # such as 8.2B
    quantization_level: str  # such as Q4_K_M
    parent_model: str = ""


class Model(Struct, frozen=True, kw_only=True):
    """An entry of GET /api/tags and GET /api/ps; the last three are of a loaded model."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details
    size_vram: int | UnsetType = UNSET
    context_length: int | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET


class ModelList(Struct, frozen=True, kw_only=True):
    models: tuple[Model, ...]


class Shown(Struct, frozen=True, kw_only=True):
    """The answer to POST /api/show."""

    modified_at: str
    details: Details
    model_info: dict[str, str | int]
    capabilities: tuple[str, ...]
    modelfile: str = ""
    parameters: str = ""
    template: str = ""
    license: str = ""


class Embedded(Struct, frozen=True, kw_only=True):
    """The answer to POST /api/embed."""

    model: str
    embeddings: list[list[float]]
    prompt_eval_count: int
    total_duration: int


class OneEmbedded(Struct, frozen=True, kw_only=True):
    """The answer to POST /api/embeddings."""

    embedding: list[float]


class Version(Struct, frozen=True, kw_only=True):
    version: str = VERSION


class Refusal(Struct, frozen=True, kw_only=True):
    error: str
