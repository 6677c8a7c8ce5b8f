"""OpenAI's answers, whole and in chunks, as far as Potluck gives them. Pure.

An object `potluck` with measurements, or with facts of a model, is added to OpenAI's fields.
"""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from potluck.api.events import FinishReason
from potluck.api.values.timings import Timings


class PromptTokensDetails(Struct, frozen=True, kw_only=True):
    cached_tokens: int = 0


class Usage(Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails = PromptTokensDetails()


class TopLogprob(Struct, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: list[int] | None = None


class TokenLogprob(TopLogprob, frozen=True, kw_only=True):
    top_logprobs: tuple[TopLogprob, ...] = ()


class ChatLogprobs(Struct, frozen=True, kw_only=True):
    content: list[TokenLogprob]


class FunctionCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """In a chunk, the first piece of a call has the name; each has more of the arguments."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class CallDelta(Struct, frozen=True, kw_only=True):
    index: int
    function: FunctionCall
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class MadeCall(Struct, frozen=True, kw_only=True):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class AssistantMessage(Struct, frozen=True, kw_only=True):
    content: str | None
    role: Literal["assistant"] = "assistant"
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[MadeCall, ...] | UnsetType = UNSET


class ChatChoice(Struct, frozen=True, kw_only=True):
    message: AssistantMessage
    finish_reason: FinishReason
    index: int = 0
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | UnsetType = UNSET


class _Head(Struct, frozen=True, kw_only=True):
    """What every answer and every chunk of one begins with."""

    id: str
    created: int
    model: str


class ChatCompletion(_Head, frozen=True, kw_only=True):
    choices: tuple[ChatChoice, ...]
    usage: Usage
    potluck: Timings
    object: Literal["chat.completion"] = "chat.completion"
    prompt_token_ids: list[int] | UnsetType = UNSET


class Delta(Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[CallDelta, ...] | UnsetType = UNSET


class ChatChunkChoice(Struct, frozen=True, kw_only=True):
    delta: Delta
    finish_reason: FinishReason | None = None
    index: int = 0
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(_Head, frozen=True, kw_only=True):
    """One server-sent event of a streamed chat; `[DONE]` comes after the last one."""

    choices: tuple[ChatChunkChoice, ...]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: Usage | UnsetType | None = UNSET  # only with stream_options.include_usage
    potluck: Timings | UnsetType = UNSET  # in the last chunk
    prompt_token_ids: list[int] | UnsetType = UNSET  # in the first chunk


class CompletionLogprobs(Struct, frozen=True, kw_only=True):
    tokens: list[str]
    token_logprobs: list[float | None]  # None: of the first token of a prompt
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(Struct, frozen=True, kw_only=True):
    text: str
    finish_reason: FinishReason | None = None
    index: int = 0
    logprobs: CompletionLogprobs | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(_Head, frozen=True, kw_only=True):
    """A whole text completion, or one server-sent event of a streamed one."""

    choices: tuple[CompletionChoice, ...]
    object: Literal["text_completion"] = "text_completion"
    usage: Usage | UnsetType | None = UNSET
    potluck: Timings | UnsetType = UNSET


class Embedding(Struct, frozen=True, kw_only=True):
    embedding: list[float] | str  # in base64, little-endian f32
    index: int
    object: Literal["embedding"] = "embedding"


class EmbeddingsUsage(Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(Struct, frozen=True, kw_only=True):
    data: list[Embedding]
    model: str
    usage: EmbeddingsUsage
    object: Literal["list"] = "list"


class ModelFacts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The object `potluck` of a model. What is not known is missing."""

    loaded: bool  # another one is loaded on its first use
    format: str | None = None  # safetensors, gguf
    nbytes: int = 0  # of its files with weights
    parameters: int = 0


class ModelInfo(Struct, frozen=True, kw_only=True):
    id: str
    created: int
    potluck: ModelFacts
    object: Literal["model"] = "model"
    owned_by: str = "potluck"
    max_model_len: int | UnsetType = UNSET  # the context, under vLLM's name for it


class ModelList(Struct, frozen=True, kw_only=True):
    data: tuple[ModelInfo, ...]
    object: Literal["list"] = "list"
