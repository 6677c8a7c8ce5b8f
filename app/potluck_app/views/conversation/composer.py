"""The text field for prompts: it grows with the text, Enter sends if the person likes, and Send becomes Stop."""

from math import ceil
from pathlib import Path
from typing import ClassVar

from PySide6.QtCore import QEvent, QMimeData, QObject, Qt, Signal
from PySide6.QtGui import QDragEnterEvent, QDragMoveEvent, QImage, QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QFileDialog, QFrame, QPlainTextEdit

from potluck_app.background import Background
from potluck_app.chats.attachments import (
    MAX_FILES,
    AttachmentError,
    attach,
    beside,
    picture,
    too_many,
)
from potluck_app.chats.values import Attachment, Draft
from potluck_app.language import said
from potluck_app.theme import Theme
from potluck_app.views.options.shortcuts import shown
from potluck_app.views.widgets.boxes import STRETCH, hbox, vbox
from potluck_app.views.widgets.chips import Chips
from potluck_app.views.widgets.controls import (
    ButtonIcon,
    IconButton,
    announce,
    button,
    label,
    set_property,
)
from potluck_app.views.widgets.files import FileDialog
from potluck_app.views.widgets.pictures import encoded, small_picture
from potluck_app.views.widgets.words import Described

_MAX_LINES = 8
_BESIDE = 44  # pixels of the margins and the gaps beside the hint
_MAX_CHARACTERS = 200_000  # far above any context; a pasted video file must not freeze the window


class ComposerText(Described, QPlainTextEdit):
    """The text field.

    Signals:
        submitted: the keys were pressed that send.
        recalled: the arrow up was pressed in the empty field.
        dropped: the files that were dropped or pasted.
        pasted: a picture that was, as a QImage.
    """

    enter_sends: ClassVar[bool] = (
        True  # as the person chose, in all messages; Ctrl+Enter always does
    )

    submitted = Signal()
    recalled = Signal()
    dropped = Signal(object)
    pasted = Signal(object)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self.setObjectName("composer-text")
        self.setAccessibleName("Message")
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setProperty("ring", "own")  # the frame around it shows the focus
        self.setTabChangesFocus(True)
        theme.changed.connect(self._fit)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        # A space at the end of a full line would move all lines to the left.
        sideways = self.horizontalScrollBar()
        sideways.rangeChanged.connect(lambda *_: sideways.setRange(0, 0))
        self.document().setDocumentMargin(0)
        self.document().documentLayout().documentSizeChanged.connect(lambda _size: self._fit())
        self._fit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        is_enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        held, modifier = event.modifiers(), Qt.KeyboardModifier
        has_shift, has_ctrl = (
            bool(held & modifier.ShiftModifier),
            bool(held & modifier.ControlModifier),
        )
        if is_enter and not has_shift and (self.enter_sends or has_ctrl):
            self.submitted.emit()
        elif event.key() == Qt.Key.Key_Up and not self.toPlainText():
            self.recalled.emit()
        else:
            super().keyPressEvent(event)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if not files_in(event.mimeData()):
            super().dragEnterEvent(event)
        else:
            event.acceptProposedAction()

    def dragMoveEvent(self, event: QDragMoveEvent) -> None:
        if not files_in(event.mimeData()):
            super().dragMoveEvent(event)
        else:
            event.acceptProposedAction()

    def canInsertFromMimeData(self, source: QMimeData) -> bool:
        has_files = bool(files_in(source)) or source.hasImage()
        return has_files or super().canInsertFromMimeData(source)

    def insertFromMimeData(self, source: QMimeData) -> None:
        """Take what was dropped or pasted: files are attached, text is inserted."""
        if paths := files_in(source):
            self.dropped.emit(paths)
        elif source.hasImage() and not source.hasText():
            self.pasted.emit(source.imageData())
        else:
            self.insertPlainText(source.text())

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.FontChange:  # as when the style sheet comes to a new field
            self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.oldSize().width() != event.size().width():
            self._fit()  # the lines break elsewhere, which the document does not say

    def _line_height(self) -> int:
        """Pixels from line to line, which may be one more than the font says."""
        first = self.document().firstBlock()
        height, count = self.blockBoundingRect(first).height(), first.layout().lineCount()
        return ceil(height / max(count, 1)) or self.fontMetrics().lineSpacing()

    def _fit(self) -> None:
        # The layout of a QPlainTextEdit measures its height in lines.
        lines = max(round(self.document().documentLayout().documentSize().height()), 1)
        shown = min(lines, _MAX_LINES)
        policy = Qt.ScrollBarPolicy
        self.setVerticalScrollBarPolicy(
            policy.ScrollBarAsNeeded if lines > _MAX_LINES else policy.ScrollBarAlwaysOff
        )
        below = 4  # pixels, where no part of a ninth line may be seen
        self.setViewportMargins(0, 0, 0, below if lines > _MAX_LINES else 0)
        self.setFixedHeight(shown * self._line_height() + below)


