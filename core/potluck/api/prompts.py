"""What is asked of a node: a prompt, and how to answer it. All faces of the API turn their requests into these."""

from typing import Literal, TypeAlias

from msgspec import Struct


class ToolCall(Struct, frozen=True, kw_only=True):
    """A call of a tool in an earlier message of the assistant."""

    id: str
    name: str
    arguments: str  # JSON text


class GivenPicture(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A picture in a message.

    Attributes:
        data: the bytes of its file; empty as long as it has an address.
        at: before which character of the text it stands.
        address: where on the Internet it lies. `potluck.api.v1.addressed` puts its bytes in this place, or refuses it.
        field: of the client's request, for messages about the address.
    """

    data: bytes = b""
    at: int
    address: str = ""
    field: str = ""


class ChatTurn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a conversation.

    Attributes:
        role: system, user, assistant or tool; `developer` arrives as `system`.
        content: its text.
        reasoning: of the assistant, before the text.
        calls: of tools, by the assistant.
        call_id: the call whose result this message of a tool has.
        name: of the tool, where the client says it.
        pictures: in the order in which they stand in the text.
    """

    role: str
    content: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""
    pictures: tuple[GivenPicture, ...] = ()


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A tool of the client that the model may call."""

    name: str
    description: str = ""
    parameters: str = "{}"  # JSON schema of the arguments
    is_strict: bool = False


class ToolUse(Struct, frozen=True, kw_only=True):
    """Which tools the model may call, and whether it has to.

    Attributes:
        tools: all of them. A model gets their descriptions also where it may call none.
        choice: "auto": as it likes; "none": none; "required": at least one; "named": this one.
        name: of that one.
        is_parallel: whether it may call several at once.
    """

    tools: tuple[ToolSpec, ...]
    choice: Literal["auto", "none", "required", "named"] = "auto"
    name: str = ""
    is_parallel: bool = True


class ChatPrompt(Struct, frozen=True, tag=True, omit_defaults=True):
    """Messages to format with the model's own chat template.

    Attributes:
        turns: the messages.
        tool_use: the tools that are offered; None: none.
        variables: a JSON object of other values that the template may read, such as `enable_thinking`.
        continues: whether the answer continues the last message, which is the assistant's.
    """

    turns: tuple[ChatTurn, ...]
    tool_use: ToolUse | None = None
    variables: str = "{}"
    continues: bool = False


class TextPrompt(Struct, frozen=True, tag=True):
    """Text that is used unchanged, without a template."""

    text: str
    special: bool = True  # whether the model's tokens for the beginning of a text are added
    suffix: str = ""  # what comes after the answer, for models that can fill in


class TokenPrompt(Struct, frozen=True, tag=True):
    """Token ids that are used unchanged, not yet checked against the model's vocabulary."""

    token_ids: tuple[int, ...]


Prompt: TypeAlias = ChatPrompt | TextPrompt | TokenPrompt


class SamplingOptions(Struct, frozen=True, kw_only=True):
    """How tokens are sampled. A field that is None follows the model's `generation_config.json`.

    Where that file says nothing, OpenAI's default applies (temperature 1).
    """

    temperature: float | None = None  # 0: greedy
    top_p: float | None = None
    top_k: int | None = None  # 0: all
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0  # subtracted from the logit of each token that the answer has
    frequency_penalty: float = 0.0  # the same, as often as the answer has it
    logit_bias: tuple[tuple[int, float], ...] = ()  # token ids, and what is added to their logits
    seed: int | None = None  # 0 <= seed < 2**63; None: a random one
    logprobs: int | None = None  # None: none; n: of the chosen token and of the n best tokens


class Constraint(Struct, frozen=True, kw_only=True):
    """What the text of an answer has to be.

    Attributes:
        kind: what `text` is: a JSON schema (in a loose one, keywords that are not supported are ignored), a regular
            expression, a grammar in `llguidance`'s Lark or llama.cpp's GBNF, or a JSON list of the possible texts.
        opens_with: a text or special token. Until the answer has it, anything may come; then what the constraint
            allows. Empty: the whole answer has to follow it.
        is_optional: if it cannot be followed, the answer may be anything.
        repeats: when it is complete, anything may come again, until the answer has `opens_with` again.
        field: of the client's request, for messages.
    """

    kind: Literal["json_schema", "loose_json_schema", "regex", "lark", "choice"]
    text: str
    opens_with: str = ""
    repeats: bool = True
    is_optional: bool = False
    field: str = "response_format"


class GenerationRequest(Struct, frozen=True, kw_only=True):
    """One prompt, and how to answer it."""

    prompt: Prompt
    id: str = ""  # of the request; the same request with the same id has the same answer
    model: str | None = None  # its name, as in `served_models`; None: the loaded model
    sampling: SamplingOptions = SamplingOptions()
    max_tokens: int | None = None  # None: all that the context has left
    stop: tuple[str, ...] = ()  # the answer ends before the first of these
    constraint: Constraint | None = None
    ignore_eos: bool = False
    echo: bool = (
        False  # the prompt comes with `Started`, with its log-probabilities if they are asked for
    )
    embeds: bool = False  # the embedding of the prompt comes with `Started`
    known: tuple[int, ...] = ()  # the first tokens of the answer: it goes on after them


class TokensRequest(Struct, frozen=True, kw_only=True):
    """Asks for the tokens of a prompt; of one of token ids, for its text."""

    prompt: Prompt
    model: str | None = None  # as in `GenerationRequest`
