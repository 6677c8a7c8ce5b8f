"""Small models of the families in `potluck.model.families.hunyuan`."""

from typing import Any

ALPHA = {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 1.0, "alpha": 20.0}

HUNYUAN_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "hunyuan": ("HunYuanDenseV1", {"head_dim": 16}),
    "hunyuan a13b": (
        "HunYuanMoEV1",
        {"head_dim": 16, "num_experts": 6, "moe_topk": 2, "rope_parameters": ALPHA},
    ),
    "hy 3": (
        "HYV3",
        {
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "num_shared_experts": 1,
            "moe_intermediate_size": 24,
            "router_scaling_factor": 1.5,
        },
    ),
}
