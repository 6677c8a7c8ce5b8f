"""Fetches wheels from the Internet into the store: by ranges, up to the size and with the hash of the lock.

Blocking, on a thread. Proxies and certificates are those of the system (`httpx` reads its settings and the usual
variables). What arrives is in the store at once, so a download that was cut goes on where it was.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import httpx

from potluck import __version__
from potluck.errors import HubError, IntegrityError, OfflineError
from potluck.runtime.index import address_in
from potluck.runtime.lock import Wheel
from potluck.runtime.stopping import StoppedError, go_on
from potluck.store.chunks import ChunkStore

logger = logging.getLogger(__name__)

_CONNECT_S: Final = 10.0  # until an address counts as out of reach
_SHOWN: Final = 200  # characters of what a library says
_PARTIAL: Final = 206
_WHOLE: Final = 200
_WRONG_RANGE: Final = 416
_BUSY: Final = (408, 425, 429, 500, 502, 503, 504)

Arrived = Callable[[Wheel, int], None]
"""Called with the bytes of a wheel that are here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a download waits.

    Attributes:
        silent_s: without a byte, until a connection counts as broken.
        attempts: in a row without a byte.
        first_attempts: in a row, if the server has not answered once: this computer may have no Internet, and others of
            its home wait to be asked.
        pause_s: between two of them, doubled each time.
    """

    silent_s: float = 30.0
    attempts: int = 5
    first_attempts: int = 1
    pause_s: float = 1.0


class Internet:
    """Fetches wheels by HTTPS.

    Args:
        store: takes them.
        index: a simple index (PEP 503 or 691) of the owner, which is asked in place of the addresses of the
            lock; None: the lock's are used.
        patience: how long to wait.
    """

    def __init__(
        self, store: ChunkStore, *, index: str | None = None, patience: Patience | None = None
    ) -> None:
        self._store = store
        self._index = index
        self._patience = patience if patience is not None else Patience()

    def server(self, wheel: Wheel) -> str:
        """The name of the server that it comes from; empty: there is no place to ask for it."""
        return _hostname(self._index_of(wheel) or wheel.url or wheel.index)

    def _index_of(self, wheel: Wheel) -> str | None:
        """The owner's index, which lists wheels, and no packages of Potluck."""
        return self._index if wheel.tags else None

    def fetch(self, wheel: Wheel, arrived: Arrived, stopped: threading.Event) -> int:
        """Bring a wheel into the store. Returns how many bytes came for it.

        Raises:
            StoppedError: `stopped` was set.
            OfflineError: nothing answers, or the connection breaks again and again.
            HubError: the server has no such file, or refuses it.
            IntegrityError: it sends another file than the lock names; what came was deleted.
            StoreError: the disk cannot take it.
        """
        with open_client(self._patience.silent_s) as client:
            try:
                return _Fetch(client, self._store, wheel, arrived, stopped).run(
                    self._index_of(wheel), self._patience
                )
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                raise HubError(
                    f"{wheel.filename} cannot be fetched from {self.server(wheel) or 'the Internet'}: its address or"
                    f" what comes from there is not as it should be ({str(error)[:_SHOWN]}). If you have set"
                    " POTLUCK_ENGINE_INDEX, check it; else install a newer Potluck."
                ) from error


def open_client(silent_s: float) -> httpx.Client:
    """A client, with the settings of this computer.

    Args:
        silent_s: without a byte, until a connection counts as broken.

    Raises:
        HubError: they cannot be used.
    """
    try:
        return httpx.Client(
            follow_redirects=True,
            max_redirects=10,
            timeout=httpx.Timeout(silent_s, connect=min(silent_s, _CONNECT_S)),
            headers={"Accept-Encoding": "identity", "User-Agent": f"potluck/{__version__}"},
        )
    except (ImportError, ValueError, OSError, httpx.InvalidURL) as error:
        # a proxy of a kind that needs another package, an address that is none, a file that is not there
        logger.warning("no client for downloads: %s", error)
        raise HubError(
            "The settings of this computer for the Internet cannot be used"
            f" ({str(error)[:_SHOWN]}). Check the proxy (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY) and the"
            " certificates (SSL_CERT_FILE, SSL_CERT_DIR), start Potluck again, and try again."
        ) from error


