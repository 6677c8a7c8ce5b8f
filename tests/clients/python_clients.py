"""What programs do with Potluck's API, for each Python package that speaks it.

`try_clients.py` runs this file in an environment that has one of the packages: `python python_clients.py NAME URL`.
It prints a JSON object: for each task, an empty text, or what went wrong.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

Task = Callable[[], object]

ASKED = "Where is it warm?"
CITIES = ["Oslo", "Rome"]
SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": CITIES}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "Tells the weather.", "parameters": SCHEMA},
}
FORMAT: Any = {
    "type": "json_schema",
    "json_schema": {"name": "place", "schema": SCHEMA, "strict": True},
}
SHORT: Any = {"max_tokens": 16, "temperature": 0}
LONG: Any = {"max_tokens": 400, "temperature": 0}
TOO_LONG = "word " * 40_000
MODEL = "potluck"


def says(text: object) -> None:
    assert isinstance(text, str), f"{text!r} is no text"
    assert text, "the answer is empty"


def names_a_city(given: Mapping[str, object]) -> None:
    assert given.get("city") in CITIES, f"{given} is not as the schema wants it"


def calls_weather(name: object, arguments: object) -> None:
    assert name == "weather", f"{name!r} was called"
    names_a_city(json.loads(arguments) if isinstance(arguments, str) else dict(arguments))  # pyright: ignore[reportArgumentType, reportCallIssue]


def fails(task: Task, *names: str) -> Any:
    """Return the error of a class that has one of these names, as the client tells errors apart."""
    error: Exception | None = None
    try:
        task()
    except Exception as raised:  # noqa: BLE001 of a class that is not known here
        error = raised
    assert error is not None, f"there was no {names[0]}"
    classes = [each.__name__ for each in type(error).__mro__]
    assert set(names) & set(classes), f"{classes[0]}: {error}"
    return error


def openai_tasks(url: str) -> dict[str, Task]:
    """OpenAI's own."""
    openai = import_module("openai")
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    create = client.chat.completions.create
    messages: Any = [{"role": "user", "content": ASKED}]

    def stream() -> None:
        chunks = list(create(model=MODEL, messages=messages, stream=True, **SHORT))
        says("".join(chunk.choices[0].delta.content or "" for chunk in chunks))

    def tools() -> None:
        answer = create(
            model=MODEL, messages=messages, tools=[TOOL], tool_choice="required", **LONG,
            parallel_tool_calls=False,
        )  # fmt: skip
        (call,) = answer.choices[0].message.tool_calls
        calls_weather(call.function.name, call.function.arguments)
        result = {"role": "tool", "tool_call_id": call.id, "content": "Sun."}
        more = [*messages, answer.choices[0].message, result]
        says(create(model=MODEL, messages=more, tools=[TOOL], **SHORT).choices[0].message.content)

    async def at_once() -> None:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as others:
            asked = [
                others.responses.create(model=MODEL, input=ASKED, max_output_tokens=16)
                for _ in range(3)
            ]
            for answer in await asyncio.gather(*asked):
                says(answer.output_text)

    def structure() -> None:
        answer = create(model=MODEL, messages=messages, response_format=FORMAT, **LONG)
        names_a_city(json.loads(answer.choices[0].message.content))

    def errors() -> None:
        fails(lambda: create(model="nobody", messages=messages), "NotFoundError")
        large: Any = [{"role": "user", "content": TOO_LONG}]
        error = fails(lambda: create(model=MODEL, messages=large), "BadRequestError")
        assert error.code == "context_length_exceeded", error.code

    return {
        "chat": lambda: says(
            create(model=MODEL, messages=messages, **SHORT).choices[0].message.content
        ),
        "stream": stream,
        "tools": tools,
        "structure": structure,
        "async": lambda: asyncio.run(at_once()),
        "errors": errors,
    }


