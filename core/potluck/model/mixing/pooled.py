"""Attention to the last tokens, and to pools of all tokens before (DeepSeek V4): what it is made of, and its fields."""

from dataclasses import dataclass, replace

from potluck.model.cache_rows import PooledRow
from potluck.model.caches import CacheSizes, CacheSpec, PooledCache
from potluck.model.common_fields import read_kinds, read_norm_eps
from potluck.model.fields import Fields, invalid
from potluck.model.limits import (
    MAX_CHOSEN,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_POSITION,
)
from potluck.model.powers import power
from potluck.model.projection import Projection
from potluck.model.quantized import Shape
from potluck.model.row_order import PairedRows

_BLOCK = "attn."
_POOLS, _INDEX = f"{_BLOCK}compressor.", f"{_BLOCK}indexer."
QUERY_NORM, KEY_NORM = f"{_BLOCK}q_norm.weight", f"{_BLOCK}kv_norm.weight"
SINKS = f"{_BLOCK}attn_sink"
_MOST_RATE = 1 << 10  # tokens of a pool; 128 are in use
_KINDS = ("sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention")


def is_of_pools(name: str) -> bool:
    """Whether a tensor makes pools, or chooses them."""
    return f".{_POOLS}" in name or f".{_INDEX}" in name


def weighs_pool_heads(name: str) -> bool:
    """Whether a tensor makes the weights of the heads that choose pools."""
    return name.endswith(f".{_INDEX}weights_proj.weight")


