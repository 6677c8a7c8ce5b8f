"""Show Markdown without active content.

HTML in a reply is shown as text; images are never fetched; a link opens only on a click, and only
to the web.
"""

import math
import re
from collections.abc import Callable

from PySide6.QtCore import QRectF, QSize, Qt, QUrl
from PySide6.QtGui import (
    QColor,
    QDesktopServices,
    QFont,
    QPainter,
    QPaintEvent,
    QResizeEvent,
    QTextBlock,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
    QTextFormat,
    QTextFrameFormat,
    QTextImageFormat,
    QTextTable,
    QWheelEvent,
)
from PySide6.QtWidgets import QFrame, QSizePolicy, QTextBrowser

from potluck_app import wording
from potluck_app.theme import Theme
from potluck_app.viewmodels.formulas import formulas_as_code
from potluck_app.views.widgets.dialogs import confirm
from potluck_app.views.widgets.highlights import highlight
from potluck_app.views.widgets.settling import cut_of
from potluck_app.views.widgets.words import Described

_LINE_HEIGHT = 145.0  # percent; prose needs more space between lines than labels
_PARAGRAPH_GAP = 10.0
BETWEEN_ITEMS = 4  # pixels, of a list
_HEADING_PX = {1: 20, 2: 18, 3: 16}
_LONGEST_ADDRESS = 300  # characters that are shown of one
_QUOTE = 16  # pixels that a quote is moved to the right; its bar is in them
_QT_RULE = QTextFormat.Property.BlockTrailingHorizontalRulerWidth
_RULE = QTextFormat.Property.UserProperty + 1
_FEATURES = (
    QTextDocument.MarkdownFeature.MarkdownDialectGitHub
    | QTextDocument.MarkdownFeature.MarkdownNoHTML
)


def open_in_browser(url: QUrl) -> None:
    """Open a web page in the browser; ignore every other kind of link."""
    if url.scheme() in ("http", "https"):
        QDesktopServices.openUrl(url)


