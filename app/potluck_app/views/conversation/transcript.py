"""The messages of the conversation, one widget each, in a page that scrolls.

The model holds the messages; this page follows it. Only messages near the view have widgets: the
others have a height, as it was measured or as their text suggests. What is in view is built at once;
what is about to come into view is built one message at a time, when the thread has nothing else to
do, so that no frame waits for it. What is in view stays where it is when a height above it changes.
The page follows its end only while the person is there.
"""

from PySide6.QtCore import QEvent, QModelIndex, QObject, QRect, Qt, QTimer
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QApplication, QFrame, QScrollArea, QWidget

from potluck_app.chats.search import pattern_of
from potluck_app.chats.values import Message
from potluck_app.theme import Theme
from potluck_app.viewmodels.chat import Chat
from potluck_app.views.conversation.composer import ComposerText
from potluck_app.views.conversation.message import ReplyMessage
from potluck_app.views.conversation.user_message import UserMessage
from potluck_app.views.widgets.code import CodeView
from potluck_app.views.widgets.controls import discard
from potluck_app.views.widgets.focus import chain_tabs, tab_stops
from potluck_app.views.widgets.heights import Heights
from potluck_app.views.widgets.highlights import NOTHING
from potluck_app.views.widgets.words import Described

PAGE_WIDTH = 720
_SIDE = 24
_TOP = 18
_GAP = 20
_AT_END = 24  # pixels from the end that still count as the end
_AHEAD = 1.0  # of the view's height: so much is built above and below it when there is time
_KEPT = 2.0  # of the view's height: what is farther away is dropped
_CHAIN_MS = 100  # after the page has moved: it changes much while it moves
_SPARE = 24  # views at most that wait for other messages
_ROUNDS = 8  # heights are known after building, and may ask for more; each round builds a view more

_ARRANGE = QEvent.Type(QEvent.registerEventType())

_View = UserMessage | ReplyMessage


