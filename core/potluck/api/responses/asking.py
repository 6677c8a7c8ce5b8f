"""What a request of the Responses API asks of a node."""

from collections.abc import Iterator, Sequence

import msgspec

from potluck.api.http.endpoint import RequestError, decode
from potluck.api.prompts import (
    ChatPrompt,
    ChatTurn,
    Constraint,
    GenerationRequest,
    GivenPicture,
    SamplingOptions,
    ToolCall,
    ToolUse,
)
from potluck.api.responses.shapes import Item, NamedChoice, Part, ResponseRequest, Tool
from potluck.api.v1.constraints import response_format
from potluck.api.v1.openai_checks import is_given, json_text
from potluck.api.v1.pictures import check_count, picture_at
from potluck.api.v1.request_shapes import (
    JsonSchemaFormat,
    NamedToolChoice,
    ResponseFormat,
    ToolChoiceFunction,
    ToolFunction,
)
from potluck.api.v1.tools import check_tools_size, tool_use

SEPARATOR = "__"  # between the name of a group of tools and that of one
_LEAST_TOP_P = 1e-9
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
# Tools that OpenAI's servers have. They are offers: a model that is not told of them calls none.
_HOSTED = ("web_search", "file_search", "code_interpreter", "image_generation", "mcp")


def of_response(asked: ResponseRequest, turns: Sequence[ChatTurn]) -> GenerationRequest:
    """What a request asks for.

    Args:
        asked: the request.
        turns: the whole conversation, without the instructions.

    Raises:
        RequestError: a part of it is not offered; the error names the field.
    """
    if asked.background:
        raise RequestError(
            400, "background: answers are not made in the background.", param="background"
        )
    if is_given(asked.conversation):
        raise RequestError(
            400,
            "conversation: conversations are not kept; use previous_response_id.",
            param="conversation",
        )
    system = ()
    if asked.instructions:
        system = (ChatTurn(role="system", content=asked.instructions),)
    return GenerationRequest(
        prompt=ChatPrompt(
            turns=(*system, *turns), tool_use=_tool_use(asked), variables=_variables(asked)
        ),
        sampling=SamplingOptions(
            temperature=asked.temperature,
            top_p=None if asked.top_p is None else max(asked.top_p, _LEAST_TOP_P),
        ),
        max_tokens=asked.max_output_tokens,
        constraint=_constraint(asked),
    )


def turns_of(asked: ResponseRequest) -> list[ChatTurn]:
    """The turns of the input. Reasoning and calls belong to the assistant's turn that they are part of.

    Raises:
        RequestError: an item is not offered.
    """
    if isinstance(asked.input, str):
        return [ChatTurn(role="user", content=asked.input)]
    turns: list[ChatTurn] = []
    for number, item in enumerate(asked.input):
        turn = _turn(item, f"input[{number}]")
        if turns and turn.role == turns[-1].role == "assistant":
            turns[-1] = _joined(turns[-1], turn)
        else:
            turns.append(turn)
    if not turns:
        raise RequestError(400, "input: the conversation is empty.", param="input")
    check_count(sum(len(turn.pictures) for turn in turns), "input")
    return turns


def _turn(item: Item, where: str) -> ChatTurn:
    match item.type:
        case "message" if item.role is not None:
            role = "system" if item.role == "developer" else item.role
            place = f"{where}.content"
            pictures = _pictures(item.content, place) if role == "user" else ()
            text = _text(item.content, place, sees=role == "user")
            return ChatTurn(role=role, content=text, pictures=pictures)
        case "function_call":
            call = ToolCall(
                id=item.call_id or "",
                name=name_in(item.namespace, item.name or ""),
                arguments=item.arguments or "{}",
            )
            return ChatTurn(role="assistant", content="", calls=(call,))
        case "function_call_output":
            place = f"{where}.output"
            return ChatTurn(
                role="tool",
                content=_text(item.output, place, sees=True),
                call_id=item.call_id or "",
                pictures=_pictures(item.output, place),
            )
        case "reasoning":
            parts = item.content or item.summary or []
            return ChatTurn(role="assistant", content="", reasoning=_text(parts, where))
        case kind:
            raise RequestError(
                400, f"{where}: an item of the type {kind} is not offered.", param=where
            )


