"""The connections of a rank with the others of its group, for the thread that computes.

Twice in each layer a rank sends its part of a sum to all others and waits for theirs. No reactor and no event
loop stand between: the thread that computes writes and reads the sockets itself, and looks for an answer
without sleeping for a moment, since waking a thread takes longer than most answers.

Who cannot do a step says so in place of its next part (`abort`), and then all give the step up. Parts of a step
that was given up may still arrive; the number of the step tells them from later ones.
"""

import selectors
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from potluck.errors import (
    EngineError,
    PeerLostError,
    PeerTimeoutError,
    PotluckError,
    RemoteProtocolError,
    rebuild,
)
from potluck.net.reactor import Delivery
from potluck.net.step_link import StepLink
from potluck.system.threads import give_way
from potluck.wire.rank_messages import AbortStep, Partial

AWAKE_S = 0.002  # a part of a token comes sooner, unless the other computer is slower
PATIENCE_S = (
    200.0  # a first step may compile for three minutes; its own node ends a rank that hangs
)
_AHEAD = 2  # messages of a rank that wait here before it is read on: it has but one part more than others
_LOOK_S = 0.1  # between two looks at whether a link was closed here


class RankLinks:
    """Open connections to all other ranks. Only `close` may be called in another thread."""

    def __init__(
        self,
        rank: int,
        links: Mapping[int, StepLink],
        *,
        steps: Sequence[StepLink] = (),
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Take over the connections with other ranks: nothing else may read them.

        Args:
            rank: the own number, from 0.
            links: the connection with each other rank; together they are all of the group.
            steps: on which rank 0 has sent the others what they are to compute. Nobody else may write what they did
                not take at once while this thread waits, and the others could not begin.
            waiting: entered while this rank sleeps until another one has computed its part.
            patience_s: the longest wait for one sum.
        """
        self.rank, self.world = rank, len(links) + 1
        self._links = dict(links)
        self._waiting = waiting
        self._patience_s = patience_s
        self._arrived: dict[int, deque[Delivery]] = {peer: deque() for peer in links}
        self._selector = selectors.DefaultSelector()
        self._served = [
            *(_Served(link, self._arrived[peer]) for peer, link in links.items()),
            *(_Served(link) for link in steps),
        ]

    def gather(self, step: int, number: int, mine: memoryview) -> list[memoryview]:
        """Send a part of a sum to all ranks, and wait for theirs.

        Args:
            step: number of the step, greater than that of every step before.
            number: of the sum in the step.
            mine: the own part, in bytes.

        Returns:
            The parts of all ranks in their order, each as long as the own one.

        Raises:
            PeerLostError: a rank is gone. Nothing can be computed with this group any more.
            PeerTimeoutError: a rank is silent for too long; it counts as gone from then on.
            RemoteProtocolError: a rank sent another part than was due; the connection with it is closed.
            PotluckError: a rank cannot do this step, and why.
        """
        message = Partial(rank_step=step, number=number)
        for link in self._links.values():
            link.send_nowait(message, mine)
        parts: dict[int, memoryview] = {self.rank: mine}
        ends_at = time.perf_counter() + self._patience_s
        while True:
            for peer in self._links:
                if peer not in parts and (part := self._part(peer, step, number, len(mine))):
                    parts[peer] = part
            if len(parts) == self.world and not self._has_backlog:
                return [parts[rank] for rank in range(self.world)]
            self._move_bytes(ends_at)

    def abort(self, step: int, error: PotluckError) -> None:
        """Tell all others that this rank cannot do a step. Those that are gone do not hear it."""
        position = error.data.get("position")
        message = AbortStep(
            rank_step=step,
            kind=error.code,
            message=error.message,
            position=position if isinstance(position, int) else None,
        )
        for link in self._links.values():
            if not link.is_closed:
                try:
                    link.send_nowait(message)
                except PeerLostError:
                    continue  # its end is noticed at the next step

    def close(self) -> None:
        """End all connections. A wait for a part of a sum ends, too."""
        for link in self._links.values():
            link.close()

    @property
    def _has_backlog(self) -> bool:
        return any(link.has_backlog and not link.is_closed for link in self._links.values())

    @property
    def _is_any_closed(self) -> bool:
        return any(served.link.is_closed for served in self._served)

    def look(self, step: int) -> None:
        """Move what can be moved at once, where parts of sums go another way.

        Raises:
            PeerLostError: a rank is gone.
            RemoteProtocolError: a rank sent a part all the same.
            PotluckError: a rank cannot do this step, and why.
        """
        self._choose_events()
        self._move(self._select(0))
        for peer in self._links:
            if self._due(peer, step) is not None:
                raise self._broken(
                    peer,
                    f"{self._name(peer)} sent a part of a sum, where memory is shared for these.",
                )

    def _part(self, peer: int, step: int, number: int, nbytes: int) -> memoryview | None:
        """The part of a rank, if it has arrived."""
        if (due := self._due(peer, step)) is None:
            return None
        message, payload = due
        if message.number != number or len(payload) != nbytes:
            raise self._broken(
                peer,
                f"{self._name(peer)} sent {len(payload)} bytes for sum {message.number}, where {nbytes}"
                f" for sum {number} were due: the two do not compute the same.",
            )
        return payload

    def _due(self, peer: int, step: int) -> tuple[Partial, memoryview] | None:
        """The next part of the step that a rank has sent, if one has arrived."""
        arrived = self._arrived[peer]
        while arrived:
            message, payload = arrived[0]
            if not isinstance(message, Partial | AbortStep):
                raise self._broken(
                    peer,
                    f"{self._name(peer)} sent {type(message).__name__} among parts of sums: the two do not"
                    " compute the same.",
                )
            if message.rank_step > step:
                return None  # this step was given up by somebody, who says so
            arrived.popleft()
            if message.rank_step < step:
                continue
            if isinstance(message, AbortStep):
                data = {"position": message.position}
                raise rebuild(message.kind, message.message, data, default=EngineError)
            return message, payload
        link = self._links[peer]
        if link.is_closed:
            raise link.error or PeerLostError(f"{link.peer.name} is gone.")
        return None

    def _broken(self, peer: int, what: str) -> RemoteProtocolError:
        link = self._links[peer]
        link.close("your part of a sum is not the one that was due")
        return RemoteProtocolError(what)

    def _name(self, peer: int) -> str:
        return self._links[peer].peer.name

    def _move_bytes(self, ends_at: float) -> None:
        """Wait until a connection can be read or written, and do it."""
        self._move(self._ready(ends_at))

    def _move(self, ready: list[tuple[selectors.SelectorKey, int]]) -> None:
        for key, events in ready:
            served: _Served = key.data
            if events & selectors.EVENT_WRITE:
                served.link.send_backlog()
            if events & selectors.EVENT_READ and served.arrived is not None:
                served.arrived.extend(served.link.read())

    def _ready(self, ends_at: float) -> list[tuple[selectors.SelectorKey, int]]:
        """What can be done now; nothing: look again at what has ended, and at the time."""
        self._choose_events()
        now = time.perf_counter()
        if now > ends_at:
            self.close()
            raise PeerTimeoutError(
                f"No part of a sum came within {self._patience_s:.0f} seconds. A computer of the"
                " group hangs, or is far too slow for it."
            )
        while True:
            if ready := self._select(0):
                return ready
            if time.perf_counter() > now + AWAKE_S:
                break
            give_way()
        with self._waiting():
            while not (ready := self._select(_LOOK_S)):
                if self._is_any_closed or time.perf_counter() > ends_at:
                    break
        return ready

    def _select(self, timeout_s: float) -> list[tuple[selectors.SelectorKey, int]]:
        try:
            return self._selector.select(timeout_s)
        except (OSError, ValueError):  # a socket was closed here meanwhile
            if not self._is_any_closed:
                raise
            return []

    def _choose_events(self) -> None:
        """Ask for what each connection needs: chunks are more than the kernel takes at once."""
        for served in self._served:
            events = served.wanted
            if events != served.events:
                self._wait_for(served, events)

    def _wait_for(self, served: "_Served", events: int) -> None:
        before, served.events = served.events, events
        try:
            if not events:
                self._selector.unregister(served.fileno)
            elif before:
                self._selector.modify(served.fileno, events, served)
            else:
                self._selector.register(served.fileno, events, served)
        except (OSError, ValueError, KeyError):  # it was closed here meanwhile
            if not served.link.is_closed:
                raise


class _Served:
    """A connection, and what is waited for on it."""

    __slots__ = ("arrived", "events", "fileno", "link")

    def __init__(self, link: StepLink, arrived: deque[Delivery] | None = None) -> None:
        """`arrived`: where its messages wait; None: it is read elsewhere."""
        self.link, self.arrived = link, arrived
        self.fileno = link.fileno()  # a closed one does not know it any more
        self.events = 0

    @property
    def wanted(self) -> int:
        """What to wait for."""
        if self.link.is_closed:
            return 0
        writes = selectors.EVENT_WRITE if self.link.has_backlog else 0
        is_read = self.arrived is not None and len(self.arrived) < _AHEAD
        return writes | (selectors.EVENT_READ if is_read else 0)
