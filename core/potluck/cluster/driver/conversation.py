"""One conversation: its token ids, how the next one is chosen, and how far a pipeline caches them.

A conversation stands above the pipelines. Everything that its answer needs to go on is here. A
pipeline holds only caches, and these can be computed again from the token ids, by other stages as
well. The last stage chooses a token by seed and position alone, so the answer goes on as it would
have.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import msgspec

from potluck.cluster.driver.pipeline import PendingStep, Pipeline, StepResult
from potluck.ids import SessionId
from potluck.wire.messages import MAX_HISTORY, Sampling


@dataclass(slots=True, eq=False)
class Conversation:
    """One conversation, with the answer that it is being given or was given last.

    Attributes:
        session: name of its caches, the same on every pipeline.
        tokens: the prompt, then the tokens that were chosen.
        pipeline: has its caches; None: it was on no pipeline yet.
        context: most tokens that it can have on this pipeline.
        cached: `tokens[:cached]` are in the caches of `pipeline`, or on their way there.
        last_step: number of the last step that was sent or asked for.
        sampling: how the tokens of the answer are chosen.
        stops: token ids that end the answer.
        limit: most tokens of the answer; None: as many as the context has room for.
        given: tokens of the answer that were given out.
        is_rewound: whether its caches were trimmed for this answer, and no token has come since.
        is_busy: whether a request uses it.
        is_waiting: whether it lets another answer end, because it lost its cache.
        last_used: end of its last request, in seconds.
    """

    session: SessionId
    tokens: list[int] = field(default_factory=list[int])
    pipeline: Pipeline | None = None
    context: int = 0
    cached: int = 0
    last_step: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    stops: Collection[int] = ()
    limit: int | None = None
    given: int = 0
    is_rewound: bool = False
    is_busy: bool = False
    is_waiting: bool = False
    last_used: float = 0.0

    def shares(self, prompt: Sequence[int]) -> int:
        """How many tokens at the beginning of the prompt are cached."""
        return min(_common_prefix(self.tokens, prompt), self.cached)

    def begin_answer(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        limit: int | None = None,
        stops: Collection[int] = (),
    ) -> int:
        """Take a prompt in place of the tokens so far, and keep the caches of what it shares.

        Returns:
            How many of its tokens need not be computed. The last one always is: caches hold no
            logits.
        """
        keep = min(self.shares(prompt), len(prompt) - 1)
        self.tokens = list(prompt)
        self.sampling, self.stops, self.limit, self.given = sampling, stops, limit, 0
        self.is_rewound = keep < self.cached
        if self.is_rewound:
            self.rewind(keep)
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

    # --- its caches

    def enter(self, pipeline: Pipeline, context: int) -> None:
        """Go on with this pipeline, which has cached nothing of it."""
        self.pipeline, self.context = pipeline, context
        self.open()

    def open(self) -> None:
        """Begin with empty caches on the same pipeline."""
        assert self.pipeline is not None
        self.cached = 0
        self.pipeline.open(self.session)

    def rewind(self, position: int) -> None:
        """Have every stage forget what it has cached from this position or an earlier one on."""
        assert self.pipeline is not None
        self.cached = min(position, self.cached, len(self.tokens) - 1)
        self.pipeline.trim(self.session, self.cached)

    def send_chunk(self, most: int) -> PendingStep:
        """Send the next tokens that are not cached, at most so many. The last asks for a token."""
        assert self.pipeline is not None
        begin, end = self.cached, len(self.tokens)
        self.cached = min(begin + most, end)
        is_last = self.cached == end
        self.last_step += 1
        return self.pipeline.start_step(
            self.session,
            step=self.last_step,
            position=begin,
            tokens=self.tokens[begin : self.cached],
            prompt_end=None if is_last else end,
            sampling=self._sampling_with_history() if is_last else None,
        )

    def follow(self) -> PendingStep:
        """Ask for the step after the last one, which is sent when its token is chosen."""
        assert self.pipeline is not None
        self.last_step += 1
        return self.pipeline.follow(
            self.session, step=self.last_step, sampling=self.sampling, stops=self.stops
        )

    def give_up(self, step: PendingStep) -> None:
        """Forget a step of this pipeline."""
        assert self.pipeline is not None
        self.pipeline.give_up(step)

    def sent_ahead(self, tokens: Sequence[int]) -> None:
        """Add tokens that are on their way into the caches, whether they were given out or not."""
        self.tokens[self.cached :] = tokens
        self.cached = len(self.tokens)

    def _sampling_with_history(self) -> Sampling:
        """The sampling, with the tokens so far if a repetition penalty needs them.

        The last stage does not see the token ids of earlier steps.
        """
        if self.sampling.repetition_penalty == 1.0:
            return self.sampling
        return msgspec.structs.replace(self.sampling, history=tuple(self.tokens[-MAX_HISTORY:]))


class StepsAhead:
    """The steps that follow a token, asked for before it is known which tokens they carry."""

    def __init__(self, conversation: Conversation, most: int) -> None:
        self.conversation = conversation
        self._most = most
        self._steps: deque[PendingStep] = deque()

    def ask(self, left: int) -> None:
        """Ask for the next steps, at most so many."""
        while len(self._steps) < min(self._most, left):
            self._steps.append(self.conversation.follow())

    async def next(self) -> StepResult:
        """The result of the next step, which has the next token."""
        step = self._steps[0]
        arrived = await step.future
        self._steps.popleft()
        self.conversation.cached += 1
        return arrived

    def give_up(self) -> list[int]:
        """Forget the steps; return the tokens that were sent with them already."""
        steps = list(self._steps)
        self._steps.clear()
        for step in steps:
            self.conversation.give_up(step)
        return [step.token for step in steps if step.token is not None]

    def stop(self) -> None:
        """Forget the steps at the end of the answer; their tokens will be in the caches."""
        if sent := self.give_up():
            self.conversation.sent_ahead(sent)


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))