def is_pool_bias(name: str) -> bool:
    """Whether a tensor has what is added to the gates of a pool's tokens."""
    return is_of_pools(name) and name.endswith(".ape")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolerSpec:
    """How one key is made of several tokens.

    Each token has numbers c and gates z, of the same size as keys. A key is the norm of Σ softmax(z + b)_t c_t over a
    pool's tokens, each number by itself, turned by rope as its first token. With overlap, each token has them twice: the
    first ones are of the pool after its own.
    """

    hidden_size: int
    size: int  # numbers of a key
    rate: int  # tokens of a pool
    overlaps: bool
    block: str  # begins the names of its tensors

    @property
    def inputs(self) -> int:
        """Numbers c of a token."""
        return self.size * (2 if self.overlaps else 1)

    @property
    def parts(self) -> tuple[str, str]:
        """The names of the matrices that make c and z."""
        return f"{self.block}wkv", f"{self.block}wgate"

    @property
    def norm(self) -> str:
        return f"{self.block}norm.weight"

    @property
    def bias(self) -> str:
        """The name of b, (rate, inputs)."""
        return f"{self.block}ape"

    @property
    def small_tensors(self) -> dict[str, Shape]:
        return {self.norm: (self.size,), self.bias: (self.rate, self.inputs)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolIndexSpec:
    """Small heads that choose pools: the score of one is Σ w_h relu(q_h · k), with pools' keys of its own."""

    heads: int
    chosen: int  # pools that a query sees; up to so many it sees all
    pooler: PoolerSpec

    @property
    def q_size(self) -> int:
        return self.heads * self.pooler.size

    @property
    def scale(self) -> float:
        """Of scores."""
        return power(self.heads * self.pooler.size, -0.5)

    def queries(self, rank: int) -> Projection:
        """The queries' latent → queries."""
        return Projection(parts=(f"{_INDEX}wq_b",), rows=(self.q_size,), width=rank)

    def weights(self, hidden: int) -> Projection:
        """Hidden states → the weights of the heads."""
        return Projection(parts=(f"{_INDEX}weights_proj",), rows=(self.heads,), width=hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledSpec:
    """Attention of many heads of queries to one key for each token, which is its value too (DeepSeek V4).

    A query sees the last `window` tokens, and the pools that ended before it, or those that an indexer chooses. The last
    numbers of heads are turned by rope, in pairs of neighbours. Since values are turned as well, results are turned
    back. Groups of heads have a latent each of what they give.
    """

    hidden_size: int
    heads: int
    head_dim: int
    rotary_dim: int  # the last numbers of a head
    query_rank: int
    groups: int  # of heads
    group_rank: int  # numbers of a group's latent
    window: int
    rope: int  # which of the model's distinct ropes
    scale: float
    norm_eps: float
    pooler: PoolerSpec | None = None  # None: there are no pools
    index: PoolIndexSpec | None = None  # chooses pools; None: all are seen

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def input(self) -> Projection:
        """Hidden states → the queries' latent, and the key."""
        parts, rows = (f"{_BLOCK}wq_a", f"{_BLOCK}wkv"), (self.query_rank, self.head_dim)
        return Projection(parts=parts, rows=rows, width=self.hidden_size)

    @property
    def queries(self) -> Projection:
        return Projection(parts=(f"{_BLOCK}wq_b",), rows=(self.q_size,), width=self.query_rank)

    @property
    def poolers(self) -> tuple[PoolerSpec, ...]:
        own = () if self.pooler is None else (self.pooler,)
        return own if self.index is None else (*own, self.index.pooler)

    @property
    def pooling(self) -> Projection | None:
        """Hidden states → numbers and gates of keys of pools, then of those of the indexer."""
        if self.pooler is None:
            return None
        parts = tuple(part for one in self.poolers for part in one.parts)
        rows = tuple(one.inputs for one in self.poolers for _ in one.parts)
        return Projection(parts=parts, rows=rows, width=self.hidden_size)

    @property
    def group_output(self) -> Projection:
        """Of each group, what its heads give → its latent."""
        rows, width = self.groups * self.group_rank, self.q_size // self.groups
        return Projection(parts=(f"{_BLOCK}wo_a",), rows=(rows,), width=width)

    @property
    def output(self) -> Projection:
        width = self.groups * self.group_rank
        return Projection(parts=(f"{_BLOCK}wo_b",), rows=(self.hidden_size,), width=width)

    @property
    def projections(self) -> tuple[Projection, ...]:
        pooling = () if self.pooling is None else (self.pooling,)
        index: tuple[Projection, ...] = ()
        if self.index is not None:
            index = self.index.queries(self.query_rank), self.index.weights(self.hidden_size)
        return self.input, self.queries, *pooling, *index, self.group_output, self.output

    @property
    def small_tensors(self) -> dict[str, Shape]:
        """Its norms, its sinks, and what pools have beside their matrices."""
        own: dict[str, Shape] = {
            QUERY_NORM: (self.query_rank,),
            KEY_NORM: (self.head_dim,),
            SINKS: (self.heads,),
        }
        return own | {name: s for one in self.poolers for name, s in one.small_tensors.items()}

    @property
    def rope_rows(self) -> dict[str, PairedRows]:
        """Rope turns what files have side by side, as it is."""
        return {}

    @property
    def seen_pools(self) -> int | None:
        """The most pools that a query sees; None: all."""
        return None if self.index is None else self.index.chosen

    def cache(self, sizes: CacheSizes) -> CacheSpec:
        """What a session caches in this layer.

        Of the last tokens also what pools are made of, so that the last pools can be made again after a trim. They have
        16 bits at least, since softmax magnifies their errors.
        """
        pooler, number = self.pooler, max(2, sizes.number_bytes)
        rate, reach = 1, 0
        if pooler is not None:
            rate, reach = pooler.rate, pooler.rate * (2 if pooler.overlaps else 1)
        row = PooledRow(
            key=self.head_dim,
            inputs=tuple(2 * one.inputs for one in self.poolers),
            pools=tuple(one.size for one in self.poolers),
            number_bytes=number,
        )
        return PooledCache(
            row=row,
            window=max(self.window, reach),
            seen=self.window,
            rate=rate,
            reach=reach,
            chosen=self.seen_pools,
            chunk=sizes.chunk,
            slack=sizes.slack,
        )

    @property
    def kind(self) -> "PooledSpec":
        """This attention as far as its cost depends on it."""
        return replace(self, rope=0)


def read_pooled(fields: Fields, hidden: int, layers: int) -> tuple[PooledSpec, ...]:
    """The attention of all layers. Those without pools have the first rope, the others the second one."""
    heads, head_dim = (
        fields.integer("num_attention_heads", 1, MAX_HEADS),
        fields.integer("head_dim", 2, MAX_HEAD_DIM),
    )
    fields.integer("num_key_value_heads", 1, 1)
    groups = fields.integer("o_groups", 1, heads)
    if heads % groups:
        raise invalid("o_groups", groups, f"must divide num_attention_heads = {heads}")
    eps = read_norm_eps(fields)
    plain = PooledSpec(
        hidden_size=hidden,
        heads=heads,
        head_dim=head_dim,
        rotary_dim=read_rotary_dim(fields, head_dim),
        query_rank=fields.integer("q_lora_rank", 1, MAX_HIDDEN),
        groups=groups,
        group_rank=fields.integer("o_lora_rank", 1, MAX_HIDDEN),
        window=fields.integer("sliding_window", 1, MAX_POSITION),
        rope=0,
        scale=power(head_dim, -0.5),
        norm_eps=eps,
    )
    made = {_KINDS[0]: plain, _KINDS[1]: _chosen(fields, plain), _KINDS[2]: _few(fields, plain)}
    return tuple(made[kind] for kind in _layer_kinds(fields, layers))


def read_rotary_dim(fields: Fields, head_dim: int) -> int:
    """The last numbers of a head that rope turns."""
    name = "qk_rope_head_dim"
    if "partial_rotary_factor" in fields:
        name = "partial_rotary_factor"
        turned = int(head_dim * fields.number(name, 0.0, 1.0))
    else:
        turned = fields.integer(name, 2, head_dim)
    if turned < 2 or turned % 2:
        raise invalid(name, fields.value(name), f"must leave an even part of {head_dim} values")
    return turned


def _chosen(fields: Fields, plain: PooledSpec) -> PooledSpec:
    """Attention to small pools that an indexer chooses."""
    rate, size = _rate(fields, _KINDS[1], "compress_rate_csa"), plain.head_dim
    own, name = fields.integer("index_head_dim", 2, MAX_HEAD_DIM), "index_head_dim"
    if own < plain.rotary_dim:
        raise invalid(name, own, f"must be at least {plain.rotary_dim}, which rope turns")
    pooler = PoolerSpec(
        hidden_size=plain.hidden_size, size=size, rate=rate, overlaps=True, block=_POOLS
    )
    index = PoolIndexSpec(
        heads=fields.integer("index_n_heads", 1, MAX_HEADS),
        chosen=fields.integer("index_topk", 1, MAX_CHOSEN),
        pooler=replace(pooler, size=own, block=f"{_INDEX}compressor."),
    )
    return replace(plain, rope=1, pooler=pooler, index=index)


def _few(fields: Fields, plain: PooledSpec) -> PooledSpec:
    """Attention to all of few large pools."""
    rate = _rate(fields, _KINDS[2], "compress_rate_hca")
    pooler = PoolerSpec(
        hidden_size=plain.hidden_size, size=plain.head_dim, rate=rate, overlaps=False, block=_POOLS
    )
    return replace(plain, rope=1, pooler=pooler)


def _rate(fields: Fields, kind: str, old: str) -> int:
    if old in fields:
        return fields.integer(old, 1, _MOST_RATE)
    return fields.fields("compress_rates").integer(kind, 1, _MOST_RATE)


def _layer_kinds(fields: Fields, layers: int) -> list[str]:
    if "layer_types" in fields:
        return read_kinds(fields, "layer_types", _KINDS, layers)
    name = "compress_ratios"
    if name in fields:
        # Behind those of the layers there may be those of layers that guess further tokens.
        rates = fields.integers(name, 0, _MOST_RATE, MAX_LAYERS)[:layers]
        kinds = {0: _KINDS[0], 4: _KINDS[1], 128: _KINDS[2]}
        if len(rates) < layers or not set(rates) <= set(kinds):
            raise invalid(name, None, f"must have a 0, 4 or 128 for each of {layers} layers")
        return [kinds[rate] for rate in rates]
    return [_KINDS[2] if layer < 2 else _KINDS[2 - layer % 2] for layer in range(layers)]