def _joined(one: ChatTurn, other: ChatTurn) -> ChatTurn:
    return ChatTurn(
        role=one.role,
        content="\n".join(text for text in (one.content, other.content) if text),
        reasoning="\n".join(text for text in (one.reasoning, other.reasoning) if text),
        calls=(*one.calls, *other.calls),
    )


def _pictures(content: str | list[Part] | None, where: str) -> tuple[GivenPicture, ...]:
    """The pictures of a message, where they stand in its text.

    Raises:
        UnsupportedParameterError: one of them is not offered.
    """
    found: list[GivenPicture] = []
    texts: list[str] = []
    for number, part in enumerate(content if isinstance(content, list) else ()):
        if part.type == "input_image":
            at = len("\n".join(texts))
            found.append(picture_at(part.image_url or "", at, f"{where}[{number}].image_url"))
        elif part.type in _TEXTS:
            texts.append(part.text or "")
    return tuple(found)


def _text(content: str | list[Part] | None, where: str, *, sees: bool = False) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    texts: list[str] = []
    for number, part in enumerate(content):
        if part.type in _TEXTS:
            texts.append(part.text or "")
        elif part.type != "refusal" and not (sees and part.type == "input_image"):
            place = f"{where}[{number}]"
            raise RequestError(
                400, f"{place}: {part.type} is not offered; only text is.", param=place
            )
    return "\n".join(texts)


def namespaces_of(asked: ResponseRequest) -> frozenset[str]:
    """The names of the groups that tools are in."""
    return frozenset(tool.name or "" for tool in _tools(asked) if tool.type == "namespace")


def name_in(namespace: str | None, name: str) -> str:
    """What the model calls a tool of a group: it knows no groups."""
    return f"{namespace}{SEPARATOR}{name}" if namespace else name


def _tools(asked: ResponseRequest) -> list[Tool]:
    raw = json_text(asked.tools).encode()
    check_tools_size(raw)
    return decode(raw or b"[]", list[Tool], field="tools")


def _functions(tools: Sequence[Tool], where: str, namespace: str | None) -> Iterator[ToolFunction]:
    for number, tool in enumerate(tools):
        place = f"{where}[{number}]"
        if tool.type.startswith(_HOSTED):
            continue
        if tool.type == "namespace" and tool.name and namespace is None:
            yield from _functions(tool.tools or [], f"{place}.tools", tool.name)
        elif tool.type == "function" and tool.name:
            yield ToolFunction(
                name=name_in(namespace, tool.name),
                description=tool.description,
                parameters=tool.parameters,
                strict=tool.strict,
            )
        else:
            raise RequestError(
                400,
                f"{place}: only tools of the type function, with a name, are offered.",
                param=place,
            )


def _tool_use(asked: ResponseRequest) -> ToolUse | None:
    functions = list(_functions(_tools(asked), "tools", None))
    choice = asked.tool_choice or "auto"
    if isinstance(choice, NamedChoice):
        if choice.type != "function" or not choice.name:
            raise RequestError(
                400, "tool_choice: only a function can be named.", param="tool_choice"
            )
        choice = NamedToolChoice(function=ToolChoiceFunction(name=choice.name))
    return tool_use(functions, choice, is_parallel=asked.parallel_tool_calls is not False)


def _variables(asked: ResponseRequest) -> str:
    effort = None if asked.reasoning is None else asked.reasoning.effort
    if effort is None:
        return "{}"
    thinks = {"enable_thinking": False} if effort == "none" else {}
    return msgspec.json.encode({"reasoning_effort": effort, **thinks}).decode()


def _constraint(asked: ResponseRequest) -> Constraint | None:
    wanted = None if asked.text is None else asked.text.format
    if wanted is None:
        return None
    schema = JsonSchemaFormat(schema=wanted.schema, strict=wanted.strict)
    return response_format(ResponseFormat(type=wanted.type, json_schema=schema), "text.format")
