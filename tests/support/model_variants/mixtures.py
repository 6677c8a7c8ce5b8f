"""Small models of the families in `potluck.model.families.mixtures`."""

from typing import Any

from model_variants.common import HALF_ROTARY, ROUTED, SLIDING

TWO_ROPES = {
    "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
GATED = {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "head_dim": 16,
    "layer_types": ["full_attention", "sliding_attention"] * 2,
    "rope_parameters": {
        **TWO_ROPES,
        "full_attention": {
            "rope_type": "default",
            "rope_theta": 1000.0,
            "partial_rotary_factor": 0.5,
        },
    },
    **SLIDING,
}

MIXTURES_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "glm 4.5": (
        "Glm4Moe",
        {
            **ROUTED,
            "rope_parameters": HALF_ROTARY,
            "attention_bias": True,
            "use_qk_norm": True,
            "routed_scaling_factor": 1.5,
            "first_k_dense_replace": 1,
        },
    ),
    "glm 4.5 air": (
        "Glm4Moe",
        {**ROUTED, "rope_parameters": HALF_ROTARY, "norm_topk_prob": False},
    ),
    "solar open": ("SolarOpen", {**ROUTED, "routed_scaling_factor": 0.7}),
    "dots 1, groups": (
        "Dots1",
        {
            **ROUTED,
            "n_routed_experts": 12,
            "n_group": 4,
            "topk_group": 2,
            "n_shared_experts": 2,
            "first_k_dense_replace": 2,
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": True,
        },
    ),
    "trinity": (
        "Afmoe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "num_shared_experts": 1,
            "head_dim": 16,
            "route_scale": 1.7,
            "mup_enabled": True,
            **SLIDING,
        },
    ),
    "laguna": (
        "Laguna",
        {
            **GATED,
            "num_attention_heads_per_layer": [4, 6, 6, 4],
            "moe_routed_scaling_factor": 1.6,
        },
    ),
    "laguna, gates of each number": ("Laguna", {**GATED, "gating": "per-element"}),
    "mellum 2": (
        "Mellum",
        {
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "head_dim": 16,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "mlp_layer_types": ["dense", *["sparse"] * 3],
            "rope_parameters": TWO_ROPES,
            **SLIDING,
        },
    ),
    "flint": (
        "Flint",
        {
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
            "head_dim": 16,
            "mlp_only_layers": [0],
            "layer_types": ["full_attention", "sliding_attention"] * 2,
            **SLIDING,
        },
    ),
    "kolibri 1": (
        "Kolibri1",
        {
            **SLIDING,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
            "head_dim": 16,
            "norm_topk_prob": True,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
}
