"""The grammar of calls allows what a template would write, and nothing that is no call of the tools."""

from collections.abc import Mapping, Sequence

import pytest
from call_templates import HARMONY, SILENT, TEMPLATES, Rendering
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from potluck.model.answers.grammar import CallGrammar, Tool, optional_calls, required_calls

TOOLS = [
    Tool(
        name="write",
        schema={
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "count": {"type": "integer"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "flag": {"type": "boolean"},
            },
            "required": ["path"],
        },
    ),
    Tool(name="now", schema={"type": "object", "properties": {}}),
]
ARGUMENTS: Mapping[str, object] = {"path": "a.py", "count": 3, "tags": ["x"], "flag": True}
LIMITED = sorted(
    name
    for name, source in TEMPLATES.items()
    if Rendering(source).form.calls.kind not in ("python", "gemma")
)


class Bytes:
    """A vocabulary of bytes, special tokens and an end."""

    def __init__(self, special: Sequence[str]) -> None:
        self.tokens = (
            [bytes([i]) for i in range(256)] + [text.encode() for text in special] + [b"end"]
        )
        self.special_token_ids = list(range(256, len(self.tokens)))
        self.eos_token_id, self.bos_token_id = len(self.tokens) - 1, None
        self.special = {text: 256 + i for i, text in enumerate(special)}

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)

    def ids(self, text: str) -> list[int]:
        found: list[int] = []
        while text:
            name = next((name for name in self.special if text.startswith(name)), text[0])
            found += [self.special[name]] if name in self.special else list(name.encode())
            text = text[len(name) :]
        return found


def accepted(
    grammar: CallGrammar,
    raw: str,
    special: Sequence[str] = (),
    written: Sequence[str] | None = None,
) -> int:
    """How many tokens the grammar takes, up to where the answer may end; -1: it may not end.

    Args:
        grammar: of the answer.
        raw: the answer.
        special: the special tokens of the vocabulary.
        written: those that the answer is written with; None: all.
    """
    tokens = Bytes(special)
    tokenizer = LLTokenizer(TokenizerWrapper(tokens), eos_token=[tokens.eos_token_id])
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar.text), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    end = -1
    for count, token in enumerate(Bytes(special if written is None else written).ids(raw), 1):
        if matcher.try_consume_tokens([token]) != 1:
            break
        end = count if matcher.is_accepting() else end
    return end


@pytest.mark.parametrize("name", LIMITED)
@pytest.mark.parametrize("calls", [1, 2])
def test_calls_that_a_template_renders_are_allowed(name: str, calls: int) -> None:
    rendering = Rendering(TEMPLATES[name])
    made: list[tuple[str, Mapping[str, object]]] = [("write", ARGUMENTS), ("now", {})][:calls]
    if name == "the whole answer":
        made = made[:1]
    raw = rendering.answer(made).strip()
    marker = rendering.form.calls.marker

    required = required_calls(rendering.form, TOOLS, {}, is_reasoning=False)
    assert accepted(required, raw) == len(raw)
    optional = optional_calls(rendering.form, TOOLS, {})
    assert (optional is None) == (not marker)
    if optional is not None:
        assert optional.opens_with == marker
        rest = raw.removeprefix(marker)
        first = rendering.answer(made[:1]).strip().removeprefix(marker)
        whole = rest if rendering.form.calls.section_opens else first  # the next has a marker again
        assert accepted(optional, rest) == len(whole)


@pytest.mark.parametrize("name", LIMITED)
@pytest.mark.parametrize("calls", [[("other", {})], [("write", {"count": "three"})]], ids=str)
def test_another_tool_and_another_type_are_not_allowed(
    name: str, calls: Sequence[tuple[str, Mapping[str, object]]]
) -> None:
    rendering = Rendering(TEMPLATES[name])

    grammar = required_calls(rendering.form, TOOLS, {}, is_reasoning=False)

    assert accepted(grammar, rendering.answer(calls).strip()) == -1


def test_special_tokens_of_a_format_are_named_by_their_numbers() -> None:
    rendering = Rendering(TEMPLATES["section of names"])
    special = ["<|calls|>", "<|/calls|>", "<|call|>", "<|/call|>", "<|arg|>"]
    raw = rendering.answer([("write", ARGUMENTS)]).strip()
    grammar = required_calls(rendering.form, TOOLS, Bytes(special).special, is_reasoning=False)

    assert accepted(grammar, raw, special) == len(Bytes(special).ids(raw))
    assert accepted(grammar, raw, special, written=[]) == -1  # the same in ordinary tokens


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("python", "<|tool_call_start|>[write(path='a')]<|tool_call_end|>"),
        ("gemma", '<|tool_call>call:write{path:<|"|>a<|"|>}<tool_call|>'),
    ],
)
def test_of_other_formats_a_call_is_required_and_its_arguments_are_free(
    name: str, raw: str
) -> None:
    form = Rendering(TEMPLATES[name]).form
    special = ["<|tool_call_start|>", "<|tool_call_end|>", "<|tool_call>", "<tool_call|>", '<|"|>']
    tokens = Bytes(special)
    grammar = required_calls(form, TOOLS, tokens.special, is_reasoning=False)

    assert optional_calls(form, TOOLS, tokens.special) is None
    assert accepted(grammar, raw, special) >= len(tokens.ids(raw)) - 1
    assert accepted(grammar, raw.replace("write", "other"), special) == -1


def test_channels_may_hold_reasoning_before_a_required_call() -> None:
    special = ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"]
    tokens = Bytes(special)
    call = '<|channel|>commentary to=functions.now <|constrain|>json<|message|>{"a": 1}'
    raw = f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{call}"
    form = Rendering(HARMONY).form

    grammar = required_calls(form, TOOLS, tokens.special, is_reasoning=False)

    assert accepted(grammar, raw, special) == len(tokens.ids(raw))
    assert accepted(grammar, call, special) == len(tokens.ids(call))
    assert accepted(grammar, "<|channel|>final<|message|>No.", special) == -1


def test_reasoning_may_come_before_a_required_call() -> None:
    rendering = Rendering(TEMPLATES["object in tags"])
    call = rendering.answer([("now", {})])
    thoughts = "<think>\nHm.\n</think>\n\n"

    grammar = required_calls(rendering.form, TOOLS, {}, is_reasoning=False)

    assert accepted(grammar, thoughts + call) == len(thoughts + call)
    assert accepted(grammar, "Hm. " + call) == -1


def test_a_required_call_waits_for_the_end_of_reasoning_that_the_prompt_has_begun() -> None:
    rendering = Rendering(TEMPLATES["object in tags"])
    call = "\n\n" + rendering.answer([("now", {})])

    grammar = required_calls(rendering.form, TOOLS, {}, is_reasoning=True)

    assert grammar.opens_with == "</think>"
    assert accepted(grammar, call) == len(call)


def test_an_answer_may_be_a_call_or_follow_a_schema() -> None:
    rendering = Rendering(SILENT)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

    grammar = required_calls(rendering.form, TOOLS, {}, is_reasoning=False, answer=schema)

    assert accepted(grammar, '{"a": 1}') == 8
    assert accepted(grammar, '<tool_call>{"name": "now", "arguments": {}}</tool_call>') > 0
    assert accepted(grammar, "No.") == -1
