"""Answers that reason and call tools: what a client gets of the tokens, and what the tokens have to follow."""

import json
from pathlib import Path
from typing import Any

import pytest
from byte_writer import EOS, Desk, Follower, Here, Reciter, chat_format, events_of, ids, text_of
from call_templates import HARMONY, TEMPLATES
from chain_answers import attached
from fake_chain import FakeChain
from fake_cluster import run

from potluck.api.events import CallPiece, Finished, Piece
from potluck.api.prompts import (
    ChatPrompt,
    ChatTurn,
    Constraint,
    GenerationRequest,
    ToolCall,
    ToolSpec,
    ToolUse,
)
from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.loaded_model import LoadedModel
from potluck.errors import GrammarError, PromptError
from potluck.model.defaults import GenerationDefaults
from potluck.model.text.chat import ChatFormat

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 99}},
    "required": ["a"],
}
ADD = ToolSpec(name="add", parameters=json.dumps(SCHEMA))
NOW = ToolSpec(name="now")
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
QUESTION = ChatTurn(role="user", content="Q")


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    template = TEMPLATES["object in tags"].replace(
        "{{ tools | tojson }}", "{{ tools[0].function.name }}"
    )
    return chat_format(tmp_path_factory.mktemp("tools"), chat_template=template)


def request(
    *tools: ToolSpec, constraint: Constraint | None = None, **use: Any
) -> GenerationRequest:
    prompt = ChatPrompt(turns=(QUESTION,), tool_use=ToolUse(tools=tools, **use) if tools else None)
    return GenerationRequest(prompt=prompt, id="one", constraint=constraint, max_tokens=300)


def calls_of(events: list[Any]) -> list[CallPiece]:
    """The calls of an answer, each as one piece."""
    found: dict[int, CallPiece] = {}
    for call in (call for event in events if isinstance(event, Piece) for call in event.calls):
        before = found.get(call.index, CallPiece(index=call.index))
        found[call.index] = CallPiece(
            index=call.index,
            id=before.id or call.id,
            name=before.name or call.name,
            arguments=before.arguments + call.arguments,
        )
    return list(found.values())


def answered(chat: ChatFormat, raw: str, asked: GenerationRequest) -> list[Any]:
    """The events of an answer that the model writes so."""
    found: list[Any] = []

    async def scenario(loaded: LoadedModel) -> None:
        found.extend(await events_of(loaded, asked))

    Desk(chat, [*ids(raw), EOS]).run(scenario, context=512)
    return found


def followed(
    chat: ChatFormat, asked: GenerationRequest, chain: FakeChain | None = None
) -> list[Any]:
    """The events of an answer of a model that writes at random what it may, or of another chain."""
    found: list[Any] = []

    async def main() -> None:
        generator = Generator()
        async with attached(generator, chain or Follower(), context=512, room=512):
            model = LoadedModel(
                text=Here(chat),
                defaults=GenerationDefaults(),
                generator=generator,
                stage_names=("Desk",),
                vocab_size=258,
            )
            found.extend(await events_of(model, asked))

    run(main())
    return found


def test_reasoning_text_and_calls_come_apart(chat: ChatFormat) -> None:
    events = answered(chat, f"<think>\nHm.\n</think>\n\nLet me see.\n{CALL}", request(ADD))

    assert text_of(events) == "Let me see."
    assert "".join(event.reasoning for event in events[1:-1]) == "Hm."
    (call,) = calls_of(events)
    assert (call.name, call.arguments, len(call.id)) == ("add", '{"a": 1}', 9)
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "tool_calls"


def test_channels_come_apart_as_they_stream(tmp_path: Path) -> None:
    channels = chat_format(tmp_path, chat_template=HARMONY)
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    header = "<|channel|>commentary to=functions.add <|constrain|>json<|message|>"

    called = answered(channels, f'{thought}{header}{{"a": 1}}<|call|>', request(ADD))
    said = answered(channels, f"{thought}<|channel|>final<|message|>Two.<|return|>", request(ADD))

    (call,) = calls_of(called)
    assert (call.name, call.arguments) == ("add", '{"a": 1}')
    assert (called[-1].reason, text_of(called)) == ("tool_calls", "")
    assert (said[-1].reason, text_of(said)) == ("stop", "Two.")
    for events in (called, said):
        assert "".join(e.reasoning for e in events if isinstance(e, Piece)) == "Hm."


def test_the_prompt_has_the_tools_and_earlier_calls(chat: ChatFormat) -> None:
    turns = (
        QUESTION,
        ChatTurn(
            role="assistant",
            content="",
            calls=(ToolCall(id="1", name="add", arguments='{"a": 1}'),),
        ),
        ChatTurn(role="tool", content="2", call_id="1"),
    )
    prompt = ChatPrompt(turns=turns, tool_use=ToolUse(tools=(ADD,)))

    events = answered(chat, "2", GenerationRequest(prompt=prompt, max_tokens=5))

    written = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    assert list(events[0].prompt_token_ids) == ids(f"T:add\nuser:Q\nA:{written}<end>tool:2\nA:")


def test_tools_that_may_not_be_called_are_not_offered_and_calls_are_text(chat: ChatFormat) -> None:
    events = answered(chat, CALL, request(ADD, choice="none"))

    assert list(events[0].prompt_token_ids) == ids("user:Q\nA:")
    assert text_of(events) == CALL
    assert events[-1].reason == "stop"


