"""The pipelines that answers are computed on: they are attached, replaced by those of the next plan, and lost.

Answers outlive them. When none works, an answer waits here until another one is attached.
"""

import asyncio
from collections.abc import Awaitable, Callable

from potluck.cluster.driver.attached import Attached, Room, Speed
from potluck.cluster.driver.bringing import Bringing, Bringings
from potluck.cluster.driver.conversations import Conversations
from potluck.cluster.driver.limits import AnswerLimits
from potluck.cluster.driver.pipeline import Pipeline
from potluck.cluster.driver.places import Places
from potluck.cluster.driver.reader import Reader
from potluck.cluster.driver.turns import Turns
from potluck.cluster.driver.viewer import Viewer
from potluck.cluster.loss import cannot_go_on
from potluck.errors import (
    PotluckError,
)

CHUNK_TOKENS = 256  # of a prompt, where no plan says what is best

_SPEED = Speed()


class Pipelines:
    """What is attached under a generator, and the conversations that are there."""

    def __init__(
        self,
        recover: Callable[[], Awaitable[None]] | None,
        limits: AnswerLimits,
        turns: Turns,
    ) -> None:
        """Begin without a pipeline; `Generator` says what the arguments are."""
        self.turns = turns
        self._recover = recover
        self._limits = limits
        self._places = Places()
        self._closed: PotluckError | None = None
        self._conversations = Conversations(limits)
        self._bringing = Bringings()
        self._advanced = asyncio.Event()  # the next step of a prompt, or end of an answer

    def attach(
        self,
        pipeline: Pipeline,
        *,
        context: int,
        room: Room | None = None,
        chunk_tokens: Callable[[int], int] = lambda _: CHUNK_TOKENS,
        speed: Speed = _SPEED,
        is_replica: bool = False,
    ) -> None:
        """Compute on this pipeline from now on.

        Those before it break, if they are not broken yet. Answers that were under way there go on
        here: their tokens so far are computed again, and are not given out twice.

        Args:
            pipeline: its `run` is called by who made it.
            context: most tokens that a conversation has by this plan.
            room: of the computer with the least memory for a conversation; None: all have enough.
            chunk_tokens: for a prompt of so many new tokens, how many are sent at once.
            speed: by which replicas are compared.
            is_replica: it computes beside those that are there.
        """
        if room is not None and room.tokens >= context:
            room = None
        place = Attached(
            pipeline=pipeline,
            context=context if room is None else room.tokens,
            room=room,
            chunk_tokens=chunk_tokens,
            speed=speed,
        )
        (self._places.add if is_replica else self._places.put)(place)

    def bring(self, before: Pipeline, pipeline: Pipeline) -> Bringing:
        """Have the stages of a pipeline that is attached get the caches of conversations from those of the one before."""
        place = self._places.of(pipeline)
        some = () if place is None else self._conversations
        room = 0 if place is None else place.context
        bringing = Bringing(some, before, pipeline, room=room)
        self._bringing.begin(bringing)
        return bringing

    def leave(self, pipeline: Pipeline) -> None:
        """Begin no answers on this replica from now on, if there is another one."""
        self._places.leave(pipeline)

    def detach(self, pipeline: Pipeline) -> None:
        """Forget a replica that is lost."""
        self._places.remove(pipeline)

    def uses(self, pipeline: Pipeline) -> bool:
        """Whether an answer is under way on this pipeline."""
        return any(c.pipeline is pipeline and c.turn is not None for c in self._conversations)

    async def unused(self, pipeline: Pipeline) -> None:
        """Wait until no answer is under way on this pipeline."""
        while self.uses(pipeline):
            await self._advanced.wait()

    def read_with(self, reader: Reader | None, pipeline: Pipeline | None) -> None:
        """Have a reader read long prompts from now on (None: nobody), while this pipeline is attached."""
        self._places.read_with(reader, pipeline)

    def view_with(self, viewer: Viewer | None, pipeline: Pipeline | None) -> None:
        """Have a viewer read pictures from now on (None: the first stage), while this pipeline is attached."""
        self._places.view_with(viewer, pipeline)

    def close(self, error: PotluckError) -> None:
        """End the answers under way, and those that wait for a pipeline, with this error.

        No pipeline is attached afterwards.
        """
        self._closed = error
        self._places.fail(error)

    @property
    def broken(self) -> PotluckError | None:
        """Why nothing can be computed now; None: a pipeline that works is attached."""
        return self._closed or self._places.broken

    @property
    def is_idle(self) -> bool:
        """Whether no answer is under way."""
        return self.turns.idle.is_set()

    @property
    def context(self) -> int:
        """How many tokens a conversation can have now; 0 without a pipeline."""
        largest = self._places.largest
        return 0 if largest is None else largest.context

    async def _working(self) -> Attached:
        """The pipeline for the longest conversations. If all are broken, this waits for another one.

        Raises:
            PotluckError: why there is none.
        """
        while (broken := self.broken) is not None:
            if self._closed is not None or self._recover is None:
                raise broken
            try:
                async with asyncio.timeout(self._limits.replacement_s):
                    await self._recover()
            except TimeoutError:
                raise broken from None
            except PotluckError as why:
                raise cannot_go_on(broken, why) from why
        largest = self._places.largest
        assert largest is not None
        return largest

    def _tell(self) -> None:
        """Wake those that wait for what another answer computes."""
        self._advanced.set()
        self._advanced = asyncio.Event()
