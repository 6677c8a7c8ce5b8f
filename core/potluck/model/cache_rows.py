"""What a row of a layer's cache holds: keys and values, what latent attention keeps, a state, or keys of pools."""

from dataclasses import dataclass
from math import prod
from typing import TypeAlias

_SCALE_BYTES = 4  # a scale follows each key, each value, and each part of a latent row, of 8 bits


_STATE_BYTES = 4  # f32, whatever is computed with: rounding would add up from token to token


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysAndValues:
    """A row of attention's cache: one position's keys and values, rope already applied."""

    heads: int  # of keys and values
    size: int  # numbers of a key, and of a value
    number_bytes: int  # 4 or 2; 1: integers, with a scale behind each key and each value
    index: int = 0  # numbers of an indexer's key, which has a head of its own; 0: there is none

    @property
    def nbytes(self) -> int:
        heads = self.heads + (self.index > 0)
        return 2 * heads * vector_bytes(self.size, self.number_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """A row of latent attention's cache (MLA, DeepSeek-V2): what all heads share of one position.

    All heads have its first two parts as their key, and the first `rank` numbers as their value. (The matrices
    that make a head's key and value of them are multiplied with its query and its result instead.) The third
    part is the key of an indexer, if there is one.
    """

    rank: int  # numbers of the compressed keys and values: `kv_lora_rank`
    rope: int  # numbers of the key with rope, already applied: `qk_rope_head_dim`
    index: int = 0  # numbers of an indexer's key, rope already applied; 0: there is no indexer
    gates: int = 0  # numbers that weigh it in its pool, if it chooses pools
    number_bytes: int  # 4 or 2; 1: integers, with a scale behind each of the parts

    @property
    def parts(self) -> tuple[int, ...]:
        """Numbers of each part."""
        return (self.rank, self.rope, *(size for size in (self.index, self.gates) if size))

    @property
    def nbytes(self) -> int:
        return sum(vector_bytes(size, self.number_bytes) for size in self.parts)

    @property
    def index_bytes(self) -> int:
        """Bytes of an indexer's key."""
        return vector_bytes(self.index, self.number_bytes) if self.index else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A row of a recurrent layer's cache: all that the layer knows of the tokens before, in f32."""

    shapes: tuple[tuple[int, ...], ...]  # of its parts, such as the matrices and a convolution's

    @property
    def numbers(self) -> int:
        return sum(map(prod, self.shapes))

    @property
    def nbytes(self) -> int:
        return _STATE_BYTES * self.numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledRow:
    """What attention to pools caches: of one of the last tokens its key and what pools are made of, and of each pool.

    A token's key is its value too. A pool has one key for attention, and another one for an indexer if there is one.
    """

    key: int  # numbers of a token's key
    inputs: tuple[int, ...]  # numbers of a token that the keys of pools are made of
    pools: tuple[int, ...]  # numbers of the keys of a pool; of the indexer last
    number_bytes: int  # 4 or 2

    @property
    def unit(self) -> int:
        """Numbers of a row of memory: of a pool, and a part of a token's."""
        return sum(self.pools) or self.key

    @property
    def units(self) -> int:
        """Rows of memory of a token."""
        return -(-(self.key + sum(self.inputs)) // self.unit)

    @property
    def nbytes(self) -> int:
        """Bytes of a row of memory."""
        return self.unit * self.number_bytes


Row: TypeAlias = KeysAndValues | Latent | State | PooledRow


def vector_bytes(size: int, number_bytes: int) -> int:
    """Bytes of so many numbers, with their scale if they are integers."""
    return size * number_bytes + (_SCALE_BYTES if number_bytes == 1 else 0)
