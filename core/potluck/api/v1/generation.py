"""What a request to `/v1` asks of a node: prompts, sampling, and how often each prompt is answered."""

import hashlib
from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from potluck.api.prompts import (
    ChatPrompt,
    ChatTurn,
    GenerationRequest,
    GivenPicture,
    Prompt,
    SamplingOptions,
    TextPrompt,
    TokenPrompt,
    ToolCall,
)
from potluck.api.v1.constraints import constraint_of
from potluck.api.v1.openai_checks import is_given, json_text, message_text, prompts
from potluck.api.v1.pictures import check_count, picture_at
from potluck.api.v1.request_shapes import (
    ChatCompletionRequest,
    ChatMessage,
    CompletionRequest,
    Options,
    UnsupportedParameterError,
)
from potluck.api.v1.tools import tool_use_of

_T = TypeVar("_T")

COMPLETION_TOKENS = 16  # OpenAI's default of /v1/completions
SEED_MASK = (1 << 63) - 1  # makes OpenAI's signed seeds non-negative
MAX_BIASES = 1024  # OpenAI allows 300
_MAX_BIAS_BYTES = 64 * MAX_BIASES  # of their JSON
_Biases = (
    Annotated[
        dict[
            Annotated[int, Meta(ge=0, lt=1 << 31)],
            Annotated[float, Meta(ge=-100, le=100)],
        ],
        Meta(max_length=MAX_BIASES),
    ]
    | None
)
_NO_LIMIT = -1  # of llama.cpp's clients
_LEAST_TOP_P = 1e-9  # `top_p: 0` is sent for the best token alone


def of_chat(asked: ChatCompletionRequest) -> GenerationRequest:
    """What a chat asks for."""
    logprobs = asked.top_logprobs or 0 if asked.logprobs else None
    limit = _first(asked.max_completion_tokens, asked.max_tokens, asked.n_predict)
    return _generation(asked, _chat_prompt(asked), logprobs, limit)


def of_completion(asked: CompletionRequest) -> list[GenerationRequest]:
    """What each prompt of a completion asks for."""
    limit = _first(asked.max_tokens, asked.n_predict, COMPLETION_TOKENS)
    generations = [
        _generation(
            asked,
            TextPrompt(prompt, suffix=asked.suffix or "")
            if isinstance(prompt, str)
            else TokenPrompt(tuple(prompt)),
            asked.logprobs,
            limit,
        )
        for prompt in prompts(asked)
    ]
    return [replace(each, echo=bool(asked.echo)) for each in generations]


def repeated(generation: GenerationRequest, count: int) -> list[GenerationRequest]:
    """The request `count` times, each time with another seed; the first one keeps its own."""
    first = _with_seed(generation)
    seed = first.sampling.seed
    assert seed is not None
    return [
        replace(first, sampling=replace(first.sampling, seed=(seed + i) & SEED_MASK))
        for i in range(count)
    ]


def turn_of(message: ChatMessage, where: str = "messages") -> ChatTurn:
    """A message, as the model's template gets it; `where` it stands in the request is for errors.

    Raises:
        UnsupportedParameterError: a picture is not offered.
    """
    calls = tuple(
        ToolCall(id=call.id, name=call.function.name, arguments=_arguments(call.function.arguments))
        for call in message.tool_calls or ()
    )
    return ChatTurn(
        role="system" if message.role == "developer" else message.role,
        content=message_text(message),
        reasoning=message.reasoning_content or message.reasoning or "",
        calls=calls,
        call_id=message.tool_call_id or "",
        name=message.name or "",
        pictures=_pictures(message, where),
    )


def _pictures(message: ChatMessage, where: str) -> tuple[GivenPicture, ...]:
    """The pictures of a message, where they stand in its text.

    Raises:
        UnsupportedParameterError: one of them is not offered.
    """
    if not isinstance(message.content, list):
        return ()
    found: list[GivenPicture] = []
    at = 0
    for number, part in enumerate(message.content):
        if part.image_url is not None and part.type == "image_url":
            url = part.image_url if isinstance(part.image_url, str) else part.image_url.url
            found.append(picture_at(url, at, f"{where}.content[{number}].image_url"))
        at += len(part.text or "")
    return tuple(found)


