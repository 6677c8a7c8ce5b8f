"""Light and dark, and the contrast that both promise."""

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QGuiApplication, QPalette
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from potluck_app import theme as theme_module
from potluck_app.theme import Theme
from potluck_app.tokens import DARK, LIGHT, NODE_COLORS, ON_NODE_COLOR, Tokens
from potluck_app.views.widgets.controls import TintedIcon

pytestmark = pytest.mark.qt


def luminance(color: str) -> float:
    """Relative luminance, https://www.w3.org/TR/WCAG22/#dfn-relative-luminance."""

    def linear(channel: float) -> float:
        return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4

    c = QColor(color)
    return 0.2126 * linear(c.redF()) + 0.7152 * linear(c.greenF()) + 0.0722 * linear(c.blueF())


def contrast(one: str, other: str) -> float:
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("tokens", [LIGHT, DARK], ids=["light", "dark"])
def test_every_text_can_be_read_on_its_background(tokens: Tokens) -> None:
    pairs = [
        *((text, on) for text in (tokens.text, tokens.text2) for on in _surfaces(tokens)),
        (tokens.accent_on, tokens.accent),
        (tokens.accent, tokens.accent_soft),
        (tokens.ok, tokens.ok_soft),
        (tokens.warn, tokens.warn_soft),
        (tokens.err, tokens.err_soft),
        (tokens.text, tokens.bubble),
        *((color, tokens.code) for color in (tokens.accent, tokens.ok, tokens.warn, tokens.text3)),
        *((ON_NODE_COLOR, color) for color in NODE_COLORS),
    ]

    assert [pair for pair in pairs if contrast(*pair) < 4.5] == []
    assert contrast(tokens.border_strong, tokens.surface) >= 3
    rings = [(tokens.accent, on) for on in _surfaces(tokens)]
    bars = [(tokens.fill(tone), tokens.surface2) for tone in ("accent", "ok", "warn", "err")]
    assert [pair for pair in (*rings, *bars) if contrast(*pair) < 3] == []


def _surfaces(tokens: Tokens) -> tuple[str, ...]:
    return tokens.bg, tokens.surface, tokens.surface2, tokens.sidebar


def test_a_change_reaches_the_palette_the_style_and_the_icons(qtbot: QtBot, theme: Theme) -> None:
    app = QApplication.instance()
    assert isinstance(app, QApplication)
    icon = TintedIcon(theme, "chat", 24)
    qtbot.addWidget(icon)
    before = icon.pixmap().toImage()

    with qtbot.waitSignal(theme.changed):
        theme.set("dark")

    assert theme.is_dark
    assert app.palette().color(QPalette.ColorRole.Window).name().upper() == DARK.bg
    assert DARK.surface in app.styleSheet()
    assert icon.pixmap().toImage() != before


def test_the_same_theme_again_changes_nothing(qtbot: QtBot, theme: Theme) -> None:
    with qtbot.assertNotEmitted(theme.changed):
        theme.set("light")


def test_auto_follows_the_system(
    qtbot: QtBot, theme: Theme, monkeypatch: pytest.MonkeyPatch
) -> None:
    hints = QGuiApplication.styleHints()
    theme.set("auto")
    monkeypatch.setattr(type(hints), "colorScheme", lambda _self: Qt.ColorScheme.Dark)

    hints.colorSchemeChanged.emit(Qt.ColorScheme.Dark)
    assert theme.is_dark
    theme.set("light")
    hints.colorSchemeChanged.emit(Qt.ColorScheme.Dark)

    assert not theme.is_dark


def test_nothing_moves_by_itself() -> None:
    """For people whom motion makes unwell: there is no animation that a setting would turn off."""
    sources = Path(theme_module.__file__).parent.rglob("*.py")

    moving = [path.name for path in sources if "Animation" in path.read_text(encoding="utf-8")]

    assert moving == []
