"""Ask a node for one answer, in an event loop."""

import asyncio
from collections.abc import AsyncGenerator

import msgspec

from potluck.api.backend import Failed, Finished, GenerationEvent, GenerationRequest
from potluck.client import Client, NodeGoneError, as_error, refusal
from potluck.errors import ClosedError

_LINE = 64 << 20  # bytes; the first event has the token ids of the whole prompt
_GONE = "The node of this computer ended in the middle of the answer."


async def answer(
    client: Client, request: GenerationRequest, open_: set[asyncio.StreamWriter]
) -> AsyncGenerator[GenerationEvent, None]:
    """Yield the events of an answer; `Finished` is the last one. Closing the iterator cancels it.

    Args:
        client: of the node.
        request: what to answer.
        open_: has the connection while there is one. Aborting it ends the answer.

    Raises:
        NodeGoneError: the node ended, or stops.
        PotluckError: why there is no answer.
    """
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port, limit=_LINE)
    except OSError:
        raise NodeGoneError(_GONE) from None
    open_.add(writer)
    try:
        await _ask(client, request, reader, writer)
        async for line in reader:
            if not line.startswith(b"data: "):
                continue  # a heartbeat, or the empty line after an event
            event = msgspec.json.decode(line[len(b"data: ") :], type=GenerationEvent | Failed)
            if isinstance(event, Failed):
                raise as_error(event.error)
            yield event
            if isinstance(event, Finished):
                return
        raise NodeGoneError(_GONE)
    except (OSError, EOFError, ClosedError, msgspec.DecodeError):
        raise NodeGoneError(_GONE) from None
    finally:
        open_.discard(writer)
        writer.transport.abort()


async def _ask(
    client: Client,
    request: GenerationRequest,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Send the request, and read up to the first event. HTTP/1.0: the answer is not in chunks.

    Raises:
        PotluckError: why the node refuses.
    """
    body = msgspec.json.encode(request)
    headers = {"Host": "127.0.0.1", **client.headers, "Content-Length": len(body)}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"POST /cluster/answers HTTP/1.0\r\n{head}\r\n".encode() + body)
    await writer.drain()
    answered = await reader.readuntil(b"\r\n\r\n")
    status = int(answered.split(maxsplit=2)[1])
    if status >= 400:
        raise refusal(status, await reader.read())
