from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from potluck.errors import PromptError
from potluck.model.text.chat import ChatFormat, local_now

Write = Callable[..., Path]
Chat = Sequence[Mapping[str, object]]

CHATML = """
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
"""

LLAMA3 = """
{{- bos_token }}
{%- for m in messages %}
    {{- '<|start_header_id|>' ~ m['role'] ~ '<|end_header_id|>\n\n' }}
    {{- m['content'] | trim }}{{ '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

QWEN = """
{%- set ns = namespace(last=messages | length - 1) %}
{%- if tools %}
    {{- '<|im_start|>system\n# Tools\n' }}
    {%- for tool in tools %}{{ tool | tojson }}{{ '\n' }}{% endfor %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for m in messages %}
    {%- set content = m.content if m.content is string else '' %}
    {%- if m.role == 'assistant' and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- '<|im_start|>' + m.role + '\n' + content }}
    {%- for call in m.tool_calls or [] %}{{ '\n' ~ call.function | tojson }}{% endfor %}
    {{- '<|im_end|>\n' if loop.index0 <= ns.last }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n' }}{% endif %}
{%- endif %}
"""

MISTRAL = """
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}{% set rest = messages[1:] %}
{%- else %}{% set rest = messages %}{% endif %}
{%- for m in rest %}
    {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate user and assistant.') }}
    {%- endif %}
    {%- if m['role'] == 'user' %}
        {{- '[INST] ' + (system + '\n\n' if system is defined and loop.first else '') + m['content'] + ' [/INST]' }}
    {%- else %}{{ ' ' + m['content'] + eos_token }}{% endif %}
{%- endfor %}
"""

TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "qwen": QWEN, "mistral": MISTRAL}

HELLO: Chat = [{"role": "user", "content": "Hello there"}]
LONG: Chat = [
    {"role": "system", "content": "Be kind.  "},
    {"role": "user", "content": " Grüße 🙂\n"},
    {"role": "assistant", "content": "<think>hm</think>\nça va?"},
    {"role": "user", "content": "你好"},
]


def reference(folder: Path, chat: Chat, **options: object) -> list[int]:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    options = {"add_generation_prompt": True, **options}
    return tokenizer.apply_chat_template(list(chat), return_dict=False, **options)


@pytest.mark.parametrize("chat", [HELLO, LONG], ids=["hello", "long"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_chat_is_encoded_as_transformers_does_it(
    model_folder: Write, tokenizer: Tokenizer, name: str, chat: Chat
) -> None:
    folder = model_folder(tokenizer, template=TEMPLATES[name])

    ids = ChatFormat.load(folder).encode_chat(chat)

    assert ids == reference(folder, chat)


def test_tools_and_calls_are_encoded_as_transformers_does_it(model_folder: Write) -> None:
    folder = model_folder(template=QWEN)
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}
    chat: Chat = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}]
    chat = [*chat, {"role": "tool", "content": "12 °C", "tool_call_id": "1"}]
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]

    ids = ChatFormat.load(folder).encode_chat(chat, tools=tools)

    assert ids == reference(folder, chat, tools=tools)


def test_variables_reach_the_template(model_folder: Write) -> None:
    folder = model_folder(template=QWEN)

    ids = ChatFormat.load(folder).encode_chat(HELLO, variables={"enable_thinking": False})

    assert ids == reference(folder, HELLO, enable_thinking=False)
    assert ids != reference(folder, HELLO)


@pytest.mark.parametrize("name", ["chatml", "llama3", "qwen"])
def test_the_last_message_is_continued_as_transformers_does_it(
    model_folder: Write, name: str
) -> None:
    folder = model_folder(template=TEMPLATES[name])
    chat: Chat = [*HELLO, {"role": "assistant", "content": "The answer is"}]

    ids = ChatFormat.load(folder).encode_chat(chat, continue_final=True)

    assert ids == reference(folder, chat, continue_final_message=True, add_generation_prompt=False)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(texts=st.lists(st.text(), min_size=1, max_size=3))
def test_any_text_in_a_chat_is_encoded_as_transformers_does_it(
    model_folder: Write, texts: list[str]
) -> None:
    folder = model_folder(template=CHATML)
    chat = [{"role": "user", "content": text} for text in texts]

    assert ChatFormat.load(folder).encode_chat(chat) == reference(folder, chat)


def test_the_first_token_is_not_doubled(model_folder: Write) -> None:
    chat_format = ChatFormat.load(model_folder(template=LLAMA3))
    bos = chat_format.encode("")[0]

    assert chat_format.encode_chat(HELLO).count(bos) == 1
    assert chat_format.encode("Hello").count(bos) == 1
    assert chat_format.encode("<s>Hello") == chat_format.encode("Hello")
    assert bos not in chat_format.encode("Hello", add_special=False)


def test_a_template_in_its_own_file_wins(model_folder: Write) -> None:
    folder = model_folder(template=LLAMA3, files={"chat_template.jinja": CHATML})

    assert ChatFormat.load(folder).render_chat(HELLO).startswith("<|im_start|>user")


TOOL_USE = "{% for tool in tools %}offers {{ tool.function.name }}{% endfor %}"
TOOL = {"type": "function", "function": {"name": "now", "parameters": {}}}


def test_a_template_in_a_file_of_its_own_is_used(model_folder: Write) -> None:
    folder = model_folder(files={"chat_template.json": {"chat_template": CHATML}})

    assert ChatFormat.load(folder).render_chat(HELLO).startswith("<|im_start|>")


def test_chat_template_json_gives_way_to_the_tokenizers_own(model_folder: Write) -> None:
    files = {"chat_template.json": {"chat_template": "of images"}}

    text = ChatFormat.load(model_folder(template=CHATML, files=files)).render_chat(HELLO)

    assert text.startswith("<|im_start|>")


def test_a_template_for_tools_is_used_where_tools_are_offered(model_folder: Write) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": TOOL_USE}]

    chat = ChatFormat.load(model_folder(template=named))

    assert chat.render_chat(HELLO) == "plain"
    assert chat.render_chat(HELLO, tools=[TOOL]) == "offers now"


def test_a_template_for_tools_may_be_in_a_file_of_its_own(model_folder: Write) -> None:
    folder = model_folder(files={"chat_template.jinja": "plain"})
    more = folder / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text(TOOL_USE)

    chat = ChatFormat.load(folder)

    assert chat.render_chat(HELLO) == "plain"
    assert chat.render_chat(HELLO, tools=[TOOL]) == "offers now"


def test_of_several_templates_the_default_is_used(model_folder: Write) -> None:
    named = [{"name": "rag", "template": "rag"}, {"name": "default", "template": CHATML}]

    text = ChatFormat.load(model_folder(template=named)).render_chat(HELLO)

    assert text.startswith("<|im_start|>user")


def test_older_models_name_their_special_tokens_elsewhere(model_folder: Write) -> None:
    files = {
        "tokenizer_config.json": {"chat_template": "{{ bos_token }}|{{ eos_token }}"},
        "special_tokens_map.json": {"bos_token": {"content": "<s>"}, "eos_token": "</s>"},
    }

    assert ChatFormat.load(model_folder(files=files)).render_chat(HELLO) == "<s>|</s>"


def test_parts_of_text_become_one_text(model_folder: Write) -> None:
    chat_format = ChatFormat.load(model_folder(template=CHATML))
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]

    assert chat_format.render_chat([{"role": "user", "content": parts}]) == (
        chat_format.render_chat([{"role": "user", "content": "one\ntwo"}])
    )


def test_the_developer_is_the_system(model_folder: Write) -> None:
    chat_format = ChatFormat.load(model_folder(template=CHATML))

    text = chat_format.render_chat([{"role": "developer", "content": "Be kind."}])

    assert text.startswith("<|im_start|>system\nBe kind.")


@pytest.mark.parametrize(
    ("chat", "sentence"),
    [
        ([], "conversation is empty"),
        ([{"role": "robot", "content": "hi"}], "role 'robot'"),
        ([{"content": "hi"}], "role None"),
        ([{"role": "user"}], "message of the user has no content"),
        ([{"role": "user", "content": 3}], "content must be text"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "reads only text"),
        ([{"role": "user", "content": [{"type": "text"}]}], "has no text"),
        ([{"role": "user", "content": ["hi"]}], "has no text"),
        ([{"role": "user", "content": "hi", "x": {1, 2}}], "which is no JSON value"),
    ],
)
def test_what_is_no_conversation_is_a_sentence(
    model_folder: Write, chat: Chat, sentence: str
) -> None:
    chat_format = ChatFormat.load(model_folder(template=CHATML))

    with pytest.raises(PromptError, match=sentence):
        chat_format.encode_chat(chat)


def test_nesting_without_end_is_refused(model_folder: Write) -> None:
    value: object = "x"
    for _ in range(100):
        value = [value]

    with pytest.raises(PromptError, match="nested too deeply"):
        ChatFormat.load(model_folder(template=CHATML)).encode_chat([{**HELLO[0], "x": value}])


def test_half_a_surrogate_pair_is_replaced(model_folder: Write) -> None:
    chat_format = ChatFormat.load(model_folder(template=CHATML))

    assert "user\n?<|im_end|>" in chat_format.render_chat([{"role": "user", "content": "\ud83d"}])
    assert chat_format.decode(chat_format.encode("a\ud83d")) == "a?"


def test_the_template_says_why_it_refuses(model_folder: Write) -> None:
    chat_format = ChatFormat.load(model_folder(template=MISTRAL))

    with pytest.raises(PromptError, match="Roles must alternate user and assistant"):
        chat_format.encode_chat([*HELLO, *HELLO])


@pytest.mark.parametrize("chat", [HELLO, [*HELLO, {"role": "assistant", "content": ""}]])
def test_only_the_assistants_words_can_be_continued(model_folder: Write, chat: Chat) -> None:
    with pytest.raises(PromptError, match="can be continued"):
        ChatFormat.load(model_folder(template=CHATML)).encode_chat(chat, continue_final=True)


def test_a_template_that_drops_the_message_cannot_continue_it(model_folder: Write) -> None:
    chat: Chat = [*HELLO, {"role": "assistant", "content": "The"}]

    with pytest.raises(PromptError, match="leaves out the message"):
        ChatFormat.load(model_folder(template="x")).encode_chat(chat, continue_final=True)


def test_a_model_without_a_template_continues_the_conversation_as_text(
    model_folder: Write,
) -> None:
    chat_format = ChatFormat.load(model_folder())

    text = chat_format.render_chat([{"role": "system", "content": "Be kind."}, *HELLO])

    assert text == "Be kind.\nUser: Hello there\nAssistant:"
    assert chat_format.stop_strings == ("\nUser:",)
    assert chat_format.encode_chat(HELLO)[0] == chat_format.encode("")[0]  # it has its bos


def test_a_model_without_a_template_can_continue_an_answer(model_folder: Write) -> None:
    chat: Chat = [*HELLO, {"role": "assistant", "content": "The answer"}]

    text = ChatFormat.load(model_folder()).render_chat(chat, continue_final=True)

    assert text == "User: Hello there\nAssistant: The answer"


def test_every_file_that_names_an_end_is_heard(model_folder: Write) -> None:
    files = {
        "generation_config.json": {"eos_token_id": [7, 8]},
        "config.json": {"eos_token_id": 9},
    }
    chat_format = ChatFormat.load(model_folder(template=CHATML, files=files))

    assert chat_format.stop_ids == {7, 8, 9, 1}  # </s> is 1


@pytest.mark.parametrize("eos", [None, True, "2", [None, -1]])
def test_an_end_that_is_no_token_is_ignored(model_folder: Write, eos: object) -> None:
    folder = model_folder(files={"generation_config.json": {"eos_token_id": eos}})

    assert ChatFormat.load(folder).stop_ids == {1}


def test_decoding_leaves_special_tokens_out(model_folder: Write) -> None:
    chat_format = ChatFormat.load(model_folder(template=CHATML))

    assert chat_format.decode(chat_format.encode("Hello 🙂")) == "Hello 🙂"


def test_the_bytes_of_a_token_are_known_even_if_they_are_no_character(
    model_folder: Write, byte_level: Tokenizer
) -> None:
    chat_format = ChatFormat.load(model_folder())

    vocabulary = byte_level.get_vocab()
    assert chat_format.vocabulary.raw(vocabulary["ð"]) == b"\xf0"
    assert chat_format.vocabulary.raw(vocabulary["</s>"]) == b"</s>"
    assert chat_format.vocabulary.raw(10**6) is None


def test_padding_and_truncation_of_training_are_switched_off(
    model_folder: Write, byte_level: Tokenizer
) -> None:
    trained = Tokenizer.from_str(byte_level.to_str())
    trained.enable_truncation(2)
    trained.enable_padding(length=50)

    ids = ChatFormat.load(model_folder(trained)).encode("Hello there, how are you?")

    assert ids == byte_level.encode("Hello there, how are you?").ids


def test_the_clock_is_a_parameter(model_folder: Write) -> None:
    folder = model_folder(template="{{ strftime_now('%Y') }}")

    then = ChatFormat.load(folder, now=lambda: datetime(1999, 1, 1, tzinfo=UTC))

    assert then.render_chat(HELLO) == "1999"
    assert ChatFormat.load(folder).render_chat(HELLO) == str(local_now().year)
