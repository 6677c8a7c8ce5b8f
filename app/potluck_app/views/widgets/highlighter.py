"""Colour keywords, strings, numbers and comments of common languages, in colours of the theme."""

import re
from typing import Final

from PySide6.QtGui import QColor, QSyntaxHighlighter, QTextCharFormat, QTextDocument

from potluck_app.theme import Theme

# Structural words of at least one common language. One list serves all: a variable in the wrong
# colour does no harm, while a list per language would be a project of its own.
_KEYWORDS: Final = frozenset(
    """
    abstract and as assert async await bool boolean break byte case catch char class const continue
    def default del delete do done double elif else elseif end enum except export extends extern
    false False fi final finally float fn for foreach from func function global go goto if impl
    implements import in inline instanceof int interface is lambda let long loop match mod module mut
    namespace new nil None nonlocal not null nullptr operator or package pass private protected pub
    public raise ref return self short static str string struct super switch template then this throw
    throws trait true True try type typedef typeof union unsigned until use using val var virtual void
    where while with yield
    SELECT FROM WHERE INSERT INTO UPDATE DELETE JOIN LEFT RIGHT INNER ON GROUP BY ORDER LIMIT CREATE
    TABLE VALUES SET AND OR NOT NULL AS
    """.split()  # noqa: SIM905 - quotes around a hundred words would hide the words
)
_HASH_LANGUAGES: Final = frozenset(
    """
    python py bash sh shell zsh console yaml yml toml ruby rb perl r make makefile dockerfile
    """.split()  # noqa: SIM905
)
_DASH_LANGUAGES: Final = frozenset(("sql", "lua", "haskell", "hs"))
_PLAIN_LANGUAGES: Final = frozenset(("", "text", "txt", "plain", "plaintext", "markdown", "md"))
_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?|`[^`]*`?)"""
    r"""|(?P<number>\b(?:0[xXbBoO][0-9a-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?)\b)"""
    r"""|(?P<word>[A-Za-z_]\w*)"""
)
_PLAIN_STATE, _COMMENT_STATE, _STRING_STATE, _SINGLE_STRING_STATE = -1, 1, 2, 3


class Highlighter(QSyntaxHighlighter):
    """Colours keywords, strings, numbers and comments of common languages."""

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
        """Colour the item that begins here, and return where the next one begins."""
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
        """Colour the rest of a comment or string from an earlier line; return where it ends."""
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
