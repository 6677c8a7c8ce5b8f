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
}
