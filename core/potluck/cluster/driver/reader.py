"""Prompts that are read on other computers than those that answer.

A reader is a pipeline with a complete copy of the model. It computes a prompt but its last token, and its stages
send the caches to the stages that answer, chunk by chunk while later ones are computed. The last token is computed
where the answer is. Whatever goes wrong with the reader, the prompt is computed there as well: an answer never
depends on it. So it is when a reader takes longer than was planned: an answer waits for it no longer than half of what its
prompt would take where the answer is, unless what is left takes less than that.
"""

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from potluck.api.events import Reading
from potluck.cluster.driver.conversation import Conversation
from potluck.cluster.driver.conversation_caches import Coming
from potluck.cluster.driver.moving import expect, take
from potluck.cluster.driver.pending import PendingStep
from potluck.cluster.driver.pictures import NO_PICTURES
from potluck.cluster.driver.pipeline import Pipeline
from potluck.errors import OutOfMemoryError, PeerTimeoutError, PotluckError
from potluck.wire.cache_messages import SendCache

logger = logging.getLogger(__name__)

TAKE_S = 60.0  # for what is still on its way when the last chunk is computed
LEAST_S = 2.0  # that is waited for a reader, which may compute such a chunk for the first time
RESTS_S = 20.0  # that a reader is left alone whose prompt was computed again; twice as long each time, up to five minutes
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
        alone_s: how long so many new tokens of a prompt take where it is answered, after so many that are cached.
        take_s: how long is waited for the rest of the caches at most.
        clock: seconds.
    """

    pipeline: Pipeline
    name: str
    least_tokens: int
    most_tokens: int
    chunk_tokens: Callable[[int], int]
    alone_s: Callable[[int, int], float] = lambda new, cached: TAKE_S
    take_s: float = TAKE_S
    clock: Callable[[], float] = time.monotonic
    reading: int = field(default=0, init=False)  # prompts
    _rests_until: float = field(default=float("-inf"), init=False)
    _failures: int = field(default=0, init=False)  # one after the other

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
        if self.clock() < self._rests_until:
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
        began, begin, end = self.clock(), conversation.cached, len(conversation.tokens) - 1
        alone_s = self.alone_s(end - begin, begin)
        transfer, position = secrets.token_hex(16), begin
        conversation.coming = coming = Coming(end)
        self.reading += 1
        try:
            if not await self._has_room(conversation, transfer, end):
                return
            steps: list[tuple[int, int]] = []
            try:
                computing = self._compute(conversation, transfer, begin, end, alone_s)
                async with aclosing(computing) as chunks:
                    async for step in chunks:
                        steps.append(step)
                        yield Reading(tokens=max(begin, step[1]), total=end + 1)
            except PotluckError as error:
                logger.warning("a prompt is not read by %s: %s", self.name, error)
            else:
                position = await self._take(conversation, transfer, end, alone_s)
            if position == end:
                conversation.moved(steps)
            self._note(end - begin, self.clock() - began, is_read=position == end)
        finally:
            self.reading -= 1
            self.pipeline.close(conversation.session)
            if conversation.coming is coming:
                conversation.coming = None
            coming.settled.set()
            if position < end and conversation.cached == begin:
                conversation.rewind(min(begin, position))

    def _note(self, tokens: int, seconds: float, *, is_read: bool) -> None:
        """Note what became of a prompt."""
        if is_read:
            logger.info("prompt read by %s tokens=%d s=%.2f", self.name, tokens, seconds)
            self._failures = 0
        else:
            self._rests_until = self.clock() + RESTS_S * 2 ** min(self._failures, 4)
            self._failures += 1

    async def _has_room(self, conversation: Conversation, transfer: str, end: int) -> bool:
        """Have the stages that answer make room for what comes: it may take more than to compute it there."""
        try:
            await expect(conversation, transfer, end)
        except OutOfMemoryError as error:
            logger.warning("a prompt is not read by %s: %s", self.name, error)
            return False
        return True

    async def _compute(
        self, conversation: Conversation, transfer: str, begin: int, end: int, alone_s: float
    ) -> AsyncGenerator[tuple[int, int], None]:
        """Compute the first tokens up to `end` in chunks; yield each chunk that is done.

        Raises:
            PotluckError: a stage cannot compute it; or what is left would take longer than `alone_s`, by what was done so far.
        """
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
        number, began, done = 0, self.clock(), 0
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
                waits_s = max(LEAST_S, alone_s / 2, alone_s * done / (end - done))
                async with self._time(began + waits_s - self.clock()):
                    await under_way[0][0].future
                _, (_, done) = step = under_way.popleft()
                yield step[1]
        finally:
            for step, _ in under_way:
                pipeline.give_up(step)

    async def _take(
        self, conversation: Conversation, transfer: str, end: int, alone_s: float
    ) -> int:
        """Wait for the rest of the caches; return where the stages go on."""
        try:
            async with self._time(min(self.take_s, max(LEAST_S, alone_s))):
                return await take(conversation, transfer, end)
        except PeerTimeoutError:
            logger.warning("the cache of a prompt that %s has read did not come in time", self.name)
            return conversation.cached

    @asynccontextmanager
    async def _time(self, seconds: float) -> AsyncGenerator[None, None]:
        """Give the reader so much time.

        Raises:
            PeerTimeoutError: that was not enough.
        """
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise PeerTimeoutError(
                "It takes longer than to read it where it is answered."
            ) from None
