"""A reply in the transcript: as wide as the page, in blocks of prose and code."""

import re
from collections.abc import Callable
from functools import cached_property

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QBoxLayout, QFrame, QSizePolicy, QWidget

from potluck_app import wording
from potluck_app.chats.values import Message
from potluck_app.language import said
from potluck_app.theme import Theme
from potluck_app.viewmodels.blocks import Block, BlockSplitter, Code, Prose, split_thinking
from potluck_app.viewmodels.chat import Chat
from potluck_app.viewmodels.prompt import can_go_on
from potluck_app.views.conversation.editor import Editor
from potluck_app.views.conversation.thinking import ThinkingView
from potluck_app.views.conversation.versions import VersionSwitch
from potluck_app.views.widgets.boxes import STRETCH, hbox, vbox
from potluck_app.views.widgets.code import CodeView
from potluck_app.views.widgets.controls import CopyButton, IconButton, button, discard, label
from potluck_app.views.widgets.flow import Flow
from potluck_app.views.widgets.folding import Folding
from potluck_app.views.widgets.meter import Meter
from potluck_app.views.widgets.prose import BETWEEN_ITEMS, ProseView

_NARROW = 480  # pixels; a narrower footer has icons without words, to leave the figures their room
_BETWEEN = 10  # pixels between blocks
_WHY = 400  # pixels beside the buttons of a failure; a narrower sentence has its own line
_GAP = 6  # pixels between the actions and the figures, at least
_SPARE = 8  # hidden blocks at most
_LONG_LOAD_S = 1.0  # seconds; below, nothing was loaded
_OF_THE_MODEL = frozenset(  # codes of errors that another model does not have
    {
        "not_enough_memory",
        "plan",
        "model",
        "unknown_architecture",
        "invalid_config",
        "broken_model",
        "not_found",
    }
)
READING = "Reading your message…"  # the model is loaded, and has not said its first word