class _Fetch:
    """One wheel on its way."""

    def __init__(
        self,
        client: httpx.Client,
        store: ChunkStore,
        wheel: Wheel,
        arrived: Arrived,
        stopped: threading.Event,
    ) -> None:
        self._client, self._store, self._wheel = client, store, wheel
        self._arrived, self._stopped = arrived, stopped
        self._came = 0  # bytes
        self._is_reached = False  # the server has answered
        self._url: str | None = None

    def run(self, index: str | None, patience: Patience) -> int:
        failures, furthest = 0, -1
        while missing := self._store.missing([(self._wheel.digest, self._wheel.nbytes)]):
            if missing[0].offset > furthest:  # a server that begins anew each time does not get on
                failures, furthest = 0, missing[0].offset
            try:
                if self._url is None:
                    self._url = self._address(index)
                self._stream(self._url, missing[0].offset)
            except (httpx.TransportError, httpx.TooManyRedirects, _BusyError) as error:
                logger.info("download cut file=%s: %s", self._wheel.filename, error)
            failures += 1
            if failures > (patience.attempts if self._is_reached else patience.first_attempts):
                raise OfflineError(
                    f"{_host(self._url or index)} does not send {self._wheel.filename}. Check the Internet connection and try"
                    " again; what is here is kept."
                )
            if not self._is_whole() and self._stopped.wait(patience.pause_s * 2 ** (failures - 1)):
                raise StoppedError
        return self._came

    def _is_whole(self) -> bool:
        return self._store.has(self._wheel.digest, self._wheel.nbytes)

    def _address(self, index: str | None) -> str:
        wheel = self._wheel
        if index is None and wheel.url is not None:
            return wheel.url
        if (index := index or wheel.index) is None:
            raise HubError(f"This release does not say where {wheel.filename} is on the Internet.")
        if (url := address_in(self._client, index, wheel)) is None:
            raise HubError(f"{_host(index)} does not have {wheel.filename}.")
        self._is_reached = True
        return url

    def _stream(self, url: str, here: int) -> None:
        """Add what the server sends from the bytes on that are here."""
        headers = {"Range": f"bytes={here}-"} if here else {}
        with self._client.stream("GET", url, headers=headers) as response:
            self._is_reached = True
            self._check(response)
            if here and response.status_code == _WRONG_RANGE:
                self._store.discard(self._wheel.digest)
                return
            at = _begin(response) if response.status_code == _PARTIAL else 0
            if at > here:
                raise _BusyError(at)
            for piece in response.iter_raw():  # as they come: a piece that is cut counts, too
                go_on(self._stopped)
                self._take(at, piece)
                at += len(piece)

    def _check(self, response: httpx.Response) -> None:
        status = response.status_code
        if status in _BUSY:
            raise _BusyError(status)
        if status not in (_WHOLE, _PARTIAL, _WRONG_RANGE):
            raise HubError(
                f"{_host(str(response.url))} does not give out {self._wheel.filename} (status {status}). Try again"
                " later, or install a newer Potluck."
            )

    def _take(self, at: int, piece: bytes) -> None:
        """Write a piece; those bytes of it that are here already count for nothing."""
        wheel = self._wheel
        if at + len(piece) > wheel.nbytes:
            self._store.discard(wheel.digest)
            raise _altered(wheel)
        try:
            whole = self._store.write(wheel.digest, at, wheel.nbytes, piece)
        except IntegrityError as error:
            raise _altered(wheel) from error
        self._came += len(piece)
        self._arrived(wheel, wheel.nbytes if whole else at + len(piece))


class _BusyError(Exception):
    """The server does not send now, but may in a moment."""


def _begin(response: httpx.Response) -> int:
    """Where the bytes of a partial answer begin (RFC 9110, 14.4)."""
    unit, _, span = response.headers.get("Content-Range", "").partition(" ")
    begin = span.partition("-")[0]
    if unit != "bytes" or not (begin.isascii() and begin.isdigit()):
        raise _BusyError("Content-Range")
    return int(begin)


def _host(url: str | None) -> str:
    return _hostname(url) or "The Internet"


def _hostname(url: str | None) -> str:
    try:
        return urlsplit(url or "").hostname or ""
    except ValueError:  # an address that is none; fetching says so
        return ""


def _altered(wheel: Wheel) -> IntegrityError:
    return IntegrityError(
        f"{wheel.filename} arrived with other bytes than this release lists, and was deleted. Try again; if it"
        " happens again, another server or network is needed.",
        file=wheel.filename,
    )
