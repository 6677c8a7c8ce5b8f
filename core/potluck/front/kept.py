"""What was computed of the last answers, for clients whose connection broke and who ask again."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from potluck.api.events import GenerationEvent
from potluck.api.prompts import GenerationRequest

KEPT_S = 300.0  # a client that asks again does so soon
ANSWERS = 64
EVENTS = 100_000  # of all answers together; one takes some hundred bytes


@dataclass(slots=True)
class _Kept:
    begun: float  # in seconds of the clock
    events: list[GenerationEvent] = field(default_factory=list[GenerationEvent])


class KeptAnswers:
    """The events of the last answers, by request. The id of a request is a part of it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answers: dict[GenerationRequest, _Kept] = {}  # the oldest first

    def begin(self, request: GenerationRequest) -> list[GenerationEvent]:
        """Return the events that are kept of this request's answer. The caller adds the others.

        Somebody may still be adding events for the same request: the list is a copy of that one.
        """
        before = self._answers.pop(request, None)
        now = self._clock()
        kept = _Kept(now, [] if before is None or self._is_old(before, now) else [*before.events])
        self._answers[request] = kept
        self._forget(now)
        return kept.events

    def _forget(self, now: float) -> None:
        """Forget the oldest answers: those that are too old, and those that are too many."""
        total = sum(len(kept.events) for kept in self._answers.values())
        for request, kept in tuple(self._answers.items())[:-1]:
            if not (self._is_old(kept, now) or len(self._answers) > ANSWERS or total > EVENTS):
                break
            total -= len(kept.events)
            del self._answers[request]

    @staticmethod
    def _is_old(kept: _Kept, now: float) -> bool:
        return now - kept.begun > KEPT_S
