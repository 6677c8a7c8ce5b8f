"""Ollama's requests and responses, as far as Potluck supports them, and what they are in OpenAI's terms.

The fields are those of Ollama's `docs/api.md`. Unknown fields are ignored, as Ollama ignores them; a known one that
would change the meaning of the answer and that is not offered is refused. `num_ctx` and `keep_alive` change no answer:
the context and the time that a model stays loaded are settings of the cluster. Pure, like `potluck.api.openai`.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from potluck.api import openai

VERSION = "0.12.0"
"""Of Ollama, whose API this is: clients compare it with what they need."""
_NOTHING = msgspec.Raw(b"null")
_ENDLESS = (-1, -2)  # of `num_predict`: no limit, and until the context is full
_Name = Annotated[str, Meta(max_length=4096)]


# --- requests


class Options(Struct, frozen=True, kw_only=True):
    """How tokens are sampled. None means: as the model recommends."""

    num_predict: Annotated[int, Meta(ge=-2, le=openai.MAX_TOKENS)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=1 << 31)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stop: openai.Stop = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    typical_p: float | None = None
    mirostat: int | None = None


class Message(Struct, frozen=True, kw_only=True):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    images: msgspec.Raw = _NOTHING
    tool_calls: msgspec.Raw = _NOTHING


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
    images: msgspec.Raw = _NOTHING
    context: msgspec.Raw = _NOTHING


class ShowRequest(Struct, frozen=True, kw_only=True):
    """POST /api/show. Older clients write `name`."""

    model: _Name = ""
    name: _Name = ""


def check(request: ChatRequest | GenerateRequest) -> None:
    """Refuse fields that would change the meaning of the answer and that are not offered.

    Raises:
        openai.UnsupportedParameterError: the error names the field.
    """
    options = request.options or Options()
    refused = {
        "think": (bool(request.think), "thinking is not split from the answer yet."),
        "logprobs": (bool(request.logprobs), "ask /v1/chat/completions for them."),
        "options.mirostat": (bool(options.mirostat), "it is not offered. Send temperature."),
        "options.typical_p": (options.typical_p not in (None, 1.0), "it is not offered."),
    }
    if isinstance(request, ChatRequest):
        messages = request.messages or []
        refused |= {
            "tools": (openai.is_given(request.tools), "calling tools is not offered here yet."),
            "messages": (
                any(m.role == "tool" or openai.is_given(m.tool_calls) for m in messages),
                "calling tools is not offered here yet.",
            ),
            "images": (any(openai.is_given(m.images) for m in messages), "only text is offered."),
        }
    else:
        refused |= {
            "images": (openai.is_given(request.images), "only text is offered."),
            "suffix": (bool(request.suffix), "text is not filled in before another text."),
            "template": (bool(request.template), "the model's own is used. Send raw: true."),
            "context": (openai.is_given(request.context), "send messages to /api/chat."),
        }
    for name, (is_refused, why) in refused.items():
        if is_refused:
            raise openai.UnsupportedParameterError(name, f"{name}: {why}")


def is_load(request: ChatRequest | GenerateRequest) -> bool:
    """Whether the model is only to be loaded."""
    return not (request.messages if isinstance(request, ChatRequest) else request.prompt)


def in_openai_terms(
    request: ChatRequest | GenerateRequest,
) -> openai.ChatCompletionRequest | openai.CompletionRequest:
    """The same request, as a chat or, if no template is used, as a completion."""
    if is_load(request):
        return openai.CompletionRequest(prompt="", max_tokens=0)
    options = _options(request)
    if isinstance(request, GenerateRequest):
        if request.raw:
            options.setdefault("max_tokens", -1)
            return openai.CompletionRequest(prompt=request.prompt, **options)
        system = [openai.ChatMessage(role="system", content=request.system)]
        prompt = openai.ChatMessage(role="user", content=request.prompt)
        messages = [*(system if request.system else []), prompt]
    else:
        messages = [
            openai.ChatMessage(role=message.role, content=message.content)
            for message in request.messages or []
        ]
    return openai.ChatCompletionRequest(messages=messages, **options)


def _options(request: Request) -> dict[str, Any]:
    """The fields of OpenAI's requests that this one gives."""
    given = request.options or Options()
    limit = given.num_predict
    found: dict[str, Any] = {
        "max_tokens": -1 if limit in _ENDLESS else limit,
        "temperature": given.temperature,
        "top_k": given.top_k,
        "top_p": given.top_p,
        "min_p": given.min_p,
        "seed": given.seed,
        "stop": given.stop,
        "repetition_penalty": given.repeat_penalty,
        "presence_penalty": given.presence_penalty,
        "frequency_penalty": given.frequency_penalty,
    }
    if openai.is_given(request.format) and bytes(request.format) != b'""':
        found["response_format"] = _response_format(request.format)
    return {name: value for name, value in found.items() if value is not None}


def _response_format(form: msgspec.Raw) -> openai.ResponseFormat:
    if bytes(form).strip() == b'"json"':
        return openai.ResponseFormat(type="json_object")
    schema = openai.JsonSchemaFormat(schema=form, strict=False)
    return openai.ResponseFormat(type="json_schema", json_schema=schema)


# --- responses


class AnswerMessage(Struct, frozen=True, kw_only=True):
    content: str
    role: Literal["assistant"] = "assistant"


class Chunk(Struct, frozen=True, kw_only=True):
    """One line of an answer, or all of it. Durations are in nanoseconds; they are in the last line."""

    model: str
    created_at: str
    response: str | UnsetType = UNSET  # of /api/generate
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
    capabilities: tuple[str, ...] = ("completion",)
    modelfile: str = ""
    parameters: str = ""
    template: str = ""
    license: str = ""


class Version(Struct, frozen=True, kw_only=True):
    version: str = VERSION


class Refusal(Struct, frozen=True, kw_only=True):
    error: str
