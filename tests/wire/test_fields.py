"""The types of fields that messages have in common."""

import msgspec
import pytest

from potluck.wire.fields import MAX_NAME, Name, line


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("two\nlines\x1b[2J", "two\N{REPLACEMENT CHARACTER}lines\N{REPLACEMENT CHARACTER}[2J"),
        ("", ""),
        ("x" * 500, "x" * MAX_NAME),
    ],
)
def test_any_text_can_be_sent_as_a_name(text: str, name: str) -> None:
    assert msgspec.convert(line(text), Name) == name
