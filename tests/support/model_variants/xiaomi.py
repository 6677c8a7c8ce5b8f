"""Small models of the families in `potluck.model.families.xiaomi`."""

from typing import Any

from model_variants.common import ROUTED, SLIDING

_ROPE = {"rope_type": "default", "partial_rotary_factor": 0.5}
_ROUTED = {name: size for name, size in ROUTED.items() if name != "n_shared_experts"}

XIAOMI_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mimo 2 flash": (
        "MiMoV2Flash",
        {
            **_ROUTED,
            "head_dim": 24,
            "v_head_dim": 16,
            "num_key_value_heads": 1,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
            "rope_parameters": {
                "full_attention": {**_ROPE, "rope_theta": 1000.0},
                "sliding_attention": {**_ROPE, "rope_theta": 100.0},
            },
            **SLIDING,
        },
    ),
}
