"""What a request of Ollama's clients is in OpenAI's terms. Pure, like `potluck.api.ollama.shapes`."""

from typing import Any

import msgspec

from potluck.api.ollama.shapes import ChatRequest, GenerateRequest, Message, Options, Request
from potluck.api.v1.openai_checks import is_given
from potluck.api.v1.request_shapes import (
    ChatCompletionRequest,
    ChatMessage,
    CompletionRequest,
    ContentPart,
    ImageUrl,
    JsonSchemaFormat,
    ResponseFormat,
    UnsupportedParameterError,
)

_ENDLESS = (-1, -2)  # of `num_predict`: no limit, and until the context is full


def check(request: ChatRequest | GenerateRequest) -> None:
    """Refuse fields that would change the meaning of the answer and that are not offered.

    Raises:
        UnsupportedParameterError: the error names the field.
    """
    options = request.options or Options()
    refused = {
        "logprobs": (bool(request.logprobs), "ask /v1/chat/completions for them."),
        "options.mirostat": (bool(options.mirostat), "it is not offered. Send temperature."),
        "options.typical_p": (options.typical_p not in (None, 1.0), "it is not offered."),
    }
    if isinstance(request, GenerateRequest):
        without_chat = bool(request.images) and bool(request.raw or request.suffix)
        refused |= {
            "images": (without_chat, "they need the model's template: leave out raw and suffix."),
            "template": (bool(request.template), "the model's own is used. Send raw: true."),
            "context": (is_given(request.context), "send messages to /api/chat."),
        }
    for name, (is_refused, why) in refused.items():
        if is_refused:
            raise UnsupportedParameterError(name, f"{name}: {why}")


def is_load(request: ChatRequest | GenerateRequest) -> bool:
    """Whether the model is only to be loaded."""
    return not (request.messages if isinstance(request, ChatRequest) else request.prompt)


def in_openai_terms(
    request: ChatRequest | GenerateRequest,
) -> ChatCompletionRequest | CompletionRequest:
    """The same request, as a chat or, if no template is used, as a completion."""
    if is_load(request):
        return CompletionRequest(prompt="", max_tokens=0)
    options = _options(request)
    if isinstance(request, GenerateRequest):
        if request.raw or request.suffix:
            options.setdefault("max_tokens", -1)
            suffix = request.suffix or None
            return CompletionRequest(prompt=request.prompt, suffix=suffix, **options)
        system = [ChatMessage(role="system", content=request.system)]
        prompt = ChatMessage(role="user", content=_content(request.prompt, request.images))
        messages = [*(system if request.system else []), prompt]
    else:
        messages = [_message(message) for message in request.messages or []]
        options["tools"] = request.tools
    if request.think is not None:
        options |= _thinking(request.think)
    return ChatCompletionRequest(messages=messages, **options)


def _message(message: Message) -> ChatMessage:
    return ChatMessage(
        role=message.role,
        content=_content(message.content, message.images),
        reasoning_content=message.thinking,
        tool_calls=message.tool_calls,
        name=message.tool_name,
    )


def _content(text: str, images: list[str] | None) -> str | list[ContentPart]:
    """A message's text, or its pictures and then its text, as Ollama puts them."""
    if not images:
        return text
    parts = [
        ContentPart(type="image_url", image_url=ImageUrl(url=f"data:image;base64,{data}"))
        for data in images
    ]
    return [*parts, ContentPart(type="text", text=text)]


def _thinking(think: bool | str) -> dict[str, Any]:
    """Whether, or how much, the model thinks, as templates read it."""
    if isinstance(think, str):
        return {"reasoning_effort": think}
    values = msgspec.json.encode({"enable_thinking": think, "thinking": think})
    return {"chat_template_kwargs": msgspec.Raw(values)}


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
    if is_given(request.format) and bytes(request.format) != b'""':
        found["response_format"] = _response_format(request.format)
    return {name: value for name, value in found.items() if value is not None}


def _response_format(form: msgspec.Raw) -> ResponseFormat:
    if bytes(form).strip() == b'"json"':
        return ResponseFormat(type="json_object")
    schema = JsonSchemaFormat(schema=form, strict=False)
    return ResponseFormat(type="json_schema", json_schema=schema)