class ProseView(Described, QTextBrowser):
    """One piece of Markdown, as high as its text."""

    def __init__(self, theme: Theme, open_url: Callable[[QUrl], object] = open_in_browser) -> None:
        super().__init__()
        self._theme = theme
        self._markdown = ""
        self._source = ""  # the Markdown with its formulas as code
        self._settled = 0  # characters of that whose text does not change while it grows
        self._settled_width = 0  # pixels, at which it was cut there
        self._rest = 0  # the number of the first block behind it
        self._has_bars = False  # of quotes, and rules
        self.setAccessibleName("Reply")
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setOpenLinks(False)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.document().setDocumentMargin(0)
        self.document().setUndoRedoEnabled(False)  # text that grows would keep all it was
        self._open_url = open_url
        self.anchorClicked.connect(self._on_link)
        self.highlighted.connect(self._show_address)
        self.document().setDefaultFont(theme.ui_font())
        theme.changed.connect(self._on_theme)

    def show_markdown(self, text: str, *, grows: bool = False) -> None:
        """Show a text. One that `grows` is the one before with more behind it, and soon has more."""
        if text == self._markdown and (grows or not self._settled):
            return
        source = formulas_as_code(text)
        goes_on = grows and source.startswith(self._source[: self._settled])
        self._markdown, self._source = text, source
        if goes_on and self._settled:
            self._draw_rest()
        else:
            self._draw()
        if grows:
            self._settle()

    def draw_whole(self) -> None:
        """Draw a text whole that grows no more."""
        if self._settled:
            self._draw()

    def markdown(self) -> str:
        return self._markdown

    def fit(self, width: int) -> None:
        """Wrap the text at this width, before the layout gives the widget its width."""
        self._keep_whole(width)
        self.document().setTextWidth(width)
        self._fit()

    def _keep_whole(self, width: int) -> None:
        """Draw a paragraph whole again that was cut at the ends of its lines, if these are elsewhere now."""
        if self._settled and width != self._settled_width:
            self._draw()

    def highlight(self, pattern: re.Pattern[str]) -> int | None:
        """Mark these words. Returns the place of the first from the top, in pixels."""
        return highlight(self, self._theme, pattern)

    def _show_address(self, url: QUrl) -> None:
        """Show where the link below the mouse leads: a model wrote its words."""
        QTextBrowser.setToolTip(self, wording.tip(_address(url)))

    def focusNextPrevChild(self, next: bool) -> bool:  # noqa: A002 - the name is Qt's
        """Move to another link or widget; say where the link leads."""
        has_moved = super().focusNextPrevChild(next)
        cursor = self.textCursor()
        href = cursor.charFormat().anchorHref() if cursor.hasSelection() else ""
        address = _address(QUrl(href)) if href else ""
        QTextBrowser.setAccessibleDescription(self, address)
        QTextBrowser.setToolTip(self, wording.tip(address))
        return has_moved

    def _on_link(self, url: QUrl) -> None:
        """Open a link; one to a page that is not encrypted, after a question."""
        if url.scheme() != "http":
            self._open_url(url)
            return
        address = _address(url)
        confirm(
            self,
            title="Open this page?",
            text=f"{address} is not encrypted: others on its way can read and change it.",
            action="Open",
            kind="primary",
            on_confirmed=lambda: self._open_url(url),
        )

    def loadResource(self, kind: int, name: QUrl | str) -> object:
        return None  # a reply fetches nothing, neither from disk nor from the network

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._keep_whole(self.viewport().width())
        self._fit()

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()  # the transcript scrolls, not the paragraph

    def minimumSizeHint(self) -> QSize:
        return QSize(40, 0)

    def _on_theme(self) -> None:
        self.document().setDefaultFont(self._theme.ui_font())
        self._draw()

    def _draw(self) -> None:
        document = self.document()
        self._settled = self._rest = 0
        document.setMarkdown(self._source, _FEATURES)
        self._dress(document, document.begin())
        self._fit()

    def _draw_rest(self) -> None:
        """Draw what follows the text that does not change."""
        document = self.document()
        number = self._rest
        change = QTextCursor(document.findBlockByNumber(number))
        change.beginEditBlock()
        change.movePosition(QTextCursor.MoveOperation.End, QTextCursor.MoveMode.KeepAnchor)
        change.removeSelectedText()
        change.setBlockFormat(QTextBlockFormat())  # it may have been a heading for a moment
        change.setBlockCharFormat(QTextCharFormat())
        change.setCharFormat(QTextCharFormat())
        change.insertMarkdown(self._source[self._settled :], _FEATURES)
        self._dress(document, document.findBlockByNumber(number))
        change.endEditBlock()
        self._fit()

    def _settle(self) -> None:
        """Cut a long paragraph, so that its beginning is not drawn again while it grows."""
        document = self.document()
        block, source = document.lastBlock(), self._source[self._settled :]
        is_plain = block.blockNumber() == self._rest and not block.textList()
        if not is_plain or block.blockFormat().headingLevel() or _quote_level(block):
            return
        if (cut := cut_of(block, source, _FEATURES)) is None:
            return
        in_text, in_source = cut
        cursor = QTextCursor(block)
        cursor.setPosition(block.position() + in_text)
        cursor.insertBlock()
        above = QTextCursor(cursor.block().previous())
        without_gap = QTextBlockFormat()
        without_gap.setBottomMargin(0)
        above.mergeBlockFormat(without_gap)
        self._settled += in_source
        self._settled_width = int(document.textWidth())
        self._rest = cursor.blockNumber()
        self._fit()

    def _fit(self) -> None:
        height = math.ceil(self.document().size().height())
        if height != self.height():
            self.setFixedHeight(height)

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        if self._has_bars:
            self._paint_bars()

    def _paint_bars(self) -> None:
        painter = QPainter(self.viewport())
        layout, block = self.document().documentLayout(), self.document().begin()
        while block.isValid():
            place, following = layout.blockBoundingRect(block), block.next()
            below = layout.blockBoundingRect(following).top() if following.isValid() else 0.0
            for depth in range(_quote_level(block)):
                goes_on = _quote_level(following) > depth
                height = (below if goes_on else place.bottom()) - place.top()
                left = float(depth * _QUOTE)
                if block.textDirection() == Qt.LayoutDirection.RightToLeft:
                    left = self.viewport().width() - left - 3
                bar = QRectF(left, place.top(), 3, height)
                painter.fillRect(bar, QColor(self._theme.tokens.border_strong))
            if block.blockFormat().hasProperty(_RULE):
                line = QRectF(0, round(place.center().y()), self.viewport().width(), 1)
                painter.fillRect(line, QColor(self._theme.tokens.border))
            block = following
        painter.end()

    def _dress(self, document: QTextDocument, block: QTextBlock) -> None:
        """Give the text, from this block on, the line height, the gaps and the fonts of the design."""
        change = QTextCursor(document)
        change.beginEditBlock()  # else the text is laid out again after each change
        _name_images(block)
        if not block.position():
            _drop_line_above_rule(document)
            self._has_bars = False
            block = document.begin()
        while block.isValid():
            self._dress_block(block, is_last=not block.next().isValid())
            block = block.next()
        for frame in document.rootFrame().childFrames():
            if isinstance(frame, QTextTable):
                self._dress_table(frame)
        change.endEditBlock()

    def _dress_block(self, block: QTextBlock, *, is_last: bool) -> None:
        cursor = QTextCursor(block)
        change = QTextBlockFormat()
        in_table = cursor.currentTable() is not None
        change.setLineHeight(
            100.0 if in_table else _LINE_HEIGHT,
            QTextBlockFormat.LineHeightTypes.ProportionalHeight.value,
        )
        level = block.blockFormat().headingLevel()
        change.setTopMargin(6.0 if level and block.position() else 0.0)
        in_list = block.textList() is not None and block.next().textList() is not None
        change.setBottomMargin(0.0 if is_last else BETWEEN_ITEMS if in_list else _PARAGRAPH_GAP)
        if in_table:
            change.setBottomMargin(0.0)
        is_quote = _quote_level(block) > 0
        if is_quote:
            change.setLeftMargin(_quote_level(block) * _QUOTE)
            change.setRightMargin(0)
            self._has_bars = True
        cursor.mergeBlockFormat(change)
        if (style := block.blockFormat()).hasProperty(_QT_RULE):
            style.clearProperty(_QT_RULE)  # Qt draws it in the colour of text
            style.setProperty(_RULE, True)
            self._has_bars = True
            cursor.setBlockFormat(style)
        iterator = block.begin()
        while not iterator.atEnd():
            fragment = iterator.fragment()
            iterator += 1
            style = fragment.charFormat()
            if level:
                style.clearProperty(QTextFormat.Property.FontSizeAdjustment)
                style.setFont(
                    self._theme.ui_font(_HEADING_PX.get(level, 14), QFont.Weight.DemiBold)
                )
            elif style.fontFixedPitch():
                style.setFont(self._theme.mono_font())
                style.setBackground(QColor(self._theme.tokens.surface2))
            elif style.isAnchor():
                style.setForeground(QColor(self._theme.tokens.accent))
                style.setFontUnderline(True)
            elif is_quote:
                style.setForeground(QColor(self._theme.tokens.text2))
            else:
                continue
            piece = QTextCursor(block)
            piece.setPosition(fragment.position())
            end = fragment.position() + fragment.length()
            piece.setPosition(end, QTextCursor.MoveMode.KeepAnchor)
            piece.setCharFormat(style)

    def _dress_table(self, table: QTextTable) -> None:
        style = table.format()
        style.setBorder(1)
        style.setBorderBrush(QColor(self._theme.tokens.border))
        style.setBorderStyle(QTextFrameFormat.BorderStyle.BorderStyle_Solid)
        style.setBorderCollapse(True)
        style.setCellPadding(6)
        style.setCellSpacing(0)
        style.setBottomMargin(_PARAGRAPH_GAP)
        table.setFormat(style)


