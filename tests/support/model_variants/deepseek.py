"""Small models of the families in `potluck.model.families.deepseek`."""

from typing import Any

_SIZES = {
    "num_key_value_heads": 1,
    "head_dim": 16,
    "partial_rotary_factor": 0.5,
    "q_lora_rank": 32,
    "o_groups": 2,
    "o_lora_rank": 16,
    "sliding_window": 7,
    "intermediate_size": 24,
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "num_hash_layers": 2,
    "hc_sinkhorn_iters": 5,
    # Fewer pools than the tests' texts have. With so many heads no two scores are equal, as zeros would be.
    "index_n_heads": 8,
    "index_head_dim": 16,
    "index_topk": 4,
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
}

DEEPSEEK_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek 4": (
        "DeepseekV4",
        {
            **_SIZES,
            "layer_types": [
                "sliding_attention",
                "compressed_sparse_attention",
                "heavily_compressed_attention",
                "compressed_sparse_attention",
            ],
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
            },
        },
    ),
}