class _Page(QWidget):
    """What scrolls. It paints all of itself, so that Qt moves its picture and paints what is new."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self.setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(event.rect(), QColor(self._theme.tokens.bg))
        painter.end()


class Transcript(Described, QScrollArea):
    """The page of messages."""

    def __init__(self, theme: Theme, chat: Chat) -> None:
        super().__init__()
        self.setObjectName("transcript")
        self.setAccessibleName("Conversation")
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._theme, self._chat = theme, chat
        self._heights = Heights(_TOP)  # of all rows, with the gap below each
        self._first = 0  # the row of the first message that has a widget
        self._views: list[_View] = []
        self._spare: list[_View] = []  # hidden, to show other messages: making them takes longer
        self._stale: set[_View] = set()  # views whose height may have changed
        self.tab_after: QWidget | None = None  # the Tab key comes from there
        self._stick = True
        self._is_arranging = self._is_due = False
        self._shape: list[tuple[_View, int]] = []  # of the views, when their stops were chained
        self._progress: tuple[str, float | None] = ("", None)
        self._page = _Page(theme)
        self.setWidget(self._page)
        self._ahead = QTimer(self, singleShot=True, interval=0)
        self._ahead.timeout.connect(self._build_ahead)
        self._chaining = QTimer(self, singleShot=True, interval=_CHAIN_MS)
        self._chaining.timeout.connect(self._chain)

        self.verticalScrollBar().valueChanged.connect(self._on_scrolled)
        model = chat.messages
        model.modelReset.connect(self._rebuild)
        model.rowsInserted.connect(self._on_inserted)
        model.rowsRemoved.connect(self._on_removed)
        model.dataChanged.connect(self._on_changed)
        chat.revealed.connect(self.reveal)
        theme.changed.connect(self._refit)
        QApplication.instance().focusChanged.connect(self._on_focus)  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
        self._rebuild()

    # --- what others ask for

    def last_reply(self) -> ReplyMessage | None:
        """The newest reply that has a widget."""
        for view in reversed(self._views):
            if isinstance(view, ReplyMessage):
                return view
        return None

    def last_code(self) -> CodeView | None:
        """The newest block of code in the replies that have widgets."""
        replies = (view for view in reversed(self._views) if isinstance(view, ReplyMessage))
        return next((code for reply in replies if (code := reply.last_code()) is not None), None)

    def last_own(self) -> UserMessage | None:
        """The newest message of the person that has a widget."""
        for view in reversed(self._views):
            if isinstance(view, UserMessage):
                return view
        return None

    def built(self) -> tuple[int, int]:
        """Return the first row that has a widget, and the one after the last."""
        return self._first, self._first + len(self._views)

    def show_progress(self, line: str, fraction: float | None) -> None:
        """Show what is happening to the model, for a reply that waits for it."""
        self._progress = (line, fraction)
        reply = self.last_reply()
        if reply is not None and reply.message.status == "streaming":
            reply.show_progress(line, fraction)

    def scroll_to_end(self) -> None:
        self._stick = True
        self._arrange()

    def reveal(self, row: int, words: str) -> None:
        """Bring a message into view, and mark these words in it."""
        self._stick = False
        self._scroll_to(self._heights.start(row))
        pattern = pattern_of(words)
        first, stop = self.built()
        if pattern is not None and first <= row < stop:
            place = self._views[row - first].highlight(pattern)
            self._arrange()
            self._scroll_to(self._heights.start(row) + place - self.viewport().height() // 3)

    def unmark(self) -> None:
        """Take the marks of a search away."""
        for view in self._views:
            view.highlight(NOTHING)

    # --- the model

    def _rebuild(self) -> None:
        self._drop_views(0, len(self._views))
        self._first = 0
        self._heights = Heights(_TOP)
        self._heights.insert(0, map(_guess, self._chat.messages.messages))
        self._stick = True
        self._arrange()

    def _on_inserted(self, _parent: QModelIndex, first: int, last: int) -> None:
        rows = range(first, last + 1)
        self._heights.insert(first, (_guess(self._chat.messages.at(row)) for row in rows))
        self._stick = True
        self._arrange()
        self._mark()
        self.show_progress(*self._progress)

    def _on_removed(self, _parent: QModelIndex, first: int, last: int) -> None:
        self._heights.remove(first, last + 1)
        built = self.built()
        self._drop_views(max(first - built[0], 0), max(last + 1 - built[0], 0))
        self._first = min(self._first, len(self._heights))

    def _on_changed(self, index: QModelIndex, _last: QModelIndex) -> None:
        first, stop = self.built()
        if first <= index.row() < stop:
            self._show(index.row())

    def _show(self, row: int) -> None:
        model = self._chat.messages
        view, message = self._views[row - self._first], model.at(row)
        if isinstance(view, ReplyMessage):
            is_last = row == model.rowCount() - 1
            view.show_message(message, is_last=is_last, versions=model.versions(row))
        else:
            view.show_message(message, model.versions(row))

    def _mark(self) -> None:
        """Show again what depends on the place of a message: whether it is the last one."""
        for row in range(max(self._first, len(self._heights) - 3), self.built()[1]):
            self._show(row)

    def _on_focus(self, _old: QWidget | None, new: QWidget | None) -> None:
        """Bring the editor of a message into view when it opens: nobody writes where nothing is seen."""
        if not isinstance(new, ComposerText) or not self._page.isAncestorOf(new):
            return
        self._stick = False
        view = next(view for view in self._views if view.isAncestorOf(new))
        self._stale.add(view)
        self._arrange()
        if (layout := view.layout()) is not None:
            layout.activate()  # the editor gets its place
        self.ensureWidgetVisible(new.parentWidget() or new, 0, _GAP)

    # --- what is built

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._refit()

    def _refit(self) -> None:
        """Lay all views out again: the page has another width, or the text another size."""
        for view in self._views:
            view.fit(self._width())
        self._stale.update(self._views)
        self._arrange()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.LayoutRequest and isinstance(watched, _View):
            self._stale.add(watched)
            self._arrange_soon()
        return super().eventFilter(watched, event)

    def _arrange_soon(self) -> None:
        """Arrange once before the next frame, however many parts of views have changed."""
        if not self._is_due:
            self._is_due = True
            QApplication.postEvent(self, QEvent(_ARRANGE))

    def event(self, event: QEvent) -> bool:
        if event.type() == _ARRANGE:
            self._arrange()
            return True
        return super().event(event)

    def _on_scrolled(self, value: int) -> None:
        if not self._is_arranging:
            self._stick = value >= self.verticalScrollBar().maximum() - _AT_END
            self._arrange(is_moving=True)

    def _arrange(self, *, is_moving: bool = False) -> None:
        """Build what is in view, drop what is far from it, and put all in their places."""
        if self._is_arranging:
            return
        self._is_arranging, self._is_due = True, False
        try:
            for _ in range(_ROUNDS):
                self._measure()
                if not self._build():
                    break
            self._place()
        finally:
            self._is_arranging = False
        self._ahead.start()
        if is_moving or self._chaining.isActive():
            self._chaining.start()
        else:
            self._chain()

    def _build_ahead(self) -> None:
        """Build the one message that is nearest to the view, and then let others have the thread."""
        first, stop = self._rows(_AHEAD)
        begin, end = self.built()
        if end < stop:
            self._add(end)
        elif first < begin:
            self._first = begin - 1
            self._add(self._first)
        else:
            return
        self._arrange(is_moving=True)

    def _rows(self, margin: float) -> tuple[int, int]:
        """Return the rows that are in view, or so many heights of the view away from it."""
        top, height = self.verticalScrollBar().value(), self.viewport().height()
        return self._heights.between(top - margin * height, top + (1 + margin) * height)

    def _build(self) -> bool:
        """Build the views that are missing. Returns whether there were any."""
        first, stop = self._rows(0)
        nearest = self._rows(_KEPT)
        begin, end = self.built()
        if end <= first or begin >= stop:  # the view is somewhere else now
            self._drop_views(0, len(self._views))
            begin = end = self._first = first
        self._drop_views(max(nearest[1] - begin, 0), len(self._views))
        self._drop_views(0, min(max(nearest[0] - begin, 0), len(self._views)))
        begin, end = self.built()
        for row in range(end, stop):
            self._add(row)
        for row in range(begin - 1, first - 1, -1):
            self._first = row
            self._add(row)
        return bool(self._stale)

    def _add(self, row: int) -> None:
        message = self._chat.messages.at(row)
        kind = UserMessage if message.role == "user" else ReplyMessage
        view = next((spare for spare in self._spare if isinstance(spare, kind)), None)
        if view is None:
            view = kind(self._theme, message, self._chat, self._width())
            view.setParent(self._page)
        else:
            self._spare.remove(view)
            view.highlight(NOTHING)
        self._views.insert(row - self._first, view)
        self._show(row)
        view.fit(self._width())
        view.installEventFilter(self)
        view.setGeometry(self._side(), self._heights.start(row), self._width(), self._heights[row])
        view.show()
        self._stale.add(view)

    def _drop_views(self, begin: int, end: int) -> None:
        dropped = self._views[begin:end]
        if not dropped:
            return
        focus = QApplication.focusWidget()
        if focus is not None and any(view.isAncestorOf(focus) for view in dropped):
            self.setFocus()  # else Qt gives it to a neighbour, and scrolls there
        for view in dropped:
            view.removeEventFilter(self)
        self._stale.difference_update(dropped)
        del self._views[begin:end]
        if begin == 0:
            self._first += len(dropped)
        for view in dropped:
            if view.is_plain and len(self._spare) < _SPARE:
                view.hide()
                self._spare.append(view)
            else:
                discard(view)

    def _measure(self) -> None:
        """Learn the heights of views, and keep what is in view where it is."""
        bar = self.verticalScrollBar()
        top, moved = bar.value(), 0
        above = self._heights.between(top, top)[0]  # the row at the top of the view
        for row, view in enumerate(self._views, self._first):
            if view not in self._stale:
                continue
            before, now = self._heights[row], _height(view, self._width()) + _GAP
            self._heights[row] = now
            if row < above:
                moved += now - before
        self._stale.clear()
        self._resize_page()
        bar.setValue(bar.maximum() if self._stick else bar.value() + moved)

    def _resize_page(self) -> None:
        size = self.viewport().size()
        height = max(self._heights.end - _GAP + _TOP, size.height())
        if (self._page.width(), self._page.height()) != (size.width(), height):
            self._page.resize(size.width(), height)

    def _place(self) -> None:
        heights, side, width = self._heights, self._side(), self._width()
        for row, view in enumerate(self._views, self._first):
            view.setGeometry(QRect(side, heights.start(row), width, heights[row] - _GAP))

    def _chain(self) -> None:
        """Let the Tab key reach all views from top to bottom, and in each its text first."""
        shape = [(view, view.part_count()) for view in self._views]
        if shape != self._shape:
            self._shape = shape
            layouts = (view.layout() for view in self._views)
            stops = [stop for each in layouts if each for stop in tab_stops(each)]
            chain_tabs(stops if self.tab_after is None else [self.tab_after, *stops])

    def _scroll_to(self, place: int) -> None:
        self.verticalScrollBar().setValue(place)
        self._arrange()

    def _side(self) -> int:
        # The bar takes of the margin: text stays where it is when there is one, above the composer.
        return max(_SIDE, (self.width() - PAGE_WIDTH) // 2)

    def _width(self) -> int:
        return max(self.width() - 2 * self._side(), 100)


def _guess(message: Message) -> int:
    """Return about how high a message is, before it is built."""
    lines = message.text.count("\n") + len(message.text) // 90 + 1
    return (21 * lines + 55 if message.role == "assistant" else 19 * lines + 19) + _GAP


def _height(view: QWidget, width: int) -> int:
    layout = view.layout()
    assert layout is not None
    layout.invalidate()
    if layout.hasHeightForWidth():
        return layout.totalHeightForWidth(width)
    return layout.totalSizeHint().height()
