"""Embeddings of n-grams: rows of a table that are found by hashes of the last token ids (Qwen 4).

For each order n from 2 to N, the ids of a token and of the n - 1 before it are multiplied, each with an odd
number of its own, and XORed. Some heads of each order take the result modulo a prime of their own: that is
their row in the table. Beyond an end of a text, all ids before it count as that end's. With e the rows of all heads,
S residual streams x_s of D numbers, and norms of each stream,

    g_s = norm(K e)_s · norm(x)_s / √D
    v_s = sigmoid(sign(g_s) √|g_s|) V e
    x_s += v_s + silu(convolution of the last norm(v)_s, every N tokens)

The table has 51 billion numbers in Qwen3.8-Flash-Next. It is never in memory: its rows are read from the disk.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from potluck.model.fields import Fields, invalid
from potluck.model.limits import MAX_EOS, MAX_HEADS, MAX_HIDDEN, MAX_LAYERS, MAX_TAPS, MAX_VOCAB
from potluck.model.mixing.streams import Streams
from potluck.model.projection import Projection
from potluck.model.quantized import Shape

_BLOCK = "ple."
_TABLE = _BLOCK + "ple_embedding.ngram_embedding."
OWN_END = "text_eos_token_id"  # what the text of a larger model calls its end, whatever the larger one does
# Fields of a file that says the numbers themselves, not what they are made of. No file of the Hub has them.
GIVEN_MULTIPLIERS, GIVEN_SIZES, GIVEN_ROWS = "ngram_multipliers", "ngram_sizes", "ngram_rows"
_MOST_ORDER = 8  # tokens of the longest n-gram; Qwen 4 has three
_MOST_ROWS = 1 << 28  # of one head; Qwen 4 has 20 million
_MOST_TABLE = _MOST_ROWS * MAX_HEADS  # rows
_MOST_SHARDS = 4096  # tensors of one table; Qwen 4 has 512
_MOST_SEED = (1 << 63) - 1

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_LAYER_STEP = 10007  # between the seeds of two layers


def is_table(name: str) -> bool:
    """Whether a tensor is a part of a table, which stays on the disk."""
    return f".{_TABLE}" in name


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramSpec:
    """The embeddings of n-grams of one layer."""

    streams: Streams
    size: int  # numbers of the rows of all heads together
    order: int  # tokens of the longest n-gram
    sizes: tuple[int, ...]  # rows of each head: all heads of 2-grams, then of 3-grams, and so on
    multipliers: tuple[int, ...]  # of the token's id, of that of the one before, and so on
    end: int  # the id of an end of text
    rows: int  # of the table
    shards: int  # tensors that files have it in
    inputs: int  # of the convolution

    @property
    def head_size(self) -> int:
        """Numbers of a row."""
        return self.size // len(self.sizes)

    @property
    def shard_rows(self) -> int:
        """Rows of each tensor but the last one."""
        return -(-self.rows // self.shards)

    @property
    def reach(self) -> int:
        """Tokens before that the convolution sees."""
        return (self.inputs - 1) * self.order

    @property
    def key(self) -> Projection:
        name = f"{_BLOCK}key_proj"
        return Projection(parts=(name,), rows=(self.streams.width,), width=self.size)

    @property
    def value(self) -> Projection:
        name = f"{_BLOCK}value_proj"
        return Projection(parts=(name,), rows=(self.streams.hidden_size,), width=self.size)

    @property
    def norms(self) -> tuple[str, str, str]:
        """The names of the norms' weights: of keys, of hidden states, and before the convolution."""
        key, query, conv = (f"{_BLOCK}norm_{part}.weight" for part in ("key", "query", "conv"))
        return key, query, conv

    @property
    def convolution(self) -> str:
        return f"{_BLOCK}conv1d.weight"

    def table(self) -> Iterator[tuple[str, Shape]]:
        """Names and shapes of the tensors that the table is stored in."""
        for index, first in enumerate(range(0, self.rows, self.shard_rows)):
            rows = min(self.shard_rows, self.rows - first)
            yield f"{_TABLE}shard_{index}.weight", (rows, self.head_size)

    def tensors(self) -> dict[str, Shape]:
        """Names, without the layer's prefix, and shapes of all its tensors in files."""
        width = self.streams.width
        norms: dict[str, Shape] = dict.fromkeys(self.norms, (width,))
        matrices = dict(tensor for one in (self.key, self.value) for tensor in one.tensors())
        convolution: dict[str, Shape] = {self.convolution: (width, 1, self.inputs)}
        return norms | matrices | convolution | dict(self.table())

    @property
    def state(self) -> tuple[tuple[int, ...], ...]:
        """What a session keeps: the last ids, plus one (0: none), and the last inputs of the convolution."""
        return (self.order - 1,), (self.reach, self.streams.width)

    @property
    def kind(self) -> "NgramSpec":
        """This one as far as its cost depends on it."""
        return replace(self, sizes=(1,) * len(self.sizes), multipliers=(), end=0)


