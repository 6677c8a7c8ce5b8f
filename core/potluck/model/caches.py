"""What one layer of a session caches: how many rows (`cache_rows.py` says what is in one), the bytes, what stays.

Each kind of cache has one frozen specification. It says how many rows and bytes a cache has for a
number of tokens, which positions it holds, and to which position it can be trimmed. The cache pool,
the footprint of a stage and the planner all use it. The mixer of a layer says which one the layer
has (`AttentionSpec.cache` in `mixers.py`).

A new kind of cache is one more class here, and a new kind of row also needs its memory, which is a class
of `engine/caches/`.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from potluck.model.cache_rows import KeysAndValues, Latent, PooledRow, Row, State, vector_bytes
from potluck.model.schemes import Cache, Scheme

MAX_CHUNK_TOKENS = 512  # of a prompt, the most in one step that a driver sends and a stage takes

# Rows of a sliding window's cache beside the window. The longest step fits into them, and at least
# three quarters of them, 768 tokens, can be trimmed without a replay: more than most answers have.
# For each layer of Gemma 3 12B in 16 bits they take 8 MB.
WINDOW_SLACK = 1024

# Checkpoints of a recurrent state, and the tokens after which one is made. Each takes 2.2 MB in a
# layer of Qwen3-Next 80B (32 matrices of 128 by 128, and a convolution's last 3 inputs of 8192), and
# 79 MB in all of its 36 recurrent layers. So a session has 395 MB of states, as much as keys and values
# of 16,000 tokens, and 785 MB in Qwen3.6 27B. Fewer would save memory and cost time, of which there is less:
# who goes back by n tokens of 32,768, sent in chunks of 512, computes at most 2.2 (n + 512) again with four,
# 9.6 with three, and 21 with two.
CHECKPOINTS = 4
CHECKPOINT_TOKENS = 512

# Sessions share the rows of so many tokens, or of a multiple: a panel of the kernels of attention.
SHARED_TOKENS = 256

# Bytes of a session's cache that are moved to another computer for one prompt: 37 s at 1 Gbit/s.
MOST_MOVED_BYTES = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSizes:
    """What the cache of a layer depends on beside the layer."""

    number_bytes: int  # of a cached number: 4 or 2; 1: integers with scales
    chunk: int = MAX_CHUNK_TOKENS  # tokens of the longest step
    slack: int = WINDOW_SLACK  # rows beside a window


Held: TypeAlias = tuple[int, ...]
"""The positions that a cache holds. For rows of tokens, the first one that has a row. For a recurrent
state, one for each checkpoint: how many tokens it has seen, 0 if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec(ABC):
    """What a layer caches. At position 0 nothing is held: all that `Held` has is 0."""

    row: Row
    keeps: ClassVar[bool] = True  # whether it can be written to the disk
    forgets: ClassVar[bool] = (
        True  # whether a step's last tokens are forgotten without computing others again
    )

    @abstractmethod
    def rows(self, tokens: int) -> int:
        """Rows of a cache with room for so many tokens."""

    def nbytes(self, tokens: int) -> int:
        """Bytes of these rows."""
        return self.rows(tokens) * self.row.nbytes

    def read_bytes(self, tokens: int) -> int:
        """Bytes that a token reads which is the last of so many."""
        return self.rows_read(tokens) * self.row.nbytes

    def rows_read(self, tokens: int) -> int:
        """Rows that a token reads which is the last of so many."""
        return tokens

    @abstractmethod
    def advance(self, held: Held, position: int, tokens: int) -> Held:
        """What to hold, so that a step has room and can be undone.

        Args:
            held: what is held now.
            position: of the step's first token.
            tokens: of the step.
        """

    @abstractmethod
    def trim(self, held: Held, position: int) -> int:
        """Where a session that is longer than `position` can go on: there, or before it."""

    def shared(self, position: int) -> int:
        """Of how many tokens before `position` the rows can be those of another session; 0: all are copied."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FullCache(CacheSpec):
    """Rows of all positions. It can be trimmed anywhere, among shared rows at multiples of `SHARED_TOKENS`.

    The first position held is that of its first own row. The rows before are shared with other sessions.
    """

    def rows(self, tokens: int) -> int:
        return tokens

    def advance(self, held: Held, position: int, tokens: int) -> Held:
        return held

    def trim(self, held: Held, position: int) -> int:
        return position if position >= held[0] else self.shared(position)

    def shared(self, position: int) -> int:
        return position - position % SHARED_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenCache(FullCache):
    """Rows of all positions, of which a token reads those that an indexer chooses, by the keys of all."""

    row: Latent
    chosen: int  # the most rows that a token reads; of more, it reads the indexer's keys first
    pool: int = 1  # tokens that share one of these keys

    def rows_read(self, tokens: int) -> int:
        return min(tokens, self.chosen)

    def read_bytes(self, tokens: int) -> int:
        row = self.row
        keys, gates = (
            row.index_bytes,
            vector_bytes(row.gates, row.number_bytes) if row.gates else 0,
        )
        scored = tokens // self.pool * keys if tokens > self.chosen else 0
        return scored + self.rows_read(tokens) * (row.nbytes - keys - gates)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowCache(CacheSpec):
    """Rows of the last positions, for attention that looks at the last `window` tokens only.

    The rows are one contiguous piece of memory that begins with the first position held. When a
    step does not fit behind them, the last rows move to the front. As many move as leave room for
    the step, and for a quarter of the slack at least. So single tokens seldom move rows: with the
    default slack and a window of 1024, each token moves 7 rows on average.

    It is trimmed to 0 if a row is gone that the token at the position looks at.
    """

    window: int  # tokens that a query looks at, its own among them
    chunk: int = MAX_CHUNK_TOKENS  # tokens of the longest step
    slack: int = WINDOW_SLACK  # rows beside the window; at least as many as `chunk`, if it is more

    def rows(self, tokens: int) -> int:
        return min(tokens, self._most)

    def rows_read(self, tokens: int) -> int:
        return min(tokens, self.window)

    def advance(self, held: Held, position: int, tokens: int) -> Held:
        if position + tokens - held[0] <= self._most:
            return held
        return (position + max(tokens, self.slack // 4) - self._most,)

    def trim(self, held: Held, position: int) -> int:
        is_held = held[0] <= max(0, position + 1 - self.window)
        return position if is_held else 0

    @property
    def _most(self) -> int:
        return self.window + max(self.chunk, self.slack)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkCache(WindowCache):
    """Rows of the last positions, for attention that looks at the tokens of its own chunk of `window` ones."""

    def rows_read(self, tokens: int) -> int:
        return (tokens - 1) % self.window + 1 if tokens else 0

    def trim(self, held: Held, position: int) -> int:
        return position if held[0] <= position - position % self.window else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledCache(WindowCache):
    """Rows of the last positions, and behind them those of all whole pools of `rate` tokens.

    A pool that is trimmed away is made again of the rows of its tokens: so a trim goes wherever those of the pool are
    held that is not whole there. Without pools it is a window.
    """

    row: PooledRow
    keeps: ClassVar[bool] = False
    seen: int  # tokens that a query looks at
    rate: int = 1  # tokens of a pool
    reach: int = 0  # tokens that a pool is made of, which are within the window too
    chosen: int | None = None  # the most pools that a query looks at, by the indexer's keys of all

    def pools(self, tokens: int) -> int:
        """Whole pools of so many tokens."""
        return tokens // self.rate if self.row.pools else 0

    def token_rows(self, tokens: int) -> int:
        """Of how many of the last tokens there are rows."""
        return min(tokens, self._most)

    def rows(self, tokens: int) -> int:
        return self.token_rows(tokens) * self.row.units + self.pools(tokens)

    def split(self, rows: int) -> tuple[int, int]:
        """For how many tokens, and for how many pools, so many rows have room."""
        tokens = bisect_right(range(self._most + 1), rows, key=self.rows) - 1
        return tokens, rows - tokens * self.row.units

    def rows_read(self, tokens: int) -> int:
        return min(tokens, self.seen)

    def read_bytes(self, tokens: int) -> int:
        row, pools = self.row, self.pools(tokens)
        read = self.rows_read(tokens) * row.key
        if self.chosen is None:
            return (read + pools * sum(row.pools)) * row.number_bytes
        scored = pools * sum(row.pools[1:])
        return (read + min(pools, self.chosen) * row.pools[0] + scored) * row.number_bytes

    def trim(self, held: Held, position: int) -> int:
        first = position + 1 - self.seen
        if self.row.pools:  # its first token, or that of the pool before if that is a part of it
            first = min(first, position - position % self.rate + self.rate - self.reach)
        return position if held[0] <= max(0, first) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentCache(CacheSpec):
    """A state that each token changes, and checkpoints: copies of it from before some steps.

    The first row is the state itself. It cannot be trimmed, since no token can be taken out of it:
    a session goes on from the last checkpoint that is not too late, or from 0. Before each step of
    several tokens there is a checkpoint, which is where an answer ended and where a chunk begins;
    single tokens make one now and then.
    """

    row: State
    forgets: ClassVar[bool] = False
    checkpoints: int = CHECKPOINTS  # the most that are held, at least one
    every: int = CHECKPOINT_TOKENS  # single tokens after which there is one

    def rows(self, tokens: int) -> int:
        return 1 + self.checkpoints if tokens else 0

    def rows_read(self, tokens: int) -> int:
        return min(tokens, 1)

    def advance(self, held: Held, position: int, tokens: int) -> Held:
        is_due = tokens > 1 or position - max(held) >= self.every
        if not is_due or position in held:
            return held
        index = held.index(0) if 0 in held else held.index(_least_missed(held, position))
        return (*held[:index], position, *held[index + 1 :])

    def trim(self, held: Held, position: int) -> int:
        return max((at for at in held if at <= position), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsAndStateCache(CacheSpec):
    """Rows of all positions, and a state with its checkpoints. What is held of the rows comes first.

    It goes on where both can, so that its rows are not shared: the state would have to be computed again.
    """

    tokens: FullCache
    state: RecurrentCache
    forgets: ClassVar[bool] = False

    def rows(self, tokens: int) -> int:
        return self.tokens.rows(tokens)

    def nbytes(self, tokens: int) -> int:
        return self.tokens.nbytes(tokens) + self.state.nbytes(tokens)

    def read_bytes(self, tokens: int) -> int:
        return self.tokens.read_bytes(tokens) + self.state.read_bytes(tokens)

    def advance(self, held: Held, position: int, tokens: int) -> Held:
        first = self.tokens.advance(held[:1], position, tokens)
        return *first, *self.state.advance(held[1:], position, tokens)

    def trim(self, held: Held, position: int) -> int:
        return self.state.trim(held[1:], self.tokens.trim(held[:1], position))


def _least_missed(held: Held, position: int) -> int:
    """The checkpoint to give up for one at `position`.

    Without it, who goes back to just before the next one computes from the one before. That many
    tokens in relation to how far back one goes are fewest for it: the checkpoints lie close to each
    other near the end, and further apart before.
    """
    order = (0, *sorted(held), position)
    missed = {
        at: (after - before) / (position + 1 - after)
        for before, at, after in zip(order, order[1:], order[2:], strict=False)
    }
    return min(missed, key=missed.__getitem__)


def no_cache(sizes: CacheSizes) -> CacheSpec:
    """What a layer caches that mixes no tokens: rows without any number, which can be trimmed anywhere."""
    return FullCache(row=KeysAndValues(heads=0, size=0, number_bytes=sizes.number_bytes))


def cache_sizes(scheme: Scheme, cache: Cache, *, is_wide: bool = False) -> CacheSizes:
    """The sizes with these weights; `is_wide`: the device holds 32 bits in place of 16."""
    if cache == "int8":
        return CacheSizes(number_bytes=1)
    return CacheSizes(number_bytes=4 if scheme == "f32" or is_wide else 2)


def session_bytes(caches: Iterable[CacheSpec], tokens: int) -> int:
    """Bytes of a session of so many tokens in these layers."""
    return sum(cache.nbytes(tokens) for cache in caches)
