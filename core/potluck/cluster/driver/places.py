"""The pipelines that a generator computes on: one, or one of each replica of the model."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from potluck.cluster.driver.attached import Attached
from potluck.cluster.driver.conversations import Conversations
from potluck.cluster.driver.pipeline import Pipeline
from potluck.cluster.driver.reader import Reader
from potluck.cluster.driver.router import Load, route
from potluck.cluster.driver.viewer import Viewer
from potluck.errors import PeerLostError, PotluckError

logger = logging.getLogger(__name__)


class Places:
    """Keeps the pipelines that are attached, and chooses one of those that work."""

    def __init__(self) -> None:
        self._all: list[Attached] = []

    def put(self, place: Attached) -> None:
        """Take this one in place of all others, which break."""
        self.fail(PeerLostError("The model was loaded on other computers while it was answering."))
        self._all = [place]

    def add(self, place: Attached) -> None:
        """Take another replica beside those that are there."""
        self._all.append(place)

    def remove(self, pipeline: Pipeline) -> None:
        """Forget a replica. The last one stays, and says why nothing can be computed."""
        if len(self._all) > 1:
            self._all = [place for place in self._all if place.pipeline is not pipeline]

    def leave(self, pipeline: Pipeline) -> None:
        """Choose a replica for no other answers from now on, if there is another one: it is about to leave."""
        self._all = [
            replace(place, is_leaving=True) if place.pipeline is pipeline else place
            for place in self._all
        ]

    def read_with(self, reader: Reader | None, pipeline: Pipeline | None) -> None:
        """Have a reader read long prompts for the one with this pipeline; None: nobody."""
        self._all = [
            replace(place, reader=reader) if place.pipeline is pipeline else place
            for place in self._all
        ]

    def view_with(self, viewer: Viewer | None, pipeline: Pipeline | None) -> None:
        """Have a viewer read pictures for the one with this pipeline; None: its first stage."""
        self._all = [
            replace(place, viewer=viewer) if place.pipeline is pipeline else place
            for place in self._all
        ]

    def fail(self, error: PotluckError) -> None:
        """Break all pipelines with this error."""
        for place in self._all:
            place.pipeline.fail(error)

    @property
    def broken(self) -> PotluckError | None:
        """Why nothing can be computed now; None: a pipeline that works is there."""
        if not self._all:
            return PeerLostError("The model is not loaded yet. Try again in a moment.")
        return None if self._working else self._all[0].pipeline.broken

    @property
    def largest(self) -> Attached | None:
        """The one with the largest context, of those that work if there are any; None: none is there."""
        return max(self._working or self._all, key=lambda place: place.context, default=None)

    @property
    def _working(self) -> list[Attached]:
        return [place for place in self._all if place.pipeline.broken is None]

    def of(self, pipeline: Pipeline | None) -> Attached | None:
        """The place of a pipeline that is attached and works."""
        return next((place for place in self._working if place.pipeline is pipeline), None)

    def choose(self, prompt: Sequence[int], conversations: Conversations) -> Attached:
        """Where a prompt is answered. If none works, one that does not; there must be one."""
        working = self._working or self._all
        usable = [p for p in working if not p.is_leaving] or working
        usable = [p for p in usable if p.context > len(prompt)] or usable
        if len(usable) == 1:
            return usable[0]
        loads = [_load(place, prompt, conversations) for place in usable]
        chosen = usable[route(loads, len(prompt))]
        logger.debug("a prompt of %d tokens goes to epoch=%d", len(prompt), chosen.pipeline.epoch)
        return chosen


def _load(place: Attached, prompt: Sequence[int], conversations: Conversations) -> Load:
    """A replica as this prompt would find it."""
    pipeline = place.pipeline
    own = [each for each in conversations if each.pipeline is pipeline]
    answers = [each for each in own if each.turn is not None]
    # What others are computing of the same prompt is there when it begins.
    cached = (
        max(of(prompt, pipeline) for of in (c.cached_of, c.coming_of, c.computes_of)) for c in own
    )
    return Load(
        token_s=place.speed.token_s,
        prompt_token_s=place.speed.prompt_token_s,
        stages=pipeline.stages,
        answers=len(answers),
        tokens_ahead=sum(each.to_compute for each in answers),
        cached=max(cached, default=0),
    )
