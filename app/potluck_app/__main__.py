"""`python -m potluck_app`: open the window, or show the window that is already open."""

import gc

gc.disable()  # a twentieth of the time to the window; `collect_in_this_thread` takes its place

import argparse
import logging
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.settings import Folders

try:
    from PySide6.QtCore import QSocketNotifier, QTimer

    from potluck_app.application import Application
    from potluck_app.garbage import collect_in_this_thread
    from potluck_app.launcher import find_or_start
    from potluck_app.opening import Opener, Program
    from potluck_app.single_instance import SingleInstance
except ImportError as error:  # Qt's libraries lack one of the system's
    from potluck.system import qt_libraries

    sentence = qt_libraries.explain(error)
    if sentence is None:
        raise
    qt_libraries.show(sentence)
    sys.exit(sentence)  # which writes it to the terminal

if TYPE_CHECKING:
    from potluck.system.autostart import Autostart

_LATER_MS = 1000  # when the window is there: for what nobody waits for


def main(argv: list[str] | None = None) -> int:
    """Run the window until it is closed."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    folders = Folders.of(arguments.home)
    qapp = Program(sys.argv[:1])
    collect_in_this_thread(qapp)
    instance = SingleInstance(folders.state, qapp)
    word, folder = arguments.what or "", Path.cwd() if arguments.what else Path()
    if not instance.claim(word, str(folder)):
        return 0
    application = Application(
        qapp,
        data_folder=folders.data,
        config_folder=folders.config,
        find_or_start=lambda: find_or_start(folders),
        autostart=lambda: _autostart(folders),
        log=folders.log_file,
        own_command=lambda: _own_command(folders),
    )
    instance.asked_to_show.connect(application.show)
    opener = Opener(application)
    instance.asked_to_open.connect(lambda word, folder: opener.open(word, Path(folder)))
    qapp.asked_to_open.connect(lambda word: opener.open(word, Path.home()))
    application.ending.connect(instance.close)  # a start from now on opens a new window
    application.ended.connect(qapp.quit)
    notifier = _on_signals(application.quit)
    application.start(worker=arguments.worker, hidden=arguments.hidden and not word)
    if word:
        opener.open(word, folder)
    QTimer.singleShot(_LATER_MS, lambda: _autostart(folders).repair())
    status = qapp.exec()
    notifier.setEnabled(False)
    instance.close()
    application.next_window.open()
    return status


def _own_command(folders: Folders) -> list[str]:
    from potluck.system.autostart import own_command  # a window that opens needs none

    return own_command("window", folders.home, hidden=False)


def _autostart(folders: Folders) -> "Autostart":
    from potluck.system.autostart import autostart  # a window that opens needs none

    return autostart("window", folders.home)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="potluck", description="The window of Potluck.")
    parser.add_argument(
        "--home", type=Path, metavar="DIR", help="keep everything of this node below DIR"
    )
    parser.add_argument(
        "what", nargs="?", metavar="FILE|LINK", help="a model (.gguf) or an invitation to open"
    )
    parser.add_argument("--worker", action="store_true", help="lend this computer to another")
    parser.add_argument("--hidden", action="store_true", help="begin in the tray, if there is one")
    return parser


def _on_signals(stop: Callable[[], object]) -> QSocketNotifier:
    """End properly on Ctrl+C and on SIGTERM.

    Python runs signal handlers only while it executes Python code, and Qt's event loop is native
    code. Python therefore writes a byte to a socket for each signal; the byte wakes the event loop.
    """
    receiving, sending = socket.socketpair()
    sending.setblocking(False)
    receiving.setblocking(False)
    signal.set_wakeup_fd(sending.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: None)
    notifier = QSocketNotifier(receiving.fileno(), QSocketNotifier.Type.Read)
    # The lambda keeps the sockets alive as long as the notifier.
    notifier.activated.connect(lambda *_, keep=(receiving, sending): (keep[0].recv(64), stop()))
    return notifier


if __name__ == "__main__":
    sys.exit(main())
