"""An indexer that chooses blocks of cached tokens for attention (Qwen 4 calls it QSA): what it is made of."""

from dataclasses import dataclass

from potluck.model.common_fields import read_norm_eps
from potluck.model.fields import Fields, invalid
from potluck.model.limits import MAX_HEAD_DIM, MAX_HEADS, MAX_POSITION
from potluck.model.projection import Projection
from potluck.model.quantized import Shape

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

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def input(self) -> Projection:
        """Queries of all heads, and the key that they share."""
        rows = self.q_size + self.head_dim
        return Projection(parts=(f"{_BLOCK}index_qk_proj",), rows=(rows,), width=self.hidden_size)

    @property
    def small_tensors(self) -> dict[str, Shape]:
        return {QUERY_NORM: (self.head_dim,), KEY_NORM: (self.head_dim,)}

    @property
    def dense_tokens(self) -> int:
        """So many tokens the last of them sees all of."""
        return (self.chosen + 1) * self.block - 1


def read_block_index(fields: Fields, hidden: int, head_dim: int) -> BlockIndexSpec:
    """The indexer of a model's attention, whose heads have so many numbers."""
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
    )