def anthropic_tasks(url: str) -> dict[str, Task]:
    """Anthropic's own."""
    anthropic = import_module("anthropic")
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    messages: Any = [{"role": "user", "content": ASKED}]
    tool: Any = {"name": "weather", "description": "Tells the weather.", "input_schema": SCHEMA}

    def stream() -> None:
        with client.messages.stream(model=MODEL, messages=messages, max_tokens=16) as events:
            says("".join(events.text_stream))

    def tools() -> None:
        answer = client.messages.create(
            model=MODEL, messages=messages, tools=[tool], max_tokens=400,
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
        )  # fmt: skip
        call = next(block for block in answer.content if block.type == "tool_use")
        calls_weather(call.name, call.input)

    def errors() -> None:
        ask = client.messages.create
        fails(lambda: ask(model="nobody", messages=messages, max_tokens=16), "NotFoundError")
        large: Any = [{"role": "user", "content": TOO_LONG}]
        fails(lambda: ask(model=MODEL, messages=large, max_tokens=16), "BadRequestError")

    async def at_once() -> None:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="none") as others:
            counted = await others.messages.count_tokens(model=MODEL, messages=messages)
            assert counted.input_tokens > 0
            answer = await others.messages.create(model=MODEL, messages=messages, max_tokens=16)
            says(answer.content[0].text)

    return {
        "chat": lambda: says(
            client.messages.create(model=MODEL, messages=messages, max_tokens=16).content[0].text
        ),
        "stream": stream,
        "tools": tools,
        "async": lambda: asyncio.run(at_once()),
        "errors": errors,
    }


def ollama_tasks(url: str) -> dict[str, Task]:
    """Ollama's own."""
    ollama = import_module("ollama")
    client = ollama.Client(host=url)
    messages: Any = [{"role": "user", "content": ASKED}]
    few = {"num_predict": 16, "temperature": 0}

    def stream() -> None:
        parts = client.chat(model=MODEL, messages=messages, stream=True, options=few)
        says("".join(part.message.content or "" for part in parts))

    def tools() -> None:  # it knows no `tool_choice`, so that a random model need not call one
        answer = client.chat(model=MODEL, messages=messages, tools=[TOOL], options=few)
        assert answer.message.content or answer.message.tool_calls

    def structure() -> None:
        answer = client.chat(
            model=MODEL, messages=messages, format=SCHEMA, options=few | {"num_predict": 400}
        )
        names_a_city(json.loads(answer.message.content))

    async def at_once() -> None:
        answer = await ollama.AsyncClient(host=url).generate(model=MODEL, prompt=ASKED, options=few)
        says(answer.response)

    return {
        "chat": lambda: says(
            client.chat(model=MODEL, messages=messages, options=few).message.content
        ),
        "stream": stream,
        "tools": tools,
        "structure": structure,
        "async": lambda: asyncio.run(at_once()),
        "errors": lambda: fails(
            lambda: client.chat(model="nobody", messages=messages), "ResponseError"
        ),
    }


def litellm_tasks(url: str) -> dict[str, Task]:
    """A layer that many agents use (aider, OpenHands, SWE-agent)."""
    litellm = import_module("litellm")
    messages: Any = [{"role": "user", "content": ASKED}]

    def ask(model: str = MODEL, **fields: Any) -> Any:
        return litellm.completion(
            model=f"openai/{model}", api_base=f"{url}/v1", api_key="none", max_retries=0,
            **{"messages": messages, **fields},
        )  # fmt: skip

    def stream() -> None:
        chunks = list(ask(stream=True, **SHORT))
        says("".join(chunk.choices[0].delta.content or "" for chunk in chunks))

    def tools() -> None:
        answer = ask(tools=[TOOL], tool_choice="required", parallel_tool_calls=False, **LONG)
        call = answer.choices[0].message.tool_calls[0]
        calls_weather(call.function.name, call.function.arguments)

    async def at_once() -> None:
        answer = await litellm.acompletion(
            model=f"openai/{MODEL}", api_base=f"{url}/v1", api_key="none", messages=messages,
            **SHORT,
        )  # fmt: skip
        says(answer.choices[0].message.content)

    def errors() -> None:
        fails(lambda: ask("nobody"), "NotFoundError")
        large = [{"role": "user", "content": TOO_LONG}]
        fails(lambda: ask(messages=large), "ContextWindowExceededError")

    return {
        "chat": lambda: says(ask(**SHORT).choices[0].message.content),
        "stream": stream,
        "tools": tools,
        "structure": lambda: names_a_city(
            json.loads(ask(response_format=FORMAT, **LONG).choices[0].message.content)
        ),
        "async": lambda: asyncio.run(at_once()),
        "errors": errors,
    }


