"""What an answer with tools has to follow: the grammar of calls, from the tools and the model's format."""

from collections.abc import Mapping

from potluck.api.prompts import ChatPrompt, Constraint, GenerationRequest, ToolUse
from potluck.cluster.driver.model_text import EncodedPrompt, ModelText, object_of
from potluck.errors import PromptError
from potluck.model.answers.format import Schemas
from potluck.model.answers.grammar import CallGrammar, Tool, optional_calls, required_calls

_FIELD = "tools"


def offered_tools(request: GenerationRequest) -> ToolUse | None:
    """The tools that the model may call; None: none."""
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt) or prompt.tool_use is None:
        return None
    return None if prompt.tool_use.choice == "none" else prompt.tool_use


def schemas_of(use: ToolUse) -> Schemas:
    """The schemas of the tools' arguments.

    Raises:
        PromptError: one is no JSON object.
    """
    return {
        tool.name: object_of(tool.parameters, f"tools: the parameters of {tool.name}")
        for tool in use.tools
    }


def answer_constraint(
    text: ModelText, request: GenerationRequest, encoded: EncodedPrompt
) -> Constraint | None:
    """What the tokens of an answer have to follow, from what the client wants and from its tools.

    Raises:
        PromptError: the tool to call is not among the tools, or the two do not go together.
    """
    use, wanted = offered_tools(request), request.constraint
    reasoning = text.answers.reasoning
    if use is None:
        if wanted is None or wanted.opens_with or not encoded.is_reasoning or reasoning is None:
            return wanted
        return _after(wanted, reasoning.closes)
    schemas = schemas_of(use)
    if use.choice == "named" and use.name not in schemas:
        raise PromptError(f"tool_choice: there is no tool {use.name!r} among the tools.")
    tools = [
        Tool(name=tool.name, schema=schemas[tool.name], is_strict=tool.is_strict)
        for tool in use.tools
        if use.choice != "named" or tool.name == use.name
    ]
    special = special_tokens(text)
    if use.choice == "auto" and wanted is None:
        grammar = optional_calls(text.answers, tools, special)
        return None if grammar is None else _constraint(grammar, is_optional=True)
    answer = None
    if use.choice == "auto" and wanted is not None:
        if wanted.kind not in ("json_schema", "loose_json_schema"):
            raise PromptError(
                f"{wanted.field}: with tools, an answer can follow a JSON schema and nothing else."
            )
        answer = object_of(wanted.text, wanted.field)
    grammar = required_calls(
        text.answers, tools, special, is_reasoning=encoded.is_reasoning, answer=answer
    )
    return _constraint(grammar)


def special_tokens(text: ModelText) -> Mapping[str, int]:
    """The special tokens that the format of the model's answers has, by their texts."""
    literals = text.answers.literals
    vocabulary = text.vocabulary
    named = ((vocabulary.tokens.get(token_id, ""), token_id) for token_id in vocabulary.special)
    return {name: token_id for name, token_id in named if name and name in literals}


def _constraint(grammar: CallGrammar, *, is_optional: bool = False) -> Constraint:
    return Constraint(
        kind="lark",
        text=grammar.text,
        opens_with=grammar.opens_with,
        repeats=is_optional,
        is_optional=is_optional,
        field=_FIELD,
    )


def _after(constraint: Constraint, closes: str) -> Constraint:
    """The same after the reasoning, which may be anything."""
    return Constraint(
        kind=constraint.kind,
        text=constraint.text,
        opens_with=closes,
        repeats=False,
        field=constraint.field,
    )
