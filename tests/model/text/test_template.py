from datetime import UTC, datetime

import pytest

from potluck.errors import BrokenModelError, PromptError
from potluck.model.text.template import ChatTemplate

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def render(source: str, **variables: object) -> str:
    return ChatTemplate(source, lambda: NOON).render(variables)


def test_blocks_swallow_their_line_ends() -> None:
    assert render("{% if true %}\n  a\n  {% endif %}\nb\n") == "  a\nb"


def test_a_template_can_refuse() -> None:
    with pytest.raises(PromptError, match="accept this conversation: roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_the_date_comes_from_the_clock_that_was_given() -> None:
    assert render("{{ strftime_now('%d %b %Y') }}") == "21 Nov 2026"


def test_json_keeps_letters_and_quotes() -> None:
    tools = [{"name": "größe", "text": "<a> & 'b'"}]

    assert render("{{ tools[0] | tojson }}", tools=tools) == (
        '{"name": "größe", "text": "<a> & \'b\'"}'
    )
    assert render("{{ tools | tojson(indent=1) }}", tools=[1]) == "[\n 1\n]"


def test_loops_have_break_and_continue() -> None:
    source = "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}"

    assert render(source) == "023"


def test_loop_conditions_and_recursion_still_work() -> None:
    assert render("{% for i in range(6) if i is odd %}{{ loop.index }}{% endfor %}") == "123"
    assert render("{% for i in [] %}{% else %}none{% endfor %}") == "none"
    source = "{% for x in xs recursive %}{{ x.n }}{{ loop(x.xs) }}{% endfor %}"
    assert render(source, xs=[{"n": 1, "xs": [{"n": 2, "xs": []}]}]) == "12"


def test_the_generation_tag_leaves_its_content() -> None:
    assert render("{% generation %}\nanswer{% endgeneration %}!") == "answer!"


def test_namespaces_macros_and_joining_work() -> None:
    source = (
        "{% set ns = namespace(n=1) %}{% macro twice(x) %}{{ x ~ x ~ 1 }}{% endmacro %}"
        "{% set ns.n = ns.n + 1 %}{{ twice('a') }}{{ ns.n }}{{ 'b' * 3 }}{{ 2 ** 3 }}{{ [1] + [2] }}"
    )

    assert render(source) == "aa12bbb8[1, 2]"


def test_a_broken_template_is_a_broken_model() -> None:
    with pytest.raises(BrokenModelError, match="chat template is broken"):
        ChatTemplate("{% for %}", lambda: NOON)


def test_a_template_of_megabytes_is_refused() -> None:
    with pytest.raises(BrokenModelError, match="too long"):
        ChatTemplate("x" * (1 << 21), lambda: NOON)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ dict.__base__.__subclasses__() }}",
        "{{ dict.mro() }}",
        "{% set ns = namespace() %}{% set ns.__call__ = 1 %}",
        "{{ namespace(__call__=1) }}",
        "{% include 'other' %}",
        "{% import '/etc/passwd' as x %}",
        "{{ messages | attr('__class__') }}",
        "{{ 1 / 0 }}",
        "{{ messages + 1 }}",
        "{{ undefined.field }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_what_a_template_may_not_do_is_an_error_or_shows_nothing(source: str) -> None:
    try:
        text = render(source, messages=[{"role": "user"}])
    except PromptError:
        text = ""

    assert text == ""