def test_an_answer_that_goes_on_elsewhere_has_the_same_calls(chat: ChatFormat) -> None:
    raw = f"{CALL}\n{CALL.replace('1', '2')}"
    prompt = ids("T:add\nuser:Q\nA:")
    asked = request(ADD)
    whole = followed(chat, asked, Reciter(prompt + ids(raw)))
    pieces = [event for event in whole if isinstance(event, Piece)]
    assert [call.arguments for call in calls_of(whole)] == ['{"a": 1}', '{"a": 2}']
    for known in range(0, len(raw), 9):
        rest = GenerationRequest(
            prompt=asked.prompt, id="one", max_tokens=300, known=tuple(ids(raw[:known]))
        )

        found = followed(chat, rest, Reciter(prompt + ids(raw)))

        assert calls_of([*pieces[:known], *found]) == calls_of(whole), known


def test_an_answer_ends_with_its_first_call_where_only_one_is_wanted(chat: ChatFormat) -> None:
    events = answered(chat, f"{CALL}\n{CALL}", request(ADD, is_parallel=False))

    assert [call.arguments for call in calls_of(events)] == ['{"a": 1}']
    assert events[-1].reason == "tool_calls"


@pytest.mark.parametrize(
    "use", [{"choice": "required"}, {"choice": "named", "name": "now"}], ids=str
)
def test_an_answer_that_has_to_call_does(chat: ChatFormat, use: dict[str, Any]) -> None:
    events = followed(chat, request(ADD, NOW, **use))

    calls = calls_of(events)
    assert calls
    assert {call.name for call in calls[:-1]} <= {"add", "now"}
    assert calls[0].name == "now" or "name" not in use


def test_calls_follow_the_schemas_of_their_tools(chat: ChatFormat) -> None:
    """From the marker on: before it, the model writes what it likes."""
    events = answered(chat, CALL.replace("1", '"one"'), request(ADD))

    assert isinstance(
        events[-1], Finished
    )  # the writer of this test takes no notice of what is allowed

    async def scenario(loaded: LoadedModel) -> None:
        text = loaded.text
        assert isinstance(text, Here)
        await events_of(loaded, request(ADD))
        (grammar,) = text.opened
        assert grammar.allowed is None
        await grammar.push(ids(f"Well. {CALL[: CALL.index('1')]}"))
        assert isinstance(grammar.allowed, bytes)
        assert not any(grammar.allowed[token // 8] >> token % 8 & 1 for token in ids('"{x'))
        assert all(grammar.allowed[token // 8] >> token % 8 & 1 for token in ids("0123456789"))
        await grammar.push(ids("1}}</tool_call>"))
        assert grammar.allowed is None

    Desk(chat, [*ids("Hi"), EOS]).run(scenario)


def test_a_schema_that_is_not_understood_leaves_calls_free(chat: ChatFormat) -> None:
    odd = ToolSpec(
        name="odd", parameters='{"type": "object", "properties": {"a": {"pattern": "("}}}'
    )

    assert text_of(answered(chat, "Hi", request(odd))) == "Hi"
    with pytest.raises(GrammarError, match="tools"):
        answered(chat, "Hi", request(odd, choice="required"))


def test_an_answer_with_tools_may_have_to_follow_a_schema_where_it_calls_none(
    chat: ChatFormat,
) -> None:
    schema = Constraint(kind="json_schema", text=json.dumps(SCHEMA))

    events = followed(chat, request(ADD, constraint=schema))

    assert calls_of(events) or json.loads(text_of(events))["a"] < 100


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        (request(ADD, choice="named", name="other"), "tool_choice"),
        (request(ToolSpec(name="x", parameters="[]")), "the parameters of x"),
        (request(ADD, constraint=Constraint(kind="regex", text="a")), "response_format"),
        (GenerationRequest(prompt=ChatPrompt(turns=(QUESTION,), variables="1")), "template_kwargs"),
    ],
)
def test_what_does_not_go_together_is_refused(
    chat: ChatFormat, asked: GenerationRequest, what: str
) -> None:
    with pytest.raises(PromptError, match=what):
        answered(chat, "Hi", asked)


def test_a_constraint_waits_for_the_end_of_reasoning_that_the_template_has_begun(
    tmp_path: Path,
) -> None:
    template = TEMPLATES["object in tags"].replace("%}A:{% endif %}", "%}A:<think>\n{% endif %}")
    chat = chat_format(tmp_path, chat_template=template)
    schema = Constraint(kind="json_schema", text=json.dumps(SCHEMA))

    events = answered(chat, 'Hm.\n</think>\n{"a": 1}', request(constraint=schema))

    assert text_of(events) == '{"a": 1}'
    assert "".join(event.reasoning for event in events[1:-1]) == "Hm."


def test_variables_of_the_client_reach_the_template(tmp_path: Path) -> None:
    chat = chat_format(tmp_path, chat_template="{{ messages[0].content }}{{ enable_thinking }}")
    prompt = ChatPrompt(turns=(QUESTION,), variables='{"enable_thinking": false}')

    events = answered(chat, "x", GenerationRequest(prompt=prompt, max_tokens=2))

    assert list(events[0].prompt_token_ids) == ids("QFalse")


def test_an_answer_continues_the_message_of_the_assistant(chat: ChatFormat) -> None:
    turns = (QUESTION, ChatTurn(role="assistant", content="One, "))

    events = answered(
        chat, "two", GenerationRequest(prompt=ChatPrompt(turns=turns, continues=True), max_tokens=9)
    )

    assert list(events[0].prompt_token_ids) == ids("user:Q\nA:One, ")
    assert text_of(events) == "two"
