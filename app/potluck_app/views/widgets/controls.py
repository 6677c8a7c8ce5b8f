"""The small widgets of every page: buttons, pills, cards, meters, tinted icons.

Each takes the theme and follows its changes. Buttons take the focus from the keyboard only, so the
focus ring appears for people who need it and not after every click.
"""

from collections.abc import Callable
from typing import Literal, TypeAlias

from PySide6.QtCore import QEvent, QObject, QSize, Qt, QTimer
from PySide6.QtGui import (
    QAccessible,
    QAccessibleAnnouncementEvent,
    QFontMetrics,
    QGuiApplication,
    QResizeEvent,
)
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QLayout,
    QLineEdit,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QWidget,
)

from potluck_app import resources, wording
from potluck_app.language import said
from potluck_app.theme import Theme
from potluck_app.tokens import Tone
from potluck_app.views.widgets.boxes import STRETCH, Part, WidthLimit, hbox, vbox
from potluck_app.views.widgets.words import Described, Label, Line, PushButton, ToolButton

LabelKind: TypeAlias = Literal[
    "body", "title", "section", "strong", "body2", "meta", "group", "small", "error", "code", "mono"
]
_CONFIRM_MS = 1500
_NARROW_PAGE = 560  # pixels
_HEAD = 34  # pixels, as a button
_ICON_GAP = 3  # extra pixels between icon and text


def set_property(widget: QWidget, name: str, value: str) -> None:
    """Set a property that the style sheet selects by, and apply the style again."""
    if widget.property(name) == value:
        return
    widget.setProperty(name, value)
    widget.style().unpolish(widget)
    widget.style().polish(widget)


def announce(widget: QWidget, text: str, *, is_quoted: bool = False) -> None:
    """Let a screen reader say this text, whichever widget has the focus.

    `is_quoted`: it is what a model wrote, and stays in its language.
    """
    spoken = text if is_quoted else said(text)
    QAccessible.updateAccessibility(QAccessibleAnnouncementEvent(widget, spoken))


def discard(*widgets: QWidget) -> None:
    """Hide widgets at once, and delete them when nothing of them runs any more."""
    for widget in widgets:
        widget.hide()
        widget.deleteLater()


def clear(layout: QLayout) -> None:
    """Remove all items from a layout and delete them."""
    while (item := layout.takeAt(0)) is not None:
        if (widget := item.widget()) is not None:
            discard(widget)


def label(
    text: str = "",
    kind: LabelKind = "body",
    *,
    wrap: bool = False,
    name: str = "",
    is_quoted: bool = False,
) -> QLabel:
    """Make a label whose text is never read as markup, since others may have written it.

    `is_quoted`: it is what a person or a model wrote, and stays in its language.
    """
    result = QLabel(text) if is_quoted else Label(text)
    result.setObjectName(name)
    result.setTextFormat(Qt.TextFormat.PlainText)
    result.setProperty("kind", kind)
    result.setWordWrap(wrap)
    return result


def card_frame() -> QFrame:
    """Make a surface with a border."""
    frame = QFrame()
    frame.setProperty("card", "true")
    return frame


def field(kind: Literal["field", "mono"], name: str, accessible_name: str) -> QLineEdit:
    """Make a line of text: a field to fill in, or one in mono that can only be read."""
    line = Line()
    line.setObjectName(name)
    line.setAccessibleName(accessible_name)
    line.setProperty("kind", kind)
    line.setReadOnly(kind == "mono")
    return line


def make_page(page: QWidget, name: str, accessible_name: str) -> None:
    """Give a widget the looks and the focus of a page."""
    page.setObjectName(name)
    page.setProperty("page", "true")
    page.setAccessibleName(said(accessible_name))
    page.setFocusPolicy(Qt.FocusPolicy.ClickFocus)


def scrolling(inner: QWidget, accessible_name: str) -> QScrollArea:
    """Let a widget scroll up and down where there is no room for it."""
    scroll = QScrollArea()
    scroll.setAccessibleName(said(accessible_name))
    scroll.setFrameShape(QFrame.Shape.NoFrame)
    scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    scroll.setWidgetResizable(True)
    scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    scroll.setWidget(inner)
    return scroll


