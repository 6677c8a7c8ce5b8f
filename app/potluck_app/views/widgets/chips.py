"""Attached files as chips: their name, their size, and in the composer a button to take them off."""

from collections.abc import Callable, Sequence

from PySide6.QtCore import QPoint, QRect, QSize, Qt
from PySide6.QtGui import QIcon, QKeyEvent, QPixmap
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLayout, QLayoutItem, QSizePolicy, QWidget

from potluck_app import wording
from potluck_app.chats.attachments import size
from potluck_app.chats.values import Attachment
from potluck_app.theme import Theme
from potluck_app.views.widgets.boxes import hbox
from potluck_app.views.widgets.controls import IconButton, TintedIcon, discard, label
from potluck_app.views.widgets.enlarged import Enlarged
from potluck_app.views.widgets.pictures import thumbnail
from potluck_app.views.widgets.words import ToolButton

_NAME_LENGTH = 20
_GAP = 6
_SMALL, _LARGE = 48, 96  # pixels of a picture's height, where it can be taken off and where not
_NARROWEST = 24  # pixels of its button
_RING = 2  # pixels around it, where the focus is shown
_SHARP = 2  # pixels of a sharp screen for each
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
        return self.size_within(width).height()

    def size_within(self, width: int) -> QSize:
        """What the items take where there is so much room."""
        return self._place(QRect(0, 0, width, 0), is_real=False)

    def setGeometry(self, rect: QRect) -> None:
        super().setGeometry(rect)
        self._place(rect, is_real=True)

    def sizeHint(self) -> QSize:
        shown = [item for item in self._items if not item.isEmpty()]
        widths = [item.sizeHint().width() for item in shown]
        heights = [item.sizeHint().height() for item in shown]
        return QSize(sum(widths) + _GAP * max(len(widths) - 1, 0), max(heights, default=0))

    def minimumSize(self) -> QSize:
        return QSize(
            max((item.minimumSize().width() for item in self._items), default=0),
            max((item.minimumSize().height() for item in self._items), default=0),
        )

    def _place(self, rect: QRect, *, is_real: bool) -> QSize:
        """Place the items. Returns the size that they take."""
        y, widest, height = rect.y(), 0, 0
        for line in self._lines(rect.width()):
            y += _GAP if height else 0
            x, height = rect.x(), max(hint.height() for _, hint in line)
            for item, hint in line:
                if is_real:  # in the middle of its line
                    place = QPoint(x, y + (height - hint.height()) // 2)
                    item.setGeometry(QRect(place, hint))
                x += hint.width() + _GAP
            widest = max(widest, x - _GAP - rect.x())
            y += height
        return QSize(widest, y - rect.y())

    def _lines(self, width: int) -> list[list[tuple[QLayoutItem, QSize]]]:
        """The items of each line, with their sizes; a hidden one takes no room."""
        lines: list[list[tuple[QLayoutItem, QSize]]] = []
        taken = 0
        for item in self._items:
            if item.isEmpty():
                continue
            hint = item.sizeHint()
            if not lines or taken + hint.width() > width:
                lines.append([])
                taken = 0
            lines[-1].append((item, hint))
            taken += hint.width() + _GAP
        return lines


class Thumbnail(ToolButton):
    """A small picture, that a click or Enter or Space enlarges."""

    def __init__(self, theme: Theme, attachment: Attachment, picture: QPixmap) -> None:
        super().__init__()
        self._theme, self._attachment = theme, attachment
        self.setObjectName("thumbnail")
        self.setProperty("kind", "picture")
        self.setAccessibleName(f"Enlarge {attachment.name}")
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        picture.setDevicePixelRatio(_SHARP)
        shown = picture.deviceIndependentSize().toSize()
        self.setIcon(QIcon(picture))
        self.setIconSize(shown)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self.clicked.connect(self.enlarge)

    def sizeHint(self) -> QSize:
        least = QSize(_NARROWEST, _NARROWEST)
        return self.iconSize().expandedTo(least) + QSize(2 * _RING, 2 * _RING)

    def enlarge(self) -> Enlarged:
        """Show the picture over the whole window."""
        return Enlarged(self._theme, self._attachment, self.window())

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.click()  # not every system's buttons take it
        else:
            super().keyPressEvent(event)


class Chips(QWidget):
    """A row of attached files. Hidden if there are none."""

    def __init__(self, theme: Theme, on_remove: Callable[[int], object] | None = None) -> None:
        """With `on_remove`, each has a button that calls it with the file's place."""
        super().__init__()
        self._theme, self._on_remove = theme, on_remove
        self._flow = Flow(self)
        self._shown: tuple[Attachment, ...] = ()
        self.hide()

    def fit(self, width: int) -> None:
        """Be as wide as the files need, and no wider than this."""
        self.setFixedWidth(min(self._flow.size_within(width).width(), width))

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
        height = _LARGE if self._on_remove is None else _SMALL
        picture = thumbnail(attachment.picture, _SHARP * height)
        if picture.isNull():
            row = self._file(chip, attachment)
        else:
            chip.setToolTip(wording.tip(name))
            shown = Thumbnail(self._theme, attachment, picture)
            row = hbox(shown, parent=chip, margins=2, spacing=2)
        if self._on_remove is not None:
            remove = IconButton(
                self._theme, "close", f"Take {name} off", f"chip-remove-{place}", size=12
            )
            remove.clicked.connect(lambda: self._removed(place))
            row.addWidget(remove, 0, Qt.AlignmentFlag.AlignVCenter)  # it makes no chip lower
        return chip

    def _file(self, chip: QFrame, attachment: Attachment) -> QHBoxLayout:
        """Fill the chip of a text with its name and size."""
        name, nbytes = attachment.name, size(attachment.nbytes)
        short = name if len(name) <= _NAME_LENGTH else f"{name[:_NAME_LENGTH]}…"
        text = label(f"{short} · {nbytes}", "meta")
        text.setAccessibleName(f"Attached file {name}, {nbytes}")
        chip.setToolTip(wording.tip(f"{name}\n\n{attachment.text[:_PREVIEW]}"))
        is_fixed = self._on_remove is None
        margins = (8, 3, 8, 3) if is_fixed else (8, 0, 0, 0)
        return hbox(
            TintedIcon(self._theme, "file", 14), text, parent=chip, margins=margins, spacing=6
        )

    def _removed(self, place: int) -> None:
        if self._on_remove is not None:
            self._on_remove(place)
