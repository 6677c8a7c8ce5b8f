"""The front's HTTP server, in an event loop in a thread of its own: commands block."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from potluck.api.http.taken import Listens
from potluck.api.server import HttpServer, public_app
from potluck.api.v1.addressed import Fetch
from potluck.api.values.schema import ListenRequest
from potluck.client import Client
from potluck.front.front import Front, Patience
from potluck.program_keys import ProgramKeys

_T = TypeVar("_T")


class FrontServer:
    """Holds a port, and answers there by a node as long as there is one."""

    def __init__(
        self,
        asked: ListenRequest,
        patience: Patience | None = None,
        *,
        programs: ProgramKeys | None = None,
        certificate: Path | None = None,
        fetch: Fetch | None = None,
    ) -> None:
        """Listen.

        Args:
            asked: where, and who may ask.
            patience: with a node that is away.
            programs: the keys that programs have of their own.
            certificate: the file of a key and its certificate, for TLS; None: nothing is encrypted.
            fetch: gets pictures that programs name by an address; None: they are refused.

        Raises:
            UsageError: the port is taken or not allowed, or other computers could reach it and
                there is no key.
        """
        self._front = Front() if patience is None else Front(patience)
        app = public_app(
            self._front,
            host=asked.host,
            key=asked.key,
            origins=asked.origins,
            programs=programs,
            fetch=fetch,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="front", daemon=True)
        self._thread.start()
        self._server = HttpServer(name=Listens.SERVE)
        try:
            self.port = self._run(
                self._server.start(app, asked.host, asked.port, certificate=certificate)
            )
        except BaseException:
            self._end()
            raise

    def ready(self, node: Client) -> None:
        """Ask this node from now on."""
        self._call(self._front.ready, node)

    def busy(self, reason: str, progress: float = 0.0) -> None:
        """Tell programs that there is no answer now, why, and how far the model is loaded (0 to 1)."""
        self._call(self._front.busy, reason, progress)

    def close(self) -> None:
        """Free the port. Answers under way end with an error that says so."""
        self._run(self._server.stop())
        self._end()

    def _call(self, function: Callable[..., None], *values: object) -> None:
        self._loop.call_soon_threadsafe(function, *values)

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