class _PageColumn(QWidget):
    """The column of a page, whose margins are narrower on a narrow page.

    The bar of a page that scrolls takes of the margin beside it: what is on the page stays where it is.
    """

    def __init__(self, *parts: Part) -> None:
        super().__init__()
        self._column = vbox(*parts, STRETCH, parent=self, spacing=16)

    def resizeEvent(self, event: QResizeEvent) -> None:
        area = _area_of(self)
        whole = area.width() if area is not None else event.size().width()
        side = 32 if whole >= _NARROW_PAGE else 16
        right = max(side - (whole - event.size().width()), 0)
        self._column.setContentsMargins(side, 24, right, 32)
        super().resizeEvent(event)


def _area_of(inner: QWidget) -> QScrollArea | None:
    """Return the area in which a widget scrolls."""
    viewport = inner.parentWidget()
    area = viewport.parentWidget() if viewport is not None else None
    return area if isinstance(area, QScrollArea) else None


def page_head(title: str, *actions: Part) -> QHBoxLayout:
    """Make the first row of a page: its title, as high as a button, and what can be done with all."""
    row = hbox((label(title, "title"), 1), *actions, spacing=16)
    row.addStrut(_HEAD)
    return row


def fill_page(page: QWidget, accessible_name: str, *parts: Part, width: int | None = None) -> None:
    """Fill a page with a column that scrolls and has the margins of every page.

    With `width`, in pixels, the column gets no wider, and is in the middle of a wide window.
    """
    column = (
        _PageColumn(*parts) if width is None else _PageColumn(WidthLimit(_column(parts), width))
    )
    vbox(scrolling(column, accessible_name), parent=page)


def _column(parts: tuple[Part, ...]) -> QWidget:
    column = QWidget()
    vbox(*parts, parent=column, spacing=16)
    return column


def rule() -> QFrame:
    """Make a thin line between two parts."""
    frame = QFrame()
    frame.setProperty("rule", "true")
    return frame


def button(
    text: str,
    name: str,
    on_click: Callable[[], object],
    *,
    kind: Literal["plain", "primary", "danger", "choice"] = "plain",
) -> QPushButton:
    """Make a push button; `name` is its stable id."""
    result = PushButton(text)
    result.setObjectName(name)
    result.setAccessibleName(text)
    result.setProperty("kind", kind)
    result.setFocusPolicy(Qt.FocusPolicy.TabFocus)
    result.setAutoDefault(False)  # Enter in a text field belongs to the field
    result.setCursor(Qt.CursorShape.PointingHandCursor)
    result.clicked.connect(lambda: on_click())
    return result


class ElidedLabel(Described, QLabel):
    """One line of text. If it does not fit, it ends in an ellipsis and a tooltip shows it."""

    def __init__(self, text: str = "", kind: LabelKind = "body") -> None:
        super().__init__()
        self._whole = ""
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setProperty("kind", kind)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.set_text(text)

    def set_text(self, text: str) -> None:
        if text != self._whole:
            self._whole = text
            self._elide()

    def whole_text(self) -> str:
        return self._whole

    def needed_width(self) -> int:
        """How many pixels the whole text takes."""
        self.ensurePolished()
        return self.fontMetrics().horizontalAdvance(said(self._whole)) + 1

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._elide()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.FontChange:
            self._elide()

    def _elide(self) -> None:
        metrics = QFontMetrics(self.font())
        whole, width = said(self._whole), max(self.width(), 24)
        shown = metrics.elidedText(whole, Qt.TextElideMode.ElideRight, width)
        self.setText(shown)
        self.setToolTip(wording.tip(self._whole) if shown != whole else "")


class Pill(Label):
    """A state in one or two words; the colour shows its meaning."""

    def __init__(self, text: str = "", tone: Tone = "neutral") -> None:
        super().__init__(text)
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setProperty("pill", tone)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)

    def show_state(self, text: str, tone: Tone) -> None:
        self.setText(text)
        set_property(self, "pill", tone)


