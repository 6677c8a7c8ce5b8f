"""How far a pipeline caches a conversation's tokens, and what becomes of these caches.

A pipeline holds nothing else of a conversation, and it can be computed again from the token ids.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from potluck.cluster.driver.computed import ComputedSteps, common_prefix, prefix_digests
from potluck.cluster.driver.pending import PendingStep
from potluck.cluster.driver.pictures import NO_PICTURES, Pictures
from potluck.cluster.driver.pipeline import Pipeline
from potluck.ids import SessionId
from potluck.wire.activation_messages import (
    RestoreSession,
)

RESTORED_TOKENS = 512  # prompts up to this length are computed, whatever is kept on disk


@dataclass(slots=True, eq=False)
class Coming:
    """The tokens of a conversation whose caches are to come."""

    tokens: int
    settled: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True, eq=False)
class ConversationCaches:
    """A conversation's tokens, and its caches on a pipeline.

    Attributes:
        session: name of its caches, the same on every pipeline.
        tokens: the prompt, then the tokens that were chosen.
        pipeline: has its caches; None: it was on no pipeline yet.
        context: most tokens that it can have on this pipeline.
        cached: `tokens[:cached]` are in the caches of `pipeline`, or on their way there.
        arrived: `tokens[:arrived]` are in the caches of all stages of `pipeline`.
        stretch: which rotary frequencies its caches have (`Stretches` of `model/mixing/rope.py`).
        computed: the steps in which tokens were computed, on this pipeline or the ones before.
        last_step: number of the last step that was sent or asked for.
        pictures: of its prompt, while it is answered.
        scored: how many of its first tokens are to have a score; 0: none.
        is_rewound: whether its caches were trimmed or copied for this answer, and no token has come since.
        may_restore: whether its caches are empty, and the stages were not asked yet for what they keep on disk.
        restored: how many of its tokens they had, in this answer.
        coming: its caches are on their way, from the plan before (`bringing.py`) or a reader; None: they are not.
    """

    session: SessionId
    tokens: list[int] = field(default_factory=list[int])
    pipeline: Pipeline | None = None
    context: int = 0
    cached: int = 0
    arrived: int = 0
    stretch: int = 0
    computed: ComputedSteps = field(default_factory=ComputedSteps)
    last_step: int = 0
    pictures: Pictures = NO_PICTURES
    scored: int = 0
    is_rewound: bool = False
    may_restore: bool = False
    restored: int = 0
    coming: Coming | None = None

    def shares(self, prompt: Sequence[int]) -> int:
        """How many tokens at the beginning of the prompt were computed."""
        return min(common_prefix(self.tokens, prompt), self.computed.end)

    def is_continued_by(self, prompt: Sequence[int], losing: int) -> bool:
        """Whether the prompt goes on with it, losing at most so many of the tokens that were computed."""
        shared, end = self.shares(prompt), self.computed.end
        return 2 * shared >= end > 0 and end - shared <= losing

    def cached_of(self, prompt: Sequence[int], pipeline: Pipeline) -> int:
        """How many tokens at the beginning of the prompt all stages of the pipeline have cached of it.

        Without the last one, which is always computed: caches hold no logits.
        """
        if not self._is_use_for(prompt, pipeline):
            return 0
        return self._whole_steps(min(self.shares(prompt), self.arrived, len(prompt) - 1))

    def coming_of(self, prompt: Sequence[int], pipeline: Pipeline) -> int:
        """How many tokens at the beginning of the prompt are on their way into the caches of this pipeline."""
        if self.coming is None or not self._is_use_for(prompt, pipeline):
            return 0
        return self._whole_steps(min(self.shares(prompt), self.coming.tokens, len(prompt) - 1))

    @property
    def to_compute(self) -> int:
        """How many of its tokens its pipeline has still to compute, and others do not."""
        coming = 0 if self.coming is None else self.coming.tokens
        return len(self.tokens) - max(self.arrived, coming)

    def _is_use_for(self, prompt: Sequence[int], pipeline: Pipeline) -> bool:
        """Whether the prompt can go on with caches of it: they are there, with the rotary frequencies of such a length."""
        return self.pipeline is pipeline and pipeline.stretches.at(len(prompt)) == self.stretch

    def _whole_steps(self, tokens: int) -> int:
        """How many of these first tokens can be used for another prompt.

        Where results depend on the tokens of a step, those of whole steps can. Else the same prompt would
        have another answer when it is asked again, with its last token alone.
        """
        if self.pipeline is None or self.pipeline.is_exact_in_chunks:
            return tokens
        return self.computed.start(tokens)

    # --- its caches

    def enter(self, pipeline: Pipeline, context: int) -> None:
        """Go on with this pipeline, which has cached nothing of it."""
        self.pipeline, self.context = pipeline, context
        self.open()

    @property
    def is_cached(self) -> bool:
        """Whether it has caches on a pipeline that works."""
        return self.cached > 0 and self.pipeline is not None and self.pipeline.broken is None

    def leave(self) -> None:
        """Give up its caches, where they are: it goes on with another pipeline."""
        if self.pipeline is not None:
            self.pipeline.close(self.session)
        self.forget_caches()

    def choose_rope(self) -> None:
        """Begin with empty caches, if so many tokens have other rotary frequencies than what is cached.

        Nothing of what was computed can be repeated then: its tokens are computed like a prompt. (So an answer
        that has passed a limit, and whose node is lost later, is computed in other steps than before.)
        """
        assert self.pipeline is not None
        stretch = self.pipeline.stretches.at(len(self.tokens))
        if stretch == self.stretch:
            return
        self.stretch = stretch
        self.computed.trim(0)
        if self.cached:
            self.open()

    @property
    def steps_left(self) -> int:
        """How many single tokens can be computed with the rotary frequencies of what is cached."""
        assert self.pipeline is not None
        most = self.pipeline.stretches.most(self.stretch, self.context)
        return most - len(self.tokens) + 1

    def forget_caches(self) -> None:
        """Note that its caches went with their pipeline. The tokens are computed again."""
        self.cached = self.arrived = 0
        self.coming = None
        self.pictures.forget_shown()

    def forget_unsent(self) -> None:
        """At the end of a request: count only what all stages have, if the rest may not have been sent."""
        if self.pipeline is not None and not self.pipeline.sends:
            self.cached = self.arrived

    async def settled(self) -> None:
        """Wait until its caches have come from the plan before, or do not."""
        if self.coming is not None:
            await self.coming.settled.wait()

    def has_come(self, tokens: int) -> None:
        """Note that all stages have these tokens from the plan before."""
        self.cached = self.arrived = tokens
        self.coming, self.may_restore = None, False

    def open(self) -> None:
        """Begin with empty caches on the same pipeline."""
        assert self.pipeline is not None
        self.forget_caches()
        self.pipeline.open(self.session)
        self.may_restore = self.pipeline.keeps_sessions

    @property
    def keeps_caches(self) -> bool:
        """Whether its stages keep caches on disk."""
        return self.pipeline is not None and self.pipeline.keeps_sessions

    def keep(self) -> None:
        """Have the stages keep what is in the caches, beyond the time that they have memory for it."""
        if self.keeps_caches:
            assert self.pipeline is not None
            self.pipeline.keep(self.session, prefix_digests(self.tokens[: self.cached]))

    async def restore(self) -> None:
        """Begin with those of the tokens that all stages have kept on disk. The last one is always computed."""
        assert self.pipeline is not None
        self.may_restore = False
        if len(self.tokens) <= RESTORED_TOKENS or self.scored:
            return
        self.last_step += 1
        step = self.pipeline.ask(
            RestoreSession(
                epoch=self.pipeline.epoch,
                session=self.session,
                step=self.last_step,
                position=len(self.tokens) - 1,
                prefix=prefix_digests(self.tokens),
            )
        )
        position = 0
        try:
            position = (await step.future).result.position
        finally:
            self.pipeline.give_up(step)
            self._trim(position)  # a stage may have more than another one
        self.is_rewound = position > 0
        self.restored = self.arrived = position
        for begin in range(0, position, RESTORED_TOKENS):  # in steps that any stage can repeat
            self.computed.add(begin, min(begin + RESTORED_TOKENS, position))

    def moved(self, steps: Sequence[tuple[int, int]]) -> None:
        """Note that others have computed tokens in these steps, whose caches all stages have now."""
        for begin, end in steps:
            self.computed.add(begin, end)
        self.cached = self.arrived = steps[-1][1]

    def rewind(self, position: int) -> None:
        """Have every stage forget what it has cached from this position or an earlier one on.

        What is forgotten is computed again in the steps that it was computed in. But a layer that
        cannot be trimmed into a step is not asked to do it again.
        """
        assert self.pipeline is not None
        position = min(position, self.cached, len(self.tokens) - 1)
        if position < self.computed.end:
            if self.is_rewound:
                self.computed.trim(position)
            else:
                position = self._whole_steps(position)
        self._trim(position)

    def _trim(self, position: int) -> None:
        assert self.pipeline is not None
        self.cached, self.arrived = position, min(self.arrived, position)
        self.pictures.forget_shown()
        self.pipeline.trim(self.session, position)

    @property
    def repeats_a_token(self) -> bool:
        """Whether the next step is a single token that was computed before."""
        assert self.pipeline is not None
        is_known = self.cached < self.computed.end and not self.pipeline.is_exact_in_chunks
        return is_known and self.computed.end_of(self.cached) == self.cached + 1

    def _count(self, end: int) -> None:
        """Note that the tokens before this position are in the caches, or on their way there."""
        self.computed.add(self.cached, end)
        self.cached = end

    def give_up(self, step: PendingStep) -> None:
        """Forget a step of this pipeline."""
        assert self.pipeline is not None
        self.pipeline.give_up(step)
