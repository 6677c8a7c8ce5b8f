"""The indexer of sparse attention: what it is made of, and its fields in a config."""

from dataclasses import dataclass, replace

from potluck.model.common_fields import read_kinds
from potluck.model.fields import Fields, invalid
from potluck.model.limits import MAX_CHOSEN, MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS
from potluck.model.powers import power
from potluck.model.projection import Projection
from potluck.model.quantized import Shape
from potluck.model.row_order import PairedRows

_BLOCK = "self_attn.indexer."
KEY_NORM, KEY_NORM_BIAS = f"{_BLOCK}k_norm.weight", f"{_BLOCK}k_norm.bias"
GATES, GATE_BIAS = f"{_BLOCK}index_kpool_compress_gate", f"{_BLOCK}index_kpool_compress_ape"
_MOST_POOL = 256  # tokens; 16 are in use
HEAD_WEIGHTS = f"{_BLOCK}weights_proj"
_NORM_EPS = 1e-6  # of the keys' norm, whatever the model's others add


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerSpec:
    """The lightning indexer of DeepSeek Sparse Attention (https://arxiv.org/abs/2512.02556, section 2.1).

    It has small heads of its own. A query's score of a cached token is Σ w_h relu(q_h · k) over them, where all
    heads share the token's key, and the query's token gives the heads' weights. Attention then sees the
    tokens with the highest scores alone. Of equal ones, the earlier are chosen.

    In GLM-5.3, the tokens of a pool have one key: Σ softmax(z + b)_t k_t over them, each number by itself, where z are gates
    of each token. Attention sees the tokens of the pools with the highest scores, and those after the last whole one.
    """

    hidden_size: int
    query_rank: int  # numbers of the latent that queries are made of
    heads: int
    head_dim: int
    rotary_dim: int  # the first numbers of a head, which rope turns
    chosen: int  # tokens that a query sees; up to so many it sees all
    is_paired: bool  # files have the numbers that rope turns together side by side
    norm_eps: float = _NORM_EPS
    pool: int = 1  # tokens that share a key
    has_pools: bool = False  # keys are those of pools, though these may have one token each

    @property
    def sees(self) -> int:
        """The most tokens that a query sees."""
        return self.chosen + self.pool - 1

    @property
    def cached_numbers(self) -> int:
        """Numbers that are cached of a token: its key, and its gates if there are pools."""
        return self.head_dim * (1 + self.has_pools)

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def scale(self) -> float:
        """Of scores."""
        return power(self.head_dim * self.heads, -0.5)

    @property
    def row(self) -> int:
        """Numbers that it makes of a token: queries, key and weights of the heads."""
        return self.q_size + self.head_dim * (1 + self.has_pools) + self.heads

    @property
    def queries(self) -> Projection:
        """The queries' latent → queries."""
        return Projection(parts=(f"{_BLOCK}wq_b",), rows=(self.q_size,), width=self.query_rank)

    @property
    def keys(self) -> Projection:
        """Hidden states → the key that all heads share."""
        return Projection(parts=(f"{_BLOCK}wk",), rows=(self.head_dim,), width=self.hidden_size)

    @property
    def gates(self) -> Projection:
        """Hidden states → the gates of a token's key."""
        return Projection(parts=(GATES,), rows=(self.head_dim,), width=self.hidden_size)

    @property
    def weights(self) -> Projection:
        """Hidden states → the weights of the heads."""
        return Projection(parts=(HEAD_WEIGHTS,), rows=(self.heads,), width=self.hidden_size)

    @property
    def projections(self) -> tuple[Projection, ...]:
        gates = (self.gates,) if self.has_pools else ()
        return self.queries, self.keys, self.weights, *gates

    @property
    def small_tensors(self) -> dict[str, Shape]:
        """Weight and bias of the keys' norm, which is a LayerNorm, and what is added to gates."""
        biases: dict[str, Shape] = {GATE_BIAS: (self.pool, self.head_dim)} if self.has_pools else {}
        return {KEY_NORM: (self.head_dim,), KEY_NORM_BIAS: (self.head_dim,)} | biases

    @property
    def rope_rows(self) -> dict[str, PairedRows]:
        """Its tensors with rows that rope turns, where files have these in pairs."""
        if not self.is_paired:
            return {}
        pairs = PairedRows(head=self.head_dim, count=self.rotary_dim)
        matrices = [f"{one.parts[0]}.weight" for one in (self.queries, self.keys)]
        return dict.fromkeys((*matrices, KEY_NORM, KEY_NORM_BIAS), pairs)


def read_indexer(
    fields: Fields, *, hidden: int, query_rank: int, rotary_dim: int, is_paired: bool
) -> IndexerSpec:
    """The indexer of latent attention, whose rope it shares."""
    head_dim = fields.integer("index_head_dim", 2, MAX_HEAD_DIM)
    if head_dim < rotary_dim:
        raise invalid(
            "index_head_dim", head_dim, f"must be at least qk_rope_head_dim = {rotary_dim}"
        )
    return IndexerSpec(
        hidden_size=hidden,
        query_rank=query_rank,
        heads=fields.integer("index_n_heads", 1, MAX_HEADS),
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        chosen=fields.integer("index_topk", 1, MAX_CHOSEN),
        is_paired=is_paired,
    )


def with_pools(fields: Fields, indexer: IndexerSpec) -> IndexerSpec:
    """The same indexer, which chooses pools of tokens."""
    pool = fields.integer("index_kpool", 1, _MOST_POOL)
    if indexer.chosen % pool:
        name, what = "index_topk", f"must be a multiple of {pool} tokens of a pool"
        raise invalid(name, indexer.chosen, what)
    name = "index_kpool_always_select_tail"
    if not fields.flag(name, True):
        raise invalid(name, False, "must be true: a token sees those after the last whole pool")
    return replace(indexer, pool=pool, has_pools=True)


def read_followers(fields: Fields, layers: int) -> list[bool]:
    """For each layer whether it sees what an earlier one has chosen (IndexCache, https://arxiv.org/abs/2603.12201)."""
    follow = _followers(fields, layers)
    if follow[0]:
        raise invalid("indexer_types", "shared", "must be full for the first layer")
    return follow


def _followers(fields: Fields, layers: int) -> list[bool]:
    pattern = "index_topk_pattern"
    if "indexer_types" not in fields and isinstance(fields.value(pattern), str):
        letters = fields.text(pattern)
        if len(letters) != layers or set(letters) - set("FS"):
            raise invalid(
                pattern, letters, f"must have a letter F or S for each of {layers} layers"
            )
        return [letter == "S" for letter in letters]
    for name in ("indexer_types", pattern):
        if name in fields:
            kinds = read_kinds(fields, name, ("full", "shared"), layers)
            return [kind == "shared" for kind in kinds]
    every = max(1, fields.integer("index_topk_freq", 0, MAX_LAYERS, 1))
    offset = fields.integer("index_skip_topk_offset", 0, MAX_LAYERS, 2)
    return [max(layer - offset + 1, 0) % every != 0 for layer in range(layers)]


def is_of_indexer(name: str) -> bool:
    """Whether a tensor belongs to an indexer."""
    return f".{_BLOCK}" in name


def is_gate_bias(name: str) -> bool:
    """Whether a tensor has what is added to the gates of a pool's tokens."""
    return name.endswith(f".{GATE_BIAS}")


def weighs_heads(name: str) -> bool:
    """Whether a tensor makes the weights of an indexer's heads."""
    return name.endswith(f".{HEAD_WEIGHTS}.weight")
