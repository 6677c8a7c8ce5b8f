"""Conversations go on with another plan without computing anything again: its stages get their caches from those before.

What does not come (a stage before is lost, has other tokens, or takes too long) is computed again, like a prompt. No
answer ever goes on with a part of it.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from potluck.cluster.driver.conversation import Conversation
from potluck.cluster.driver.conversation_caches import Coming
from potluck.cluster.driver.moving import expect, take
from potluck.cluster.driver.pipeline import Pipeline
from potluck.errors import PotluckError
from potluck.wire.cache_messages import ForgetBefore

logger = logging.getLogger(__name__)

BRING_S = 15.0  # for all conversations together; a computer that leaves waits for half a minute


@dataclass(slots=True)
class Brought:
    """What has become of the conversations that had caches."""

    conversations: int = 0  # whose caches came
    tokens: int = 0  # of these
    again: int = 0  # conversations that are computed again

    @property
    def told(self) -> str:
        """A sentence for people; empty: there was no conversation."""
        if self.again:
            return "What was computed of a conversation could not be moved. It is computed again."
        if self.conversations:
            return (
                "What was computed of the conversation has moved along. Nothing is computed again."
            )
        return ""


class Bringings:
    """Those under way: replicas may end one soon after the other."""

    def __init__(self) -> None:
        self._all: list[Bringing] = []

    def begin(self, bringing: "Bringing") -> None:
        """Take another one."""
        self._all = [each for each in self._all if not each.is_over]
        self._all.append(bringing)

    def of(self, conversation: Conversation) -> "Bringing | None":
        """The one that a conversation which is being answered is to `enter` the next pipeline with; None: none waits for it."""
        return next((each for each in self._all if each.awaits(conversation)), None)

    def forget(self, conversation: Conversation) -> None:
        """Wait no longer for one that was being answered."""
        for each in self._all:
            each.forget(conversation)


class Bringing:
    """Has the stages of a pipeline get the caches of conversations from those of the pipeline before.

    Conversations that nobody uses belong to the new pipeline as soon as this is made, and wait for their caches
    (`Conversation.coming`). One that is being answered may still have tokens that its reader has not taken: it comes by
    itself (`enter`).

    Args:
        conversations: all that are known.
        before: the pipeline before, which has ended.
        pipeline: the one that has taken its place.
        room: how many tokens all of them together may have: a stage may have memory for no more.
        limit_s: how long all of them may take together.
        clock: seconds.

    Attributes:
        pipeline: the one that has taken its place.
        is_over: whether nothing comes any more.
    """

    def __init__(
        self,
        conversations: Iterable[Conversation],
        before: Pipeline,
        pipeline: Pipeline,
        *,
        room: int,
        limit_s: float = BRING_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._epoch, self.pipeline, self.is_over = before.epoch, pipeline, False
        self._context = self._room = room
        self._end, self._clock = clock() + limit_s, clock
        self._brought = Brought()
        found = [one for one in conversations if one.pipeline is before]
        self._answering = {one for one in found if one.turn is not None and len(one.tokens) < room}
        self._came = asyncio.Event()  # one of these
        for one in self._answering:
            self._room -= one.cached
        idle = [one for one in found if one.turn is None and one.cached]
        idle.sort(key=lambda one: one.last_used, reverse=True)
        # Steps that had not ended may have reached some stages, and others not.
        everywhere = {one: one.cached if before.is_drained else one.arrived for one in idle}
        self._idle = [(one, self._begin(one, everywhere[one], self._room)) for one in idle]

    def awaits(self, conversation: Conversation) -> bool:
        """Whether a conversation that is being answered is still to `enter`."""
        return conversation in self._answering

    async def enter(self, conversation: Conversation) -> None:
        """Have one that is being answered go on with the new pipeline, with its caches if they come."""
        try:
            coming = self._begin(conversation, conversation.arrived, self._context)
            await self._settle(conversation, coming)
        finally:
            self.forget(conversation)

    def forget(self, conversation: Conversation) -> None:
        """Wait no longer for one that was being answered."""
        self._answering.discard(conversation)
        self._came.set()

    async def run(self) -> Brought:
        """Bring all, those used last first; then those of the plan before are of no use any more."""
        broken = asyncio.create_task(self.pipeline.wait_broken())
        broken.add_done_callback(lambda _: self._came.set())
        try:
            for conversation, coming in self._idle:
                await self._settle(conversation, coming)
            async with asyncio.timeout(self._left_s):
                while self._answering and self.pipeline.broken is None:
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            logger.warning("an answer did not go on in time: its tokens are computed again")
            self._brought.again += len(self._answering)
        finally:
            broken.cancel()
            self._answering.clear()
            self.is_over = True
            for conversation, coming in self._idle:
                if coming is not None:
                    self._begin_empty(conversation, coming)
                    coming.settled.set()
            self.pipeline.tell(ForgetBefore(epoch=self.pipeline.epoch))
        return self._brought

    @property
    def _left_s(self) -> float:
        return max(0.0, self._end - self._clock())

    def _begin(self, conversation: Conversation, tokens: int, room: int) -> Coming | None:
        """Have a conversation go on with the new pipeline. None: it has, or gets, no caches."""
        has_room = tokens < room
        fits = self.pipeline.stretches.at(tokens + 1) == conversation.stretch
        conversation.enter(self.pipeline, self._context)
        if not tokens:
            return None
        if not has_room or not fits:
            self._brought.again += 1
            return None
        if conversation not in self._answering:
            self._room -= tokens
        conversation.coming = Coming(tokens)
        return conversation.coming

    async def _settle(self, conversation: Conversation, coming: Coming | None) -> None:
        """Bring one conversation; if that fails, it begins with empty caches."""
        if coming is None:
            return
        has_come = False
        try:
            has_come = self._is_for(conversation, coming) and await self._bring(
                conversation, coming
            )
        finally:
            if has_come:
                self._brought.conversations += 1
                self._brought.tokens += coming.tokens
            else:
                self._brought.again += 1
                self._begin_empty(conversation, coming)
            coming.settled.set()

    def _is_for(self, conversation: Conversation, coming: Coming) -> bool:
        """Whether a conversation still waits for these caches. It may have gone to a replica meanwhile."""
        return conversation.coming is coming and conversation.pipeline is self.pipeline

    def _begin_empty(self, conversation: Conversation, coming: Coming) -> None:
        """Have all stages forget what has come: one may have all of it, now or later, and another one nothing."""
        if self._is_for(conversation, coming):
            conversation.open()

    async def _bring(self, conversation: Conversation, coming: Coming) -> bool:
        transfer, tokens, position = secrets.token_hex(16), coming.tokens, 0
        try:
            async with asyncio.timeout(self._left_s):
                await expect(conversation, transfer, tokens, before=self._epoch)
                if self._is_for(conversation, coming):
                    position = await take(conversation, transfer, tokens)
        except TimeoutError:
            logger.warning("the caches of a conversation did not come in time tokens=%d", tokens)
        except PotluckError as error:
            logger.warning("the caches of a conversation do not come: %s", error)
        if position < tokens or not self._is_for(conversation, coming):
            return False
        conversation.has_come(tokens)
        return True
