"""Small models of the families in `potluck.model.families.layer_norms`."""

from typing import Any

from model_variants.common import HALF_ROTARY, SLIDING

_LONG = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.5, 2.0, 2.5, 2.7, 3.0],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
    "short_mscale": 1.2,
    "long_mscale": 1.2,
    "original_max_position_embeddings": 96,
}

_PHI_MOE = {
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "attention_bias": True,
    "lm_head_bias": True,
    "num_local_experts": 5,
    "rope_parameters": _LONG,
}

LAYER_NORMS_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "starcoder 2": ("Starcoder2", {}),
    "starcoder 2, window, no biases, odd": (
        "Starcoder2",
        {**SLIDING, "use_bias": False, "vocab_size": 97, "tie_word_embeddings": False},
    ),
    "stablelm 2": ("StableLm", {"use_qkv_bias": True, "rope_parameters": HALF_ROTARY}),
    "phi 2": ("Phi", {"rope_parameters": HALF_ROTARY}),
    "phi 3.5 moe": ("Phimoe", _PHI_MOE | {"router_jitter_noise": 0.3}),
    "phi 3.5 moe, as published": ("Phimoe", _PHI_MOE),
    "minitron": ("Nemotron", {"rope_parameters": HALF_ROTARY}),
    "jais 2": ("Jais2", {}),
}
