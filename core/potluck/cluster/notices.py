"""What a node tells the person at this computer: one line for each event, for as long as it is news."""

import asyncio
from collections.abc import Callable, Mapping, Set
from typing import NamedTuple

from potluck.api.values.schema import Notice
from potluck.cluster.events import NoticeLevel

_MOST = 20
LASTS_S: Mapping[NoticeLevel, float] = {"info": 15.0, "warning": 30.0, "error": 60.0}


class _Line(NamedTuple):
    until: float
    notice: Notice
    away: str | None  # the computer that it is about, which was not there


class Notices:
    """The lines that are still news. What goes on is seen in the state, not in a line."""

    def __init__(
        self,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called when a line comes, and when one is over."""
        self._changed = changed
        self._number = 0
        self._lines: list[_Line] = []

    def add(self, level: NoticeLevel, text: str, away: frozenset[str] = frozenset()) -> None:
        """Show one line; `away` has the names of the computers that are not there now."""
        self._number += 1
        notice = Notice(id=self._number, level=level, text=text)
        loop = asyncio.get_running_loop()
        until = loop.time() + LASTS_S[level]
        self._lines.append(
            _Line(until, notice, next((n for n in away if text.startswith(f"{n} ")), None))
        )
        del self._lines[:-_MOST]
        loop.call_at(until, self._changed)
        self._changed()

    def all(self, here: Set[str] = frozenset()) -> tuple[Notice, ...]:
        """The lines to show now, the oldest first; `here` has the names of the computers that are there.

        What was said about a computer that was away is over when it is back.
        """
        now = asyncio.get_running_loop().time()
        self._lines = [x for x in self._lines if now < x.until and x.away not in here]
        return tuple(line.notice for line in self._lines)
