"""The ports at which a node answers programs, as long as its owner wants it."""

import asyncio

from potluck.api.backend import Answering
from potluck.api.server import HttpServer, public_app
from potluck.api.values import schema
from potluck.errors import NotFoundError, UsageError
from potluck.program_keys import ProgramKeys


class Listeners:
    """Opens and closes them.

    Args:
        backend: what answers.
        program_keys: the keys that programs have of their own.
    """

    def __init__(self, backend: Answering, program_keys: ProgramKeys) -> None:
        self._backend = backend
        self._program_keys = program_keys
        self._open: dict[int, tuple[str, HttpServer]] = {}

    async def listen(self, request: schema.ListenRequest) -> schema.Listener:
        """Answer programs at a port; 0: any.

        Raises:
            UsageError: it is open already, cannot be had, or other computers could reach it without a key.
        """
        if request.port in self._open:
            raise UsageError(
                f"The window answers other programs on port {request.port} already. Turn that off,"
                " or choose another port."
            )
        app = public_app(
            self._backend,
            host=request.host,
            key=request.key,
            origins=request.origins,
            programs=self._program_keys,
        )
        server = HttpServer()
        port = await server.start(app, request.host, request.port)
        self._open[port] = (request.host, server)
        return schema.Listener(host=request.host, port=port)

    async def close(self, port: int) -> None:
        """Answer at this port no longer.

        Raises:
            NotFoundError: it is not open.
        """
        entry = self._open.pop(port, None)
        if entry is None:
            raise NotFoundError(f"Nothing of Potluck listens on port {port}.")
        await entry[1].stop()

    async def close_all(self) -> None:
        listeners, self._open = self._open, {}
        await asyncio.gather(*(server.stop() for _, server in listeners.values()))

    def views(self) -> tuple[schema.Listener, ...]:
        """What clients are shown."""
        return tuple(
            schema.Listener(host=host, port=port) for port, (host, _) in self._open.items()
        )