def langchain_tasks(url: str) -> dict[str, Task]:
    """LangChain, by its package for OpenAI's API."""
    chat_openai = import_module("langchain_openai").ChatOpenAI

    def model(**fields: Any) -> Any:
        given = {"model": MODEL, "max_retries": 0, **LONG, **fields}
        return chat_openai(base_url=f"{url}/v1", api_key="none", **given)

    short = model(max_tokens=16)

    def tools() -> None:
        bound = model().bind_tools([TOOL], tool_choice="required", parallel_tool_calls=False)
        (call, *_) = bound.invoke(ASKED).tool_calls
        calls_weather(call["name"], call["args"])

    async def at_once() -> None:
        says((await short.ainvoke(ASKED)).text)

    place = {"title": "place", "description": "A place.", **SCHEMA}
    return {
        "chat": lambda: says(short.invoke(ASKED).text),
        "stream": lambda: says("".join(chunk.text for chunk in short.stream(ASKED))),
        "tools": tools,
        "structure": lambda: names_a_city(model().with_structured_output(place).invoke(ASKED)),
        "async": lambda: asyncio.run(at_once()),
        "errors": lambda: fails(lambda: model(model="nobody").invoke(ASKED), "NotFoundError"),
    }


def pydantic_ai_tasks(url: str) -> dict[str, Task]:
    """Pydantic AI."""
    ai = import_module("pydantic_ai")
    provider = import_module("pydantic_ai.providers.openai").OpenAIProvider
    model_class = import_module("pydantic_ai.models.openai").OpenAIChatModel
    place = import_module("pydantic").create_model("Place", city=(Literal["Oslo", "Rome"], ...))

    def agent(name: str = MODEL, **fields: Any) -> Any:
        model = model_class(name, provider=provider(base_url=f"{url}/v1", api_key="none"))
        return ai.Agent(model, retries=0, **fields)

    async def stream() -> None:
        async with agent().run_stream(ASKED, model_settings=SHORT) as run:
            says("".join([text async for text in run.stream_text(delta=True)]))

    async def at_once() -> None:
        says((await agent().run(ASKED, model_settings=SHORT)).output)

    def tools() -> None:  # its structured output is a tool that has to be called
        settings = LONG | {"parallel_tool_calls": False}
        asked = agent(output_type=ai.ToolOutput(place)).run_sync(ASKED, model_settings=settings)
        names_a_city(asked.output.model_dump())

    def structure() -> None:
        asked = agent(output_type=ai.NativeOutput(place)).run_sync(ASKED, model_settings=LONG)
        names_a_city(asked.output.model_dump())

    return {
        "chat": lambda: says(agent().run_sync(ASKED, model_settings=SHORT).output),
        "stream": lambda: asyncio.run(stream()),
        "tools": tools,
        "structure": structure,
        "async": lambda: asyncio.run(at_once()),
        "errors": lambda: fails(lambda: agent("nobody").run_sync(ASKED), "ModelHTTPError"),
    }


def instructor_tasks(url: str) -> dict[str, Task]:
    """Instructor: objects of pydantic."""
    instructor, openai = import_module("instructor"), import_module("openai")
    place = import_module("pydantic").create_model("Place", city=(Literal["Oslo", "Rome"], ...))
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    messages: Any = [{"role": "user", "content": ASKED}]

    def ask(mode: str, model: str = MODEL) -> None:
        patched = instructor.from_openai(client, mode=getattr(instructor.Mode, mode))
        given = patched.chat.completions.create(
            model=model, response_model=place, messages=messages, max_retries=0, **LONG
        )
        names_a_city(given.model_dump())

    return {
        "tools": lambda: ask("TOOLS"),
        "structure": lambda: ask("JSON_SCHEMA"),
        "errors": lambda: fails(
            lambda: ask("TOOLS", "nobody"), "NotFoundError", "InstructorRetryException"
        ),
    }


