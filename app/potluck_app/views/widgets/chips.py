"""Attached files as chips: their name, their size, and in the composer a button to take them off."""

from collections.abc import Callable, Sequence

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QIcon, QKeyEvent, QPixmap
from PySide6.QtWidgets import QFrame, QHBoxLayout, QSizePolicy, QWidget

from potluck_app import wording
from potluck_app.chats.attachments import size
from potluck_app.chats.values import Attachment
from potluck_app.theme import Theme
from potluck_app.views.widgets.boxes import hbox
from potluck_app.views.widgets.controls import IconButton, TintedIcon, discard, label
from potluck_app.views.widgets.enlarged import Enlarged
from potluck_app.views.widgets.flow import Flow
from potluck_app.views.widgets.pictures import thumbnail
from potluck_app.views.widgets.words import ToolButton

_NAME_LENGTH = 20
_SMALL, _LARGE = 48, 96  # pixels of a picture's height, where it can be taken off and where not
_NARROWEST = 24  # pixels of its button
_RING = 2  # pixels around it, where the focus is shown
_SHARP = 2  # pixels of a sharp screen for each
_PREVIEW = 400  # characters of a file in its tooltip


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