class TintedIcon(QLabel):
    """An icon in a colour of the theme."""

    def __init__(
        self, theme: Theme, name: str, size: int, color: Callable[[], str] | None = None
    ) -> None:
        super().__init__()
        self._theme, self._name, self._size = theme, name, size
        self._color = color or (lambda: theme.tokens.text2)
        self.setFixedSize(size, size)
        theme.changed.connect(self.tint)
        self.tint()

    def set_icon(self, name: str, color: Callable[[], str]) -> None:
        self._name, self._color = name, color
        self.tint()

    def tint(self) -> None:
        scale = self.devicePixelRatioF()
        self.setPixmap(resources.pixmap(self._name, self._color(), self._size, max(scale, 2.0)))


class IconButton(ToolButton):
    """A flat button with an icon, and optionally a text."""

    def __init__(
        self,
        theme: Theme,
        icon: str,
        accessible_name: str,
        name: str,
        *,
        text: str = "",
        size: int = 16,
        confirm_ms: int = _CONFIRM_MS,
    ) -> None:
        super().__init__()
        self._theme, self._icon = theme, icon
        self.setObjectName(name)
        self.setAccessibleName(accessible_name)
        self.setToolTip("" if text else accessible_name)
        self.setText(text)
        self.setIconSize(QSize(size, size))
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        if text:
            self.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self._back = QTimer(self, singleShot=True, interval=confirm_ms)
        self._usual = (icon, text)
        self._back.timeout.connect(self._show_usual)
        theme.changed.connect(self.tint)
        self.tint()

    def sizeHint(self) -> QSize:
        """Leave out the two spaces that Qt has behind the words, so that both sides look alike."""
        hint = super().sizeHint()
        if self.text() and self.property("kind") in (None, "inline"):
            hint.setWidth(hint.width() - 2 * self.fontMetrics().horizontalAdvance(" "))
        return hint

    def set_icon(self, icon: str) -> None:
        self._usual = (icon, self._usual[1])
        self._show_usual()

    def set_text(self, text: str) -> None:
        self._usual = (self._usual[0], text)
        self._show_usual()

    def confirm(self, text: str) -> None:
        """Show a check mark and this text for a moment, then the usual icon and text."""
        self._show("check", text if self._usual[1] else "")
        self._back.start()

    def _show_usual(self) -> None:
        self._show(*self._usual)

    def _show(self, icon: str, text: str) -> None:
        self._icon = icon
        self.setText(text)
        self.tint()

    def tint(self) -> None:
        tokens = self._theme.tokens
        color = tokens.accent if self.isChecked() else tokens.text2
        size = self.iconSize().width()
        self.setIcon(resources.icon(self._icon, color, size, disabled=tokens.border_strong))


class CopyButton(IconButton):
    """A button that copies what `text` returns, and says so."""

    def __init__(
        self,
        theme: Theme,
        accessible_name: str,
        name: str,
        text: Callable[[], str],
        *,
        shown: str = "Copy",
    ) -> None:
        super().__init__(theme, "copy", accessible_name, name, text=shown)
        if shown:
            self.setProperty("kind", "inline")  # its words end where the field beside them ends
        self._copied = text
        self.clicked.connect(self._copy)

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self._copied())
        self.confirm("Copied")


class ButtonIcon(QObject):
    """Keeps the icon of a push button in the colour of its text."""

    def __init__(
        self, button: QPushButton, theme: Theme, icon: str, color: Callable[[], str]
    ) -> None:
        super().__init__(button)
        self._button, self._theme, self._icon, self._color = button, theme, icon, color
        button.setIconSize(QSize(16 + _ICON_GAP, 16))
        theme.changed.connect(self.tint)
        self.tint()

    def set_icon(self, icon: str) -> None:
        self._icon = icon
        self.tint()

    def tint(self) -> None:
        disabled = self._theme.tokens.text3
        icon = resources.icon(self._icon, self._color(), 16, disabled=disabled, gap=_ICON_GAP)
        self._button.setIcon(icon)
