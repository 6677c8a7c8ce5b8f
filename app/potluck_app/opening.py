"""What a desktop opens with Potluck: an invitation, or a file with a model.

    potluck://join/TOKEN    lend this computer to the home that made the token (`potluck invite`)
    a path, file://PATH     use the GGUF file

Such a link may stand on any web page, so an invitation is a question and never a command. The question
names the addresses that the token leads to, and a link that leads into the Internet is refused: who wants
that pastes its token. Windows and Linux give both as a word of the command line, macOS as an event of the program.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from PySide6.QtCore import QEvent, QObject, QUrl, Signal
from PySide6.QtGui import QFileOpenEvent
from PySide6.QtNetwork import QNetworkInterface
from PySide6.QtWidgets import QApplication

from potluck.api.values.pairing import Joined, JoinRequest
from potluck.errors import PairingError
from potluck_app.language import said
from potluck_app.views.widgets.dialogs import confirm

if TYPE_CHECKING:
    from PySide6.QtWidgets import QWidget

    from potluck_app.application import Application

_MOST_CHARACTERS = 8192
# Private networks (RFC 1918, RFC 4193), those of VPNs (RFC 6598), and what no router passes on.
_AT_HOME = [
    ipaddress.ip_network(network)
    for network in (
        *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16"),
        *("127.0.0.0/8", "fc00::/7", "fe80::/10", "::1/128"),
    )
]
_PUBLIC_V6 = ipaddress.ip_network("2000::/3")
_V6_PREFIX = 64  # of a network of a home, where its addresses are public

_NO_ADDRESS = "You opened an invitation, which names no address of the computer that made it."

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


class Invitation(NamedTuple):
    """A token that lets this computer join a home."""

    token: str
    hosts: tuple[str, ...]  # the addresses of the computer that made it; it may have named none


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
        return _invitation(_token(word))
    name = QUrl(word).toLocalFile() if word.lower().startswith("file:") else word
    if not name.lower().endswith(".gguf"):
        raise CannotOpenError("Potluck opens invitations, and models in GGUF files (.gguf).")
    path = folder / name
    if not path.is_file():
        raise CannotOpenError("The file is not there any more. Choose another one under Models.")
    return ModelFile(path)


def _token(link: str) -> str:
    """Return the token of an invitation; whether it is still open, its home says."""
    rest = link.strip().lower().removeprefix("potluck:").removeprefix("//").removesuffix("/")
    what, _, token = rest.partition("/")
    is_token = token.startswith("potluck-") and token.isascii() and token.replace("-", "").isalnum()
    if what != "join" or not is_token:
        raise CannotOpenError(
            "The link is no invitation, or was not copied whole. Ask for a new one."
        )
    return token


def _invitation(token: str) -> Invitation:
    """Read where a token leads, which must be a network that this computer is in."""
    from potluck import invitation  # a window that opens needs none

    try:
        addresses = invitation.read(token).addresses
    except PairingError as error:
        raise CannotOpenError(str(error)) from error
    hosts = tuple(dict.fromkeys(host for host, _ in addresses))
    found = QNetworkInterface.allAddresses()
    own = [ipaddress.ip_address(a.toString().partition("%")[0]) for a in found]
    if any(not is_at_home(ipaddress.ip_address(host), own) for host in hosts):
        raise CannotOpenError(
            "The link invites this computer to one in the Internet, so it was not followed. Potluck follows"
            " links into your own network alone. If you asked for it, join with “potluck worker --join”"
            " and the token."
        )
    return Invitation(token, hosts)


def is_at_home(ip: _Address, own: Iterable[_Address]) -> bool:
    """Whether an address belongs to networks that do not reach over the Internet.

    Args:
        ip: the address.
        own: those of this computer: homes with IPv6 have public addresses, all in one network of 64 bits.
    """
    if any(ip in network for network in _AT_HOME):
        return True
    if ip not in _PUBLIC_V6:  # IPv6 has those of IPv4, too, all in one network of 64 bits
        return False
    near = ipaddress.ip_network(f"{ip}/{_V6_PREFIX}", strict=False)
    return any(other in near for other in own)


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
            case Invitation():
                self._ask_to_lend(found)
            case ModelFile(path):
                self._use(str(path))

    def _ask_to_lend(self, asked: Invitation) -> None:
        lends = (
            "It can use the processors and the memory of this one for language models, until you stop it."
            " It sees no files and no chats of this computer. While this computer is lent, you cannot chat"
            " on it, and an answer that is being written stops. Accept only what you asked for."
        )
        hosts = ", ".join(asked.hosts)
        made = f"You opened an invitation of the computer at {hosts}." if hosts else _NO_ADDRESS
        self._ask(
            title="Lend this computer?",
            text=f"{said(made)} {said(lends)}",
            action="Lend this computer",
            on_confirmed=lambda: self._join(asked.token),
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