def _address(url: QUrl) -> str:
    """An address as it is sent: decoded, it could have letters that look like others, or turn the text round."""
    return url.toEncoded().toStdString()[:_LONGEST_ADDRESS]


def _quote_level(block: QTextBlock) -> int:
    """Return how deep a block is in quotes; 0: it is none."""
    if not block.isValid():
        return 0
    return block.blockFormat().intProperty(QTextFormat.Property.BlockQuoteLevel)


def _drop_line_above_rule(document: QTextDocument) -> None:
    """Remove the empty line with which Qt begins a text whose first line is a rule."""
    first = document.begin()
    style = first.next().blockFormat()
    if not first.text() and style.hasProperty(_QT_RULE):
        cursor = QTextCursor(first)
        cursor.deleteChar()
        cursor.setBlockFormat(style)


def _name_images(block: QTextBlock) -> None:
    """Put a link in the place of each image from this block on: no image is ever fetched."""
    while block.isValid():
        images: list[tuple[int, QTextImageFormat]] = []
        iterator = block.begin()
        while not iterator.atEnd():
            style = iterator.fragment().charFormat()
            if style.isImageFormat():
                images.append((iterator.fragment().position(), style.toImageFormat()))
            iterator += 1
        for position, image in reversed(images):
            cursor = QTextCursor(block)
            cursor.setPosition(position)
            cursor.deleteChar()
            style = QTextCharFormat()
            style.setAnchor(True)
            style.setAnchorHref(image.name())
            text = image.property(QTextFormat.Property.ImageAltText) or "picture"
            cursor.insertText(f"[{text}]", style)
        block = block.next()