class ReplyMessage(QWidget):
    """A reply: blocks of prose and code, and below them the actions for it."""

    def __init__(self, theme: Theme, message: Message, chat: Chat, width: int = 0) -> None:
        """With `width`, its text is wrapped for a page of this width from the beginning."""
        super().__init__()
        self._theme, self._chat = theme, chat
        self._message = message
        self._width = width
        self._splitter = BlockSplitter()
        self._blocks: list[ProseView | CodeView] = []
        self._spare: list[ProseView | CodeView] = []  # hidden: other text may need them again
        self._shown_text = ""
        self._answer = ""
        self._editor: Editor | None = None
        self._head, self._body = vbox(), vbox()  # of the body, every second item is a space
        self._tail = vbox(spacing=10)
        vbox(self._head, self._body, self._tail, parent=self, spacing=10)
        self._build_footer()
        self.show_message(message, is_last=False)

    # Most replies never show these; making them takes longer than all the rest.

    @cached_property
    def thinking(self) -> ThinkingView:
        view = ThinkingView(self._theme)
        view.fit(self._width)
        self._head.addWidget(view)
        return view

    @cached_property
    def waiting(self) -> "Waiting":
        view = Waiting(self._theme)
        self._tail.insertWidget(0, view)
        return view

    @cached_property
    def failure(self) -> "Failure":
        view = Failure(self._theme, self._regenerate, self._chat.models_wanted.emit)
        self._tail.insertWidget(self._tail.count() - 1, view)
        return view

    @cached_property
    def versions(self) -> VersionSwitch:
        view = VersionSwitch(self._theme, lambda step: self._chat.choose(self._message.id, step))
        self._foot.insertWidget(5, view)  # so that the figures end where the text ends
        return view

    def _build_footer(self) -> None:
        self._footer = QWidget()
        self.copy = CopyButton(self._theme, "Copy reply", "reply-copy", lambda: self._answer)
        self.regenerate = IconButton(
            self._theme, "refresh", "Regenerate reply", "reply-regenerate", text="Regenerate"
        )
        self.regenerate.clicked.connect(self._regenerate)
        self.go_on = IconButton(
            self._theme, "play", "Continue the reply", "reply-go-on", text="Continue"
        )
        self.go_on.clicked.connect(lambda: self._chat.go_on(self._message.id))
        self.edit = IconButton(self._theme, "edit", "Edit reply", "reply-edit")
        self.edit.clicked.connect(self.open_editor)
        self.branch = IconButton(
            self._theme, "branch", "Go on from here in a new chat", "reply-branch"
        )
        self.branch.clicked.connect(lambda: self._chat.branch(self._message.id))
        self.stats = label("", "meta", name="reply-stats")
        self.stats.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.stats.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        actions = (self.copy, self.go_on, self.regenerate, self.edit, self.branch)
        for flat in actions:
            flat.setProperty("kind", "inline")
            flat.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)  # equal gaps
        self._foot = hbox(*actions, STRETCH, spacing=4)
        self._figures = hbox(self._foot, (self.stats, 1), parent=self._footer, spacing=4)
        self._tail.addWidget(self._footer)

    def _place_stats(self) -> None:
        """Put the figures beside the actions; where they would be cut, below them, in lines."""
        self.stats.ensurePolished()
        words = self.stats.fontMetrics().horizontalAdvance(said(self.stats.text()))
        direction = QBoxLayout.Direction
        is_below = self._foot.sizeHint().width() + words + _GAP > self._width
        if self.stats.wordWrap() != is_below:
            self.stats.setWordWrap(is_below)
        self._figures.setDirection(direction.TopToBottom if is_below else direction.LeftToRight)
        self._figures.setContentsMargins(0, 0, 0, _GAP if is_below else 0)
        side = Qt.AlignmentFlag.AlignLeft if is_below else Qt.AlignmentFlag.AlignRight
        self.stats.setAlignment(side | Qt.AlignmentFlag.AlignVCenter)

    @property
    def message(self) -> Message:
        return self._message

    @property
    def is_plain(self) -> bool:
        """Whether it shows text alone, so that it can show any other message as well."""
        has_more = not {"thinking", "waiting", "failure", "versions"}.isdisjoint(self.__dict__)
        return self._editor is None and not has_more

    def part_count(self) -> int:
        """How many parts the reply has, which changes with what the Tab key reaches."""
        return self._head.count() + self._body.count() + self._tail.count() + self._foot.count()

    def _regenerate(self) -> None:
        self._chat.regenerate(self._message.id)

    def show_message(
        self, message: Message, *, is_last: bool, versions: tuple[int, int] = (0, 1)
    ) -> None:
        """Show the current message. If its text only grew, unchanged blocks are not drawn again."""
        self._message = message
        thoughts, self._answer, has_thought = split_thinking(message.text)
        is_streaming = message.status == "streaming"
        is_done = has_thought or not is_streaming
        if thoughts or not is_done or "thinking" in self.__dict__:
            self.thinking.show_thoughts(thoughts, is_done=is_done)
        if not self._answer.startswith(self._shown_text):
            self._splitter = BlockSplitter()
            self._shown_text = ""
        first = self._splitter.feed(self._answer[len(self._shown_text) :])
        self._shown_text = self._answer
        self._draw_from(first, grows=is_streaming)
        if not is_streaming and self._blocks:
            self._blocks[-1].draw_whole()
        is_waiting = is_streaming and (not message.text or message.cut)
        has_failed = message.status == "failed"
        if is_waiting or "waiting" in self.__dict__:
            self.waiting.setVisible(is_waiting)
        if has_failed or "failure" in self.__dict__:
            self.failure.setVisible(has_failed)
            self.failure.text.setText(message.error or "")
            self.failure.retry.setVisible(is_last)
            self.failure.models.setVisible(is_last and message.code in _OF_THE_MODEL)
        self._footer.setVisible(
            self._editor is None and not is_streaming and (bool(message.text) or versions[1] > 1)
        )
        for action in (self.copy, self.edit, self.branch):
            action.setVisible(bool(message.text))
        if versions[1] > 1 or "versions" in self.__dict__:
            self.versions.show_versions(*versions)
        self.go_on.setVisible(is_last and can_go_on(message))
        self.regenerate.setVisible(is_last and message.status != "failed")
        self.stats.setText(stats_line(message))
        self._place_stats()

    def show_progress(self, line: str, fraction: float | None) -> None:
        """Show what is happening while there is no text yet."""
        self.waiting.line.setText(line or READING)
        self.waiting.meter.setVisible(fraction is not None)
        self.waiting.meter.show_fraction(fraction or 0.0)

    def fit(self, width: int) -> None:
        """Wrap the text for a page of this width, so that the height is right at once."""
        self._width = width
        is_narrow = width < self._theme.px(_NARROW)
        self.copy.set_text("" if is_narrow else "Copy")
        self.regenerate.set_text("" if is_narrow else "Regenerate")
        self.go_on.set_text("" if is_narrow else "Continue")
        for block in self._blocks:
            if isinstance(block, ProseView):
                block.fit(width)
        if "thinking" in self.__dict__:
            self.thinking.fit(width)
        self._place_stats()

    def open_editor(self) -> None:
        """Let the person write another version of the reply, which the model reads as its own."""
        if self._editor is not None:
            return
        self._editor = Editor(self._theme, self._answer, "Another version of the reply", "Save")
        self._editor.sent.connect(self._save)
        self._editor.cancelled.connect(self._close_editor)
        self._tail.addWidget(self._editor)
        self._editor.show()  # now, so that its height counts
        self._show_blocks(False)
        self._editor.text.setFocus()

    def _save(self, text: str) -> None:
        assert self._editor is not None
        if self._chat.is_busy:
            self._editor.say_busy()
            return
        self._close_editor()
        self._chat.edit(self._message.id, text)

    def _close_editor(self) -> None:
        if self._editor is not None:
            discard(self._editor)
            self._editor = None
        self._show_blocks(True)
        self.edit.setFocus()

    def _show_blocks(self, are_shown: bool) -> None:
        for part in (*self._blocks, self._footer):
            part.setVisible(are_shown)
        for number, block in enumerate(self._splitter.blocks):
            self._set_space(number, block)

    def highlight(self, pattern: re.Pattern[str]) -> int:
        """Mark the words in all blocks. Returns the place of the first from the top, in pixels."""
        found: list[int] = []
        for block in self._blocks:
            place = block.highlight(pattern)
            if place is not None:
                found.append(block.y() + place)
        if not found and pattern.search(split_thinking(self._message.text)[0]):
            self.thinking.unfold()
        return found[0] if found else 0

    def last_code(self) -> CodeView | None:
        """The last block of code of this reply."""
        return next((b for b in reversed(self._blocks) if isinstance(b, CodeView)), None)

    def _draw_from(self, first: int, *, grows: bool) -> None:
        blocks = self._splitter.blocks
        while len(self._blocks) > len(blocks):
            self._drop(self._blocks.pop())
            self._body.takeAt(self._body.count() - 1)  # the space above it
        for number in range(first, len(blocks)):
            block = blocks[number]
            kind = CodeView if isinstance(block, Code) else ProseView
            if number < len(self._blocks) and not isinstance(self._blocks[number], kind):
                self._drop(self._blocks[number])
                self._blocks[number] = self._add(number, kind)
            elif number == len(self._blocks):
                self._body.addSpacing(0)
                self._blocks.append(self._add(number, kind))
            self._set_space(number, block)
            view = self._blocks[number]
            if isinstance(view, CodeView) and isinstance(block, Code):
                view.show_code(block)
            elif isinstance(view, ProseView) and isinstance(block, Prose):
                view.show_markdown(block.text, grows=grows and number == len(blocks) - 1)

    def _add(self, number: int, kind: type[ProseView] | type[CodeView]) -> ProseView | CodeView:
        view = next((spare for spare in self._spare if isinstance(spare, kind)), None)
        if view is None:
            view = kind(self._theme)
            self._body.insertWidget(2 * number + 1, view)
        else:
            self._spare.remove(view)
            self._body.insertWidget(2 * number + 1, view)
            view.show()
        if isinstance(view, ProseView) and self._width:
            view.fit(self._width)
        return view

    def _set_space(self, number: int, block: Block) -> None:
        is_next_item = isinstance(block, Prose) and block.goes_on
        is_alone = number == 0 or self._editor is not None
        space = 0 if is_alone else BETWEEN_ITEMS if is_next_item else _BETWEEN
        item = self._body.itemAt(2 * number)
        spacer = item.spacerItem() if item is not None else None
        if spacer is not None and spacer.sizeHint().height() != space:
            spacer.changeSize(0, space)
            self._body.invalidate()

    def _drop(self, view: ProseView | CodeView) -> None:
        self._body.removeWidget(view)
        if len(self._spare) < _SPARE:
            view.hide()
            self._spare.append(view)
        else:
            discard(view)


