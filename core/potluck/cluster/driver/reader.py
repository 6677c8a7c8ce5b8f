"""Prompts that are read on other computers than those that answer.

A reader is a pipeline with a complete copy of the model. It computes a prompt but its last token, and its stages
send the caches to the stages that answer, chunk by chunk while later ones are computed. The last token is computed
where the answer is. Whatever goes wrong with the reader, the prompt is computed there as well: an answer never
depends on it.
"""

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from potluck.api.events import Reading
from potluck.cluster.driver.conversation import Conversation
from potluck.cluster.driver.moving import expect, take
from potluck.cluster.driver.pending import PendingStep
from potluck.cluster.driver.pictures import NO_PICTURES
from potluck.cluster.driver.pipeline import Pipeline
from potluck.errors import PotluckError
from potluck.wire.cache_messages import SendCache

logger = logging.getLogger(__name__)

TAKE_S = 60.0  # for what is still on its way when the last chunk is computed
MOST_PROMPTS = 2  # that are read at a time; a third one waits less where it is answered


@dataclass(slots=True, kw_only=True, eq=False)
class Reader:
    """A pipeline that reads prompts for another one, and which prompts these are.

    Attributes:
        pipeline: computes prompts. It breaks by itself; then no prompt goes to it any more.
        name: of its computers, for the log.
        least_tokens: new tokens of a prompt that is worth it; shorter ones are read where they are answered.
        most_tokens: of a prompt whose cache may be moved.
        chunk_tokens: for a prompt of so many tokens, how many are sent at once.
        take_s: how long is waited for the rest of the caches.
    """

    pipeline: Pipeline
    name: str
    least_tokens: int
    most_tokens: int
    chunk_tokens: Callable[[int], int]
    take_s: float = TAKE_S
    reading: int = field(default=0, init=False)  # prompts

    def takes(self, conversation: Conversation) -> bool:
        """Whether this reader computes the tokens that are not cached, and with them all that come before.

        Where results depend on the steps, it takes only a conversation of which nothing was computed. Else a replay
        could not repeat those steps.
        """
        total = len(conversation.tokens)
        new = total - conversation.cached
        if self.pipeline.broken is not None or conversation.scored or new < self.least_tokens:
            return False
        if conversation.pictures is not NO_PICTURES:  # they are shown where the answer is
            return False
        if total > self.most_tokens:
            logger.info("a prompt is too long to be read by %s tokens=%d", self.name, total)
            return False
        assert conversation.pipeline is not None
        is_exact = self.pipeline.is_exact_in_chunks and conversation.pipeline.is_exact_in_chunks
        if not is_exact and conversation.computed.end:
            return False
        return 2 * new >= total and self.reading < MOST_PROMPTS

    async def read(self, conversation: Conversation) -> AsyncGenerator[Reading, None]:
        """Have all tokens but the last one computed and moved; yield how far that is.

        If it does not succeed, the conversation has the tokens that it had.

        Raises:
            PotluckError: an error of the stages that answer, as a step of theirs raises it.
        """
        began, begin, end = time.monotonic(), conversation.cached, len(conversation.tokens) - 1
        transfer, position = secrets.token_hex(16), begin
        self.reading += 1
        try:
            await expect(conversation, transfer, end)
            steps: list[tuple[int, int]] = []
            try:
                async for step in self._compute(conversation, transfer, begin, end):
                    steps.append(step)
                    yield Reading(tokens=max(begin, step[1]), total=end + 1)
            except PotluckError as error:
                logger.warning("a prompt is not read by %s: %s", self.name, error)
            else:
                position = await self._take(conversation, transfer, end)
            if position == end:
                conversation.moved(steps)
                logger.info(
                    "prompt read by %s tokens=%d s=%.2f",
                    self.name,
                    end - begin,
                    time.monotonic() - began,
                )
        finally:
            self.reading -= 1
            self.pipeline.close(conversation.session)
            if position < end and conversation.cached == begin:
                conversation.rewind(min(begin, position))

    async def _compute(
        self, conversation: Conversation, transfer: str, begin: int, end: int
    ) -> AsyncGenerator[tuple[int, int], None]:
        """Compute the first tokens up to `end` in chunks; yield each chunk that is done."""
        pipeline, session = self.pipeline, conversation.session
        pipeline.open(session)
        pipeline.tell(
            SendCache(
                epoch=pipeline.epoch, session=session, transfer=transfer, position=begin, end=end
            )
        )
        size = self.chunk_tokens(end)
        chunks = deque((at, min(at + size, end)) for at in range(0, end, size))
        under_way: deque[tuple[PendingStep, tuple[int, int]]] = deque()
        number = 0
        try:
            while chunks or under_way:
                while chunks and len(under_way) <= pipeline.stages:
                    first, stop = chunk = chunks.popleft()
                    number += 1
                    step = pipeline.start_step(
                        session,
                        step=number,
                        position=first,
                        tokens=conversation.tokens[first:stop],
                        prompt_end=end + 1,  # rotary frequencies are those of the whole prompt
                        sampling=None,
                    )
                    under_way.append((step, chunk))
                await under_way[0][0].future
                yield under_way.popleft()[1]
        finally:
            for step, _ in under_way:
                pipeline.give_up(step)

    async def _take(self, conversation: Conversation, transfer: str, end: int) -> int:
        """Wait for the rest of the caches; return where the stages go on."""
        try:
            async with asyncio.timeout(self.take_s):
                return await take(conversation, transfer, end)
        except TimeoutError:
            logger.warning("the cache of a prompt that %s has read did not come in time", self.name)
            return conversation.cached
