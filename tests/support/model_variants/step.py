"""Small models of the families in `potluck.model.families.step`."""

from typing import Any

from model_variants.common import SLIDING

_STEP = {
    "pad_token_id": 1,
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "share_expert_dim": 40,
    "head_dim": 16,
    "num_sliding_attention_heads": 6,
    "layer_types": ["full_attention", "sliding_attention"] * 2,
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "moe_router_scaling_factor": 1.4,
    "swiglu_limits": [0.0, None, 0.3, 0.2],
    "swiglu_limits_shared": [0.0, 0.0, 0.0, 0.4],
    **SLIDING,
}
_NEAR = {"rope_type": "default", "rope_theta": 100.0}
_FAR = {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5}

STEP_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "step 3.7, text of a model with pictures": (
        "Step3p7 with pictures",
        {
            **_STEP,
            "rope_parameters": {
                "full_attention": {
                    **_FAR,
                    "rope_type": "llama3",
                    "factor": 2.0,
                    "original_max_position_embeddings": 32,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 8.0,
                },
                "sliding_attention": _NEAR,
            },
        },
    ),
    # Converters of GGUF files scale with the frequencies of whole heads.
    "step 3.5, no scaling, text of a model with pictures": (
        "Step3p7 with pictures",
        {**_STEP, "rope_parameters": {"full_attention": _FAR, "sliding_attention": _NEAR}},
    ),
}
