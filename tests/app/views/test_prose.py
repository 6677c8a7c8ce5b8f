"""Markdown that Qt draws in its own way, drawn in ours."""

import pytest
from PySide6.QtGui import QColor
from pytestqt.qtbot import QtBot

from potluck_app.theme import Theme
from potluck_app.views.prose import ProseView

pytestmark = pytest.mark.qt


def shown(theme: Theme, qtbot: QtBot, markdown: str) -> ProseView:
    view = ProseView(theme)
    qtbot.addWidget(view)
    view.resize(300, 200)
    view.show_markdown(markdown)
    view.show()
    return view


def column(view: ProseView, x: int) -> list[str]:
    image = view.grab().toImage()
    return [QColor(image.pixel(x, y)).name().upper() for y in range(image.height())]


def test_a_quote_has_one_bar_from_its_first_line_to_its_last(qtbot: QtBot, theme: Theme) -> None:
    theme.set("dark")
    view = shown(theme, qtbot, "Before.\n\n> One.\n>\n> Two.\n\nAfter.")
    bar = [color == theme.tokens.border_strong for color in column(view, 1)]

    first, last = bar.index(True), len(bar) - bar[::-1].index(True)

    assert all(bar[first:last])
    assert first > 15
    assert last < len(bar) - 15


def test_a_rule_has_the_colour_of_a_border_and_not_of_text(qtbot: QtBot, theme: Theme) -> None:
    theme.set("dark")
    view = shown(theme, qtbot, "Before.\n\n---\n\nAfter.")

    colors = column(view, 250)

    assert colors.count(theme.tokens.border) == 1
    assert theme.tokens.text not in colors


def test_a_rule_alone_is_no_higher_than_one_between_paragraphs(qtbot: QtBot, theme: Theme) -> None:
    alone = shown(theme, qtbot, "---")
    between = shown(theme, qtbot, "Before.\n\n---")

    assert alone.document().blockCount() == 1
    assert alone.height() < between.height()
    assert column(alone, 250).count(theme.tokens.border.upper()) == 1


def test_an_image_is_a_link_with_its_description(qtbot: QtBot, theme: Theme) -> None:
    view = shown(theme, qtbot, "See ![a cat](http://x/1.png) and ![a dog](http://x/2.png).")

    assert view.toPlainText() == "See [a cat] and [a dog]."
    assert 'href="http://x/2.png"' in view.toHtml()
