"""One conversation: its token ids, how the next one is chosen, and how far a pipeline caches them.

A conversation stands above the pipelines. Everything that its answer needs to go on is here. A
pipeline holds only caches, and these can be computed again from the token ids, by other stages as
well. The last stage chooses a token by seed and position alone, so the answer goes on as it would
have.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import msgspec

from potluck.cluster.driver.computed import ComputedSteps, common_prefix, prefix_digests
from potluck.cluster.driver.grammar import Grammar
from potluck.cluster.driver.model_text import Picture
from potluck.cluster.driver.pending import PendingStep
from potluck.cluster.driver.pictures import NO_PICTURES, Pictures
from potluck.cluster.driver.pipeline import Pipeline
from potluck.cluster.driver.showing import show
from potluck.cluster.driver.turns import Turn
from potluck.ids import SessionId
from potluck.wire.activation_messages import (
    MAX_HISTORY,
    RestoreSession,
    Sampling,
    Scoring,
    TokenScore,
)

RESTORED_TOKENS = 512  # prompts up to this length are computed, whatever is kept on disk


@dataclass(slots=True, eq=False)
class Coming:
    """The tokens of a conversation whose caches are to come."""

    tokens: int
    settled: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True, eq=False)
class Conversation:
    """One conversation, with the answer that it is being given or was given last.

    Attributes:
        session: name of its caches, the same on every pipeline.
        tokens: the prompt, then the tokens that were chosen.
        pipeline: has its caches; None: it was on no pipeline yet.
        context: most tokens that it can have on this pipeline.
        cached: `tokens[:cached]` are in the caches of `pipeline`, or on their way there.
        arrived: `tokens[:arrived]` are in the caches of all stages of `pipeline`.
        stretch: which rotary frequencies its caches have (`Stretches` of `model/mixing/rope.py`).
        computed: the steps in which tokens were computed, on this pipeline or the ones before.
        chunk_tokens: most tokens of a step of this answer's prompt; None: not chosen yet.
        last_step: number of the last step that was sent or asked for.
        sampling: how the tokens of the answer are chosen.
        grammar: what the answer has to follow; None: anything.
        stops: token ids that end the answer.
        limit: most tokens of the answer; None: as many as the context has room for.
        pictures: of its prompt, while it is answered.
        scores: of its prompt's tokens, by their positions.
        scored: how many of its first tokens are to have a score; 0: none.
        given: tokens of the answer that were given out.
        is_rewound: whether its caches were trimmed or copied for this answer, and no token has come since.
        may_restore: whether its caches are empty, and the stages were not asked yet for what they keep on disk.
        restored: how many of its tokens they had, in this answer.
        coming: its caches are on their way from the plan before (`bringing.py`); None: they are not.
        turn: of the request that uses it; None: no request does.
        last_used: end of its last request, in seconds.
    """

    session: SessionId
    tokens: list[int] = field(default_factory=list[int])
    pipeline: Pipeline | None = None
    context: int = 0
    cached: int = 0
    arrived: int = 0
    stretch: int = 0
    computed: ComputedSteps = field(default_factory=ComputedSteps)
    chunk_tokens: int | None = None
    last_step: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    grammar: Grammar | None = None
    stops: Collection[int] = ()
    limit: int | None = None
    pictures: Pictures = NO_PICTURES
    scores: dict[int, TokenScore] = field(default_factory=dict[int, TokenScore])
    scored: int = 0
    given: int = 0
    is_rewound: bool = False
    may_restore: bool = False
    restored: int = 0
    coming: Coming | None = None
    turn: Turn | None = None
    last_used: float = 0.0

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

    def computes_of(self, prompt: Sequence[int], pipeline: Pipeline) -> int:
        """How many tokens at the beginning of the prompt its own prompt has, which is being computed."""
        has_turn = self.turn is not None and not self.turn.place
        if not has_turn or self.given or not self._is_use_for(prompt, pipeline):
            return 0
        return self._whole_steps(min(common_prefix(self.tokens, prompt), len(prompt) - 1))

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

    def fork(self, session: SessionId, prompt: Sequence[int]) -> "Conversation":
        """Another conversation with this name, with the tokens that all stages have computed of the prompt.

        It has their caches, and the steps in which they were computed.
        """
        assert self.pipeline is not None
        end = self.cached_of(prompt, self.pipeline)
        computed = self.computed.copy()
        computed.trim(end)
        self.pipeline.open(session, source=self.session, position=end)
        # A stage may have taken over less: see `is_rewound`.
        return Conversation(
            session,
            tokens=list(prompt[:end]),
            pipeline=self.pipeline,
            context=self.context,
            cached=end,
            arrived=end,
            stretch=self.stretch,
            computed=computed,
            is_rewound=True,
        )

    def begin_answer(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        limit: int | None = None,
        stops: Collection[int] = (),
        grammar: Grammar | None = None,
        is_scored: bool = False,
        pictures: Pictures = NO_PICTURES,
    ) -> int:
        """Take a prompt in place of the tokens so far, and keep the caches of what it shares.

        With `is_scored`, all of it is computed, for the log-probabilities of its tokens.

        Returns:
            How many of its tokens need not be computed. The last one always is: caches hold no
            logits.
        """
        known = 0 if is_scored else self._whole_steps(min(self.shares(prompt), len(prompt) - 1))
        if self.pipeline is not None and not self._is_use_for(prompt, self.pipeline):
            known = 0
        self.scores, self.scored = {}, len(prompt) if is_scored else 0
        keep = min(known, self.cached)
        self.computed.trim(known)
        self.tokens, self.chunk_tokens = list(prompt), None
        self.sampling, self.stops, self.limit, self.given = sampling, stops, limit, 0
        self.grammar, self.pictures = grammar, pictures
        self.restored = 0
        if keep < self.cached:
            self.is_rewound = True
            self._trim(keep)
        return keep

    def give_out(self, token_id: int) -> int:
        """Add a chosen token, which is given out now.

        Returns:
            How many tokens of the answer may follow it.
        """
        self.tokens.append(token_id)
        self.given, self.is_rewound = self.given + 1, False
        if token_id in self.stops:
            return 0
        room = self.context - len(self.tokens)
        return room if self.limit is None else min(room, self.limit - self.given)

    def recall(self, known: Sequence[int]) -> int:
        """Take the first tokens of the answer, which were given out before.

        They are computed in the steps in which they were computed then: one by one.

        Returns:
            How many tokens of the answer may follow them.
        """
        left = 0
        for token_id in known:
            left = self.give_out(token_id)
        for position in range(self.computed.end, len(self.tokens) - 1):
            self.computed.add(position, position + 1)
        return left

    @property
    def is_decoding(self) -> bool:
        """Whether tokens of its answer are being computed one by one."""
        return self.turn is not None and not self.turn.place and self.given > 0

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

    def send_step(self, most: int) -> PendingStep:
        """Send the next tokens that are not cached. The last ones ask for a token.

        Args:
            most: tokens of a step. A step that was done before is repeated with those that it had.
        """
        assert self.pipeline is not None
        begin, total = self.cached, len(self.tokens)
        end = self._end_of_step(most)
        is_last = end == total
        is_alone = self.repeats_a_token  # it waits for no other chunk of a prompt
        self.last_step += 1
        show(self.pipeline, self.session, self.last_step, self.pictures, begin, end)
        step = self.pipeline.start_step(
            self.session,
            step=self.last_step,
            position=begin,
            tokens=self.pictures.plain(self.tokens[begin:end]),
            prompt_end=None if is_last or is_alone else total,
            sampling=self._sampling_with_history() if is_last else None,
            scoring=self._scoring(begin, end),
            pictures=self.pictures.of_step(begin, end),
        )
        self._count(end)
        return step

    def _end_of_step(self, most: int) -> int:
        assert self.pipeline is not None
        begin = self.cached
        end = min(begin + most, len(self.tokens))
        if begin < self.computed.end and not self.pipeline.is_exact_in_chunks:
            end = self.computed.end_of(begin)
        return self.pictures.whole(begin, end)

    def to_show(self, most: int) -> Sequence[Picture]:
        """The pictures that the next step shows to the first stage, of which no rows are here."""
        return self.pictures.to_show(self.cached, self._end_of_step(most))

    def _scoring(self, begin: int, end: int) -> Scoring | None:
        """The prompt's tokens that follow those from `begin` to `end`, if their scores are wanted."""
        targets = self.pictures.plain(self.tokens[begin + 1 : min(end + 1, self.scored)])
        if not targets:
            return None
        return Scoring(targets=tuple(targets), top=self.sampling.logprobs or 0)

    def take_scores(self, begin: int, scores: Sequence[TokenScore]) -> None:
        """Keep the scores of the tokens that follow the one at `begin`."""
        self.scores.update(enumerate(scores, begin + 1))

    def _count(self, end: int) -> None:
        """Note that the tokens before this position are in the caches, or on their way there."""
        self.computed.add(self.cached, end)
        self.cached = end

    def follow(self) -> PendingStep:
        """Ask for the step after the last one, which is sent when its token is chosen."""
        assert self.pipeline is not None
        self.last_step += 1
        return self.pipeline.follow(
            self.session,
            step=self.last_step,
            sampling=self._sampling_now(),
            stops=self.stops,
            pictures=self.pictures.of_token(self.cached),
        )

    def give_up(self, step: PendingStep) -> None:
        """Forget a step of this pipeline."""
        assert self.pipeline is not None
        self.pipeline.give_up(step)

    def sent_ahead(self, tokens: Sequence[int]) -> None:
        """Add tokens that are on their way into the caches, whether they were given out or not."""
        self.tokens[self.cached :] = tokens
        for position in range(self.cached, len(self.tokens)):
            self._count(position + 1)

    def token_came(self) -> None:
        """Note that the step of one token that was asked for last has a result."""
        self._count(self.cached + 1)
        self.arrived = self.cached

    def _sampling_with_history(self) -> Sampling:
        """The sampling, with the tokens so far if a penalty needs them.

        The last stage does not see the token ids of earlier steps.
        """
        sampling = self._sampling_now()
        if not sampling.needs_history:
            return sampling
        return msgspec.structs.replace(
            sampling, history=tuple(self.pictures.plain(self.tokens[-MAX_HISTORY:]))
        )

    def _sampling_now(self) -> Sampling:
        """The sampling of the next token, with the tokens that the grammar allows."""
        if self.grammar is None or self.grammar.allowed is None:
            return self.sampling
        return msgspec.structs.replace(self.sampling, allowed=self.grammar.allowed)
