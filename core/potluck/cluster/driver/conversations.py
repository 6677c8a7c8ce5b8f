"""The conversations that a generator keeps, and in which of them a prompt is answered."""

import secrets
from collections.abc import Iterator, Sequence

from potluck.cluster.driver.conversation import Conversation
from potluck.cluster.driver.limits import AnswerLimits
from potluck.cluster.driver.pipeline import Pipeline
from potluck.ids import SessionId


class Conversations:
    """At most so many as the limits say. The one used least recently makes room for another one."""

    def __init__(self, limits: AnswerLimits) -> None:
        self._limits = limits
        self._all: list[Conversation] = []

    def __iter__(self) -> Iterator[Conversation]:
        return iter(self._all)

    def choose(self, prompt: Sequence[int], pipeline: Pipeline) -> Conversation:
        """A conversation that no request uses, to answer this prompt in; there must be one, or room.

        It is the one that the prompt goes on with. A prompt that only begins like another one gets a copy
        of that one's caches so far, so that both can go on. One that has its caches on another pipeline loses
        them, unless there is something to copy on this one.
        """
        free = [each for each in self._all if each.turn is None]
        if best := self._continued([each for each in free if each.pipeline is pipeline], prompt):
            return best
        source = self._source(prompt, pipeline)
        if (best := self._continued(free, prompt)) and (source is None or not best.is_cached):
            best.leave()
            return best
        if len(self._all) >= self._limits.conversations:
            oldest = min(free, key=lambda each: each.last_used)
            if oldest is source:
                return oldest
            self.drop(oldest)
        name = SessionId(secrets.token_hex(8))
        chosen = Conversation(name) if source is None else source.fork(name, prompt)
        self._all.append(chosen)
        return chosen

    def _continued(
        self, some: Sequence[Conversation], prompt: Sequence[int]
    ) -> Conversation | None:
        """The one of these that has computed most of the prompt, if the prompt goes on with it."""
        best = max(some, key=lambda each: each.shares(prompt), default=None)
        is_it = best is not None and best.is_continued_by(prompt, self._limits.fork_tokens)
        return best if is_it else None

    def drop(self, conversation: Conversation) -> None:
        """Forget a conversation and its caches."""
        self._all.remove(conversation)
        conversation.coming = None
        if conversation.pipeline is not None:
            conversation.pipeline.close(conversation.session)

    def is_being_computed(self, prompt: Sequence[int], pipeline: Pipeline) -> bool:
        """Whether other answers will soon have computed more of this prompt than is worth computing twice."""
        there = max((each.cached_of(prompt, pipeline) for each in self._all), default=0)
        coming = max((each.computes_of(prompt, pipeline) for each in self._all), default=0)
        return pipeline.broken is None and coming - there >= self._limits.fork_tokens

    def _source(self, prompt: Sequence[int], pipeline: Pipeline) -> Conversation | None:
        """The conversation with the most tokens of the prompt in its caches; None: too few for a copy."""
        best = max(self._all, key=lambda each: each.cached_of(prompt, pipeline), default=None)
        if best is None or best.cached_of(prompt, pipeline) < self._limits.fork_tokens:
            return None
        return best
