"""The sessions of a stage: which it knows, the caches that they have, and where these come from and go to.

Nothing is computed here: see `stage`, whose rules hold. Not thread-safe.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial

from potluck.engine.caches.cache_pool import CachePool
from potluck.engine.caches.disk_work import Disk
from potluck.engine.caches.left_sessions import LeftSessions
from potluck.engine.caches.moved_parts import bytes_apart, bytes_moved, moved_parts
from potluck.engine.caches.session_files import SessionFiles
from potluck.engine.caches.session_keeper import SessionKeeper
from potluck.engine.caches.session_transfer import (
    RowReceiver,
    RowSender,
    beyond_one_transfer,
)
from potluck.engine.loading.stage_weights import StageWeights
from potluck.engine.memory import out_of_memory
from potluck.engine.session import Session, need_replay
from potluck.engine.step_bounds import StepBounds
from potluck.errors import OutOfMemoryError, StaleEpochError, UnknownSessionError
from potluck.ids import SessionId
from potluck.model.cache_shares import CacheShares
from potluck.model.caches import MOST_MOVED_BYTES, CacheSizes
from potluck.model.mixing.carried import cache_owners
from potluck.model.shares import Share

logger = logging.getLogger(__name__)


class StageSessions:
    """The sessions of one stage, as `Stage` has them."""

    def __init__(
        self,
        weights: StageWeights,
        *,
        context: int,
        cache_budget: int,
        budget_now: Callable[[int], int] | None,
        epoch: int,
        chunk: int,
        slack: int,
        max_sessions: int,
        files: SessionFiles | None,
        disk: Disk,
        shares: CacheShares,
    ) -> None:
        """Begin without sessions; `Stage` says what the arguments are."""
        config = weights.config
        self.weights, self.shares = weights, shares
        self.context = context
        self.epoch = epoch
        sizes = CacheSizes(number_bytes=weights.cache_dtype.itemsize, chunk=chunk, slack=slack)
        self.caches = tuple(block.spec.cache(sizes) for block in weights.blocks)
        # Guesses are exact where a step of several tokens has the bits of single ones, in each row of the head too.
        is_exact = weights.is_exact_in_chunks and weights.computes_together
        self.takes_drafts = is_exact and all(spec.forgets for spec in self.caches)
        self._bounds = StepBounds(
            vocabulary=config.vocab_size,
            hidden=None if weights.embedding is not None else config.width,
            follows=weights.follows,
            chunk=chunk,
            context=context,
            needs_ids=config.needs_ids(weights.layers),
            takes_drafts=self.takes_drafts,
            deep=config.deep_numbers(weights.layers[0]) if weights.layers else 0,
        )
        self._max_sessions = max_sessions
        # A prompt goes on from any token only where it does not matter how tokens are cut into steps.
        self._device = weights.device
        mixers = [block.spec.mixer for block in weights.blocks]
        self.cache_owners = cache_owners(mixers, sizes.number_bytes)
        keeps = weights.is_exact_in_chunks and all(spec.keeps for spec in self.caches)
        files = files if keeps else None
        self._stretches = config.stretches
        self._pool = CachePool(
            self.caches,
            dtype=weights.cache_dtype,
            device=weights.device,
            context=context,
            budget=cache_budget,
            budget_now=budget_now,
            shares=weights.has_generated_mixers,
            owners=self.cache_owners,
        )
        self.keeper = SessionKeeper(files, self._pool, disk)
        self._sessions: OrderedDict[SessionId, Session] = OrderedDict()  # latest used last
        self._holder: Session | None = None  # the session whose hidden states are kept

    @property
    def cache_tokens(self) -> int:
        """The most tokens that a session can have here."""
        return self._pool.tokens

    def position(self, session: SessionId) -> int:
        """How many tokens of the session are cached; 0 if it is not known."""
        known = self._sessions.get(session)
        return known.cache.length if known else 0

    def open(
        self,
        session: SessionId,
        *,
        epoch: int,
        source: SessionId | None = None,
        position: int = 0,
    ) -> None:
        """Begin a session. One of the same name is forgotten.

        Args:
            session: its name.
            epoch: of the plan in force.
            source: a session that begins with the same tokens. None: there is none.
            position: how many of its tokens to begin with. Fewer are taken, down to none, if less is cached,
                or if a layer cannot go on from there (see `trim`). The next step is then answered with
                `need_replay`. So is that of the source if there was no room for both.
        """
        self.close(session, epoch=epoch)
        if source is not None and source in self._sessions:
            self._sessions.move_to_end(source)
        while len(self._sessions) >= self._max_sessions:
            self.close(next(iter(self._sessions)), epoch=epoch)
        self._sessions[session] = Session(self._pool.open(session))
        if source is not None and source in self._sessions:
            self._fork(session, source, position)

    def _fork(self, session: SessionId, source: SessionId, position: int) -> None:
        try:
            with out_of_memory("copy the beginning of a conversation", self._device):
                evicted = self._pool.fork(session, source, position)
        except OutOfMemoryError as error:
            logger.info("the beginning of a conversation is computed again: %s", error)
            self._sessions[session].cache = self._pool.open(session)
            return
        self._forget(evicted)

    def close(self, session: SessionId, *, epoch: int) -> None:
        """Forget a session. One that is not known is already forgotten."""
        self._check_epoch(epoch)
        if (known := self._sessions.pop(session, None)) is not None:
            self._forget_last(known)
            self._pool.close(session, keeps=self.keeper.wants(known.cache))
            self.keeper.look()

    def trim(self, session: SessionId, position: int, *, epoch: int) -> None:
        """Forget the cached tokens from `position` on.

        If a layer no longer holds all tokens of its window there, or has no checkpoint of its state, the
        session goes back further, to the position where all layers can go on. The next step is then
        answered with `need_replay` from there.

        Raises:
            NeedReplayError: less than that is cached; nothing was changed.
        """
        known = self._find(session, epoch)
        if position > known.cache.length:
            raise need_replay(known.cache.length, position)
        self._trim(known, position)

    def keep(self, session: SessionId, prefix: bytes, *, epoch: int) -> None:
        """Note the digests of a session's first tokens: it can be kept on disk under them."""
        self._find(session, epoch).cache.name(prefix)
        self.keeper.look()

    def left(self, *, is_in_force: bool) -> LeftSessions:
        """Its sessions, for a stage of the next plan.

        Args:
            is_in_force: whether steps may still be done here. If not, nothing may be done with this stage any more.
        """
        caches = {name: known.cache for name, known in self._sessions.items()}
        layers = self.weights.layers
        return LeftSessions(caches, self.caches, layers, self.shares, is_in_force=is_in_force)

    def send_rows(
        self,
        session: SessionId,
        layers: range,
        position: int,
        end: int,
        *,
        epoch: int,
        to: Share | None = None,
    ) -> RowSender:
        """Read a session's cache from `position` to `end`, as it is computed.

        Args:
            session: its name.
            layers: those of the stage's layers that are read.
            position: of the first token.
            end: the position after the last one.
            epoch: of the plan in force.
            to: the share of the stage that it is for; None: it has whole layers.
        """
        cache = self._find(session, epoch).cache
        moved = moved_parts(cache, self.caches, self.weights.layers, self.shares)
        wanted = {key: part for key, part in moved if key[0] in layers}
        return RowSender(cache, wanted, partial(self.shares.given, to=to), position, end)

    def expect_rows(
        self, session: SessionId, position: int, end: int, *, epoch: int, evicts: bool = True
    ) -> RowReceiver:
        """Make room for tokens of a session that others compute, and one more. They count as cached once all are here.

        Without `evicts`, no other session makes room for them.

        Raises:
            NeedReplayError: another number of tokens is cached than before `position`.
            PromptError: the context has no room for them.
            OutOfMemoryError: the memory has none, or their cache is larger than what is moved at once.
        """
        known = self._find(session, epoch)
        cache = known.cache
        if position != cache.length:
            raise need_replay(cache.length, position)
        self._bounds.check_context(end + 1)
        owned = [self.caches[owner] for owner in sorted(set(self.cache_owners))]
        moved = bytes_moved(owned, position, end)
        if moved > MOST_MOVED_BYTES:
            raise beyond_one_transfer(moved)
        self._choose_rope(known, position, end + 1)
        apart = bytes_apart(owned, position, end)
        if not evicts and not self._pool.fits(session, end + 1, apart):
            raise OutOfMemoryError(
                f"There is no room for a conversation of {end} tokens beside the others here."
            )
        with out_of_memory("receive a conversation's cache", self._device):
            self._reserve(session, end + 1)
            self._forget(self._pool.make_room(session, apart))
            parts = dict(moved_parts(cache, self.caches, self.weights.layers, self.shares))
            rows = RowReceiver(cache, parts, position, end)
        self._forget_last(known)
        return rows

    def restore(
        self,
        session: SessionId,
        prefix: bytes,
        most: int,
        *,
        epoch: int,
        done: Callable[[int], object],
    ) -> None:
        """Let an empty session begin with tokens that are kept on disk.

        Until `done` is called, no step of the session may be done.

        Args:
            session: one that was opened.
            prefix: the digests of the tokens to come.
            most: tokens that are of use.
            epoch: of the plan in force.
            done: called with how many tokens it has then. 0: nothing is kept that pays, or it could not be read.
        """
        known = self._find(session, epoch)
        cache = known.cache

        def is_open() -> bool:
            return self._sessions.get(session) is known and known.cache is cache

        def has_room(tokens: int) -> bool:
            if is_open():
                self._reserve(session, tokens)
            return is_open()

        def restored(is_whole: bool | None) -> None:
            if not is_whole and is_open():  # the disk may still be read into this cache
                known.cache = self._pool.open(session)
            done(known.cache.length)

        # The session will have at least one token more: its last one is always computed.
        cache.stretch = self._stretches.at(most + 1)
        self.keeper.restore(cache, prefix, most, has_room, restored)

    def _choose_rope(self, known: Session, position: int, end: int) -> None:
        """Choose the rotary frequencies of an empty session that will have so many tokens.

        Raises:
            NeedReplayError: the session grows beyond those that its tokens were computed with.
        """
        stretch = self._stretches.at(end)
        if not known.cache.length:
            known.cache.stretch = stretch
        elif stretch > known.cache.stretch:
            self._trim(known, 0)
            raise need_replay(0, position)

    def _forget_last(self, known: Session) -> None:
        known.last = known.output = None
        known.drafts = 0
        if self._holder is known:
            self._holder = None

    def _trim(self, known: Session, position: int) -> None:
        known.cache.trim(position)
        self._forget_last(known)
        del known.history[known.cache.length :]

    def _reserve(self, session: SessionId, tokens: int) -> None:
        self._sessions.move_to_end(session)
        self._forget(self._pool.reserve(session, tokens))

    def _forget(self, evicted: Iterable[SessionId]) -> None:
        """Note that these sessions have lost their caches."""
        for session in evicted:
            self._forget_last(self._sessions[session])

    def _find(self, session: SessionId, epoch: int) -> Session:
        self._check_epoch(epoch)
        if (known := self._sessions.get(session)) is None:
            raise UnknownSessionError(
                "This conversation is not known here any more. Open it again and send it from its"
                " beginning.",
                session=session,
            )
        return known

    def _check_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            raise StaleEpochError(
                f"The step belongs to plan {epoch}; plan {self.epoch} is in force here.",
                epoch=epoch,
                current=self.epoch,
            )
