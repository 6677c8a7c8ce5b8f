"""Allow one window per node: a second start shows the first window and ends."""

import hashlib
import logging
from pathlib import Path

from PySide6.QtCore import QObject, Signal
from PySide6.QtNetwork import QLocalServer, QLocalSocket

logger = logging.getLogger(__name__)

_SHOW = b"show\n"
_TIMEOUT_MS = 1000


class SingleInstance(QObject):
    """The claim of this process to have the only window of a node.

    Signals:
        asked_to_show: the program was started once more.
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
        """Become the only instance, or ask the running one to show its window.

        Returns:
            Whether this process is the only instance. If not, it has nothing more to do.
        """
        if self._ask_other():
            return False
        QLocalServer.removeServer(self._name)  # left by a process that crashed: nobody answered
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
