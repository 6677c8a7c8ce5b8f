"""Chat templates that write calls in the ways of the published ones, each as short as can be.

Each begins an answer with `A:` and ends it with `<end>`. Most offer the tools in the first line.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from potluck.model.answers.derive import derive_format
from potluck.model.answers.format import AnswerFormat
from potluck.model.text.template import ChatTemplate

_OFFER = "{% if tools %}T:{{ tools | tojson }}\n{% endif %}"
_MESSAGES = _OFFER + "{% for m in messages %}{% if m.role == 'assistant' %}A:"
_THOUGHTS = (
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
)
_REST = (
    "<end>{% else %}{{ m.role }}:{{ m.content }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}A:{% endif %}"
)


def _template(calls: str, *, content: str = "{{ m.content or '' }}", thoughts: str = "") -> str:
    return f"{_MESSAGES}{thoughts}{content}{calls}{_REST}"


def _each(call: str, *, first: str = "", between: str = "", last: str = "") -> str:
    separator = f"{{% if not loop.last %}}{between}{{% endif %}}"
    return (
        f"{{% if m.tool_calls %}}{first}{{% for c in m.tool_calls %}}{{% set f = c.function %}}"
        f"{call}{separator}{{% endfor %}}{last}{{% endif %}}"
    )


_ARGUMENTS = "{{ f.arguments | tojson }}"
_OBJECT = f'{{"name": "{{{{ f.name }}}}", "arguments": {_ARGUMENTS}}}'


def _tagged(opens: str, equals: str, closes: str, value: str = "") -> str:
    value = value or "{{ v if v is string else v | tojson }}"
    return f"{{% for k, v in f.arguments | items %}}{opens}{{{{ k }}}}{equals}{value}{closes}{{% endfor %}}"


TEMPLATES: Mapping[str, str] = {
    "object in tags": _template(
        _each(f"<tool_call>\n{_OBJECT}\n</tool_call>", between="\n"), thoughts=_THOUGHTS
    ),
    "list in tags": _template(_each(_OBJECT, first="<calls>[", between=", ", last="]</calls>")),
    "list after a mark": _template(
        _each(
            '{"name": "{{ f.name }}", "arguments": ' + _ARGUMENTS + ', "id": "{{ c.id }}"}',
            first="[TOOL_CALLS][",
            between=", ",
            last="]",
        )
    ),
    "numbered objects": _template(
        _each(
            '\n    {"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ f.name }}", "parameters": '
            + _ARGUMENTS
            + "}",
            first="<|START_ACTION|>[",
            between=",",
            last="\n]<|END_ACTION|>",
        ),
        content="{% if m.content %}<|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|>{% endif %}",
    ),
    "lines": _template(_each(_OBJECT, first="<calls>\n", between="\n", last="\n</calls>")),
    "name as key": _template(
        _each('{"{{ f.name }}": ' + _ARGUMENTS + "}", first="<|p|>[", between=", ", last="]<|s|>")
    ),
    "the whole answer": _template(
        "{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}"
        + _each('{"name": "{{ f.name }}", "parameters": ' + _ARGUMENTS + "}")
    ),
    "name and arguments": _template(
        "{% if m.tool_calls and m.tool_calls[0].id | length != 9 %}{{ raise_exception('9') }}{% endif %}"
        + _each("[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ c.id }}[ARGS]" + _ARGUMENTS)
    ),
    "section of names": _template(
        _each(
            "<|call|>functions.{{ f.name }}:{{ loop.index0 }}<|arg|>" + _ARGUMENTS + "<|/call|>",
            first="<|calls|>",
            last="<|/calls|>",
        )
    ),
    "fenced": _template(
        _each(
            "<b>function<s>{{ f.name }}\n```json\n" + _ARGUMENTS + "\n```<e>",
            first="<bs>",
            between="\n",
            last="<es>",
        )
    ).removeprefix(_OFFER),
    "parameters": _template(
        _each(
            "<tool_call>\n<function={{ f.name }}>\n"
            + _tagged("<parameter=", ">\n", "\n</parameter>\n")
            + "</function>\n</tool_call>",
            between="\n",
        ),
        thoughts="{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n{% endif %}",
    ),
    "keys and values": _template(
        _each(
            "<tool_call>{{ f.name }}\n"
            + _tagged("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n")
            + "</tool_call>",
            between="\n",
        )
    ),
    "invocations": _template(
        _each(
            '<invoke name="{{ f.name }}">\n'
            + _tagged('<parameter name="', '">', "</parameter>\n")
            + "</invoke>\n",
            first="\n<m:tool_call>\n",
            last="</m:tool_call>",
        )
    ),
    "typed": _template(
        _each(
            '<x:invoke name="{{ f.name }}">\n'
            + _tagged(
                '<x:parameter name="',
                "\" string=\"{{ 'true' if v is string else 'false' }}\">",
                "</x:parameter>\n",
            )
            + "</x:invoke>\n",
            first="\n\n<x:calls>\n",
            last="</x:calls>",
        )
    ),
    "key in both tags": _template(
        _each(
            '<invoke name="{{ f.name }}">'
            + "{% for k, v in f.arguments | items %}<{{ k }}>{{ v if v is string else v | tojson }}"
            "</{{ k }}>{% endfor %}</invoke>",
            first="<calls>",
            last="</calls>",
        )
    ),
    "python": _template(
        _each(
            "{{ f.name }}({% for k, v in f.arguments | items %}{{ k }}={{ v | tojson if v is not string"
            ' else "\'" ~ v ~ "\'" }}{% if not loop.last %}, {% endif %}{% endfor %})',
            first="<|tool_call_start|>[",
            between=", ",
            last="]<|tool_call_end|>",
        )
    ),
    "gemma": _template(
        _each(
            "<|tool_call>call:{{ f.name }}{{ '{' }}"
            "{% for k, v in f.arguments | items %}{{ k }}:"
            '{% if v is string %}<|"|>{{ v }}<|"|>{% elif v is sequence %}['
            '{% for i in v %}<|"|>{{ i }}<|"|>{% if not loop.last %},{% endif %}{% endfor %}]'
            "{% else %}{{ v | tojson }}{% endif %}{% if not loop.last %},{% endif %}{% endfor %}"
            "}<tool_call|>"
        )
    ),
}
"""The templates that show calls, by what is special about each."""

SILENT = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}A:"
"""A template that knows neither tools nor calls."""

HARMONY = (
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort | default('medium') }}<|end|>"
    + _OFFER
    + "{% set last = namespace(name=none) %}{% for m in messages %}"
    "{% if m.role == 'assistant' and 'tool_calls' in m %}"
    "{% if m.content and m.thinking %}{{ raise_exception('one of both') }}{% endif %}"
    "{% if m.content or m.thinking %}<|start|>assistant<|channel|>analysis<|message|>"
    "{{ m.content or m.thinking }}<|end|>{% endif %}"
    "{% set last.name = m.tool_calls[0].function.name %}"
    "<|start|>assistant to=functions.{{ last.name }}<|channel|>commentary json<|message|>"
    "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% elif m.role == 'tool' %}<|start|>functions.{{ last.name }} to=assistant<|channel|>commentary"
    "<|message|>{{ m.content | tojson }}<|end|>"
    "{% elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
"""A template of the kind of gpt-oss."""


class Rendering:
    """One template, and the format that is derived from it."""

    def __init__(self, source: str) -> None:
        self.template = ChatTemplate(source, lambda: datetime(2026, 1, 2, tzinfo=UTC))
        self.form: AnswerFormat = derive_format(self.render, source)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] | None,
        is_prompt: bool,
    ) -> str:
        return self.template.render(
            {"messages": messages, "tools": tools, "add_generation_prompt": is_prompt}
        )

    def answer(self, calls: Sequence[tuple[str, Mapping[str, object]]], **fields: object) -> str:
        """What the template writes for a message of the assistant with these calls."""
        history = self.form.history
        message: dict[str, object] = {
            "role": "assistant",
            "content": history.content,
            "tool_calls": [
                {
                    "id": f"abcdefgh{number}",
                    "type": "function",
                    "function": {
                        "name": name,
                        "arguments": json.dumps(given) if history.arguments_as_text else given,
                    },
                }
                for number, (name, given) in enumerate(calls)
            ],
        } | fields
        text = self.render([message], None, False)
        return text.removeprefix("A:").removesuffix("<end>")
