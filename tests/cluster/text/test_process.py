"""Conversations with pictures become tokens, wherever their template can have them."""

import io
from pathlib import Path
from typing import Any

import pytest
from byte_writer import chat_format
from PIL import Image

from potluck.cluster.driver.model_text import Conversation
from potluck.cluster.text.process import encode_conversation
from potluck.model.vision.pictures import PictureFacts, PictureFormat

MARK = "<|image_pad|>"
# Parts in the user's messages alone, as most templates have it.
PARTS = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% elif m.role == 'user' %}"
    "{% for p in m.content %}{{ '(<|image_pad|>)' if p.type == 'image' else p.text }}{% endfor %}"
    "{% else %}{{ raise_exception('no parts here') }}{% endif %}{% endfor %}"
)
FIRST = PARTS.replace(
    "{% for p in m.content %}", "{% for p in m.content | sort(attribute='type') %}"
)
PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


def form() -> PictureFormat:
    return PictureFormat(
        facts=PictureFacts(size="area", mark=MARK, token="<row>"),
        side=8, square=0, least=64, most=64, rows=1, resample=3,
        mean=(0.0, 0.0, 0.0), deviation=(1.0, 1.0, 1.0),
    )  # fmt: skip


def drawn() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("template", "written"),
    [
        (PARTS, "x(*)y"),  # as the template writes it for the user
        (FIRST, "x*y"),  # which puts pictures before all text: the mark alone
        (PLAIN, "x*y"),  # and one that knows none
    ],
)
def test_the_picture_in_a_tools_result_stands_where_it_was(
    template: str, written: str, tmp_path: Path
) -> None:
    chat = chat_format(tmp_path, chat_template=template)
    result: list[dict[str, Any]] = [
        {"type": "text", "text": "x"}, {"type": "image"}, {"type": "text", "text": "y"},
    ]  # fmt: skip
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "a"},
        {"role": "tool", "content": result, "tool_call_id": "1"},
    ]

    prompt = encode_conversation(chat, Conversation(messages=messages, pictures=(drawn(),)), form())

    assert len(prompt.pictures) == 1
    kept = [token for token in prompt.token_ids if token != prompt.picture_token]
    at = prompt.token_ids.index(prompt.picture_token)
    before, after = chat.decode(prompt.token_ids[:at]), chat.decode(kept[at:])
    assert f"\n{written}\n" in f"{before}*{after}"