def files_in(data: QMimeData) -> list[Path]:
    """Return the files that are dragged, dropped or pasted."""
    return [Path(url.toLocalFile()) for url in data.urls() if url.isLocalFile()]


class Composer(QFrame):
    """The text field with its buttons, and the files that go with the message.

    Signals:
        sent: a text to send, and its attachments.
        stopped: the person wants the reply to end.
        changed: the Draft, after each change.
        recalled: the person wants to edit the last message.
    """

    sent = Signal(str, object)
    stopped = Signal()
    changed = Signal(object)
    recalled = Signal()

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.setProperty("composer", "true")
        self._theme = theme
        self._is_busy = self._is_showing = False
        self._attachments: tuple[Attachment, ...] = ()
        self.text = ComposerText(theme)
        self.text.submitted.connect(self._submit)
        self.text.recalled.connect(self.recalled)
        self.text.dropped.connect(self.attach)
        self.text.pasted.connect(self._paste)
        self.text.textChanged.connect(self._on_change)
        self.text.installEventFilter(self)
        self.chips = Chips(theme, self._take_off)
        self.trouble = label("", "error", wrap=True, name="composer-trouble")
        self.trouble.hide()
        self._model, self._sees, self._why_blind = "", True, ""
        self.blind = label("", "error", wrap=True, name="composer-blind")
        self.blind.hide()
        self.add = IconButton(
            theme, "attach", "Attach texts and pictures", "composer-attach", text="Attach"
        )
        self.add.clicked.connect(self.choose_files)
        self.button = button("Send", "composer-send", self._on_button, kind="primary")
        self._icon = ButtonIcon(
            self.button,
            theme,
            "send",
            lambda: theme.tokens.text if self._is_busy else theme.tokens.accent_on,
        )
        self._hint = label("", "meta", name="composer-hint")
        self.show_keys()
        foot = hbox(self.add, self._hint, STRETCH, self.button, spacing=8)
        inner = vbox(
            self.chips, self.text, self.blind, self.trouble, spacing=8, margins=(6, 0, 0, 0)
        )
        vbox(inner, foot, parent=self, margins=(12, 14, 8, 8), spacing=10)
        self.setFocusProxy(self.text)
        self._enable()

    def set_model(self, name: str, *, sees: bool, why: str = "") -> None:
        """Say which model is written to, and before anything is sent whether it reads pictures, or `why` not."""
        self._model, self._sees, self._why_blind = name, sees, why
        self.text.setPlaceholderText(said(f"Message {name}"))
        self.add.setAccessibleName(self._attached())
        self._enable()

    def _attached(self) -> str:
        return "Attach texts and pictures" if self._sees else "Attach texts"

    def set_busy(self, is_busy: bool) -> None:
        """Offer Stop during a reply, else Send."""
        self._is_busy = is_busy
        self.button.setText("Stop" if is_busy else "Send")
        self.button.setAccessibleName("Stop the reply" if is_busy else "Send")
        set_property(self.button, "kind", "plain" if is_busy else "primary")
        self._icon.set_icon("stop" if is_busy else "send")
        self._enable()

    def show_draft(self, draft: Draft) -> None:
        """Show what was written and not sent."""
        if draft == self.draft():
            return
        self._is_showing = True
        self.text.setPlainText(draft.text)
        self.text.moveCursor(self.text.textCursor().MoveOperation.End)
        self._set_attachments(draft.attachments)
        self._say("")
        self._is_showing = False

    def draft(self) -> Draft:
        return Draft(text=self.text.toPlainText(), attachments=self._attachments)

    def attach(self, paths: list[Path]) -> None:
        """Read these files and attach them; say which ones cannot be attached."""
        before = self._attachments
        thread = Background("files", self)  # a file may be on a network drive that does not answer

        def done(read: tuple[list[Attachment], list[str]]) -> None:
            thread.close(timeout_s=0)
            thread.deleteLater()
            self._on_read(*read)

        thread.run(lambda: attach(paths, before, small_picture), done)

    def choose_files(self) -> None:
        """Ask for files to attach."""
        dialog = FileDialog(self._theme, self, self._attached())
        dialog.setFileMode(QFileDialog.FileMode.ExistingFiles)
        dialog.filesSelected.connect(lambda names: self.attach([Path(name) for name in names]))
        dialog.open()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._show_hint()

    def show_keys(self) -> None:
        """Say which keys send, as the person chose."""
        sends = ComposerText.enter_sends
        self._hint.setText(
            "Enter to send, Shift+Enter for a new line"
            if sends
            else f"{shown('Ctrl+Return')} to send"
        )
        self._show_hint()

    def _show_hint(self) -> None:
        """Show which keys send, where there is room for the whole sentence."""
        beside = self.add.sizeHint().width() + self.button.sizeHint().width() + _BESIDE
        self._hint.setVisible(self._hint.sizeHint().width() + beside <= self.width())

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.FocusIn:
            set_property(self, "composer", "focused")
        elif event.type() == QEvent.Type.FocusOut:
            set_property(self, "composer", "true")
        return super().eventFilter(watched, event)

    def _on_read(self, read: list[Attachment], troubles: list[str]) -> None:
        self._set_attachments((*self._attachments, *read))
        self._say("\n".join(troubles))

    def _paste(self, image: QImage) -> None:
        """Attach a picture of the clipboard."""
        name = said("Picture")
        if len(self._attachments) >= MAX_FILES:
            self._say(too_many(name))
            return
        try:
            made = picture(name, encoded(image), lambda data: data or None)
            self._set_attachments((*self._attachments, beside(self._attachments, made)))
        except AttachmentError as error:
            self._say(str(error))

    def _take_off(self, place: int) -> None:
        kept = list(self._attachments)
        del kept[place]
        self._set_attachments(tuple(kept))
        self.text.setFocus()

    def _set_attachments(self, attachments: tuple[Attachment, ...]) -> None:
        self._attachments = attachments
        self.chips.show_files(attachments)
        self._on_change()

    def _say(self, trouble: str) -> None:
        self.trouble.setText(trouble)
        self.trouble.setVisible(bool(trouble))
        if trouble:
            announce(self, trouble)

    def _on_change(self) -> None:
        self._enable()
        if not self._is_showing:
            self.changed.emit(self.draft())

    def _enable(self) -> None:
        is_empty = not (self.text.toPlainText().strip() or self._attachments)
        is_blind = not self._sees and any(each.picture for each in self._attachments)
        self.button.setEnabled(self._is_busy or not (is_empty or is_blind))
        if is_blind:
            only_text = f"{self._model} reads only text."
            advice = "Take the pictures off, or choose a model that sees."
            self.blind.setText(" ".join(filter(None, (only_text, self._why_blind, advice))))
        if is_blind and self.blind.isHidden():
            announce(self, self.blind.text())
        self.blind.setVisible(is_blind)

    def _on_button(self) -> None:
        if self._is_busy:
            self.stopped.emit()
        else:
            self._submit()

    def _submit(self) -> None:
        text, attachments = self.text.toPlainText().strip(), self._attachments
        if not self.button.isEnabled() or self._is_busy:
            return
        if len(text) > _MAX_CHARACTERS:
            self._say(
                f"This message has {len(text):,} characters, and {_MAX_CHARACTERS:,} can be sent."
                " Shorten it, or attach the parts that matter as files."
            )
            return
        self.text.clear()
        self._set_attachments(())
        self._say("")
        self.sent.emit(text, attachments)
