"""What a node tells the person at this computer: one line for each event, for as long as it is news."""

import asyncio
from collections.abc import Callable, Mapping

from potluck.api.schema import Notice
from potluck.cluster.events import NoticeLevel

_MOST = 20
LASTS_S: Mapping[NoticeLevel, float] = {"info": 15.0, "warning": 30.0, "error": 60.0}


class Notices:
    """The lines that are still news. What goes on is seen in the state, not in a line."""

    def __init__(
        self,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called when a line comes, and when one is over."""
        self._changed = changed
        self._number = 0
        self._lines: list[tuple[float, Notice]] = []  # until when, and what

    def add(self, level: NoticeLevel, text: str) -> None:
        """Show one line."""
        self._number += 1
        notice = Notice(id=self._number, level=level, text=text)
        loop = asyncio.get_running_loop()
        until = loop.time() + LASTS_S[level]
        self._lines.append((until, notice))
        del self._lines[:-_MOST]
        loop.call_at(until, self._changed)
        self._changed()

    def all(self) -> tuple[Notice, ...]:
        """The lines to show now, the oldest first."""
        now = asyncio.get_running_loop().time()
        self._lines = [(until, notice) for until, notice in self._lines if now < until]
        return tuple(notice for _, notice in self._lines)
