"""Small models of the families in `potluck.model.families.liquid`."""

from typing import Any

TYPES = {"layer_types": ["conv", "full_attention", "conv", "conv"]}
ROUTED = {
    **TYPES,
    "num_dense_layers": 1,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
}

LIQUID_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm 2": ("Lfm2", {**TYPES, "block_auto_adjust_ff_dim": False}),
    "lfm 2, adjusted, biases": (
        "Lfm2",
        {**TYPES, "conv_bias": True, "conv_L_cache": 4, "block_multiple_of": 20},
    ),
    "lfm 2 moe": ("Lfm2Moe", ROUTED),
    "lfm 3": (
        "Lfm3",
        {
            "layer_types": ["conv", "full_attention", "sliding_attention", "conv"],
            "head_dim": 16,
            "sliding_window": 7,
            "conv_L_cache": 5,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {
                    "rope_type": "proportional",
                    "rope_theta": 1000.0,
                    "partial_rotary_factor": 0.5,
                },
            },
        },
    ),
}
