"""Notice a stage process that hangs: it is asked again and again, and has to answer."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTimes:
    """When a process counts as hung."""

    interval_s: float = 1.0  # between two questions
    questions: int = 3  # without an answer: a busy computer hesitates for a second or two


class Watchdog:
    """Asks one process.

    Args:
        ask: sends a question; it may raise nothing.
        hung: called once if the process does not answer, or answers that it does not advance.
    """

    def __init__(
        self, ask: Callable[[], None], hung: Callable[[], None], times: WatchTimes | None = None
    ) -> None:
        self._ask = ask
        self._hung = hung
        self._times = times if times is not None else WatchTimes()
        self._has_answered = False
        self._is_stuck = False

    def answered(self, *, is_stuck: bool) -> None:
        """Take an answer of the process: it is there, and says whether its computing is stuck."""
        self._has_answered, self._is_stuck = True, is_stuck

    async def run(self) -> None:
        """Ask until the process hangs.

        Questions are counted and not seconds: if this node itself was stopped for a while, so was
        the question.
        """
        unanswered = 0
        while unanswered < self._times.questions and not self._is_stuck:
            self._has_answered = False
            self._ask()
            await asyncio.sleep(self._times.interval_s)
            unanswered = 0 if self._has_answered else unanswered + 1
        self._hung()
