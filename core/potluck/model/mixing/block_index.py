"""An indexer that chooses blocks of cached tokens for attention (Qwen 4 calls it QSA): what it is made of."""

from dataclasses import dataclass

from potluck.model.common_fields import read_norm_eps
from potluck.model.fields import Fields, invalid
from potluck.model.limits import MAX_HEAD_DIM, MAX_HEADS, MAX_POSITION
from potluck.model.projection import Projection
from potluck.model.quantized import Quantization, Shape

_BLOCK = "self_attn.indexer."
QUERY_NORM, KEY_NORM = f"{_BLOCK}q_layernorm.weight", f"{_BLOCK}k_layernorm.weight"
_MOST_BLOCK = 256  # tokens of a block; Qwen 4 has four


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockIndexSpec:
    """Small heads of their own, which score blocks of consecutive tokens.

    A block's key is the mean of its tokens' keys, normed, and turned by rope as its first token. A query's
    score of a block is Σ relu(q_h · k) over the heads. Attention sees the tokens of the blocks with the highest scores,
    and those after the last whole block. Of equal scores, those of earlier blocks are chosen.
    """

    hidden_size: int
    heads: int
    head_dim: int
    block: int  # tokens
    chosen: int  # blocks that a query sees; up to so many it sees all
    norm_eps: float
    is_split: bool = False  # files have the matrices of queries and of keys apart

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def input(self) -> Projection:
        """Queries of all heads, and the key that they share."""
        names, rows = ("index_qk_proj",), (self.q_size + self.head_dim,)
        if self.is_split:
            names, rows = ("index_q_proj", "index_k_proj"), (self.q_size, self.head_dim)
        parts = tuple(_BLOCK + name for name in names)
        return Projection(parts=parts, rows=rows, width=self.hidden_size)

    @property
    def small_tensors(self) -> dict[str, Shape]:
        return {QUERY_NORM: (self.head_dim,), KEY_NORM: (self.head_dim,)}

    @property
    def dense_tokens(self) -> int:
        """So many tokens the last of them sees all of."""
        return (self.chosen + 1) * self.block - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadIndexSpec:
    """Small heads that choose blocks of consecutive tokens, each for one head of keys (MiniMax M3).

    A query's score of a block is the highest q · k of its tokens, whose keys all heads share; queries and keys are
    normed and turned by rope. Attention sees the blocks with the highest scores, the last ones among them in any case.
    """

    hidden_size: int
    heads: int
    head_dim: int
    block: int  # tokens
    chosen: int  # blocks that a query sees; up to so many it sees all
    last: int  # of these, how many are the last ones, that of the query among them
    norm_eps: float

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def input(self) -> Projection:
        """Queries of all heads, and the key that they share."""
        parts = ("self_attn.index_q_proj", "self_attn.index_k_proj")
        return Projection(parts=parts, rows=(self.q_size, self.head_dim), width=self.hidden_size)

    @property
    def small_tensors(self) -> dict[str, Shape]:
        return {f"self_attn.index_{part}_norm.weight": (self.head_dim,) for part in "qk"}

    @property
    def dense_tokens(self) -> int:
        """So many tokens the last of them sees all of."""
        return self.chosen * self.block


def read_head_index(fields: Fields, hidden: int, head_dim: int, kv_heads: int) -> HeadIndexSpec:
    """The indexer of a model's attention, with so many heads of keys of so many numbers."""
    heads = fields.integer("index_n_heads", 1, MAX_HEADS)
    if heads != kv_heads:
        raise invalid("index_n_heads", heads, f"must be num_key_value_heads = {kv_heads}")
    chosen = fields.integer("index_topk_blocks", 1, MAX_POSITION)
    return HeadIndexSpec(
        hidden_size=hidden,
        heads=heads,
        # Its keys lie beside those of attention, in rows of their size.
        head_dim=fields.integer("index_head_dim", 2, min(MAX_HEAD_DIM, head_dim)),
        block=fields.integer("index_block_size", 1, _MOST_BLOCK),
        chosen=chosen,
        last=fields.integer("index_local_blocks", 0, chosen),
        norm_eps=read_norm_eps(fields),
    )


def read_block_index(
    fields: Fields, hidden: int, head_dim: int, stored: Quantization | None
) -> BlockIndexSpec:
    """The indexer of a model's attention, whose heads have so many numbers; `stored` says how files hold matrices."""
    fields.integer("indexer_kv_heads", 1, 1)
    block = fields.integer("indexer_compress_ratio", 1, _MOST_BLOCK)
    budget = fields.integer("indexer_budget", 1, MAX_POSITION)
    if budget % block:
        raise invalid("indexer_budget", budget, f"must be a multiple of {block} tokens of a block")
    return BlockIndexSpec(
        hidden_size=hidden,
        heads=fields.integer("indexer_n_heads", 1, MAX_HEADS),
        # Its keys lie beside those of attention, in rows of their size.
        head_dim=fields.integer("indexer_head_dim", 2, min(MAX_HEAD_DIM, head_dim)),
        block=block,
        chosen=budget // block,
        norm_eps=read_norm_eps(fields),
        is_split=stored is not None and stored.method == "gguf",
    )
