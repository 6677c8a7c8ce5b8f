"""At most one window per node: a second start shows the first one's window and ends."""

import hashlib
import logging
from pathlib import Path

from PySide6.QtCore import QObject, Signal
from PySide6.QtNetwork import QLocalServer, QLocalSocket

logger = logging.getLogger(__name__)

_SHOW = b"show\n"
_TIMEOUT_MS = 1000


class SingleInstance(QObject):
    """The claim of this process to be the window of a node.

    Signals:
        asked_to_show: somebody started the program once more.
    """

    asked_to_show = Signal()

    def __init__(self, state_folder: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        digest = hashlib.sha256(str(state_folder).encode()).hexdigest()
        self._name = f"potluck-{digest[:16]}"
        self._server = QLocalServer(self)
        self._server.setSocketOptions(QLocalServer.SocketOption.UserAccessOption)
        self._server.newConnection.connect(self._on_connection)

    def claim(self) -> bool:
        """Become the one, or ask the one that is there to show its window.

        Returns:
            Whether this process is the one; otherwise it has nothing more to do.
        """
        if self._ask_other():
            return False
        QLocalServer.removeServer(self._name)  # of a process that crashed: nobody answered
        if not self._server.listen(self._name):
            logger.warning("a second window cannot be noticed: %s", self._server.errorString())
        return True

    def close(self) -> None:
        self._server.close()

    def _ask_other(self) -> bool:
        socket = QLocalSocket()
        socket.connectToServer(self._name)
        if not socket.waitForConnected(_TIMEOUT_MS):
            return False
        socket.write(_SHOW)
        socket.waitForBytesWritten(_TIMEOUT_MS)
        socket.disconnectFromServer()
        return True

    def _on_connection(self) -> None:
        while (socket := self._server.nextPendingConnection()) is not None:
            socket.disconnected.connect(socket.deleteLater)
            self.asked_to_show.emit()
