"""The keys of the window: one table, from which the shortcuts and the page about them are made."""

from collections.abc import Callable
from typing import Final, NamedTuple

from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QGridLayout, QWidget

from potluck_app.views.widgets.controls import button, label
from potluck_app.views.widgets.dialogs import Dialog


class Keys(NamedTuple):
    """What some keys do.

    `action` names it for the window, and is empty for keys that belong to a field. All of `keys`
    do the same; the first one is shown.
    """

    keys: tuple[str, ...]
    text: str
    action: str = ""


TABLE: Final[tuple[tuple[str, tuple[Keys, ...]], ...]] = (
    (
        "Pages",
        (
            Keys(("Ctrl+1",), "Chat", "chat"),
            Keys(("Ctrl+2",), "Cluster", "cluster"),
            Keys(("Ctrl+3",), "Models", "models"),
            Keys(("Ctrl+,",), "Settings", "settings"),
            Keys(("F5",), "Look for computers again", "look-again"),
            Keys(("Ctrl+/", "F1"), "Keyboard shortcuts", "shortcuts"),
        ),
    ),
    (
        "Chat",
        (
            Keys(("Ctrl+N",), "New chat", "new"),
            Keys(("Ctrl+K",), "Search all chats", "search"),
            Keys(("Ctrl+F",), "Find in this chat", "find"),
            Keys(("Ctrl+B",), "Show or hide the list of chats", "list"),
            Keys(("Ctrl+I",), "Show or hide the options of this chat", "options"),
            Keys(("Ctrl+R",), "Regenerate the last reply", "regenerate"),
            Keys(("Ctrl+Shift+C",), "Copy the last reply", "copy"),
            Keys(("Ctrl+Shift+;",), "Copy the last code block", "copy-code"),
            Keys(("Esc",), "Close what is open, or stop the reply", "escape"),
        ),
    ),
    (
        "Text size",
        (
            Keys(("Ctrl++", "Ctrl+="), "Larger text", "larger"),
            Keys(("Ctrl+-",), "Smaller text", "smaller"),
            Keys(("Ctrl+0",), "Usual text size", "usual"),
        ),
    ),
    (
        "In the message field",
        (
            Keys(("Ctrl+Return",), "Send the message"),
            Keys(("Return",), "Send it, or begin a new line, as chosen in the settings"),
            Keys(("Shift+Return",), "New line"),
            Keys(("Up",), "Edit the last message, if the field is empty"),
        ),
    ),
    (
        "In the list of chats",
        (
            Keys(("F2",), "Rename the chat"),
            Keys(("Delete",), "Delete the chat"),
        ),
    ),
)


def bind(window: QWidget, actions: dict[str, Callable[[], object]]) -> None:
    """Make the shortcuts of a window. `actions` has what each name in the table does."""
    for _title, rows in TABLE:
        for row in rows:
            for keys in row.keys if row.action else ():
                QShortcut(QKeySequence(keys), window).activated.connect(actions[row.action])


def shown(keys: str) -> str:
    """Return keys in the words of this system: `Ctrl+N`, on a Mac `⌘N`. What Qt calls Return is Enter."""
    named = QKeySequence(keys).toString(QKeySequence.SequenceFormat.NativeText)
    return named.replace("Return", "Enter")


class ShortcutsDialog(Dialog):
    """The page of shortcuts."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent, "shortcuts", "Keyboard shortcuts", width=440)
        grid = QGridLayout()
        grid.setHorizontalSpacing(16)
        grid.setVerticalSpacing(6)
        grid.setColumnStretch(1, 1)
        for title, rows in TABLE:
            place = grid.rowCount()
            grid.setRowMinimumHeight(place, 8)
            grid.addWidget(label(title, "strong"), place + 1, 0, 1, 2)
            for number, row in enumerate(rows, place + 2):
                keys = label(shown(row.keys[0]), "body2")
                grid.addWidget(keys, number, 0)
                grid.addWidget(label(row.text, wrap=True), number, 1)
        close = button("Close", "shortcuts-close", self.reject)
        self.fill(label("Keyboard shortcuts", "title"), grid, buttons=(close,))
