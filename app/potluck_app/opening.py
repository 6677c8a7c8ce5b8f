"""What a desktop opens with Potluck: an invitation, or a file with a model.

    potluck://join/TOKEN    lend this computer to the home that made the token (`potluck invite`)
    a path, file://PATH     use the GGUF file

Such a link may stand on any web page, so an invitation is a question and never a command. Windows and
Linux give both as a word of the command line, macOS as an event of the program.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from PySide6.QtCore import QEvent, QObject, QUrl, Signal
from PySide6.QtGui import QFileOpenEvent
from PySide6.QtWidgets import QApplication

from potluck.api.schema import Joined, JoinRequest
from potluck_app.views.dialogs import confirm

if TYPE_CHECKING:
    from PySide6.QtWidgets import QWidget

    from potluck_app.application import Application

_MOST_CHARACTERS = 8192


class Invitation(NamedTuple):
    """A token that lets this computer join a home."""

    token: str


class ModelFile(NamedTuple):
    """A GGUF file of this computer."""

    path: Path


class CannotOpenError(Exception):
    """The word is nothing that Potluck opens. The message is a sentence for the person."""


def read(word: str, folder: Path) -> Invitation | ModelFile:
    """Say what a word of the command line, or a link, is.

    Args:
        word: as the desktop gives it.
        folder: what a path without one is below.

    Raises:
        CannotOpenError: it is neither.
    """
    if len(word) > _MOST_CHARACTERS:
        raise CannotOpenError("The link is too long for an invitation. Copy it again.")
    if word.lower().startswith("potluck:"):
        return Invitation(_token(word))
    name = QUrl(word).toLocalFile() if word.lower().startswith("file:") else word
    if not name.lower().endswith(".gguf"):
        raise CannotOpenError("Potluck opens invitations, and models in GGUF files (.gguf).")
    path = folder / name
    if not path.is_file():
        raise CannotOpenError("The file is not there any more. Choose another one under Models.")
    return ModelFile(path)


def _token(link: str) -> str:
    """Return the token of an invitation; whether it is good, the node says."""
    rest = link.strip().lower().removeprefix("potluck:").removeprefix("//").removesuffix("/")
    what, _, token = rest.partition("/")
    is_token = token.startswith("potluck-") and token.isascii() and token.replace("-", "").isalnum()
    if what != "join" or not is_token:
        raise CannotOpenError(
            "The link is no invitation, or was not copied whole. Ask for a new one."
        )
    return token


class Program(QApplication):
    """The application object, which macOS tells what to open. An event filter would see every event.

    Signals:
        asked_to_open: a path or a link.
    """

    asked_to_open = Signal(str)

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QFileOpenEvent):
            self.asked_to_open.emit(event.file() or event.url().toString())
            return True
        return super().event(event)


class Opener(QObject):
    """Opens what the desktop asks for, in the window that is there."""

    def __init__(self, application: Application) -> None:
        super().__init__(application)
        self._application = application

    def open(self, word: str, folder: Path) -> None:
        """Open a word; `read` says what there is. What is wrong with it is said in the window."""
        self._application.show()
        try:
            found = read(word, folder)
        except CannotOpenError as error:
            self._application.backend.problem.emit(str(error))
            return
        match found:
            case Invitation(token):
                self._ask_to_lend(token)
            case ModelFile(path):
                self._use(str(path))

    def _ask_to_lend(self, token: str) -> None:
        self._ask(
            title="Lend this computer?",
            text="You opened an invitation. The computer that made it can use the processors and the"
            " memory of this one for language models, until you stop it. It sees no files and no chats"
            " of this computer. Accept only what you asked for.",
            action="Lend this computer",
            on_confirmed=lambda: self._join(token),
        )

    def _join(self, token: str) -> None:
        backend = self._application.backend
        call = backend.call("POST", "/cluster/join", JoinRequest(token=token), Joined)
        call.then(lambda _: self._lend(), backend.report)

    def _lend(self) -> None:
        if self._application.worker is None:
            self._application.share()

    def _use(self, path: str) -> None:
        if self._application.worker is None:
            self._load(path)
            return
        self._ask(
            title="Chat on this computer?",
            text="This computer lends itself now. It stops that while you chat here, and stays paired.",
            action="Chat here",
            on_confirmed=lambda: (self._application.chat_here(), self._load(path)),
        )

    def _load(self, path: str) -> None:
        main = self._application.main
        if main is not None:
            main.start_master()  # a file that is opened is a choice of the role
            main.library.use(path)

    def _ask(
        self, *, title: str, text: str, action: str, on_confirmed: Callable[[], object]
    ) -> None:
        window: QWidget | None = self._application.main or self._application.worker
        if window is not None:
            confirm(
                window,
                title=title,
                text=text,
                action=action,
                on_confirmed=on_confirmed,
                kind="primary",
            )