class Waiting(QWidget):
    """What happens before the first word: the model is loaded, or the prompt is read."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.line = label(READING, "body2", wrap=True, name="reply-progress")
        self.meter = Meter(theme, "Progress of the model")
        self.meter.setMaximumWidth(420)  # not the line: it would be as high as if it were wider
        vbox(self.line, self.meter, parent=self, spacing=8)
        self.meter.hide()


class Failure(QFrame):
    """Why a reply failed, and buttons to try again, and to choose another model where it was that."""

    def __init__(
        self, theme: Theme, on_retry: Callable[[], object], on_models: Callable[[], object]
    ) -> None:
        super().__init__()
        self.setProperty("tone", "error")
        self.text = label("", wrap=True, name="reply-error")
        self.text.setProperty("tone", "error")
        self.retry = button("Try again", "reply-retry", on_retry)
        self.models = button("Choose another model", "reply-models", on_models)
        actions = QWidget()
        ways = Flow(actions)
        for way in (self.models, self.retry):
            ways.addWidget(way)
        row = Folding(self.text, actions, lambda: theme.px(_WHY))
        vbox(row, parent=self, margins=(14, 9, 8, 9))


def stats_line(message: Message) -> str:
    """Return the line of figures: `7.9 tokens/s · 118 tokens · 1.2 s to first token`."""
    parts = ["Stopped"] if message.status == "stopped" else []
    if message.status == "done" and message.cut:
        parts = ["Cut at the limit of tokens"]
    stats = message.stats
    if stats is not None:
        if stats.tokens_per_s > 0:  # it takes two tokens to have a speed
            parts.append(wording.tokens_per_s(stats.tokens_per_s))
        parts.append(wording.plural(stats.tokens, "token", "tokens"))
        first = stats.time_to_first_token_s
        parts.append(
            f"{first:.1f} s to first token" if first > 0.095 else f"{first:.2f} s to first token"
        )
        if stats.loading_s >= _LONG_LOAD_S:
            parts.append(f"{wording.duration(stats.loading_s)} to load before")
    return " · ".join(parts)