def llama_index_tasks(url: str) -> dict[str, Task]:
    """LlamaIndex."""
    like = import_module("llama_index.llms.openai_like").OpenAILike
    message = import_module("llama_index.core.llms").ChatMessage(role="user", content=ASKED)
    function_tool = import_module("llama_index.core.tools").FunctionTool

    def model(name: str = MODEL, tokens: int = 16) -> Any:
        return like(
            model=name, api_base=f"{url}/v1", api_key="none", is_chat_model=True, max_retries=0,
            is_function_calling_model=True, context_window=8192, max_tokens=tokens, temperature=0,
        )  # fmt: skip

    def weather(city: Literal["Oslo", "Rome"]) -> str:
        """Tells the weather."""
        return city

    def tools() -> None:
        llm, tool = model(tokens=400), function_tool.from_defaults(weather)
        answer = llm.chat_with_tools([tool], user_msg=ASKED, tool_required=True)
        (call, *_) = llm.get_tool_calls_from_response(answer)
        calls_weather(call.tool_name, call.tool_kwargs)

    async def at_once() -> None:
        says((await model().achat([message])).message.content)

    return {
        "chat": lambda: says(model().chat([message]).message.content),
        "stream": lambda: says(
            "".join(part.delta or "" for part in model().stream_chat([message]))
        ),
        "tools": tools,
        "async": lambda: asyncio.run(at_once()),
        "errors": lambda: fails(lambda: model("nobody").chat([message]), "NotFoundError"),
    }


def llm_tasks(url: str) -> dict[str, Task]:
    """The command `llm`, whose models stand in a file."""
    folder = Path(tempfile.mkdtemp())
    (folder / "extra-openai-models.yaml").write_text(
        f"- model_id: home\n  model_name: {MODEL}\n  api_base: {url}/v1\n  supports_schema: true\n"
        f"- model_id: none\n  model_name: nobody\n  api_base: {url}/v1\n",
        encoding="utf-8",
    )
    environ = os.environ | {"LLM_USER_PATH": str(folder), "OPENAI_API_KEY": "none"}

    def run(*words: str, model: str = "home") -> str:
        command = [str(Path(sys.executable).parent / "llm"), "-m", model, *words, ASKED]
        asked = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
        assert asked.returncode == 0, asked.stderr
        return asked.stdout.strip()

    few = ("-o", "max_tokens", "16", "-o", "temperature", "0")

    def errors() -> None:
        assert "nobody" in str(fails(lambda: run(model="none"), "AssertionError"))

    schema = ("-o", "max_tokens", "400", "-o", "temperature", "0", "--schema", json.dumps(SCHEMA))
    return {
        "chat": lambda: says(run("--no-stream", *few)),
        "stream": lambda: says(run(*few)),
        "structure": lambda: names_a_city(json.loads(run("--no-stream", *schema))),
        "errors": errors,
    }


def aider_tasks(url: str) -> dict[str, Task]:
    """The command `aider`, in an empty folder."""
    folder = Path(tempfile.mkdtemp())
    environ = os.environ | {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "none"}
    quiet = ("--no-git", "--yes-always", "--no-check-update", "--analytics-disable", "--no-pretty")

    def run(*words: str) -> str:
        command = [str(Path(sys.executable).parent / "aider"), *quiet, "--no-show-model-warnings"]
        asked = subprocess.run(
            [*command, "--model", f"openai/{MODEL}", *words, "--message", "/ask " + ASKED],
            cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=True,
        )  # fmt: skip
        assert "Tokens:" in asked.stdout, asked.stdout[-300:]
        return asked.stdout

    return {"chat": lambda: says(run("--no-stream")), "stream": lambda: says(run())}


CLIENTS: Mapping[str, Callable[[str], dict[str, Task]]] = {
    "openai": openai_tasks,
    "anthropic": anthropic_tasks,
    "ollama": ollama_tasks,
    "litellm": litellm_tasks,
    "langchain-openai": langchain_tasks,
    "pydantic-ai-slim[openai]": pydantic_ai_tasks,
    "instructor": instructor_tasks,
    "llama-index-llms-openai-like": llama_index_tasks,
    "llm": llm_tasks,
    "aider-chat": aider_tasks,
}


def main() -> None:
    """Try each task, and print what became of it."""
    name, url = sys.argv[1:]
    results: dict[str, str] = {}
    for task, run in CLIENTS[name](url).items():
        try:
            run()
            results[task] = ""
        except Exception as error:  # noqa: BLE001 whatever it is, the next task is tried
            results[task] = f"{type(error).__name__}: {error}"
    print(json.dumps(results))


if __name__ == "__main__":
    main()
