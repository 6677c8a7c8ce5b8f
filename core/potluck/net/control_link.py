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

logger = logging.getLogger(__name__)

MAX_HANDLERS = 64  # requests of one peer that are handled at the same time

Handler: TypeAlias = Callable[[Message, memoryview], Awaitable[Message | None]]


class ControlLink:
    """Serves the control connection with a peer: its messages go to a handler."""

    def __init__(self, link: Link) -> None:
        self.link = link

    async def run(self, handler: Handler) -> None:
        """Serve until the connection ends. The end is always raised as PeerLostError.

        Messages that need no answer are handled one after the other, in order. Requests run in
        parallel, since measuring takes seconds; a peer that sends too many requests at once waits.

        Raises:
            PeerLostError: the connection has ended.
        """
        room = asyncio.Semaphore(MAX_HANDLERS)
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    message, payload = await self.link.receive()
                    if message.id is None:
                        await self._call(handler, message, payload)
                        continue
                    await room.acquire()
                    task = tasks.create_task(self._answer(handler, message, payload))
                    task.add_done_callback(lambda _: room.release())
        except* PeerLostError as errors:
            error = errors.exceptions[0]
        assert isinstance(error, PeerLostError)
        raise error

    async def _answer(self, handler: Handler, message: Message, payload: memoryview) -> None:
        answer = await self._call(handler, message, payload)
        if answer is None:
            op = message.__struct_config__.tag
            answer = Error(kind="unknown_op", message=f"`{op}` is not answered here.")
        with suppress(PeerLostError, PeerTimeoutError):  # no peer is left to answer
            await self.link.send(msgspec.structs.replace(answer, re=message.id))

    async def _call(
        self, handler: Handler, message: Message, payload: memoryview
    ) -> Message | None:
        """Return the handler's answer, or its error as a message: the connection goes on."""
        try:
            return await handler(message, payload)
        except PotluckError as error:
            return error_message(error)
        except Exception:
            logger.exception("handler failed op=%s", message.__struct_config__.tag)
            return Error(kind="internal", message="The other computer failed; its log says where.")
