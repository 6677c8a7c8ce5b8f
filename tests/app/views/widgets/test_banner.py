"""The line above the pages: its room around the words, with a button and without."""

import pytest
from pytestqt.qtbot import QtBot

from potluck_app.theme import Theme
from potluck_app.views.widgets.banner import Banner

pytestmark = pytest.mark.qt

LONG = (
    "MacBook Air stopped answering, and the reply goes on without it on the other computers. " * 3
)


@pytest.fixture
def banner(qtbot: QtBot, theme: Theme) -> Banner:
    banner = Banner(theme)
    qtbot.addWidget(banner)
    return banner


def test_it_is_as_high_without_a_button_to_dismiss_it(banner: Banner) -> None:
    banner.show_line("It starts again.", "warning")
    without = banner.sizeHint()
    banner.show_line("It starts again.", "warning", on_dismiss=lambda: None)

    assert without == banner.sizeHint()


def test_several_lines_keep_their_distance_from_the_edge(banner: Banner) -> None:
    banner.show_line(LONG, on_dismiss=lambda: None)
    banner.resize(330, banner.heightForWidth(330))
    layout = banner.layout()
    assert layout is not None
    layout.activate()

    text = banner.text
    assert text.height() >= text.heightForWidth(text.width())
    words = text.contentsRect().translated(text.pos())
    assert min(words.top(), banner.height() - words.bottom() - 1) >= 8
