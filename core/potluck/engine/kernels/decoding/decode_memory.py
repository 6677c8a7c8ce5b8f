"""The memory in which a token is computed in a stage's layers, by the names of a step's fields."""

import torch
from torch import Tensor

from potluck.engine.kernels.attending.attention import Heads
from potluck.engine.kernels.attending.attention_kernel import parts_floats
from potluck.engine.kernels.attending.blocks_kernel import BlockHeads, score_room
from potluck.engine.kernels.attending.index_kernel import IndexHeads, score_numbers
from potluck.engine.kernels.attending.pool_rows_kernel import PoolHeads
from potluck.engine.kernels.attending.pools_kernel import PoolScores
from potluck.engine.kernels.decoding.latent_layer import LatentShape
from potluck.engine.kernels.decoding.layer_shape import LayerShape
from potluck.engine.kernels.decoding.pooled_calls import PooledShape
from potluck.engine.kernels.layout import GROUP, input_bytes
from potluck.model.mixing.delta_net import DeltaHeads


def room_memory(shape: LayerShape, heads: Heads, length: int) -> dict[str, Tensor]:
    """Make the memory that grows with the cached tokens, for so many of them."""
    rows = length if shape.pooled is None else shape.pooled.heads.seen(length)
    made = {"parts": torch.empty(parts_floats(heads, rows))}
    has_scores = shape.latent is not None and shape.latent.has_indexer
    if shape.pooled is not None:
        made["rows"] = torch.empty(rows * heads.row_bytes, dtype=torch.uint8)
        has_scores = shape.pooled.heads.index is not None
    if shape.blocks is not None:
        of_tokens, of_blocks = score_room(shape.blocks.heads, length)
        made["token_scores"] = torch.empty(of_tokens)
        made["scores"] = torch.empty(of_blocks, dtype=torch.int32)
    elif has_scores:
        made["scores"] = torch.empty(score_numbers(length), dtype=torch.int32)
    return made


def step_memory(shape: LayerShape) -> dict[str, Tensor]:
    """Make the memory that only some layers need, by the name of its field in a step."""
    made: dict[str, Tensor] = {}
    if isinstance(shape.mixer, DeltaHeads):
        mixer = shape.mixer
        decays = max(mixer.decays_size, mixer.decays_step)
        made["rates"] = torch.empty(mixer.value_heads + decays)
        made["few"] = torch.empty(max(mixer.key_size, mixer.value_size))
    if shape.latent is not None:
        made |= _latent_memory(shape.latent)
    if shape.pooled is not None:
        made |= _pooled_memory(shape.pooled)
    if shape.blocks is not None:
        made |= _block_memory(shape.blocks.heads)
    if shape.routing is not None:
        made |= _routing(shape, shape.routing.rows)
    if shape.inputs is not None:
        made["input_gates"] = torch.empty(2 * shape.inputs.size)
    if shape.space is not None:
        made.setdefault("added", torch.empty(shape.hidden))
    if shape.streams is not None:
        made["block"] = torch.empty(shape.hidden)
        made["stream_shares"] = torch.empty(shape.streams.rows())
    if made or shape.is_side_by_side:
        made["normed"] = torch.empty(shape.width)
    return made


def _routing(shape: LayerShape, rows: int) -> dict[str, Tensor]:
    """Make the memory that only a layer with experts needs, by the name of its field in a step."""
    most = max(shape.hidden, shape.expert_width)
    total, beside = torch.empty(2 * most).split(most)  # which are summed at once
    return {
        "narrow": torch.empty(shape.expert_width),
        "gated": empty_input(shape.widest),
        "added": torch.empty(max(shape.hidden, shape.expert_width)),
        "total": total,
        "beside": beside,
        "routed": torch.empty(rows),
        "factors": torch.empty(rows),
    }


def _latent_memory(shape: LatentShape) -> dict[str, Tensor]:
    """Make the memory that only latent attention needs, by the name of its field in a step."""
    heads = shape.heads
    widest = max(heads.plain_dim, heads.rank)
    index = {} if shape.index is None else _index_memory(shape.index)
    if shape.pools is not None:
        index = _pool_memory(shape.pools.heads)
    return index | {
        "queries": torch.empty(shape.queries),
        "absorbed": torch.empty(heads.heads * heads.row),
        "mixed": torch.empty(heads.heads * heads.rank),
        "head_inputs": empty_input(heads.heads * (widest + GROUP)),
    }


def _index_memory(heads: IndexHeads) -> dict[str, Tensor]:
    """Make the memory that only an indexer needs, by the name of its field in a step."""
    return {
        "index_queries": torch.empty(heads.q_size),
        "index_key": torch.empty(heads.head_dim),
        "head_weights": torch.empty(heads.heads),
    }


def _pooled_memory(shape: PooledShape) -> dict[str, Tensor]:
    """Make the memory that only attention to pools needs, by the name of its field in a step."""
    heads, index, queries = shape.heads, shape.heads.index, shape.queries
    made = {
        "queries": torch.empty(queries),
        "mixed": torch.empty(queries),
        "head_inputs": empty_input(queries + shape.groups * GROUP),
        "pooling": torch.empty(heads.pooling),
        "pooled": torch.empty(max((one.size for one in heads.makers), default=0)),
    }
    return made if index is None else made | _choice_memory(index)


def _choice_memory(scores: PoolScores) -> dict[str, Tensor]:
    """Make the memory that only choosing pools needs, by the name of its field in a step."""
    return {
        "index_queries": torch.empty(scores.q_size),
        "head_weights": torch.empty(scores.heads),
        "pools": torch.empty(scores.chosen + 1, dtype=torch.int64),
    }


def _block_memory(heads: BlockHeads) -> dict[str, Tensor]:
    """Make the memory that only an indexer of blocks needs, by the name of its field in a step."""
    return {
        "index_queries": torch.empty(heads.q_size + heads.head_dim),
        "places": torch.empty(heads.heads * heads.chosen + 1, dtype=torch.int64),
        "rows": torch.empty(heads.row_bytes, dtype=torch.uint8),
    }


def _pool_memory(heads: PoolHeads) -> dict[str, Tensor]:
    """Likewise of one that chooses pools."""
    return {"index_key": torch.empty(2 * heads.scores.head_dim), **_choice_memory(heads.scores)}


def empty_input(width: int) -> Tensor:
    """Make memory for the input of a product, large enough for records and for f32."""
    return torch.empty(max(input_bytes(1, width), 4 * width), dtype=torch.uint8)
