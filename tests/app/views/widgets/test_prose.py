"""Markdown that Qt draws in its own way, drawn in ours."""

import pytest
from PySide6.QtCore import QUrl
from PySide6.QtGui import QColor
from pytestqt.qtbot import QtBot

from potluck_app.theme import Theme
from potluck_app.views.widgets.prose import ProseView

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


def test_an_address_is_shown_as_it_is_sent(qtbot: QtBot, theme: Theme) -> None:
    view = shown(theme, qtbot, "[bank](https://xn--80ak6aa92e.com/%E2%80%AEx)")

    view.highlighted.emit(QUrl("https://xn--80ak6aa92e.com/%E2%80%AEx"))

    assert view.toolTip() == "<qt>https://xn--80ak6aa92e.com/%E2%80%AEx</qt>"


def test_the_keyboard_says_where_a_link_leads(qtbot: QtBot, theme: Theme) -> None:
    view = shown(theme, qtbot, "See [this](https://a.example/b) and [that](https://c.example).")
    view.setFocus()

    said: list[str] = []
    for _ in range(2):
        view.focusNextPrevChild(True)
        said.append(view.accessibleDescription())

    assert said == ["https://a.example/b", "https://c.example"]
    assert "c.example" in view.toolTip()


WORDS = "Potluck pools the **computers of one home**, and `each` of them computes [some layers](https://a.example). "


def empty(theme: Theme, qtbot: QtBot, width: int = 400) -> ProseView:
    view = ProseView(theme)
    qtbot.addWidget(view)
    view.show()
    wrap(view, width)
    return view


def wrap(view: ProseView, width: int) -> None:
    view.fit(width)
    view.resize(width, view.height())


def lines(view: ProseView) -> list[str]:
    """The lines of a text as they are drawn."""
    found: list[str] = []
    block = view.document().begin()
    while block.isValid():
        layout, text = block.layout(), block.text().encode("utf-16-le")  # as Qt counts
        for number in range(layout.lineCount()):
            line = layout.lineAt(number)
            start = 2 * line.textStart()
            found.append(text[start : start + 2 * line.textLength()].decode("utf-16-le").rstrip())
        block = block.next()
    return found


def bold(view: ProseView) -> list[str]:
    found: list[str] = []
    block = view.document().begin()
    while block.isValid():
        iterator = block.begin()
        while not iterator.atEnd():
            if iterator.fragment().charFormat().fontWeight() > 500:
                found.append(iterator.fragment().text())
            iterator += 1
        block = block.next()
    return found


def grown(view: ProseView, text: str) -> None:
    """Show a text as it comes, some characters at a time."""
    for end in range(13, len(text) + 13, 13):
        view.show_markdown(text[:end], grows=True)


@pytest.mark.parametrize(
    "tail", ["", "\n- a point\n- another", "\n\n> said", "\n\n# Title\n\nmore"]
)
def test_a_long_paragraph_that_grows_looks_as_it_does_whole(
    qtbot: QtBot, theme: Theme, tail: str
) -> None:
    text = (WORDS * 30).strip() + tail
    growing, whole = empty(theme, qtbot), empty(theme, qtbot)
    whole.show_markdown(text)

    grown(growing, text)

    assert len(text) - growing._settled < 1200  # of 3000: as much as twelve lines and the tail
    assert lines(growing) == lines(whole)
    assert "".join(bold(growing)) == "".join(bold(whole))
    assert abs(growing.height() - whole.height()) <= 1

    growing.draw_whole()  # it is at its end

    assert growing.document().toPlainText() == whole.document().toPlainText()
    assert growing.height() == whole.height()


def test_its_lines_are_right_after_the_page_became_narrower(qtbot: QtBot, theme: Theme) -> None:
    view, whole = empty(theme, qtbot), empty(theme, qtbot, 300)
    grown(view, WORDS * 20)
    whole.show_markdown(WORDS * 20)

    wrap(view, 300)

    assert lines(view) == lines(whole)
    view.show_markdown(WORDS * 21, grows=True)
    assert view._settled


@pytest.mark.parametrize("start", ["**All of it ", "2 * 3 is ", "`code ", "<b> ", "[a ", "$x "])
def test_what_may_still_get_an_end_is_not_cut(qtbot: QtBot, theme: Theme, start: str) -> None:
    view = empty(theme, qtbot)

    grown(view, start + "and many more words " * 60)

    assert not view._settled


CHINESE = "家里的**几台电脑**合在一起、运行一个单独一台无法运行的语言模型、`每台`计算其中的[几层](https://a.example)。"


@pytest.mark.parametrize(
    "piece",
    [
        CHINESE,
        "家の**パソコン**を合わせて、一台では動かない言語モデルを`動かします`。",
        "TWFuIGlzIGRpc3Rpbmd1aXNoZWQ",
        "𠮷野家は😀よい店です。",  # characters that are two units to Qt
        "😀 pools the computers 👍🏽 of one home. ",
        "从$a + b$得到结果、",
        r"从$\frac{a}{b} = x^2$得到结果、",
    ],
)
def test_a_long_paragraph_without_spaces_is_cut_too_and_looks_as_it_does_whole(
    qtbot: QtBot, theme: Theme, piece: str
) -> None:
    text = (piece * (1500 // len(piece))).strip()
    growing, whole = empty(theme, qtbot), empty(theme, qtbot)
    whole.show_markdown(text)

    grown(growing, text)

    assert len(growing._source) - growing._settled < 900
    assert lines(growing) == lines(whole)
    assert "".join(bold(growing)) == "".join(bold(whole))
    assert abs(growing.height() - whole.height()) <= 1

    growing.draw_whole()

    assert growing.document().toPlainText() == whole.document().toPlainText()


def test_an_address_is_not_cut(qtbot: QtBot, theme: Theme) -> None:
    view = empty(theme, qtbot)

    grown(view, "https://a.example/" + "path/of/a/very/long/address/" * 40)

    assert not view._settled


def test_other_text_in_a_view_that_grew_is_shown_whole(qtbot: QtBot, theme: Theme) -> None:
    view = empty(theme, qtbot)
    grown(view, WORDS * 20)

    view.show_markdown("Short.")

    assert view.document().toPlainText() == "Short."
    assert not view._settled
