"""One message of the transcript: the person's in a bubble, a reply as wide as the page."""

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QLabel, QSizePolicy, QWidget

from potluck_app import wording
from potluck_app.history import Message
from potluck_app.theme import Theme
from potluck_app.viewmodels.blocks import BlockSplitter, Code, Prose, split_thinking
from potluck_app.views.boxes import STRETCH, hbox, vbox
from potluck_app.views.code import CodeView
from potluck_app.views.controls import CopyButton, IconButton, Meter, button, discard, label
from potluck_app.views.prose import ProseView
from potluck_app.views.thinking import ThinkingView

_BUBBLE_SHARE = 0.8  # largest share of the transcript's width


class UserMessage(QWidget):
    """The message of the person, exactly as it was written."""

    def __init__(self, message: Message) -> None:
        super().__init__()
        self._text = label(message.text, wrap=False)
        self._text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._text.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self._text.setAccessibleName("Your message")
        bubble = QFrame()
        bubble.setProperty("bubble", "true")
        hbox(self._text, parent=bubble, margins=(14, 9, 14, 10))
        hbox(STRETCH, bubble, parent=self)

    def fit(self, width: int) -> None:
        """Wrap the text if it is wider than a bubble may be on this page."""
        limit = int(width * _BUBBLE_SHARE) - 28
        metrics = self._text.fontMetrics()
        lines = self._text.text().split("\n")
        widest = max(metrics.horizontalAdvance(line) for line in lines) + 2
        self._text.setWordWrap(widest > limit)
        self._text.setFixedWidth(min(widest, limit))


class ReplyMessage(QWidget):
    """A reply: blocks of prose and code, and below them the actions for it."""

    def __init__(self, theme: Theme, message: Message, on_regenerate: Callable[[], object]) -> None:
        super().__init__()
        self._theme = theme
        self._message = message
        self._splitter = BlockSplitter()
        self._blocks: list[ProseView | CodeView] = []
        self._shown_text = ""
        self._answer = ""
        self.thinking = ThinkingView(theme)
        self._column = vbox(self.thinking, parent=self, spacing=10)
        self._build_waiting()
        self._build_failure(on_regenerate)
        self._build_footer(on_regenerate)
        self.show_message(message, is_last=False)

    def _build_waiting(self) -> None:
        self._waiting = QWidget()
        self._waiting.setMaximumWidth(420)
        self._waiting_line = label("Thinking…", "body2", name="reply-progress")
        self._waiting_meter = Meter(self._theme, "Progress of the model")
        vbox(self._waiting_line, self._waiting_meter, parent=self._waiting, spacing=8)
        self._waiting_meter.hide()
        self._column.addWidget(self._waiting)

    def _build_failure(self, on_regenerate: Callable[[], object]) -> None:
        self._failure = QFrame()
        self._failure.setProperty("tone", "error")
        self._failure_text = label("", wrap=True, name="reply-error")
        self._failure_text.setProperty("tone", "error")
        self.retry = button("Try again", "reply-retry", on_regenerate)
        hbox(
            (self._failure_text, 1),
            (self.retry, 0, Qt.AlignmentFlag.AlignTop),
            parent=self._failure,
            margins=(14, 8, 8, 8),
            spacing=12,
        )
        self._column.addWidget(self._failure)

    def _build_footer(self, on_regenerate: Callable[[], object]) -> None:
        self._footer = QWidget()
        self.copy = CopyButton(self._theme, "Copy reply", "reply-copy", lambda: self._answer)
        self.regenerate = IconButton(
            self._theme, "refresh", "Regenerate reply", "reply-regenerate", text="Regenerate"
        )
        self.regenerate.clicked.connect(lambda: on_regenerate())
        self.stats: QLabel = label("", "meta", name="reply-stats")
        hbox(self.copy, self.regenerate, STRETCH, self.stats, parent=self._footer, spacing=4)
        self._column.addWidget(self._footer)

    @property
    def message(self) -> Message:
        return self._message

    def show_message(self, message: Message, *, is_last: bool) -> None:
        """Show the current message. If its text only grew, unchanged blocks are not drawn again."""
        self._message = message
        thoughts, self._answer, has_thought = split_thinking(message.text)
        is_streaming = message.status == "streaming"
        self.thinking.show_thoughts(thoughts, is_done=has_thought or not is_streaming)
        if not self._answer.startswith(self._shown_text):
            self._splitter = BlockSplitter()
            self._shown_text = ""
        first = self._splitter.feed(self._answer[len(self._shown_text) :])
        self._shown_text = self._answer
        self._draw_from(first)
        self._waiting.setVisible(is_streaming and not message.text)
        self._failure.setVisible(message.status == "failed")
        self._failure_text.setText(message.error or "")
        self.retry.setVisible(is_last)
        self._footer.setVisible(not is_streaming and bool(message.text))
        self.regenerate.setVisible(is_last and message.status != "failed")
        self.stats.setText(stats_line(message))

    def show_progress(self, line: str, fraction: float | None) -> None:
        """Show what is happening while there is no text yet."""
        self._waiting_line.setText(line or "Thinking…")
        self._waiting_meter.setVisible(fraction is not None)
        self._waiting_meter.show_fraction(fraction or 0.0)

    def _draw_from(self, first: int) -> None:
        blocks = self._splitter.blocks
        while len(self._blocks) > len(blocks):
            self._drop(self._blocks.pop())
        for number in range(first, len(blocks)):
            block = blocks[number]
            kind = CodeView if isinstance(block, Code) else ProseView
            if number < len(self._blocks) and not isinstance(self._blocks[number], kind):
                self._drop(self._blocks[number])
                self._blocks[number] = self._add(number, kind(self._theme))
            elif number == len(self._blocks):
                self._blocks.append(self._add(number, kind(self._theme)))
            view = self._blocks[number]
            if isinstance(view, CodeView) and isinstance(block, Code):
                view.show_code(block)
            elif isinstance(view, ProseView) and isinstance(block, Prose):
                view.show_markdown(block.text)

    def _add(self, number: int, view: ProseView | CodeView) -> ProseView | CodeView:
        self._column.insertWidget(number + 1, view)  # below the thoughts
        return view

    def _drop(self, view: ProseView | CodeView) -> None:
        self._column.removeWidget(view)
        discard(view)


def stats_line(message: Message) -> str:
    """Return the line of figures: `7.9 tok/s · 118 tokens · 1.2 s to first token`."""
    if message.status == "stopped":
        return "Stopped"
    stats = message.stats
    if stats is None:
        return ""
    return " · ".join(
        (
            wording.tokens_per_s(stats.tokens_per_s),
            wording.plural(stats.tokens, "token", "tokens"),
            f"{stats.time_to_first_token_s:.1f} s to first token",
        )
    )


def size_policy_row(widget: QWidget) -> None:
    """Make a message as wide as the transcript and as high as its content."""
    widget.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Minimum)
