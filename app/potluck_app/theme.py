"""The colours and sizes of the window, light and dark, and the object that applies them.

Qt's own dark mode is not used: setting a colour scheme has no effect on bare X11 and offscreen. So
the palette and the style sheet are ours, and the system's hint only decides what "auto" means. Text
has a contrast of at least 4.5 to its background, the border of a control at least 3 (WCAG 2.2).
"""

from typing import Final, Literal, TypeAlias

from PySide6.QtCore import QObject, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFont, QFontDatabase, QGuiApplication, QPalette
from PySide6.QtWidgets import QApplication

from potluck_app.stylesheet import stylesheet
from potluck_app.tokens import DARK, LIGHT, Tokens

Choice: TypeAlias = Literal["auto", "light", "dark"]

# The first installed family is used, else Qt's system font.
_UI_FAMILIES: Final = ("Segoe UI Variable", "SF Pro Text", "Inter", "Cantarell", "Segoe UI")
_MONO_FAMILIES: Final = (
    "Cascadia Mono",
    "SF Mono",
    "JetBrains Mono",
    "Consolas",
    "DejaVu Sans Mono",
)
USUAL_TEXT: Final = 14  # pixels of running text
TEXT_SIZES: Final = (12, 13, 14, 16, 18, 20)
"""What the size of running text can be, in pixels. All other text keeps its proportion to it."""


class Theme(QObject):
    """The current theme: colours and fonts.

    Signals:
        changed: the tokens have changed; tint icons and repaint.
    """

    changed = Signal()

    def __init__(
        self, app: QApplication, choice: Choice = "auto", text_size: int = USUAL_TEXT
    ) -> None:
        super().__init__(app)
        self._app = app
        self.choice: Choice = choice
        self.text_size = min(max(text_size, TEXT_SIZES[0]), TEXT_SIZES[-1])
        self._ui_family = _installed(_UI_FAMILIES, QFontDatabase.SystemFont.GeneralFont)
        self._mono_family = _installed(_MONO_FAMILIES, QFontDatabase.SystemFont.FixedFont)
        self.tokens: Tokens = self._resolved()
        hints = QGuiApplication.styleHints()
        hints.colorSchemeChanged.connect(self._on_system_change)
        app.setStyle("Fusion")
        self._apply()

    @property
    def is_dark(self) -> bool:
        return self.tokens is DARK

    def set(self, choice: Choice) -> None:
        """Use this theme from now on."""
        self.choice = choice
        self._follow()

    def set_text_size(self, pixels: int) -> None:
        """Show all text in proportion to this size of running text, one of `TEXT_SIZES`."""
        if pixels != self.text_size:
            self.text_size = pixels
            self._apply()
            self.changed.emit()

    def px(self, pixels: int) -> int:
        """Return a length that grows with the text; `pixels` is what it is at the usual size."""
        return round(pixels * self.text_size / USUAL_TEXT)

    def least(self, size: QSize) -> QSize:
        """Return how large a window must be at least that needs `size` at the usual text."""
        return QSize(self.px(size.width()), self.px(size.height())).expandedTo(size)

    def ui_font(
        self, pixels: int = USUAL_TEXT, weight: QFont.Weight = QFont.Weight.Normal
    ) -> QFont:
        font = QFont(self._ui_family)
        font.setPixelSize(self.px(pixels))
        font.setWeight(weight)
        return font

    def mono_font(self, pixels: int = 13) -> QFont:
        font = QFont(self._mono_family)
        font.setPixelSize(self.px(pixels))
        font.setStyleHint(QFont.StyleHint.Monospace)
        return font

    def _on_system_change(self, _scheme: Qt.ColorScheme) -> None:
        if self.choice == "auto":
            self._follow()

    def _follow(self) -> None:
        tokens = self._resolved()
        if tokens is self.tokens:
            return
        self.tokens = tokens
        self._apply()
        self.changed.emit()

    def _resolved(self) -> Tokens:
        if self.choice == "auto":
            scheme = QGuiApplication.styleHints().colorScheme()
            return DARK if scheme == Qt.ColorScheme.Dark else LIGHT
        return DARK if self.choice == "dark" else LIGHT

    def _apply(self) -> None:
        self._app.setFont(self.ui_font())
        self._app.setPalette(_palette(self.tokens))
        self._app.setStyleSheet(stylesheet(self.tokens, self._mono_family, self.px))


def _palette(tokens: Tokens) -> QPalette:
    role = QPalette.ColorRole
    colors = {
        role.Window: tokens.bg,
        role.WindowText: tokens.text,
        role.Base: tokens.surface,
        role.AlternateBase: tokens.surface2,
        role.Text: tokens.text,
        role.PlaceholderText: tokens.text3,
        role.Button: tokens.surface,
        role.ButtonText: tokens.text,
        role.ToolTipBase: tokens.surface2,
        role.ToolTipText: tokens.text,
        role.Highlight: tokens.accent,
        role.HighlightedText: tokens.accent_on,
        role.Link: tokens.accent,
        role.LinkVisited: tokens.accent,
        role.Accent: tokens.accent,
        role.Light: tokens.border,  # the edges that Fusion draws, and the rules of documents
        role.Midlight: tokens.border,
        role.Mid: tokens.border,
        role.Dark: tokens.border,
        role.Shadow: tokens.border,
    }
    palette = QPalette()
    for name, color in colors.items():
        palette.setColor(name, QColor(color))
    disabled = QPalette.ColorGroup.Disabled
    for name in (role.WindowText, role.Text, role.ButtonText):
        palette.setColor(disabled, name, QColor(tokens.text3))
    return palette


def _installed(families: tuple[str, ...], otherwise: QFontDatabase.SystemFont) -> str:
    """Return the first of the families that is installed, or the family of a system font."""
    installed = set(QFontDatabase.families())
    found = next((family for family in families if family in installed), None)
    return found or QFontDatabase.systemFont(otherwise).family()
