"""Lines of text as paragraphs: where one begins is seen, also where each takes several lines."""

from PySide6.QtWidgets import QWidget

from potluck_app.views.widgets.boxes import vbox
from potluck_app.views.widgets.controls import LabelKind, clear, label

_BETWEEN = 5  # pixels


class Paragraphs(QWidget):
    """A text whose lines wrap, with room between two of them."""

    def __init__(self, kind: LabelKind, name: str) -> None:
        super().__init__()
        self.setObjectName(name)
        self._kind: LabelKind = kind
        self._text = ""
        self._column = vbox(parent=self, spacing=_BETWEEN)

    def setText(self, text: str) -> None:
        if text == self._text:
            return
        self._text = text
        clear(self._column)
        for line in text.splitlines():
            paragraph = label(line, self._kind, wrap=True)
            self._column.addWidget(paragraph)
            paragraph.show()  # now, so that its height counts

    def text(self) -> str:
        return self._text
