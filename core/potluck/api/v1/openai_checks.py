"""What of OpenAI's requests is refused, and the values in them that have several forms. Pure, like `request_shapes`."""

import msgspec

from potluck.api.v1.other_servers import not_offered
from potluck.api.v1.request_shapes import (
    MAX_ANSWERS,
    ChatCompletionRequest,
    ChatMessage,
    CompletionRequest,
    UnsupportedParameterError,
)


def check(request: ChatCompletionRequest | CompletionRequest) -> None:
    """Refuse fields that would change the meaning of the answer and that are not supported.

    Raises:
        UnsupportedParameterError: the error names the field.
    """
    for name in not_offered(request):
        _refuse(True, name, f"{name}: this is not offered; leave it out.")
    _refuse(
        request.top_k is not None and request.top_k != int(request.top_k),
        "top_k",
        "top_k: this is a number of tokens, so it must be whole.",
    )
    if request.stream_options is not None and not request.stream:
        _refuse(True, "stream_options", "stream_options needs stream: true.")
    if isinstance(request, ChatCompletionRequest):
        _check_chat(request)
    else:
        _check_completion(request)


def _check_completion(request: CompletionRequest) -> None:
    _refuse(
        bool(request.suffix and request.echo),
        "suffix",
        "suffix: the prompt is not at the beginning then; leave out echo.",
    )
    best_of, n = request.best_of or request.n or 1, request.n or 1
    _refuse(best_of < n, "best_of", f"best_of: the best {n} cannot be chosen of {best_of}.")
    _refuse(
        best_of > n and bool(request.stream),
        "best_of",
        "best_of: the best answer is known when all are complete, so it cannot be streamed.",
    )


def _check_chat(request: ChatCompletionRequest) -> None:
    for name in ("max_tokens", "max_completion_tokens", "n_predict"):
        _refuse(getattr(request, name) == 0, name, f"{name}: a chat needs at least 1.")
    _refuse(
        is_given(request.functions),
        "functions",
        "functions: this is OpenAI's older field; use tools.",
    )
    if request.modalities is not None and request.modalities != ["text"]:
        _refuse(True, "modalities", "modalities: only text is offered.")
    if request.top_logprobs and not request.logprobs:
        _refuse(True, "top_logprobs", "top_logprobs needs logprobs: true.")
    for number, message in enumerate(request.messages):
        where = f"messages[{number}]"
        _refuse(
            message.role == "function",
            where,
            f"{where}: use the role tool for the result of a call.",
        )
        _refuse(
            bool(message.tool_calls) and message.role != "assistant",
            where,
            f"{where}: only the assistant has tool_calls.",
        )
        if isinstance(message.content, list):
            for part in message.content:
                if part.type == "refusal":
                    continue
                is_picture = part.type == "image_url" and part.image_url is not None
                if not is_picture and (part.type != "text" or part.text is None):
                    what = f"{where}.content: only text and image_url are offered."
                    _refuse(True, f"{where}.content", what)
                _refuse(
                    is_picture and message.role not in ("user", "tool"),
                    f"{where}.content",
                    f"{where}.content: only messages of the user and of tools have pictures.",
                )


def is_given(value: msgspec.Raw) -> bool:
    """Whether a field has a value that is not empty."""
    return bytes(value)[:8].translate(None, b" \t\r\n") not in (b"null", b"[]", b"{}")


def json_text(raw: msgspec.Raw) -> str:
    """The JSON text of a field; empty: it has no value."""
    text = bytes(raw).decode()
    return "" if text.strip() in ("", "null") else text


def _refuse(refused: bool, param: str, message: str) -> None:
    if refused:
        raise UnsupportedParameterError(param, message)


def message_text(message: ChatMessage) -> str:
    """Return the text of a message, with its parts joined."""
    if isinstance(message.content, list):
        return "".join(part.text or "" for part in message.content)
    return message.content or ""


def prompts(request: CompletionRequest) -> list[str | list[int]]:
    """Return the prompts, each as text or token ids.

    Raises:
        UnsupportedParameterError: there is none, there are too many, or one is no prompt.
    """
    found = texts_or_ids(request.prompt, "prompt")
    answers = len(found) * (request.best_of or request.n or 1)
    _refuse(
        answers > MAX_ANSWERS,
        "prompt",
        f"prompt: this asks for {answers} answers, and {MAX_ANSWERS} are the most of one request.",
    )
    return found


def texts_or_ids(prompt: str | list[int | str | list[int]], field: str) -> list[str | list[int]]:
    """Return one or several texts, each as text or token ids.

    Raises:
        UnsupportedParameterError: there is none, or one of them is neither.
    """
    if isinstance(prompt, str):
        return [prompt]
    ids = [item for item in prompt if isinstance(item, int)]
    if ids and len(ids) == len(prompt):
        if min(ids) < 0 or max(ids) >= 1 << 31:
            _refuse(True, field, f"{field}: a token id is not below 0 and fits 31 bits.")
        return [ids]
    found = [item for item in prompt if not isinstance(item, int)]
    _refuse(bool(ids) or not found, field, f"{field}: give a text, token ids, or a list of these.")
    return found
