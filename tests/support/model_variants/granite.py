"""Small models of the families in `potluck.model.families.granite`."""

from typing import Any

from model_variants.common import SLIDING

MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.37,
    "attention_multiplier": 0.21,
    "logits_scaling": 5.0,
}
MIXTURE = {**MULTIPLIERS, "num_local_experts": 6, "num_experts_per_tok": 3, "intermediate_size": 24}
HYBRID = {
    **MIXTURE,
    "shared_intermediate_size": 40,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "mamba_n_heads": 8,  # of 12 numbers
    "mamba_d_state": 24,
}

GRANITE_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "granite": ("Granite", MULTIPLIERS),
    "granite, tied, biases": (
        "Granite",
        {**MULTIPLIERS, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "granite 3 moe": ("GraniteMoe", MIXTURE),
    "granite 3 moe, shared expert": (
        "GraniteMoeShared",
        {**MIXTURE, "shared_intermediate_size": 40},
    ),
    "granite 4": ("GraniteMoeHybrid", HYBRID),
    "bamba": (
        "Bamba",
        {
            "attn_layer_indices": [1, 3],
            "mamba_n_heads": 8,
            "mamba_d_state": 24,
            "mamba_n_groups": 2,
        },
    ),
    "granite 4, dense, groups, rope": (
        "GraniteMoeHybrid",
        {
            **HYBRID,
            "num_local_experts": 0,
            "position_embedding_type": "rope",
            "mamba_n_groups": 2,
            "mamba_d_conv": 3,
            "mamba_conv_bias": False,
            "tie_word_embeddings": True,
        },
    ),
    "granite, windows, thetas": (
        "GraniteSWA",
        {**MULTIPLIERS, **SLIDING, "layer_rope_theta": [1000.0, 100.0, 0, 100.0]},
    ),
    "granite moe, windows": (
        "GraniteMoeSWA",
        {**MIXTURE, **SLIDING, "shared_intermediate_size": 40, "layer_rope_theta": [1000.0, 0] * 2},
    ),
    "hyperclova x": ("HyperCLOVAX", MULTIPLIERS),
}
