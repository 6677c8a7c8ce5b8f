"""Small models of the families in `potluck.model.families.minimax`."""

from typing import Any

from model_variants.common import HALF_ROTARY

MINIMAX_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "minimax m2": (
        "MiniMaxM2",
        {
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "head_dim": 16,
            "rope_parameters": HALF_ROTARY,
        },
    ),
    "minimax m3, text of a model with pictures": (
        "MiniMaxM3 with pictures",
        {
            "intermediate_size": 24,
            "dense_intermediate_size": 72,
            "shared_intermediate_size": 48,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "head_dim": 16,
            "rope_parameters": HALF_ROTARY,
            "rotary_dim": 8,
            "index_n_heads": 2,
            "index_head_dim": 12,
            "index_block_size": 4,
            "index_topk_blocks": 3,
            "layer_types": ["full_attention", *["minimax_m3_sparse"] * 3],
            "mlp_layer_types": ["dense", *["sparse"] * 3],
        },
    ),
}
