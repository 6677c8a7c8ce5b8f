"""The colours of code."""

import pytest
from PySide6.QtGui import QTextDocument

from potluck_app.theme import Theme
from potluck_app.views.widgets.highlighter import Highlighter

pytestmark = pytest.mark.qt


def colours(theme: Theme, language: str, text: str) -> list[tuple[str, str]]:
    """What is coloured, and by the name of which token."""
    names = {getattr(theme.tokens, n): n for n in ("accent", "ok", "warn", "text3")}
    document = QTextDocument(text)
    Highlighter(document, theme).set_language(language)
    result: list[tuple[str, str]] = []
    block = document.begin()
    while block.isValid():
        for span in block.layout().formats():
            piece = block.text()[span.start : span.start + span.length]  # pyright: ignore[reportAttributeAccessIssue]
            color = span.format.foreground().color().name().upper()  # pyright: ignore[reportAttributeAccessIssue]
            result.append((piece, names[color]))
        block = block.next()
    return result


def test_python(theme: Theme) -> None:
    text = 'def f(n):  # why\n    """Two\n    lines."""\n    return \'a\' + str(0x1F)'

    assert colours(theme, "python", text) == [
        ("def", "accent"),
        ("# why", "text3"),
        ('"""Two', "ok"),
        ('    lines."""', "ok"),
        ("return", "accent"),
        ("'a'", "ok"),
        ("str", "accent"),
        ("0x1F", "warn"),
    ]


def test_languages_with_slashes(theme: Theme) -> None:
    text = "let x = 1; // one\n/* two\nlines */ const y = `z`;"

    assert colours(theme, "js", text) == [
        ("let", "accent"),
        ("1", "warn"),
        ("// one", "text3"),
        ("/* two", "text3"),
        ("lines */", "text3"),
        ("const", "accent"),
        ("`z`", "ok"),
    ]


def test_text_has_no_colours(theme: Theme) -> None:
    assert colours(theme, "", "if this is 1 text") == []


def test_a_string_without_its_end_ends_with_the_line(theme: Theme) -> None:
    assert colours(theme, "sh", "echo 'it\nls") == [("'it", "ok")]
