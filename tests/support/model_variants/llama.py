"""Small models of the families in `potluck.model.families.llama`."""

from typing import Any

from model_variants.common import SLIDING

LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONG_FACTORS = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "short_factor": [1.0, 1.1, 1.3],
    "long_factor": [1.5, 2.0, 8.0],
}
LLAMA_4 = {
    "head_dim": 16,
    "intermediate_size": 40,
    "intermediate_size_mlp": 72,
    "num_local_experts": 3,
    "attention_chunk_size": 7,
    "floor_scale": 5,
    "rope_parameters": {**LLAMA_3, "high_freq_factor": 1.0},
}

LLAMA_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, own head size": ("Llama", {"head_dim": 16}),
    "llama, one key head, tied, odd": (
        "Llama",
        {"num_key_value_heads": 1, "tie_word_embeddings": True, "vocab_size": 97},
    ),
    "llama, whole blocks": ("Llama", {"intermediate_size": 80, "head_dim": 16}),
    "llama, whole groups": ("Llama", {"hidden_size": 64, "intermediate_size": 96}),
    "llama, no shared key heads": ("Llama", {"num_key_value_heads": 4}),
    "llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama 3 scaling": ("Llama", {"rope_parameters": LLAMA_3, "head_dim": 32}),
    "llama, linear scaling": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 3.0}},
    ),
    "llama, dynamic scaling": (
        "Llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 4.0}},
    ),
    "phi 3": ("Phi3", {"sliding_window": 9}),
    "phi 3.5, long": (
        "Phi3",
        {
            "rope_parameters": {
                **LONG_FACTORS,
                "short_factor": [1.0] * 6,
                "long_factor": [3.0] * 6,
            },
            "original_max_position_embeddings": 32,
            "num_key_value_heads": 4,
        },
    ),
    "phi 4 mini, short, partial": (
        "Phi3",
        {
            "rope_parameters": {**LONG_FACTORS, "partial_rotary_factor": 0.75},
            "original_max_position_embeddings": 100,
            "num_attention_heads": 6,
            "tie_word_embeddings": True,
        },
    ),
    "muse glimmer, text of a model with pictures": (
        "MuseGlimmer with pictures",
        {
            **SLIDING,
            "head_dim": 16,
            "qk_scale_factor": 1.7,
            "output_multiplier": 0.7,
            "post_norm_eps": 0.1,
            "final_logit_softcapping": 3.0,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
            "layer_rope_theta": [0, 1000.0] * 2,
        },
    ),
    "code world model": ("Cwm", {**SLIDING, "rope_parameters": LLAMA_3, "head_dim": 16}),
    "llama 4 scout": ("Llama4", LLAMA_4),
    "llama 4 maverick, two experts, odd": (
        "Llama4",
        {
            **LLAMA_4,
            "interleave_moe_layer_step": 2,
            "num_experts_per_tok": 2,
            "use_qk_norm": False,
            "attention_bias": True,
            "no_rope_layers": [1, 0, 0, 1],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        },
    ),
    "llama 4, text of a model with pictures": (
        "Llama4 with pictures",
        {**LLAMA_4, "attn_temperature_tuning": False, "num_hidden_layers": 2},
    ),
    "seed oss": ("SeedOss", {"head_dim": 16, "attention_out_bias": True}),
    "smollm 3": ("SmolLM3", {"no_rope_layers": [1, 0, 1, 0]}),
    "smollm 3, window, biases": (
        "SmolLM3",
        {"attention_bias": True, "mlp_bias": True, "use_sliding_window": True, **SLIDING},
    ),
    "falcon 3": ("Llama", {"head_dim": 20, "num_key_value_heads": 1, "intermediate_size": 100}),
    "helium": ("Helium", {"head_dim": 12}),
    "internlm 3, biases": ("InternLM3", {"qkv_bias": True, "bias": True, "head_dim": 16}),
    "iquest coder": ("IQuestCoder", {"head_dim": 16}),
}
