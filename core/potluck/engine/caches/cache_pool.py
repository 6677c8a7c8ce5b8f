"""The caches of all sessions of a stage, within a budget.

A session's cache grows geometrically up to the context, layer by layer: a token rarely costs a copy,
and a growing session never holds all of its cache twice. When the budget is spent, or the device
has less free memory than before, the least recently used session loses its cache. That session
stays known, with nothing cached, so its next step is answered with `need_replay` from position 0. A
step that does not fit even then is refused before anything is allocated: the operating system ends
a process that uses more memory than there is.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

import torch

from potluck.engine.caches.kvcache import GRANULE
from potluck.engine.caches.session_cache import SessionCache
from potluck.engine.memory import release
from potluck.errors import OutOfMemoryError, format_bytes
from potluck.ids import SessionId
from potluck.model.caches import CacheSpec, session_bytes


class CachePool:
    """All sessions' caches of a stage, least recently used first.

    One thread changes it; another may ask for `nbytes` at any time.
    """

    def __init__(
        self,
        specs: Sequence[CacheSpec],
        *,
        dtype: torch.dtype,
        device: torch.device,
        context: int,
        budget: int,
        budget_now: Callable[[int], int] | None = None,
        shares: bool = False,
        owners: Sequence[int] | None = None,
    ) -> None:
        """Make an empty pool.

        Args:
            specs: what each layer of a session caches.
            dtype: of the cached keys and values.
            device: the device of the caches.
            context: the most tokens of one session.
            budget: bytes of all caches together.
            budget_now: takes the bytes that the caches have already, and returns the budget as of now.
                It is asked whenever a session grows. None: the budget does not change.
            shares: whether rows that sessions have in common are in memory once. Who computes with the
                caches must then read `LayerCache.shared`.
            owners: which layer has the cache of each; None: each has its own. See `SessionCache`.

        Attributes:
            closed: caches of closed sessions that are not given back yet, the oldest first. If their memory is
                needed, they are the first to go.
        """
        self._specs, self._dtype, self._device = tuple(specs), dtype, device
        self._owners = tuple(range(len(specs)) if owners is None else owners)
        self._own = tuple(self._specs[owner] for owner in sorted(set(self._owners)))
        self._context, self._budget, self._budget_now = context, budget, budget_now
        self._shares = shares
        self._caches: OrderedDict[SessionId, SessionCache] = OrderedDict()
        self.closed: list[SessionCache] = []
        self._nbytes = 0  # of all caches

    @property
    def nbytes(self) -> int:
        """Bytes of all caches."""
        return self._nbytes

    @property
    def tokens(self) -> int:
        """Tokens that one session can hold when it has the budget for itself."""
        return self._tokens_in(self._budget)

    @property
    def has_room(self) -> bool:
        """Whether a session as long as the context finds room without an eviction."""
        return self._budget - self._nbytes >= self._bytes_of(self._context)

    def __iter__(self) -> Iterator[SessionCache]:
        """The caches of all sessions, least recently used first."""
        return iter(tuple(self._caches.values()))

    def open(self, session: SessionId) -> SessionCache:
        """Make an empty cache. One of the same name is forgotten."""
        self.close(session)
        cache = self._caches[session] = SessionCache(
            self._specs, self._dtype, self._device, self._owners
        )
        return cache

    def close(self, session: SessionId, *, keeps: bool = False) -> None:
        """Forget a session's cache. One that is not known is forgotten already.

        Args:
            session: whose cache.
            keeps: whether it stays in memory until `give_back`.
        """
        cache = self._caches.pop(session, None)
        if cache is None:
            return
        if keeps:
            self.closed.append(cache)
        else:
            self._let_go(cache)

    def give_back(self, cache: SessionCache) -> None:
        """Free the memory of a closed session. One that is open keeps its memory."""
        if cache in self.closed:
            self.closed.remove(cache)
            self._let_go(cache)

    def reserve(self, session: SessionId, tokens: int) -> list[SessionId]:
        """Make the session the most recently used one and let it hold so many tokens.

        Returns:
            The sessions that lost their caches for it.

        Raises:
            OutOfMemoryError: there is no room even for this session alone; nothing was changed.
        """
        self._caches.move_to_end(session)
        cache = self._caches[session]
        return [] if tokens <= cache.capacity else self._grow(cache, tokens)

    def fits(self, session: SessionId, tokens: int, apart: int = 0) -> bool:
        """Whether a session can hold so many tokens, with so many bytes beside its cache, and no other one loses anything."""
        if tokens > self.tokens:
            return False
        most = min(_round_up(tokens), self.tokens)
        needed = self._bytes_of(most) - self._caches[session].nbytes + apart
        return needed <= max(0, self._room(needed))

    def make_room(self, session: SessionId, nbytes: int) -> list[SessionId]:
        """Have so many bytes free for a while, beside the caches. This session keeps its cache.

        Returns:
            The sessions that lost their caches for it.

        Raises:
            OutOfMemoryError: there is no room even beside this session alone; nothing was changed.
        """
        if not nbytes:
            return []
        self._caches.move_to_end(session)
        cache, room = self._caches[session], self._room(nbytes)
        at_most = room + self._nbytes - cache.nbytes
        if nbytes > at_most:
            raise _beyond_memory(cache.capacity, nbytes, max(0, at_most))
        return self._evict(nbytes - room)

    def fork(self, session: SessionId, source: SessionId, position: int) -> list[SessionId]:
        """Let an empty session hold the tokens of another one before `position`, or fewer.

        It holds as many as there are, and from which all layers can go on. What can be shared is in memory
        once from now on. If there is no room for both
        sessions, it takes the memory of the other one, which then holds nothing.

        Returns:
            The sessions that lost their caches for it.
        """
        cache, other = self._caches[session], self._caches[source]
        position = other.restart(position)
        if not position:
            return []
        self._caches.move_to_end(source)
        self._caches.move_to_end(session)
        if self._shares:
            self._share(other, position)
            cache.take_shared(other, position)
        try:
            evicted = self._grow(cache, position, keep=other)
        except OutOfMemoryError:
            cache.swap(other)
            self._let_go(other)
            cache.trim(position)
            return [source]
        cache.copy(other, position)
        return evicted

    def _share(self, cache: SessionCache, position: int) -> None:
        nbytes = cache.own_bytes
        try:
            cache.share(position)
        except BaseException:  # some layers have moved their rows, and others have not
            self._nbytes -= nbytes
            cache.evict()
            raise

    def _grow(
        self, cache: SessionCache, tokens: int, *, keep: SessionCache | None = None
    ) -> list[SessionId]:
        """Let a cache hold so many tokens; `keep` is another one that stays."""
        capacity, room = self._choose_capacity(cache, tokens, 0 if keep is None else keep.own_bytes)
        before = cache.own_bytes
        evicted = self._evict(self._bytes_of(capacity) - cache.nbytes - room)
        try:
            cache.resize(capacity)
        finally:
            self._nbytes += cache.own_bytes - before
        return evicted

    def _bytes_of(self, tokens: int) -> int:
        """Bytes of a session with room for so many tokens."""
        return session_bytes(self._own, tokens)

    def _tokens_in(self, nbytes: int) -> int:
        """Tokens of the longest session that so many bytes hold, at most the context."""
        return bisect_right(range(self._context + 1), nbytes, key=self._bytes_of) - 1

    def _choose_capacity(self, cache: SessionCache, tokens: int, kept: int) -> tuple[int, int]:
        """The tokens to grow the cache to, and the bytes that it can take without an eviction.

        Of the other caches, so many bytes are `kept`, and what this one shares with them.
        """
        most = self.tokens
        if not self._specs:
            return most, 0
        if tokens > most:
            raise _beyond_budget(tokens, self._bytes_of(tokens), self._budget)
        wanted = min(_round_up(tokens), most)
        shared = 0 if cache.shared is None else cache.shared.nbytes
        # free once all others are evicted
        others = self._nbytes - cache.own_bytes - shared - kept
        room = self._room(self._bytes_of(wanted) - cache.nbytes)
        at_most = self._tokens_in(cache.nbytes + room + others)
        if tokens > at_most:
            needed = self._bytes_of(tokens) - cache.nbytes
            raise _beyond_memory(tokens, needed, max(0, room + others))
        # Twice as much as before if that evicts no session, else only what is needed.
        twice = min(2 * cache.capacity, most, self._tokens_in(cache.nbytes + room))
        return max(min(wanted, at_most), twice), room

    def _room(self, wanted: int) -> int:
        """Bytes that no cache uses. Negative if other programs took memory meant for caches."""
        room = self._budget - self._nbytes
        if self._budget_now is None:
            return room
        now = self._budget_now(self._nbytes) - self._nbytes
        if now < min(wanted, room):
            release(self._device)  # memory that this process freed but still keeps for later
            now = self._budget_now(self._nbytes) - self._nbytes
        return min(room, now)

    def _evict(self, excess: int) -> list[SessionId]:
        """Evict the least recently used until so many bytes are free; the one that grows is the last."""
        evicted: list[SessionId] = []
        while excess > 0 and self.closed:
            before = self._nbytes
            self.give_back(self.closed[0])
            excess -= before - self._nbytes
        for name, other in self._caches.items():
            if excess <= 0:
                break
            if other.nbytes:  # also what is left of a growth that failed
                before = self._nbytes
                self._let_go(other)
                excess -= before - self._nbytes
                evicted.append(name)
        return evicted

    def _let_go(self, cache: SessionCache) -> None:
        """Give back all memory of a cache, but what it shares with others."""
        self._nbytes -= cache.own_bytes
        if (shared := cache.shared) is not None:
            shared.users -= 1
            if not shared.users:
                self._nbytes -= shared.nbytes
        cache.evict()


def _round_up(tokens: int) -> int:
    return -(-tokens // GRANULE) * GRANULE


def _beyond_budget(tokens: int, needed: int, budget: int) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"A conversation of {tokens:,} tokens needs {format_bytes(needed)} of cache here, and"
        f" {format_bytes(budget)} are set aside for it. Shorten the conversation, choose a smaller"
        " context, or let this computer lend more memory.",
        needed=needed,
        available=budget,
    )


def _beyond_memory(tokens: int, needed: int, available: int) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"A conversation of {tokens:,} tokens needs {format_bytes(needed)} more of cache here, and"
        f" {format_bytes(available)} are free for it now, less than when the model was loaded. Close"
        " other programs on this computer, let it lend more, or shorten the conversation.",
        needed=needed,
        available=available,
    )