def _arguments(given: msgspec.Raw) -> str:
    """The JSON text of a call's arguments, which is a string as a rule."""
    raw = bytes(given)
    is_text = raw.startswith(b'"')
    return msgspec.json.decode(raw, type=str) if is_text else raw.decode()


def _chat_prompt(asked: ChatCompletionRequest) -> ChatPrompt:
    """The messages and the tools of a chat."""
    turns = tuple(
        turn_of(message, f"messages[{number}]") for number, message in enumerate(asked.messages)
    )
    check_count(sum(len(turn.pictures) for turn in turns), "messages")
    return ChatPrompt(
        turns=turns,
        tool_use=tool_use_of(asked),
        variables=_variables(asked),
        continues=bool(asked.continue_final_message),
    )


def _variables(asked: ChatCompletionRequest) -> str:
    """The values for the template, as the text of a JSON object."""
    given = json_text(asked.chat_template_kwargs) or "{}"
    if asked.reasoning_effort is None:
        return given
    try:
        found = msgspec.json.decode(given, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return given  # whoever reads it says what is wrong
    effort = asked.reasoning_effort
    added = {"reasoning_effort": effort} | ({"enable_thinking": False} if effort == "none" else {})
    return msgspec.json.encode(added | found).decode()


def _generation(
    asked: ChatCompletionRequest | CompletionRequest,
    prompt: Prompt,
    logprobs: int | None,
    limit: int | None,
) -> GenerationRequest:
    sampling = SamplingOptions(
        temperature=asked.temperature,
        top_p=None if asked.top_p is None else max(asked.top_p, _LEAST_TOP_P),
        top_k=None if asked.top_k is None else max(int(asked.top_k), 0),
        min_p=asked.min_p,
        repetition_penalty=_first(asked.repetition_penalty, asked.repeat_penalty),
        presence_penalty=asked.presence_penalty or 0.0,
        frequency_penalty=asked.frequency_penalty or 0.0,
        logit_bias=_biases(asked),
        seed=asked.seed & SEED_MASK if asked.seed is not None else None,
        logprobs=logprobs,
    )
    stop: Sequence[str] = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    return GenerationRequest(
        prompt=prompt,
        sampling=sampling,
        max_tokens=None if limit == _NO_LIMIT else limit,
        stop=tuple(text for text in stop if text),
        constraint=constraint_of(asked),
        ignore_eos=bool(asked.ignore_eos),
        known=tuple(asked.known_token_ids or ()),
    )


def _first(*values: _T | None) -> _T | None:
    """The first that is given."""
    return next((value for value in values if value is not None), None)


def _biases(request: Options) -> tuple[tuple[int, float], ...]:
    """Return the token ids of `logit_bias`, and what is added to their logits.

    Raises:
        UnsupportedParameterError: it is no object of numbers from -100 to 100, or too large.
    """
    raw = bytes(request.logit_bias)
    found: dict[int, float] | None = None
    try:
        if len(raw) < _MAX_BIAS_BYTES:
            found = msgspec.json.decode(raw, type=_Biases)
    except msgspec.ValidationError:
        raise UnsupportedParameterError(
            "logit_bias", "logit_bias: an object of token ids, each with a number from -100 to 100."
        ) from None
    if found is None and is_given(request.logit_bias):
        raise UnsupportedParameterError(
            "logit_bias", f"logit_bias: {MAX_BIASES} tokens are the most."
        )
    return tuple((found or {}).items())


def _with_seed(generation: GenerationRequest) -> GenerationRequest:
    """Choose the seed, if the client did not: the same request with the same id has the same one."""
    if generation.sampling.seed is not None:
        return generation
    # What the client knows of the answer already is no part of what it asked for.
    digest = hashlib.sha256(msgspec.json.encode(replace(generation, known=()))).digest()
    seed = int.from_bytes(digest[:8]) & SEED_MASK
    return replace(generation, sampling=replace(generation.sampling, seed=seed))
