"""What kernels of attention share: its shape, and how they read the cache.

It is an online softmax, tile by tile: some rows of queries over a panel of cached tokens.

    score         scores = scale q Kᵀ, which `attention_kernel` and `prefill_kernel` compute
    softmax       scores are capped and become powers, relative to the highest score of the panel
    accumulate    the output of the panel is the sum of values times their powers
    merge         what the panels before have, and this one, are scaled to the same highest score, and added

All but the scores is in `attention_tile`.

The output is divided by the sum of the powers at the end (https://arxiv.org/abs/2205.14135). A row has the
same bits whoever computes it, one token or many, alone or among threads: panels begin at positions that are
multiples of `PANEL`, each is computed by itself, and they are merged in their order. A score is the sum of
`SUMS` sums, of every `SUMS`th product each, which are added as `Emitter.total_of_each` does. Beside packed
weights all numbers that are multiplied are rounded to bf16 (see `attention_pairs`); over an int8 cache they are
rounded to integers (`attention_integers`).

A layer's cache is (2, Hkv, capacity, K): keys, then values, of f32, bf16 or f16, or of int8 with a
scale after each (see `layout`). Whole panels at its beginning may lie elsewhere, in rows that sessions share. The heads of a group share a key head, whose keys and values are read
once for all of them and never expanded.

In latent attention, the cache is (1, 1, capacity, row): all heads have the row as their key, and its first numbers
as their value. As int8 both parts of a row have a scale.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache

from potluck.engine.kernels.layout import CACHE_LINE, CACHE_SCALE_BYTES
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import (
    F32,
    I8,
    KIND_BYTES,
    KIND_F16,
    KIND_F32,
    KIND_INT8,
    Operand,
    vector,
)
from potluck.engine.kernels.writing.memory import Pointer, Record, Span
from potluck.engine.kernels.writing.values import Value
from potluck.model.families.facts import GateFunction, QkNormKind

LANES = 16  # numbers of a vector; also how many cached tokens are scored together
WIDE = vector(F32, LANES)
SUMS = 8  # of which a score is made: a vector has those of two tokens
# Cached tokens of a panel. Keys of 64 numbers then take 64 kB as columns, which stay in the second cache.
PANEL = 256
_WRITTEN_OUT = 128  # numbers of a key that are multiplied without a loop
_IN_A_LOOP = 4  # vectors of a key that are multiplied in a loop's body
LOWEST = -1e30  # below any score, but finite, so that differences are numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Attended:
    """What the kernels of attention are written for: of the heads all but what rope, norms and gates need."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float  # of queries times keys
    softcap: float | None  # scores become cap tanh(score / cap)
    cache_kind: int
    has_pairs: bool = False  # all that is multiplied is rounded to bf16, the f16 cache too
    has_sinks: bool = False  # each head has a score beside those of the tokens, with no value
    rank: int | None = None  # of latent attention: how many of a key's numbers are the value
    index_dim: int = 0  # numbers of an indexer's key behind a latent row, which attention passes by
    has_gates: bool = False  # behind each head's query lie as many numbers, which are passed by
    keys_are_values: bool = False  # before their norm and rope: a token has queries and keys alone
    value_numbers: int | None = None  # of a value, which may be narrower than a key; None: as many
    gate_rows: int = (
        0  # behind the values lie so many gates of the result: of each number, or of each head
    )
    takes: bool = False  # keys and values are those of another layer: a token has queries alone

    def __post_init__(self) -> None:
        assert self.heads % self.kv_heads == 0
        assert not self.has_pairs or self.cache_kind == KIND_F16
        if self.rank is not None:
            assert self.kv_heads == 1
            assert self.rank % LANES == 0
            assert self.rank <= self.head_dim
        assert 0 < self.value_dim <= self.head_dim
        assert self.gate_rows in (0, self.heads, self.heads * self.value_dim)

    @property
    def group(self) -> int:
        """Heads that share a key head."""
        return self.heads // self.kv_heads

    @property
    def value_dim(self) -> int:
        """Numbers of a value."""
        if self.rank is not None:
            return self.rank
        return self.head_dim if self.value_numbers is None else self.value_numbers

    @property
    def values_scale_at(self) -> int:
        """How many numbers of a cached row are before the scale of its value."""
        return self.head_dim if self.rank is None else self.rank

    @property
    def query_step(self) -> int:
        """Numbers from one head's query to the next."""
        return 2 * self.head_dim if self.has_gates else self.head_dim

    @property
    def queries_size(self) -> int:
        """Numbers of a token before its keys."""
        return self.heads * self.query_step

    @property
    def row_numbers(self) -> int:
        """Numbers of a token's queries, of the keys and values that follow them, and of gates."""
        if self.rank is not None:
            return self.queries_size
        return self.gates_at + self.gate_rows

    @property
    def gates_at(self) -> int:
        """Numbers of a token before its gates, if these lie behind its values."""
        if self.takes:
            return self.queries_size
        of_values = 0 if self.keys_are_values else self.value_dim
        return self.queries_size + self.kv_heads * (self.head_dim + of_values)

    @property
    def kv_size(self) -> int:
        """Numbers of all keys of a token."""
        return self.kv_heads * self.head_dim

    @property
    def vectors(self) -> int:
        """Vectors of a key; the last one may not be full."""
        return -(-self.head_dim // LANES)

    @property
    def padded(self) -> int:
        """Numbers in these vectors."""
        return self.vectors * LANES

    @property
    def value_padded(self) -> int:
        """Numbers in the vectors of a value."""
        return -(-self.value_dim // LANES) * LANES

    @property
    def has_scales(self) -> bool:
        return self.cache_kind == KIND_INT8

    @property
    def cached_bytes(self) -> int:
        """Bytes from one key, or from one value, in the cache to the next."""
        scale_bytes = CACHE_SCALE_BYTES if self.has_scales and self.index_dim else 0
        return self.row_bytes + self.index_dim * KIND_BYTES[self.cache_kind] + scale_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of a key, or of a value, in the cache; of a latent row, which is both."""
        parts = 1 if self.rank is None else 2
        scale_bytes = parts * CACHE_SCALE_BYTES if self.has_scales else 0
        return self.head_dim * KIND_BYTES[self.cache_kind] + scale_bytes

    def each_span(self, e: Emitter, count: int, size: int | None = None) -> Iterator[list[Span]]:
        """Write the body for `count` vectors at a time: in a loop for whole vectors, then for the rest.

        `size`: of how many numbers; None: those of a value.
        """
        size = self.value_dim if size is None else size
        vectors, whole = -(-size // LANES), size // (LANES * count) * count
        with e.loop(0, whole, count) as first:
            yield [Span((first + index) * LANES, LANES) for index in range(count)]
        for start in range(whole, vectors, count):
            yield [_span(e, size, part) for part in range(start, min(start + count, vectors))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads(Attended):
    """What the kernels around attention are written for too: rope, norms, the cache and gates."""

    rotary_dim: int  # how many of the head_dim numbers rope turns, where a layer has rope
    qk_norm: QkNormKind | None
    epsilon: float  # of the norms of queries and keys
    qk_norm_after_rope: bool = False
    value_norm: bool = False  # each head's values are normed too
    value_scale: float = 1.0  # multiplies values before they are cached
    gate_function: GateFunction = "sigmoid"

    def __post_init__(self) -> None:
        Attended.__post_init__(self)
        assert self.rank is None or self.rank + self.rotary_dim == self.head_dim
        assert self.rotary_dim % 2 == 0
        assert 0 <= self.rotary_dim <= self.head_dim


@cache
def attended_part(shape: Heads) -> Attended:
    """The part of it that attention itself is written for, which many layers share."""
    return Attended(**{each.name: getattr(shape, each.name) for each in fields(Attended)})


def each_some(e: Emitter, size: int, lanes: int) -> Iterator[Span]:
    """Write the body for so many lanes of a key's numbers at a time: in a loop if they are many, then for the rest."""
    looped = 0 if size <= _WRITTEN_OUT else size - size % (_IN_A_LOOP * lanes)
    if looped:
        with e.loop(0, looped, _IN_A_LOOP * lanes) as first:
            for index in range(_IN_A_LOOP):
                yield Span(first + index * lanes, lanes)
    for first in range(looped, size, lanes):
        left = size - first
        mask = None if left >= lanes else e.first_lanes(e.index(left), lanes)
        yield Span(e.index(first), lanes, mask)


def _span(e: Emitter, size: int, part: int) -> Span:
    left = size - part * LANES
    mask = None if left >= LANES else e.first_lanes(e.index(left), LANES)
    return Span(e.index(part * LANES), LANES, mask)


def rows_at_once(path: Path) -> int:
    """Return how many queries are scored together; times `columns_at_once`, half of the registers."""
    return {32: 8, 8: 6}.get(path.registers, 2)


def columns_at_once(path: Path) -> int:
    """Return how many vectors each row is multiplied with at a time."""
    return 2 if path.registers >= 32 else 1


def others_at_once(path: Path, rows: int) -> int:
    """Return with how many vectors so many rows are multiplied at a time, with a sum of each in a register.

    Beside the sums, registers hold these vectors, and a number of a row. A single row needs each vector once.
    """
    return path.registers - 2 if rows == 1 else max(1, (path.registers - 1) // (rows + 1))


def blocks_of(count: int, most: int) -> list[tuple[int, int, int]]:
    """Cut into blocks of about the same size: (from, to, so many at a time), for a loop and what is left."""
    size = -(-count // -(-count // most))
    whole = count - count % size
    blocks = [(0, whole, size), (whole, count, count - whole)]
    return [block for block in blocks if block[0] < block[1]]


@dataclass(frozen=True)
class Cached:
    """Keys or values of a head, from some token on."""

    e: Emitter
    shape: Attended
    base: Pointer

    def at(self, token: Operand) -> Pointer:
        """Where the numbers of a token are; they are integers where there is a scale."""
        return self.base.skip(token, self.shape.cached_bytes).of(self.shape.cache_kind)

    def past(self, token: Operand) -> "Cached":
        """The same from a later token on."""
        return Cached(self.e, self.shape, self.at(token))

    def scale(self, token: Operand) -> Value:
        """What the integers of a token are multiplied with; of a latent row, those of the value."""
        return self.at(token).skip(self.shape.values_scale_at).of(KIND_F32)[0]


class Ahead:
    """What is read later is prefetched, a piece each time that `step` is written into a loop.

    So the processor reads memory all the time while it computes, and never waits for many lines at once.
    """

    def __init__(self, cached: Cached, first: Operand) -> None:
        """Begin with a token."""
        self._e, self._base = cached.e, cached.at(first)
        self._token_bytes = cached.shape.cached_bytes
        self._offset = cached.e.variable(cached.e.index(0))

    def step(self, tokens: float) -> None:
        """Prefetch the next piece, as large as so many tokens.

        It stays here: LLVM would gather the pieces of a loop's body, and a processor that waits for as many lines as
        it can executes nothing that comes after a prefetch.
        """
        nbytes = math.ceil(tokens * self._token_bytes)
        self._e.keep_order()
        here = self._base.skip(self._offset.value)
        for offset in range(0, nbytes, CACHE_LINE):
            here.skip(offset).prefetch()
        self._e.keep_order()
        self._offset.value = self._offset.value + nbytes


def rows_of(
    e: Emitter, shape: Attended, given: Record, head: Value
) -> Callable[[str, Value], Cached]:
    """Return what finds the `keys` or `values` of a key head, from the first token of a panel on.

    Args:
        e: the function that is written.
        shape: of the heads.
        given: a record with the fields of a cache: see `Attend`.
        head: which key head.
    """

    def at(name: str, start: Value) -> Cached:
        is_shared = start < given["own_from"]
        memory = e.select(is_shared, given[f"shared_{name}"], given[name])
        stride = e.select(is_shared, given["shared_stride"], given["head_stride"])
        return Cached(e, shape, Pointer(e, memory, I8).skip(head, stride)).past(start)

    return at
