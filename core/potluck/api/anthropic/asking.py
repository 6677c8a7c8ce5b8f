"""What a request of Anthropic's API asks of a node."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from potluck.api.anthropic.shapes import Block, CountRequest, Message, MessageRequest, Source, Tool
from potluck.api.http.endpoint import RequestError, decode
from potluck.api.prompts import (
    ChatPrompt,
    ChatTurn,
    GenerationRequest,
    GivenPicture,
    SamplingOptions,
    ToolCall,
    ToolUse,
)
from potluck.api.v1.openai_checks import json_text
from potluck.api.v1.pictures import check_count, picture_at, picture_of
from potluck.api.v1.request_shapes import NamedToolChoice, ToolChoiceFunction, ToolFunction
from potluck.api.v1.tools import check_tools_size, tool_use

_CHOICES: Mapping[str, Literal["auto", "required", "none"]] = {
    "auto": "auto",
    "any": "required",
    "none": "none",
}
_LEAST_TOP_P = 1e-9
_HIDDEN = ("redacted_thinking",)  # of other servers, which alone can read it


def of_message(asked: MessageRequest) -> GenerationRequest:
    """What a message asks for.

    Raises:
        RequestError: a part of it is not offered; the error names the field.
    """
    return GenerationRequest(
        prompt=prompt_of(asked),
        sampling=SamplingOptions(
            temperature=asked.temperature,
            top_p=None if asked.top_p is None else max(asked.top_p, _LEAST_TOP_P),
            top_k=asked.top_k,
        ),
        max_tokens=asked.max_tokens,
        stop=tuple(text for text in asked.stop_sequences or () if text),
    )


def prompt_of(asked: CountRequest) -> ChatPrompt:
    """The conversation of a request. A last message of the assistant is continued.

    Raises:
        RequestError: a part of it is not offered.
    """
    turns: list[ChatTurn] = []
    if system := _text_of(asked.system, "system"):
        turns.append(ChatTurn(role="system", content=system))
    for number, message in enumerate(asked.messages):
        turns += _turns_of(message, f"messages.{number}.content")
    check_count(sum(len(turn.pictures) for turn in turns), "messages")
    return ChatPrompt(
        turns=tuple(turns),
        tool_use=_tool_use(asked),
        variables=_variables(asked),
        continues=turns[-1].role == "assistant" and bool(turns[-1].content),
    )


def _turns_of(message: Message, where: str) -> list[ChatTurn]:
    """The results of calls, each a turn of its own, and the rest of the message."""
    if isinstance(message.content, str):
        return [ChatTurn(role=message.role, content=message.content)]
    texts: list[str] = []
    pictures: list[GivenPicture] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    results: list[ChatTurn] = []
    for number, block in enumerate(message.content):
        place = f"{where}.{number}"
        match block.type:
            case "text":
                texts.append(block.text or "")
            case "image" if message.role == "user" and block.source is not None:
                pictures.append(_picture(block.source, len("\n".join(texts)), place))
            case "thinking":
                thoughts.append(block.thinking or "")
            case "tool_use":
                arguments = json_text(block.input) or "{}"
                call = ToolCall(id=block.id or "", name=block.name or "", arguments=arguments)
                calls.append(call)
            case "tool_result":
                results.append(_result(block, place))
            case kind if kind in _HIDDEN:
                pass
            case kind:
                raise _not_offered(place, kind)
    if not texts and not calls and not pictures and results:
        return results
    turn = ChatTurn(
        role=message.role,
        content="\n".join(texts),
        reasoning="\n".join(thoughts),
        calls=tuple(calls),
        pictures=tuple(pictures),
    )
    return [*results, turn]


def _picture(source: Source, at: int, where: str) -> GivenPicture:
    """The picture of an image block, before a character of the text.

    Raises:
        UnsupportedParameterError: it does not come with the request, or is damaged.
    """
    if source.type == "base64" and source.data is not None:
        return picture_of(source.data, at, where)
    return picture_at(source.url or "", at, where)


def _result(block: Block, where: str) -> ChatTurn:
    """The result of a call, which may have pictures: of a screen, for example."""
    place = f"{where}.content"
    begin = "Error: " if block.is_error else ""
    texts: list[str] = []
    pictures: list[GivenPicture] = []
    blocks = [] if isinstance(block.content, str) else block.content or []
    for number, part in enumerate(blocks):
        if part.type == "image" and part.source is not None:
            pictures.append(
                _picture(part.source, len(begin + "\n".join(texts)), f"{place}.{number}")
            )
        elif part.type == "text":
            texts.append(part.text or "")
        else:
            raise _not_offered(f"{place}.{number}", part.type)
    if isinstance(block.content, str):
        texts.append(block.content)
    return ChatTurn(
        role="tool",
        content=begin + "\n".join(texts),
        call_id=block.tool_use_id or "",
        pictures=tuple(pictures),
    )


def _text_of(content: str | list[Block] | None, where: str) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    for number, block in enumerate(content):
        if block.type != "text":
            raise _not_offered(f"{where}.{number}", block.type)
    return "\n".join(block.text or "" for block in content)


def _tool_use(asked: CountRequest) -> ToolUse | None:
    raw = json_text(asked.tools).encode()
    check_tools_size(raw)
    functions: list[ToolFunction] = []
    for number, tool in enumerate(decode(raw or b"[]", list[Tool], field="tools")):
        if tool.type not in (None, "custom"):
            raise _not_offered(f"tools.{number}", tool.type)
        functions.append(
            ToolFunction(
                name=tool.name,
                description=tool.description,
                parameters=tool.input_schema,
                strict=tool.strict,
            )
        )
    given = asked.tool_choice
    choice = _CHOICES.get("auto" if given is None else given.type, "auto")
    is_parallel = given is None or not given.disable_parallel_tool_use
    if given is not None and given.type == "tool":
        named = NamedToolChoice(function=ToolChoiceFunction(name=given.name or ""))
        return tool_use(functions, named, is_parallel=is_parallel)
    return tool_use(functions, choice, is_parallel=is_parallel)


def _variables(asked: CountRequest) -> str:
    if asked.thinking is None:
        return "{}"
    thinks = asked.thinking.type != "disabled"
    return msgspec.json.encode({"enable_thinking": thinks, "thinking": thinks}).decode()


def _not_offered(where: str, kind: str) -> RequestError:
    return RequestError(400, f"{where}: {kind} is not offered; only text is.", param=where)
