"""Whose port it is that is taken: each listener of Potluck says in its answers which one it is."""

import asyncio
import http.client
from contextlib import closing
from enum import Enum

ASK_S = 0.5


class Listens(Enum):
    """What listens. The value is the `Server` header of its answers."""

    SERVE = "Potluck/serve"
    NODE = "Potluck/node"


_WHO = {
    Listens.SERVE.value: "another `potluck serve` of this computer: end that one, or choose",
    Listens.NODE.value: "Potluck's window: turn it off there, in the settings, or choose",
}


async def port_taken(host: str, port: int) -> str:
    """Return a sentence that says who has this port, and what to do."""
    server = await asyncio.to_thread(_server, host, port)
    who = _WHO.get(server, "another program: end that one, or choose")
    return f"Port {port} is taken by {who} another port."


def _server(host: str, port: int) -> str:
    """Return the `Server` header of what listens there; empty: it sends none, or speaks no HTTP."""
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound here
    asked = http.client.HTTPConnection(everywhere.get(host, host), port, timeout=ASK_S)
    with closing(asked) as connection:
        try:
            connection.request("GET", "/")
            return connection.getresponse().getheader("server", "")
        except (OSError, http.client.HTTPException):
            return ""
