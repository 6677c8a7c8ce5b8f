"""How many tokens of a session a whole group has: rank 0 answers with the least of all ranks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from potluck.cluster.stage.scheduler import PeerLink
from potluck.wire.activation_messages import RestoreSession
from potluck.wire.cache_messages import RankHas, TakeCache

Asked: TypeAlias = TakeCache | RestoreSession


@dataclass(slots=True)
class _Open:
    """What is still to be answered."""

    message: Asked
    waiting: set[PeerLink | None]  # the ranks that have not said; None: the own one
    position: int


@dataclass(slots=True)
class Agreement:
    """Waits for what this rank and the others have. A stage that leads no group has no others.

    Used on the computing thread only.

    Attributes:
        others: the connections with the other ranks.
        answer: called with what was asked and how many tokens all have.
    """

    others: tuple[PeerLink, ...]
    answer: Callable[[Asked, int], object]
    _open: dict[tuple[str, int], _Open] = field(default_factory=dict[tuple[str, int], _Open])

    def ask(self, message: Asked) -> None:
        """Wait for the ranks, which are asked as well."""
        waiting = {None, *self.others}
        self._open[message.session, message.step] = _Open(message, waiting, message.position)

    def own(self, message: Asked, position: int) -> None:
        """Note how many tokens this rank has."""
        self._said(None, message.session, message.step, position)

    def heard(self, link: PeerLink, message: RankHas) -> None:
        """Note how many another rank has."""
        self._said(link, message.session, message.step, message.position)

    def drop(self, session: str) -> None:
        """Answer nothing more of a session, which goes on in another way."""
        for key in [key for key in self._open if key[0] == session]:
            del self._open[key]

    def _said(self, link: PeerLink | None, session: str, step: int, position: int) -> None:
        one = self._open.get((session, step))
        if one is None or link not in one.waiting:
            return
        one.waiting.discard(link)
        one.position = min(one.position, position)
        # A cache is taken by all or begins anew. From the disk each has its own part, which others may still read.
        is_failed = isinstance(one.message, TakeCache) and one.position < one.message.position
        if is_failed or not one.waiting:
            del self._open[session, step]
            self.answer(one.message, one.position)
