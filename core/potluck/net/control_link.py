"""Serves a control connection: messages in order, requests in parallel, one answer for each."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

import msgspec

from potluck.errors import PeerLostError, PeerTimeoutError, PotluckError
from potluck.net.link import Link, error_message
from potluck.wire.messages import Error, Message
from potluck.wire.operations import op_of

logger = logging.getLogger(__name__)

MAX_HANDLERS = 64  # requests of one peer that are handled at the same time

Handler: TypeAlias = Callable[[Message], Awaitable[Message | None]]


async def serve_control(link: Link, handler: Handler) -> None:
    """Serve a control connection until it ends. The end is always raised as PeerLostError.

    Messages that need no answer are handled one after the other, in order. Requests run in
    parallel, since measuring takes seconds; a peer that sends too many requests at once waits.

    Raises:
        PeerLostError: the connection has ended.
    """
    room = asyncio.Semaphore(MAX_HANDLERS)
    try:
        async with asyncio.TaskGroup() as tasks:
            while True:
                message, _ = await link.receive()
                if message.id is None:
                    await _call(handler, message)
                    continue
                await room.acquire()
                task = tasks.create_task(_answer(link, handler, message))
                task.add_done_callback(lambda _: room.release())
    except* PeerLostError as errors:
        error = errors.exceptions[0]
    assert isinstance(error, PeerLostError)
    raise error


async def _answer(link: Link, handler: Handler, message: Message) -> None:
    answer = await _call(handler, message)
    if answer is None:
        answer = Error(kind="unknown_op", message=f"`{op_of(message)}` is not answered here.")
    with suppress(PeerLostError, PeerTimeoutError):  # no peer is left to answer
        await link.send(msgspec.structs.replace(answer, re=message.id))


async def _call(handler: Handler, message: Message) -> Message | None:
    """Return the handler's answer, or its error as a message: the connection goes on."""
    try:
        return await handler(message)
    except PotluckError as error:
        return error_message(error)
    except Exception:
        logger.exception("handler failed op=%s", op_of(message))
        return Error(kind="internal", message="The other computer failed; its log says where.")
