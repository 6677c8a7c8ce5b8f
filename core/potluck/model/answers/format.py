"""The format of a model's answers, as values: which texts stand around reasoning, calls and arguments."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct, structs

ANY = "\0"  # in a text of a format: any characters, such as the number of a call
KEY = "\1"  # the name of an argument
GEMMA_QUOTE = '<|"|>'
HARMONY = "<|start|> <|channel|> <|message|> <|constrain|> <|end|> <|call|> <|return|>"

CallKind: TypeAlias = Literal["json", "named", "tagged", "python", "gemma", "harmony"]


class Reasoning(Struct, frozen=True, kw_only=True):
    """The texts around the reasoning, and the field in which the template reads that of earlier turns."""

    opens: str
    closes: str
    field: str | None = None


class CallFormat(Struct, frozen=True, kw_only=True):
    """How calls are written.

    Attributes:
        kind: of a call:
            json      {"name": "add", "arguments": {"a": 1}}
            named     add{"a": 1}
            tagged    <function=add><parameter=a>1</parameter></function>
            python    [add(a=1)]
            gemma     add{a:1}
            harmony   <|channel|>commentary to=functions.add<|message|>{"a": 1}
        section_opens, section_closes: around all calls of an answer.
        is_list: the calls of a section are a JSON array.
        opens, closes: around each call; of `named` and `tagged`, the name comes after `opens`.
        name_key, arguments_key: of the object of a call. No `name_key`: {"add": {"a": 1}}.
        wrapper_key: of the object inside a call that has these keys.
        id_key: a key that a call has as well.
        id_is_first: whether it comes before the name.
        after_name: `named`: before the arguments; `tagged`: before the first argument.
        argument_opens, argument_equals, argument_closes: around the name and the value of an argument.
        string_mark: what stands for `ANY` in `argument_equals` when the value is a string.
    """

    kind: CallKind
    section_opens: str = ""
    section_closes: str = ""
    is_list: bool = False
    opens: str = ""
    closes: str = ""
    name_key: str = "name"
    arguments_key: str = "arguments"
    wrapper_key: str = ""
    id_key: str = ""
    id_is_first: bool = False
    after_name: str = ""
    argument_opens: str = ""
    argument_equals: str = ""
    argument_closes: str = ""
    string_mark: str = ""

    @property
    def marker(self) -> str:
        """The text by which a call is noticed; empty: a call is the whole answer."""
        return (self.section_opens or self.opens).split(ANY)[0].strip()


class History(Struct, frozen=True, kw_only=True):
    """How the template wants the calls of earlier turns.

    Attributes:
        content: of a message that only calls; None: null; ABSENT: no such field.
        arguments_as_text: as JSON text instead of an object.
        id_length: the only length of an id that the template accepts; 0: any.
        has_one_text: a message that calls may have a text or reasoning, but not both.
    """

    content: str | None = ""
    arguments_as_text: bool = False
    id_length: int = 0
    has_one_text: bool = False


ABSENT = "\0absent"


class AnswerFormat(Struct, frozen=True, kw_only=True):
    """How one model writes answers.

    Attributes:
        calls: how it writes calls.
        offers_tools: the template tells the model of tools; otherwise a message has to.
        shows_calls: the template writes earlier calls; otherwise they have to be content.
        history: how the template wants earlier calls, if it shows them.
        reasoning: how it writes its reasoning; None: it has none that is known.
        content_opens, content_closes: texts around the answer proper.
    """

    calls: CallFormat
    offers_tools: bool = False
    shows_calls: bool = False
    history: History = History()
    reasoning: Reasoning | None = None
    content_opens: str = ""
    content_closes: str = ""

    @property
    def splits_text(self) -> bool:
        """Whether an answer without tools has more than text in it as well."""
        return (
            self.reasoning is not None or bool(self.content_opens) or self.calls.kind == "harmony"
        )

    @property
    def literals(self) -> str:
        """All texts of the format, one after the other."""
        if self.calls.kind == "harmony":
            return HARMONY
        texts = [text for text in structs.astuple(self.calls) if isinstance(text, str)]
        if self.reasoning is not None:
            texts += [self.reasoning.opens, self.reasoning.closes]
        return ANY.join([*texts, self.content_opens, self.content_closes, GEMMA_QUOTE])


PLAIN_CALLS = CallFormat(kind="json", opens="<tool_call>", closes="</tool_call>")
"""For models whose template knows no tools. Many models have seen it."""

Schemas: TypeAlias = Mapping[str, Mapping[str, object]]
"""The JSON schema of the arguments of each tool, by its name."""
