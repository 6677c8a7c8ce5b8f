"""What one layer of a session caches: the contents of a row, the positions with rows, the bytes.

Each kind of cache has one frozen specification, and all of them have the same methods. These say
how many rows and bytes a cache has for a number of tokens, from which position on it holds rows,
and to which position it can be trimmed. The cache pool, the footprint of a stage and the planner
all use them.

A new kind of cache is one more class here, added to `CacheSpec` and to `layer_cache`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from potluck.model.config import ModelConfig
from potluck.model.schemes import Cache, Scheme

MAX_CHUNK_TOKENS = 512  # of a prompt, the most in one step that a driver sends and a stage takes

# Rows of a sliding window's cache beside the window. The longest step fits into them, and at least
# three quarters of them, 768 tokens, can be trimmed without a replay: more than most answers have.
# For each layer of Gemma 3 12B in 16 bits they take 8 MB.
WINDOW_SLACK = 1024

_SCALE_BYTES = 4  # a scale follows each key and each value of 8 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysAndValues:
    """A row of attention's cache: one position's keys and values, rope already applied."""

    heads: int  # that have a key and a value
    size: int  # numbers of a key, and of a value
    number_bytes: int  # 4 or 2; 1: integers, with a scale behind each key and each value

    @property
    def nbytes(self) -> int:
        scale = _SCALE_BYTES if self.number_bytes == 1 else 0
        return 2 * self.heads * (self.size * self.number_bytes + scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class FullCache:
    """Rows of all positions."""

    row: KeysAndValues

    def rows(self, tokens: int) -> int:
        """Rows of a cache with room for so many tokens."""
        return tokens

    def nbytes(self, tokens: int) -> int:
        """Bytes of these rows."""
        return self.rows(tokens) * self.row.nbytes

    def advance(self, first: int, position: int, tokens: int) -> int:
        """The first position to hold, so that a step has room.

        Args:
            first: the first position that is held now.
            position: of the step's first token.
            tokens: of the step.
        """
        return first

    def trim(self, first: int, position: int) -> int:
        """Where the session can go on, at `position` or before it, when `first` and later are held."""
        return position


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowCache:
    """Rows of the last positions, for attention that looks at the last `window` tokens only.

    The rows are one contiguous piece of memory that begins with position `first`. When a step does
    not fit behind them, the last rows move to the front. As many move as leave room for the step,
    and for a quarter of the slack at least. So single tokens seldom move rows: with the default
    slack and a window of 1024, each token moves 7 rows on average.
    """

    row: KeysAndValues
    window: int  # tokens that a query looks at, its own among them
    chunk: int = MAX_CHUNK_TOKENS  # tokens of the longest step
    slack: int = WINDOW_SLACK  # rows beside the window; at least as many as `chunk`, if it is more

    def rows(self, tokens: int) -> int:
        """Rows of a cache with room for so many tokens."""
        return min(tokens, self._most)

    def nbytes(self, tokens: int) -> int:
        """Bytes of these rows."""
        return self.rows(tokens) * self.row.nbytes

    def advance(self, first: int, position: int, tokens: int) -> int:
        """The first position to hold, so that a step has room.

        Args:
            first: the first position that is held now.
            position: of the step's first token.
            tokens: of the step.
        """
        if position + tokens - first <= self._most:
            return first
        return position + max(tokens, self.slack // 4) - self._most

    def trim(self, first: int, position: int) -> int:
        """Where the session can go on, at `position` or before it, when `first` and later are held.

        It is 0 if a row is gone that the token at `position` looks at.
        """
        is_held = first <= max(0, position + 1 - self.window)
        return position if is_held else 0

    @property
    def _most(self) -> int:
        return self.window + max(self.chunk, self.slack)


CacheSpec: TypeAlias = FullCache | WindowCache
"""What a layer caches."""


def layer_cache(
    config: ModelConfig,
    layer: int,
    number_bytes: int,
    *,
    chunk: int = MAX_CHUNK_TOKENS,
    slack: int = WINDOW_SLACK,
) -> CacheSpec:
    """What a layer of the model caches.

    Args:
        config: the model's config.
        layer: the layer's number.
        number_bytes: bytes of a cached number, as in `KeysAndValues`.
        chunk: tokens of the longest step.
        slack: rows beside a window, as `WindowCache` has it.
    """
    row = KeysAndValues(heads=config.num_kv_heads, size=config.head_dim, number_bytes=number_bytes)
    window = config.sliding_windows[layer]
    if window is None:
        return FullCache(row=row)
    return WindowCache(row=row, window=window, chunk=chunk, slack=slack)


def number_bytes(scheme: Scheme, cache: Cache) -> int:
    """Bytes of a cached number, the most that any device takes."""
    if cache == "int8":
        return 1
    return 4 if scheme == "f32" else 2


def session_bytes(caches: Iterable[CacheSpec], tokens: int) -> int:
    """Bytes of a session of so many tokens in these layers."""
    return sum(cache.nbytes(tokens) for cache in caches)
