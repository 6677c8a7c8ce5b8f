"""Small models of the families in `potluck.model.families.mixtures`."""

from typing import Any

from model_variants.common import HALF_ROTARY, ROUTED

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
    "minimax m2": (
        "MiniMaxM2",
        {
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "head_dim": 16,
            "rope_parameters": HALF_ROTARY,
        },
    ),
}
