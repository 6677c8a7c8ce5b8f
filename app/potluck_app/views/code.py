"""A fenced code block: its language, a button that copies it, and its text in colours."""

import re
from typing import Final

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import (
    QColor,
    QFontMetrics,
    QGuiApplication,
    QSyntaxHighlighter,
    QTextCharFormat,
    QTextDocument,
    QWheelEvent,
)
from PySide6.QtWidgets import QFrame, QPlainTextEdit

from potluck_app.theme import Theme
from potluck_app.viewmodels.blocks import Code
from potluck_app.views.controls import IconButton, hbox, label, vbox

# Words that mean structure in at least one of the usual languages. One list for all of them: a variable
# coloured by mistake costs nothing, a list per language is a project of its own.
_KEYWORDS: Final = frozenset(
    [
        "abstract",
        "and",
        "as",
        "assert",
        "async",
        "await",
        "bool",
        "boolean",
        "break",
        "byte",
        "case",
        "catch",
        "char",
        "class",
        "const",
        "continue",
        "def",
        "default",
        "del",
        "delete",
        "do",
        "done",
        "double",
        "elif",
        "else",
        "elseif",
        "end",
        "enum",
        "except",
        "export",
        "extends",
        "extern",
        "false",
        "False",
        "fi",
        "final",
        "finally",
        "float",
        "fn",
        "for",
        "foreach",
        "from",
        "func",
        "function",
        "global",
        "go",
        "goto",
        "if",
        "impl",
        "implements",
        "import",
        "in",
        "inline",
        "instanceof",
        "int",
        "interface",
        "is",
        "lambda",
        "let",
        "long",
        "loop",
        "match",
        "mod",
        "module",
        "mut",
        "namespace",
        "new",
        "nil",
        "None",
        "nonlocal",
        "not",
        "null",
        "nullptr",
        "operator",
        "or",
        "package",
        "pass",
        "private",
        "protected",
        "pub",
        "public",
        "raise",
        "ref",
        "return",
        "self",
        "short",
        "static",
        "str",
        "string",
        "struct",
        "super",
        "switch",
        "template",
        "then",
        "this",
        "throw",
        "throws",
        "trait",
        "true",
        "True",
        "try",
        "type",
        "typedef",
        "typeof",
        "union",
        "unsigned",
        "until",
        "use",
        "using",
        "val",
        "var",
        "virtual",
        "void",
        "where",
        "while",
        "with",
        "yield",
        "SELECT",
        "FROM",
        "WHERE",
        "INSERT",
        "INTO",
        "UPDATE",
        "DELETE",
        "JOIN",
        "LEFT",
        "RIGHT",
        "INNER",
        "ON",
        "GROUP",
        "BY",
        "ORDER",
        "LIMIT",
        "CREATE",
        "TABLE",
        "VALUES",
        "SET",
        "AND",
        "OR",
        "NOT",
        "NULL",
        "AS",
    ]
)
_HASH_LANGUAGES: Final = frozenset(
    [
        "python",
        "py",
        "bash",
        "sh",
        "shell",
        "zsh",
        "console",
        "yaml",
        "yml",
        "toml",
        "ruby",
        "rb",
        "perl",
        "r",
        "make",
        "makefile",
        "dockerfile",
    ]
)
_DASH_LANGUAGES: Final = frozenset(["sql", "lua", "haskell", "hs"])
_PLAIN_LANGUAGES: Final = frozenset(("", "text", "txt", "plain", "plaintext", "markdown", "md"))
_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?|`[^`]*`?)"""
    r"""|(?P<number>\b(?:0[xXbBoO][0-9a-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?)\b)"""
    r"""|(?P<word>[A-Za-z_]\w*)"""
)
_PLAIN_STATE, _COMMENT_STATE, _STRING_STATE, _SINGLE_STRING_STATE = -1, 1, 2, 3
_MAX_HEIGHT = 480  # pixels; longer code scrolls inside its block
_MARGIN = 16


class Highlighter(QSyntaxHighlighter):
    """Keywords, strings, numbers and comments of the usual languages."""

    def __init__(self, document: QTextDocument, theme: Theme) -> None:
        super().__init__(document)
        self._theme = theme
        self._language = ""
        theme.changed.connect(self.rehighlight)

    def set_language(self, language: str) -> None:
        if language.casefold() != self._language:
            self._language = language.casefold()
            self.rehighlight()

    def highlightBlock(self, text: str) -> None:
        if self._language in _PLAIN_LANGUAGES:
            return
        self.setCurrentBlockState(_PLAIN_STATE)
        position = self._finish_open(text)
        while position < len(text):
            position = self._step(text, position)

    def _step(self, text: str, position: int) -> int:
        """Colour what begins here, and say where the next thing begins."""
        tokens = self._theme.tokens
        if self._begins_comment(text, position):
            self._color(position, len(text), tokens.text3)
            return len(text)
        for opening, closing, state, color in self._multiline():
            if text.startswith(opening, position):
                return self._span(text, position, len(opening), closing, state, color)
        found = _TOKEN.match(text, position)
        if found is None:
            return position + 1
        if found["string"] is not None:
            self._color(position, found.end(), tokens.ok)
        elif found["number"] is not None:
            self._color(position, found.end(), tokens.warn)
        elif found["word"] in _KEYWORDS:
            self._color(position, found.end(), tokens.accent)
        return found.end()

    def _begins_comment(self, text: str, position: int) -> bool:
        if self._language in _HASH_LANGUAGES:
            return text[position] == "#"
        if self._language in _DASH_LANGUAGES:
            return text.startswith("--", position)
        return text.startswith("//", position)

    def _multiline(self) -> list[tuple[str, str, int, str]]:
        tokens = self._theme.tokens
        if self._language in ("python", "py"):
            return [
                ('"""', '"""', _STRING_STATE, tokens.ok),
                ("'''", "'''", _SINGLE_STRING_STATE, tokens.ok),
            ]
        if self._language in _HASH_LANGUAGES:
            return []
        return [("/*", "*/", _COMMENT_STATE, tokens.text3)]

    def _finish_open(self, text: str) -> int:
        """Colour the rest of what an earlier line began."""
        for _, closing, state, color in self._multiline():
            if self.previousBlockState() == state:
                return self._span(text, 0, 0, closing, state, color)
        return 0

    def _span(self, text: str, start: int, skip: int, closing: str, state: int, color: str) -> int:
        end = text.find(closing, start + skip)
        if end < 0:
            self.setCurrentBlockState(state)
        stop = len(text) if end < 0 else end + len(closing)
        self._color(start, stop, color)
        return stop

    def _color(self, start: int, stop: int, color: str) -> None:
        style = QTextCharFormat()
        style.setForeground(QColor(color))
        self.setFormat(start, stop - start, style)


class CodeText(QPlainTextEdit):
    """The text of a code block: not wrapped, as high as it is, scrolled sideways."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self.setReadOnly(True)
        self.setAccessibleName("Code")
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.setFont(theme.mono_font())
        self.document().setDocumentMargin(0)
        self.highlighter = Highlighter(self.document(), theme)

    def show_text(self, text: str) -> None:
        if text.startswith(shown := self.toPlainText()) and shown:
            cursor = self.textCursor()
            cursor.movePosition(cursor.MoveOperation.End)
            cursor.insertText(text[len(shown) :])
        else:
            self.setPlainText(text)
        self.updateGeometry()
        self.setFixedHeight(self.sizeHint().height())

    def sizeHint(self) -> QSize:
        metrics = QFontMetrics(self._theme.mono_font())
        height = self.document().blockCount() * metrics.lineSpacing() + _MARGIN
        return QSize(200, min(height, _MAX_HEIGHT))

    def wheelEvent(self, event: QWheelEvent) -> None:
        sideways = abs(event.angleDelta().x()) > abs(event.angleDelta().y())
        if sideways or self.verticalScrollBar().maximum() > 0:
            super().wheelEvent(event)
        else:
            event.ignore()


class CodeView(QFrame):
    """One code block."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.setProperty("code", "true")
        self._code = Code("", "", closed=False)
        self._language = label("", "meta")
        self.copy = IconButton(theme, "copy", "Copy code", "code-copy", text="Copy")
        self.copy.clicked.connect(self._copy)
        self.text = CodeText(theme)
        head = hbox()
        head.setContentsMargins(12, 4, 6, 0)
        head.addWidget(self._language, 1)
        head.addWidget(self.copy)
        body = hbox()
        body.setContentsMargins(16, 4, 6, 0)
        body.addWidget(self.text)
        column = vbox(self)
        column.setContentsMargins(0, 0, 0, 4)
        column.addLayout(head)
        column.addLayout(body)

    def show_code(self, code: Code) -> None:
        self._code = code
        self._language.setText(code.language or "text")
        self.text.highlighter.set_language(code.language)
        self.text.show_text(code.text)

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self._code.text)
        self.copy.confirm("Copied")
