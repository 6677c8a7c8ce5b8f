"""Ask a node for one answer, or for tokens, in an event loop."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec

from potluck.api.events import Failed, Finished, GenerationEvent, Tokens
from potluck.api.prompts import GenerationRequest, TokensRequest
from potluck.api.values.schema import ServedModel
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
    async with _asked(client, "/cluster/answers", request, open_) as reader:
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


async def tokens(
    client: Client, request: TokensRequest, open_: set[asyncio.StreamWriter]
) -> Tokens:
    """The tokens of a prompt; arguments and errors as of `answer`."""
    async with _asked(client, "/cluster/tokens", request, open_) as reader:
        return msgspec.json.decode(await reader.read(), type=Tokens)


async def served(client: Client, open_: set[asyncio.StreamWriter]) -> tuple[ServedModel, ...]:
    """The models that the node has at hand; arguments and errors as of `answer`."""
    async with _asked(client, "/cluster/served", None, open_) as reader:
        return msgspec.json.decode(await reader.read(), type=tuple[ServedModel, ...])


@asynccontextmanager
async def _asked(
    client: Client, path: str, body: msgspec.Struct | None, open_: set[asyncio.StreamWriter]
) -> AsyncGenerator[asyncio.StreamReader, None]:
    """Send a request to a node, a GET if it has no body. In the context, the response's body is read.

    Raises:
        NodeGoneError: the node ended, or stops.
        PotluckError: why the node refuses.
    """
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port, limit=_LINE)
    except OSError:
        raise NodeGoneError(_GONE) from None
    open_.add(writer)
    try:
        await _send(client, path, body, reader, writer)
        yield reader
    except (OSError, EOFError, ClosedError, msgspec.DecodeError):
        raise NodeGoneError(_GONE) from None
    finally:
        open_.discard(writer)
        writer.transport.abort()


async def _send(
    client: Client,
    path: str,
    body: msgspec.Struct | None,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Send the request, and read the head of the response. HTTP/1.0: the body is not in chunks.

    Raises:
        PotluckError: why the node refuses.
    """
    method, data = ("GET", b"") if body is None else ("POST", msgspec.json.encode(body))
    headers = {"Host": "127.0.0.1", **client.headers, "Content-Length": len(data)}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"{method} {path} HTTP/1.0\r\n{head}\r\n".encode() + data)
    await writer.drain()
    answered = await reader.readuntil(b"\r\n\r\n")
    status = int(answered.split(maxsplit=2)[1])
    if status >= 400:
        raise refusal(status, await reader.read())