def read_ngrams(fields: Fields, streams: Streams, layers: int) -> dict[int, NgramSpec]:
    """The embeddings of n-grams, by the number of their layer."""
    name = "ple_layer_ids"  # which count from 1
    listed = fields.integers(name, 1, layers, MAX_LAYERS)
    if not listed:
        return {}
    vocabulary = fields.integer("vocab_size", 1, MAX_VOCAB)
    order = fields.integer("ngram_size", 2, _MOST_ORDER)
    each = fields.integer("heads_per_ngram", 1, MAX_HEADS)
    heads = (order - 1) * each
    size = fields.integer("ple_embed_dim", 1, MAX_HIDDEN, streams.hidden_size)
    if size % heads:
        raise invalid("ple_embed_dim", size, f"must be a multiple of {heads} heads of n-grams")
    numbers = sorted(set(listed))
    if len(numbers) * heads > MAX_HEADS:
        raise invalid(name, len(numbers), f"must have at most {MAX_HEADS} heads in all layers")
    primes = _sizes(fields, len(numbers) * heads)
    multiple = fields.integer("make_ngram_vocab_size_divisible_by", 1, _MOST_ROWS)
    seed = fields.integer("seed", 0, _MOST_SEED)
    own = OWN_END if OWN_END in fields else "eos_token_id"
    ends = fields.integers(own, 0, vocabulary - 1, MAX_EOS)
    if not ends:
        raise invalid("eos_token_id", None, "must be there: n-grams end where a text ends")
    found: dict[int, NgramSpec] = {}
    for index, number in enumerate(numbers):
        sizes = primes[index * heads : (index + 1) * heads]
        found[number - 1] = NgramSpec(
            streams=streams,
            size=size,
            order=order,
            sizes=sizes,
            multipliers=_given_multipliers(fields, order)
            or _multipliers(vocabulary, order, seed + _LAYER_STEP * index),
            end=ends[0],
            rows=fields.integer(
                GIVEN_ROWS, sum(sizes), _MOST_TABLE, -(-sum(sizes) // multiple) * multiple
            ),
            shards=fields.integer("split_ngram_parts", 1, _MOST_SHARDS),
            inputs=fields.integer("ple_conv_kernel_size", 2, MAX_TAPS),
        )
    return found


def _sizes(fields: Fields, heads: int) -> tuple[int, ...]:
    """Rows of all heads: those of a list, or primes."""
    if GIVEN_SIZES not in fields:
        return _primes(fields.integer("ngram_vocab_size_base", 2, _MOST_ROWS), heads)
    sizes = fields.integers(GIVEN_SIZES, 1, _MOST_ROWS, MAX_HEADS)
    if len(sizes) != heads:
        raise invalid(GIVEN_SIZES, len(sizes), f"must have one entry for each of {heads} heads")
    return sizes


def _given_multipliers(fields: Fields, order: int) -> tuple[int, ...]:
    """The multipliers that a file says; empty if it says none."""
    if GIVEN_MULTIPLIERS not in fields:
        return ()
    found = fields.integers(GIVEN_MULTIPLIERS, 1, _MOST_SEED, _MOST_ORDER)
    if len(found) != order:
        raise invalid(GIVEN_MULTIPLIERS, len(found), f"must have {order} entries")
    return found


def _multipliers(vocabulary: int, order: int, seed: int) -> tuple[int, ...]:
    """Odd numbers, so that each of them times an id fits 63 bits."""
    half = max(1, ((1 << 63) - 1) // vocabulary // 2)
    return tuple(2 * (_mixed(seed + _GAMMA * (n + 1)) % half) + 1 for n in range(order))


def _mixed(value: int) -> int:
    """SplitMix64 (https://doi.org/10.1145/2714064.2660195), section 3."""
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@lru_cache(maxsize=4)
def _primes(least: int, count: int) -> tuple[int, ...]:
    """The first primes that are no less."""
    found: list[int] = []
    candidate = least
    while len(found) < count:
        if _is_prime(candidate):
            found.append(candidate)
        candidate += 1
    return tuple(found)


def _is_prime(number: int) -> bool:
    if number < 4 or number % 2 == 0:
        return number in (2, 3)
    return all(number % divisor for divisor in range(3, math.isqrt(number) + 1, 2))
