"""The tools that a request offers to the model, and which of them it may call."""

from collections.abc import Sequence
from typing import Literal

from potluck.api.http.endpoint import RequestError, decode
from potluck.api.prompts import ToolSpec, ToolUse
from potluck.api.v1.openai_checks import json_text
from potluck.api.v1.request_shapes import (
    ChatCompletionRequest,
    NamedToolChoice,
    ToolFunction,
    ToolOfClient,
)

# Of the JSON of all tools. Agents send some 100 kB. Decoding much more takes the event loop's time.
MAX_TOOLS_BYTES = 2 << 20
_NO_PARAMETERS = '{"type": "object", "properties": {}}'


def tool_use_of(asked: ChatCompletionRequest) -> ToolUse | None:
    """The tools of a chat; None: it has none.

    Raises:
        RequestError: they are malformed, too large, or the choice is none of them.
    """
    choice, is_parallel = asked.tool_choice or "auto", asked.parallel_tool_calls is not False
    return tool_use(_functions(asked), choice, is_parallel=is_parallel)


def tool_use(
    functions: Sequence[ToolFunction],
    choice: Literal["none", "auto", "required"] | NamedToolChoice,
    *,
    is_parallel: bool,
) -> ToolUse | None:
    """Tools, and which of them may be called; None: there are none.

    Raises:
        RequestError: two have the same name, or the choice is none of them.
    """
    names = [function.name for function in functions]
    if len(set(names)) < len(names):
        raise _refused("tools", "two of them have the same name.")
    if not functions and choice not in ("none", "auto"):
        raise _refused("tool_choice", "there are no tools to choose from.")
    name = choice.function.name if isinstance(choice, NamedToolChoice) else ""
    if name and name not in names:
        raise _refused("tool_choice", f"there is no tool {name!r} among the tools.")
    if not functions:
        return None
    return ToolUse(
        tools=tuple(_tool(function) for function in functions),
        choice="named" if isinstance(choice, NamedToolChoice) else choice,
        name=name,
        is_parallel=is_parallel and not name,  # who names a tool expects one call of it
    )


def check_tools_size(raw: bytes) -> None:
    """Raise RequestError for more bytes of tools than are decoded."""
    if len(raw) > MAX_TOOLS_BYTES:
        raise _refused("tools", f"they have {len(raw)} bytes, and {MAX_TOOLS_BYTES} are the most.")


def _functions(asked: ChatCompletionRequest) -> list[ToolFunction]:
    raw = json_text(asked.tools).encode()
    check_tools_size(raw)
    functions: list[ToolFunction] = []
    for number, tool in enumerate(decode(raw or b"[]", list[ToolOfClient], field="tools")):
        if tool.type != "function" or tool.function is None:
            raise _refused(f"tools[{number}]", "only tools of the type function are offered.")
        functions.append(tool.function)
    return functions


def _tool(function: ToolFunction) -> ToolSpec:
    return ToolSpec(
        name=function.name,
        description=function.description or "",
        parameters=json_text(function.parameters) or _NO_PARAMETERS,
        is_strict=bool(function.strict),
    )


def _refused(field: str, why: str) -> RequestError:
    return RequestError(400, f"{field}: {why}", param=field)
