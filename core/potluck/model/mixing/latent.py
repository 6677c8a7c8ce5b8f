"""Latent attention (MLA): what it is made of, and its fields in a config."""

from dataclasses import dataclass, replace

from potluck.model.cache_rows import Latent
from potluck.model.caches import CacheSizes, CacheSpec, ChosenCache, FullCache
from potluck.model.common_fields import read_fact, read_norm_eps
from potluck.model.families.facts import Family
from potluck.model.fields import Fields, invalid
from potluck.model.limits import MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN
from potluck.model.mixing.indexer import IndexerSpec, read_indexer, with_pools
from potluck.model.mixing.rope_fields import score_factor
from potluck.model.powers import power
from potluck.model.projection import Projection
from potluck.model.quantized import Shape
from potluck.model.row_order import PairedRows

EXPANSION = "self_attn.kv_b_proj"
# The same in the order of computing: llama.cpp's files have these.
KEY_UP, VALUE_UP = "self_attn.k_b_proj", "self_attn.v_b_proj"
QUERY_NORM, LATENT_NORM = "self_attn.q_a_layernorm.weight", "self_attn.kv_a_layernorm.weight"
ORDERED = "kv_b_is_ordered"  # the field, which no file of the Hub has
_NORM_EPS = 1e-6  # of the latents' norms, whatever the model's others add


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSpec:
    """Latent attention (DeepSeek-V2, https://arxiv.org/abs/2405.04434, section 2.1).

    The keys and values of all heads are products of one row of `rank` numbers, the latent. It alone is
    cached, beside a key with rope that all heads share. Queries may come from a latent of their own.
    """

    hidden_size: int
    heads: int
    query_rank: int | None  # numbers of the queries' latent; None: there is none
    rank: int  # numbers of the latent of keys and values
    plain_dim: int  # numbers of a head's query and key without rope
    rotary_dim: int  # and with rope
    value_dim: int
    rope: int | None = None  # which of the model's distinct ropes
    scale: float  # of the products of queries and keys
    norm_eps: float = _NORM_EPS
    is_ordered: bool = (
        False  # files have the matrices that expand latents as they are computed with
    )
    has_bias: bool = False  # on the products with hidden states, and on the output
    indexer: IndexerSpec | None = None  # chooses which tokens a query sees
    # Or a query sees, of more than so many, those that the last layer with an indexer has chosen. None: neither.
    follows: int | None = None

    @property
    def query_dim(self) -> int:
        """Numbers of a head's query, and of its key."""
        return self.plain_dim + self.rotary_dim

    @property
    def q_size(self) -> int:
        return self.heads * self.query_dim

    @property
    def sees(self) -> int | None:
        """The most tokens that a query sees; None: it sees all."""
        return self.follows if self.indexer is None else self.indexer.sees

    @property
    def row(self) -> int:
        """Numbers that are cached of a token: the latent, then the key with rope."""
        return self.rank + self.rotary_dim

    @property
    def input(self) -> Projection:
        """Hidden states → queries, or their latent; then what becomes the cached row."""
        part, rows = "self_attn.q_proj", self.q_size
        if self.query_rank is not None:
            part, rows = "self_attn.q_a_proj", self.query_rank
        return Projection(
            parts=(part, "self_attn.kv_a_proj_with_mqa"),
            rows=(rows, self.row),
            width=self.hidden_size,
            has_bias=self.has_bias,
        )

    @property
    def queries(self) -> Projection | None:
        """The queries' latent → queries."""
        if self.query_rank is None:
            return None
        return Projection(parts=("self_attn.q_b_proj",), rows=(self.q_size,), width=self.query_rank)

    @property
    def ups(self) -> tuple[Projection, Projection]:
        """Of each head, its query without rope → what is multiplied with latents; and latent → value."""
        key_rows, value_rows = self.heads * self.rank, self.heads * self.value_dim
        return (
            Projection(parts=(KEY_UP,), rows=(key_rows,), width=self.plain_dim),
            Projection(parts=(VALUE_UP,), rows=(value_rows,), width=self.rank),
        )

    @property
    def expansion(self) -> Projection:
        """Latent → of each head the key without rope, then the value."""
        rows = self.heads * (self.plain_dim + self.value_dim)
        return Projection(parts=(EXPANSION,), rows=(rows,), width=self.rank)

    @property
    def output(self) -> Projection:
        return Projection(
            parts=("self_attn.o_proj",),
            rows=(self.hidden_size,),
            width=self.heads * self.value_dim,
            has_bias=self.has_bias,
        )

    @property
    def projections(self) -> tuple[Projection, ...]:
        queries = () if self.queries is None else (self.queries,)
        ups = self.ups if self.is_ordered else (self.expansion,)
        indexer = () if self.indexer is None else self.indexer.projections
        return self.input, *queries, *ups, self.output, *indexer

    @property
    def expands_from(self) -> int:
        """Tokens of a step from which it takes fewer products to expand all cached rows than to absorb.

        Absorbed, a query and a cached row are `row + rank` products in place of `query_dim + value_dim`.
        """
        more = self.row + self.rank - self.query_dim - self.value_dim
        expanding = self.rank * (self.plain_dim + self.value_dim)
        return 2 if more <= 0 else max(2, -(-expanding // more))

    def cache(self, sizes: CacheSizes) -> CacheSpec:
        """What a session caches in this layer."""
        indexer, pool = self.indexer, 1
        index = gates = 0
        if indexer is not None:
            index, pool = indexer.head_dim, indexer.pool
            gates = index if indexer.has_pools else 0
        row = Latent(
            rank=self.rank,
            rope=self.rotary_dim,
            index=index,
            gates=gates,
            number_bytes=sizes.number_bytes,
        )
        if self.sees is None:
            return FullCache(row=row)
        return ChosenCache(row=row, chosen=self.sees, pool=pool)

    @property
    def kind(self) -> "LatentSpec":
        """This attention as far as its cost depends on it."""
        return replace(self, rope=None, is_ordered=False)

    @property
    def small_tensors(self) -> dict[str, Shape]:
        """The weights of the norms of both latents, and of the indexer's keys."""
        query = {} if self.query_rank is None else {QUERY_NORM: (self.query_rank,)}
        indexer = {} if self.indexer is None else self.indexer.small_tensors
        return query | {LATENT_NORM: (self.rank,)} | indexer

    @property
    def rope_rows(self) -> dict[str, PairedRows]:
        """Its tensors with rows that rope turns, for files that have these in pairs."""
        turned = self.rotary_dim
        query = PairedRows(head=self.query_dim, first=self.plain_dim, count=turned)
        row = PairedRows(head=self.row, first=self.rank, count=turned)
        parts = (self.queries or self.input).parts[0], self.input.parts[-1]
        indexer = {} if self.indexer is None else self.indexer.rope_rows
        return indexer | {
            f"{part}.{kind}": pairs
            for part, pairs in zip(parts, (query, row), strict=True)
            for kind in ("weight", "bias")
        }


def read_latent(fields: Fields, family: Family, hidden: int) -> LatentSpec:
    """What the latent attention of all layers has in common."""
    plain = fields.integer("qk_nope_head_dim", 1, MAX_HEAD_DIM)
    rotary = fields.integer("qk_rope_head_dim", 0 if family.latent_unturned else 2, MAX_HEAD_DIM)
    if rotary % 2:
        raise invalid("qk_rope_head_dim", rotary, "must be even, since rope turns pairs")
    has_latent = "q_lora_rank" in fields
    has_bias = read_fact(fields, family.latent_bias)
    if has_bias and not has_latent:
        raise invalid("attention_bias", has_bias, "must be false where q_lora_rank is null")
    query_rank = fields.integer("q_lora_rank", 1, MAX_HIDDEN) if has_latent else None
    return LatentSpec(
        hidden_size=hidden,
        heads=fields.integer("num_attention_heads", 1, MAX_HEADS),
        query_rank=query_rank,
        rank=fields.integer("kv_lora_rank", 1, MAX_HIDDEN),
        plain_dim=plain,
        rotary_dim=rotary,
        value_dim=fields.integer("v_head_dim", 1, MAX_HEAD_DIM),
        scale=power(plain + rotary, -0.5) * score_factor(fields),
        norm_eps=read_norm_eps(fields) if family.latent_norm_eps else _NORM_EPS,
        is_ordered=fields.flag(ORDERED, False),
        has_bias=has_bias,
        indexer=_indexer(fields, family, hidden, query_rank, rotary),
    )


def _indexer(
    fields: Fields, family: Family, hidden: int, query_rank: int | None, rotary: int
) -> IndexerSpec | None:
    if family.indexer is None:
        return None
    if query_rank is None:
        raise invalid("q_lora_rank", None, "must be a number: an indexer reads the queries' latent")
    is_paired = family.indexer == "pairs"
    indexer = read_indexer(
        fields, hidden=hidden, query_rank=query_rank, rotary_dim=rotary, is_paired=is_paired
    )
    return with_pools(fields, indexer) if family.indexer == "pools" else indexer
