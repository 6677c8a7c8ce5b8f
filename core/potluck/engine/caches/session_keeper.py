"""Which sessions' caches are written to the disk or read from there, beside the computing, and when."""

import logging
from collections.abc import Callable
from functools import partial

from potluck.engine.caches.cache_pool import CachePool
from potluck.engine.caches.disk_work import Disk, DiskWork, do_now
from potluck.engine.caches.session_cache import SessionCache
from potluck.engine.caches.session_files import Found, SessionFiles, is_worth_a_file
from potluck.engine.memory import out_of_memory
from potluck.errors import OutOfMemoryError

logger = logging.getLogger(__name__)

_ENOUGH = 3 / 4  # of a cache's tokens on disk: it is not written again, as that wears the disk


class SessionKeeper:
    """Has caches of a pool written to the disk before others need their memory, one at a time.

    A closed session's cache is written and then given back. While a conversation as long as the context would not
    find room, those that would have to make room for it are written beforehand: memory that is needed is given back
    at once, and tokens that are not on the disk then are computed again.
    """

    def __init__(self, files: SessionFiles | None, pool: CachePool, disk: Disk) -> None:
        """Without files, nothing is kept."""
        self._files, self._pool, self._disk = files, pool, disk
        self._is_writing = False

    @property
    def has_files(self) -> bool:
        """Whether caches are kept on disk."""
        return self._files is not None

    def wants(self, cache: SessionCache) -> bool:
        """Whether the cache of a session that is closed is to be written first."""
        return self.has_files and is_worth_a_file(cache) and cache.kept != cache.prefix

    def look(self) -> None:
        """Write the next cache, if one is to be written and none is under way."""
        if self._files is None or self._is_writing or (cache := self._next()) is None:
            return
        self._is_writing, prefix = True, cache.prefix

        def written(is_there: bool | None) -> None:
            self._is_writing = False
            if is_there:
                cache.kept = prefix
            elif cache.prefix == prefix:
                cache.prefix = b""  # it is not tried again before its tokens are named again
            self._pool.give_back(cache)
            self.look()

        self._disk(self._files.save(cache), written)

    def _next(self) -> SessionCache | None:
        if self._pool.closed:
            return self._pool.closed[0]
        if self._pool.has_room:
            return None
        waiting = (cache for cache in self._pool if is_worth_a_file(cache))
        return next((cache for cache in waiting if not _is_enough(cache)), None)

    def restore(
        self,
        cache: SessionCache,
        prefix: bytes,
        most: int,
        has_room: Callable[[int], bool],
        done: Callable[[bool | None], object],
    ) -> None:
        """Read tokens that are on the disk into an empty cache.

        Args:
            cache: of an open session.
            prefix: the digests of the tokens to come.
            most: tokens that are of use.
            has_room: makes room in the cache for so many tokens, or raises OutOfMemoryError; returns whether the
                session is still open.
            done: called with whether tokens were read. If not, the cache may not be used any more.
        """
        if self._files is None or cache.length:
            done(True)
        else:
            self._disk(_restore(self._files, cache, prefix, most, has_room), done)

    def save(self, is_late: Callable[[], bool]) -> None:
        """Write all that is to be kept on this thread, the last used first, until it is late. It stays in memory."""
        if self._files is None:
            return
        for cache in reversed([*self._pool.closed, *self._pool]):
            if is_late():
                return
            do_now(self._files.save(cache), is_late)


def _is_enough(cache: SessionCache) -> bool:
    return len(cache.kept) >= _ENOUGH * len(cache.prefix)


def _restore(
    files: SessionFiles,
    cache: SessionCache,
    prefix: bytes,
    most: int,
    has_room: Callable[[int], bool],
) -> DiskWork[bool]:
    found: Found | None = yield partial(files.find, prefix, most, cache.stretch)
    if found is None:
        return False
    try:
        with out_of_memory("read a conversation's cache", cache.layers[0].both.device):
            if not has_room(found.tokens):
                return False
    except OutOfMemoryError as error:
        logger.info("a conversation is computed again: %s", error)
        return False
    return (yield from files.read(found, cache))
