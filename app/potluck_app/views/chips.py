"""Attached files as chips: their name, their size, and in the composer a button to take them off."""

from collections.abc import Callable, Sequence

from PySide6.QtCore import QPoint, QRect, QSize, Qt
from PySide6.QtWidgets import QFrame, QLabel, QLayout, QLayoutItem, QWidget

from potluck_app import wording
from potluck_app.chats.attachments import size
from potluck_app.chats.values import Attachment
from potluck_app.theme import Theme
from potluck_app.views.boxes import hbox
from potluck_app.views.controls import IconButton, TintedIcon, discard, label
from potluck_app.views.pictures import thumbnail

_NAME_LENGTH = 20
_GAP = 6
_THUMBNAIL = 48  # pixels of a picture's height
_PREVIEW = 400  # characters of a file in its tooltip


class Flow(QLayout):
    """Places its items side by side, and goes on in the next line."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._items: list[QLayoutItem] = []
        self.setContentsMargins(0, 0, 0, 0)

    def addItem(self, item: QLayoutItem) -> None:
        self._items.append(item)

    def count(self) -> int:
        return len(self._items)

    def itemAt(self, index: int) -> QLayoutItem | None:  # pyright: ignore[reportIncompatibleMethodOverride] - None ends
        return self._items[index] if 0 <= index < len(self._items) else None

    def takeAt(self, index: int) -> QLayoutItem | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._items.pop(index) if 0 <= index < len(self._items) else None

    def expandingDirections(self) -> Qt.Orientation:
        return Qt.Orientation(0)

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        return self._place(QRect(0, 0, width, 0), is_real=False)

    def setGeometry(self, rect: QRect) -> None:
        super().setGeometry(rect)
        self._place(rect, is_real=True)

    def sizeHint(self) -> QSize:
        widths = [item.sizeHint().width() for item in self._items]
        heights = [item.sizeHint().height() for item in self._items]
        return QSize(sum(widths) + _GAP * max(len(widths) - 1, 0), max(heights, default=0))

    def minimumSize(self) -> QSize:
        return QSize(
            max((item.minimumSize().width() for item in self._items), default=0),
            max((item.minimumSize().height() for item in self._items), default=0),
        )

    def _place(self, rect: QRect, *, is_real: bool) -> int:
        x, y, line = rect.x(), rect.y(), 0
        for item in self._items:
            hint = item.sizeHint()
            if x > rect.x() and x + hint.width() > rect.x() + rect.width():
                x, y, line = rect.x(), y + line + _GAP, 0
            if is_real:
                item.setGeometry(QRect(QPoint(x, y), hint))
            x += hint.width() + _GAP
            line = max(line, hint.height())
        return y + line - rect.y()


class Chips(QWidget):
    """A row of attached files. Hidden if there are none."""

    def __init__(self, theme: Theme, on_remove: Callable[[int], object] | None = None) -> None:
        """With `on_remove`, each has a button that calls it with the file's place."""
        super().__init__()
        self._theme, self._on_remove = theme, on_remove
        self._flow = Flow(self)
        self._shown: tuple[Attachment, ...] = ()
        self.hide()

    def show_files(self, attachments: Sequence[Attachment]) -> None:
        if tuple(attachments) == self._shown:
            return
        self._shown = tuple(attachments)
        while (item := self._flow.takeAt(0)) is not None:
            if (chip := item.widget()) is not None:
                discard(chip)
        for place, attachment in enumerate(self._shown):
            self._flow.addWidget(self._chip(place, attachment))
        self.setVisible(bool(self._shown))
        self.updateGeometry()

    def _chip(self, place: int, attachment: Attachment) -> QFrame:
        chip = QFrame()
        chip.setProperty("chip", "true")
        name = attachment.name
        short = name if len(name) <= _NAME_LENGTH else f"{name[:_NAME_LENGTH]}…"
        nbytes = size(attachment.nbytes)
        text = label(f"{short} · {nbytes}", "meta")
        text.setAccessibleName(f"Attached file {name}, {nbytes}")
        chip.setToolTip(wording.tip(f"{name}\n\n{attachment.text[:_PREVIEW]}"))
        icon: QWidget = TintedIcon(self._theme, "file", 14)
        if attachment.picture:
            icon = QLabel()
            icon.setPixmap(thumbnail(attachment.picture, _THUMBNAIL))
        row = hbox(icon, text, parent=chip, margins=(8, 3, 8, 3), spacing=6)
        if self._on_remove is not None:
            remove = IconButton(
                self._theme, "close", f"Take {name} off", f"chip-remove-{place}", size=12
            )
            remove.clicked.connect(lambda: self._removed(place))
            row.setContentsMargins(8, 0, 0, 0)
            row.addWidget(remove)
        return chip

    def _removed(self, place: int) -> None:
        if self._on_remove is not None:
            self._on_remove(place)
