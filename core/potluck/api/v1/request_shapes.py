"""OpenAI's requests, as far as Potluck supports them, checked field by field.

Unknown fields are ignored, as OpenAI's own servers do. `openai_checks` refuses a known field that would
change the meaning of the answer and that Potluck does not support. Additions to OpenAI's fields:
`top_k`, `min_p`, `repetition_penalty`, `ignore_eos`, `return_token_ids` and `structured_outputs`, named as in
vLLM. Pure, like `potluck.api.values.schema`.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from potluck.api.v1.other_servers import MAX_TOKENS, OtherServers
from potluck.errors import UsageError

MAX_STOPS = 16  # OpenAI allows 4
MAX_LOGPROBS = 20
MAX_ANSWERS = 128  # of one request
MAX_CALLS = 1024  # of one message
MAX_INPUTS = 1 << 16  # token ids or texts of one request for embeddings; OpenAI allows 2048 texts

TokenIds = Annotated[list[Annotated[int, Meta(ge=0, lt=1 << 31)]], Meta(max_length=MAX_TOKENS)]
StopText = Annotated[str, Meta(min_length=1, max_length=256)]
Stop: TypeAlias = str | Annotated[list[StopText], Meta(max_length=MAX_STOPS)] | None
_NOTHING = msgspec.Raw(b"null")  # of fields that are refused unless they are empty
ToolName = Annotated[str, Meta(min_length=1, max_length=256)]
Choices = Annotated[list[str], Meta(max_length=1024)]


class UnsupportedParameterError(UsageError):
    """Potluck knows this field but does not support it; `data["param"]` names the field."""

    code = "unsupported_parameter"

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message, param=param)
        self.param = param


class StreamOptions(Struct, frozen=True, kw_only=True):
    include_usage: bool = False


class JsonSchemaFormat(Struct, frozen=True, kw_only=True):
    schema: msgspec.Raw = _NOTHING
    strict: bool | None = None  # a schema that is not may have keywords that are not supported


class ResponseFormat(Struct, frozen=True, kw_only=True):
    type: str
    json_schema: JsonSchemaFormat | None = None
    schema: msgspec.Raw = _NOTHING  # llama.cpp's, with json_object


class StructuredOutputs(Struct, frozen=True, kw_only=True):
    """vLLM's field of this name, and under names with `guided_` its older ones."""

    json: msgspec.Raw = _NOTHING
    json_object: bool | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    structural_tag: msgspec.Raw = _NOTHING


class Options(OtherServers, frozen=True, kw_only=True):
    """The fields that both kinds of request share. None means: as the model recommends."""

    model: Annotated[str, Meta(max_length=4096)] | None = None
    max_tokens: Annotated[int, Meta(ge=-1, le=MAX_TOKENS)] | None = None  # -1: no limit
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None  # 0: the best token
    top_k: Annotated[float, Meta(ge=-1, lt=1 << 31)] | None = None  # 0 and -1: all tokens
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stop: Stop = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    # Potluck's own: the first tokens of the answer, which the client has; only what follows is sent.
    known_token_ids: TokenIds | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_ANSWERS)] | None = None
    # Decoding 16 MB of small JSON values takes more than a second: such fields are decoded where
    # their size is known.
    logit_bias: msgspec.Raw = _NOTHING
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    # What the answer has to be: see `potluck.api.v1.constraints`.
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: msgspec.Raw = _NOTHING
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    grammar: str | None = None
    json_schema: msgspec.Raw = _NOTHING


class ImageUrl(Struct, frozen=True, kw_only=True):
    url: str
    detail: str | None = None  # how closely it is looked at: as the model's own size says


class ContentPart(Struct, frozen=True, kw_only=True):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | str | None = None


class CalledFunction(Struct, frozen=True, kw_only=True):
    name: ToolName
    arguments: msgspec.Raw = msgspec.Raw(
        b"{}"
    )  # a string with JSON text; some clients send the object


class CallOfTool(Struct, frozen=True, kw_only=True):
    function: CalledFunction
    id: Annotated[str, Meta(max_length=256)] = ""


CallsOfTools: TypeAlias = Annotated[list[CallOfTool], Meta(max_length=MAX_CALLS)]


class ChatMessage(Struct, frozen=True, kw_only=True):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same, as some clients send it
    tool_calls: CallsOfTools | None = None
    tool_call_id: Annotated[str, Meta(max_length=256)] | None = None
    name: Annotated[str, Meta(max_length=256)] | None = None


class ToolFunction(Struct, frozen=True, kw_only=True):
    name: ToolName
    description: str | None = None
    parameters: msgspec.Raw = _NOTHING  # a JSON schema
    strict: bool | None = None


class ToolChoiceFunction(Struct, frozen=True, kw_only=True):
    name: ToolName


class ToolOfClient(Struct, frozen=True, kw_only=True):
    type: str = "function"
    function: ToolFunction | None = None


class NamedToolChoice(Struct, frozen=True, kw_only=True):
    function: ToolChoiceFunction
    type: Literal["function"] = "function"


class ChatCompletionRequest(Options, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=4096)]
    max_completion_tokens: Annotated[int, Meta(ge=-1, le=MAX_TOKENS)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: msgspec.Raw = _NOTHING  # see `openai_checks.tools_of`
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: msgspec.Raw = _NOTHING
    modalities: list[str] | None = None
    # Values for the model's template: vLLM's field, and OpenAI's, which many templates read too.
    chat_template_kwargs: msgspec.Raw = _NOTHING
    reasoning_effort: Annotated[str, Meta(max_length=64)] | None = None
    # vLLM's: the answer continues the last message, which is the assistant's.
    continue_final_message: bool | None = None


class CompletionRequest(Options, frozen=True, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[int | str | TokenIds]
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_ANSWERS)] | None = None


class EmbeddingsRequest(Struct, frozen=True, kw_only=True):
    """POST /v1/embeddings."""

    input: str | Annotated[list[int | str | TokenIds], Meta(max_length=MAX_INPUTS)]
    model: Annotated[str, Meta(max_length=4096)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None  # only so many, which have length 1 again
