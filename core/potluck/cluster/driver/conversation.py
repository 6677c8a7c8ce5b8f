"""One conversation: its token ids, and how the next one is chosen.

A conversation stands above the pipelines. Everything that its answer needs to go on is here. A
pipeline holds only caches, and these can be computed again from the token ids, by other stages as
well. The last stage chooses a token by seed and position alone, so the answer goes on as it would
have. `conversation_caches.py` says how far they are cached.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import msgspec

from potluck.cluster.driver.computed import common_prefix
from potluck.cluster.driver.conversation_caches import ConversationCaches
from potluck.cluster.driver.drafts import Drafts
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
    Sampling,
    Scoring,
    TokenScore,
)


@dataclass(slots=True, eq=False)
class Conversation(ConversationCaches):
    """One conversation, with the answer that it is being given or was given last.

    Attributes:
        chunk_tokens: most tokens of a step of this answer's prompt; None: not chosen yet.
        sampling: how the tokens of the answer are chosen.
        grammar: what the answer has to follow; None: anything.
        stops: token ids that end the answer.
        drafts: guesses at its tokens, by those so far.
        guesses: whether some are sent along in this answer.
        limit: most tokens of the answer; None: as many as the context has room for.
        scores: of its prompt's tokens, by their positions.
        given: tokens of the answer that were given out.
        turn: of the request that uses it; None: no request does.
        last_used: end of its last request, in seconds.
    """

    chunk_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    grammar: Grammar | None = None
    stops: Collection[int] = ()
    drafts: Drafts = field(default_factory=Drafts)
    guesses: bool = False
    limit: int | None = None
    scores: dict[int, TokenScore] = field(default_factory=dict[int, TokenScore])
    given: int = 0
    turn: Turn | None = None
    last_used: float = 0.0

    def computes_of(self, prompt: Sequence[int], pipeline: Pipeline) -> int:
        """How many tokens at the beginning of the prompt its own prompt has, which is being computed."""
        has_turn = self.turn is not None and not self.turn.place
        if not has_turn or self.given or not self._is_use_for(prompt, pipeline):
            return 0
        return self._whole_steps(min(common_prefix(self.tokens, prompt), len(prompt) - 1))

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
        guesses: bool = False,
    ) -> int:
        """Take a prompt in place of the tokens so far, and keep the caches of what it shares.

        With `is_scored`, all of it is computed, for the log-probabilities of its tokens. With `guesses`, tokens may be
        guessed, unless a grammar allows them one at a time, or more is wanted of the stages than tokens of a text.

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
        is_text = pictures is NO_PICTURES and not sampling.embeds
        self.guesses = guesses and is_text and grammar is None
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

    def begin_guessing(self) -> None:
        """Look at the tokens so far, before steps are asked for that follow them."""
        if self._may_guess:
            self.drafts.begin(self.tokens)

    @property
    def _may_guess(self) -> bool:
        return self.guesses and self.pipeline is not None and self.pipeline.takes_drafts

    def follow(self, left: int) -> PendingStep:
        """Ask for the step after the last one, which is sent when its token is chosen.

        Args:
            left: how many tokens may follow those that were given out.
        """
        assert self.pipeline is not None
        self.last_step += 1
        return self.pipeline.follow(
            self.session,
            step=self.last_step,
            sampling=self._sampling_now(),
            stops=self.stops,
            pictures=self.pictures.of_token(self.cached),
            guessing=self.drafts if self._may_guess else None,
            end=len(self.tokens) - 1 + left,
        )

    def sent_ahead(self, tokens: Sequence[int]) -> None:
        """Add tokens that are on their way into the caches, whether they were given out or not."""
        self.tokens[self.cached :] = tokens
        for position in range(self.cached, len(self.tokens)):
            self._count(position + 1)

    def forget_guesses(self) -> None:
        """Have every stage forget what it has cached behind the tokens: guesses that are on their way."""
        assert self.pipeline is not None
        self.pipeline.trim(self.session, self.cached)

    def token_came(self) -> None:
        """Note that the token that was given out last is in the caches of all stages, and what follows it is here."""
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
