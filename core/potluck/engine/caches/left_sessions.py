"""The sessions of a stage that is out of force, or soon will be: another stage goes on with their caches.

No weights are held for them. Not thread-safe.
"""

from collections.abc import Callable, Mapping, Sequence

from potluck.engine.caches.moved_parts import moved_parts
from potluck.engine.caches.session_cache import SessionCache
from potluck.engine.caches.session_transfer import RowSender
from potluck.errors import InvalidStepError, UnknownSessionError
from potluck.ids import SessionId
from potluck.model.cache_shares import CacheShares, Lanes
from potluck.model.caches import CacheSpec


class LeftSessions:
    """Caches by the names of their sessions.

    Args:
        caches: of the sessions.
        specs: what each layer of a session caches.
        layers: the model's numbers of these layers.
        shares: which part of each layer they have.
        is_in_force: whether a driver may still use them, so that they have to stay as they are.
    """

    def __init__(
        self,
        caches: Mapping[SessionId, SessionCache],
        specs: Sequence[CacheSpec],
        layers: Sequence[int],
        shares: CacheShares,
        *,
        is_in_force: bool,
    ) -> None:
        self._caches, self._specs = dict(caches), tuple(specs)
        self.shares = shares
        self.layers = tuple(layers)
        self._is_in_force = is_in_force

    @property
    def nbytes(self) -> int:
        """Bytes of all caches."""
        caches = tuple(self._caches.values())  # at once: another thread may ask
        shared = {rows for cache in caches if (rows := cache.shared) is not None}
        own = sum(cache.own_bytes for cache in caches)
        return own + sum(rows.nbytes for rows in shared)

    def rows(
        self,
        session: SessionId,
        layers: range,
        end: int,
        given: Callable[[int], Lanes] | None = None,
    ) -> RowSender:
        """Read the cache of the tokens before `end`, in these of the layers, and these lanes of each; None: all that are here.

        A session that is out of force forgets the tokens behind them.

        Raises:
            UnknownSessionError: nothing is left of the session.
            InvalidStepError: other tokens are cached than those before `end`.
        """
        cache = self._caches.get(session)
        if cache is None:
            raise UnknownSessionError("Nothing is left of this conversation here.")
        if not self._is_in_force and cache.length > end:
            cache.trim(end)
        if cache.length != end:
            raise InvalidStepError(f"{cache.length} tokens are cached here, and {end} are wanted.")
        moved = moved_parts(cache, self._specs, self.layers, self.shares)
        wanted = {key: part for key, part in moved if key[0] in layers}
        return RowSender(cache, wanted, given or self.shares.held, 0, end)

    def drop(self, session: SessionId) -> None:
        """Give the memory of a session back."""
        if (cache := self._caches.pop(session, None)) is not None:
            cache.evict()

    def clear(self) -> None:
        """Give all memory back."""
        for session in list(self._caches):
            self.drop(session)
