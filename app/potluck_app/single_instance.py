"""Allow one window per node: a second start shows the first window and ends."""

import hashlib
import json
import logging
from pathlib import Path

from PySide6.QtCore import QObject, Signal
from PySide6.QtNetwork import QLocalServer, QLocalSocket

logger = logging.getLogger(__name__)

_TIMEOUT_MS = 1000
_MOST_BYTES = 65_536  # of what one start asks for


class SingleInstance(QObject):
    """The claim of this process to have the only window of a node.

    Signals:
        asked_to_show: the program was started once more.
        asked_to_open: it was started with something to open, in a folder: both as text.
    """

    asked_to_show = Signal()
    asked_to_open = Signal(str, str)

    def __init__(self, state_folder: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        digest = hashlib.sha256(str(state_folder).encode()).hexdigest()
        self._name = f"potluck-{digest[:16]}"
        self._starts: list[QLocalSocket] = []
        self._server = QLocalServer(self)
        self._server.setSocketOptions(QLocalServer.SocketOption.UserAccessOption)
        self._server.newConnection.connect(self._on_connection)

    def claim(self, word: str = "", folder: str = "") -> bool:
        """Become the only instance, or ask the running one to show its window.

        Args:
            word: what it shall open; "": nothing.
            folder: what a path without one is below.

        Returns:
            Whether this process is the only instance. If not, it has nothing more to do.
        """
        if self._ask_other(json.dumps([word, folder]).encode()):
            return False
        QLocalServer.removeServer(self._name)  # left by a process that crashed: nobody answered
        if not self._server.listen(self._name):
            logger.warning("a second window cannot be noticed: %s", self._server.errorString())
        return True

    def close(self) -> None:
        self._server.close()

    def _ask_other(self, wish: bytes) -> bool:
        socket = QLocalSocket()
        socket.connectToServer(self._name)
        if not socket.waitForConnected(_TIMEOUT_MS):
            return False
        socket.write(wish)
        socket.waitForBytesWritten(_TIMEOUT_MS)
        socket.disconnectFromServer()
        return True

    def _on_connection(self) -> None:
        while (socket := self._server.nextPendingConnection()) is not None:
            self._starts.append(socket)
            socket.disconnected.connect(self._hear)
        self._hear()  # those that ended before anybody looked

    def _hear(self) -> None:
        """Do what the starts wished that have said it all."""
        unconnected = QLocalSocket.LocalSocketState.UnconnectedState
        for socket in [start for start in self._starts if start.state() == unconnected]:
            self._starts.remove(socket)
            wish = bytes(socket.read(_MOST_BYTES).data())
            socket.deleteLater()
            self._do(wish)

    def _do(self, wish: bytes) -> None:
        """Do what one start wished. What cannot be read is a wish to show the window."""
        try:
            word, folder = json.loads(wish)
        except (ValueError, TypeError, RecursionError):
            word = folder = ""
        if isinstance(word, str) and isinstance(folder, str) and word:
            self.asked_to_open.emit(word, folder)
        else:
            self.asked_to_show.emit()
