"""Configs of small models of every family, in the words of `transformers`: variants of one shape."""

from typing import Any

# Small sizes; none is a multiple of another by chance.
SHAPE = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
}
QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2}
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONG_FACTORS = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "short_factor": [1.0, 1.1, 1.3],
    "long_factor": [1.5, 2.0, 8.0],
}
SLIDING = {"sliding_window": 7}
GEMMA = {
    "head_dim": 16,
    "query_pre_attn_scalar": 21,
    "hidden_activation": "gelu_pytorch_tanh",
    **SLIDING,
}
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.37,
    "attention_multiplier": 0.21,
    "logits_scaling": 5.0,
}
TINY_EYE = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
TINY_QWEN_EYE = {
    "hidden_size": 8,
    "out_hidden_size": 48,
    "intermediate_size": 8,
    "depth": 1,
    "num_heads": 2,
    "deepstack_visual_indexes": [0],
}
WITH_PICTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    # a family's name here: the configs of its text, of the whole and of its eye
    "Gemma3 with pictures": ("Gemma3TextConfig", "Gemma3", TINY_EYE),
    "Mistral with pictures": ("MistralConfig", "Mistral3", TINY_EYE),
    "Ministral 3 with pictures": ("Ministral3Config", "Mistral3", TINY_EYE),
    "Qwen2.5 with pictures": ("Qwen2_5_VLTextConfig", "Qwen2_5_VL", TINY_QWEN_EYE),
    "Qwen3 with pictures": ("Qwen3VLTextConfig", "Qwen3VL", TINY_QWEN_EYE),
}
QUERY_SCALE = {
    **YARN,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16,
    "llama_4_scaling_beta": 0.3,
}
QWEN_MOE = {
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "head_dim": 16,
}
HALF_ROTARY = {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5}
ROUTED = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_shared_experts": 1,
    "head_dim": 16,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
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
    "mistral, window": ("Mistral", {"sliding_window": 9}),
    "mistral, no window": ("Mistral", {"sliding_window": None, "head_dim": 20}),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "mixtral, one expert, window": (
        "Mixtral",
        {"num_local_experts": 3, "num_experts_per_tok": 1, **SLIDING},
    ),
    "qwen 2": (
        "Qwen2",
        {"tie_word_embeddings": True, "intermediate_size": 64, "num_key_value_heads": 4},
    ),
    "qwen 2, window in the last layers": ("Qwen2", QWEN_WINDOW),
    "qwen 2.5, yarn": ("Qwen2", {"rope_parameters": YARN}),
    "qwen 3": ("Qwen3", {"head_dim": 16, "intermediate_size": 64}),
    "qwen 3, window": ("Qwen3", {"head_dim": 24, "num_key_value_heads": 1, **QWEN_WINDOW}),
    "qwen 3 moe": ("Qwen3Moe", {"norm_topk_prob": True, **QWEN_MOE}),
    "qwen 3 moe, some layers, odd": (
        "Qwen3Moe",
        {
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "num_key_value_heads": 1,
            "vocab_size": 97,
            "use_sliding_window": True,
            **SLIDING,
            **QWEN_MOE,
        },
    ),
    "qwen 2 moe, gated shared expert": (
        "Qwen2Moe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
        },
    ),
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
    "k-exaone": (
        "ExaoneMoe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "head_dim": 16,
            "num_shared_experts": 1,
            **SLIDING,
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
    "olmoe": ("Olmoe", {"num_experts": 6, "num_experts_per_tok": 2}),
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
    "gemma 2": ("Gemma2", {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma 2, one key head, odd": (
        "Gemma2",
        {**GEMMA, "num_key_value_heads": 1, "vocab_size": 97, "attn_logit_softcapping": 1.0},
    ),
    "gemma 3": (
        "Gemma3",
        {
            **GEMMA,
            "num_key_value_heads": 1,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
            "num_hidden_layers": 6,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    "gemma 3, text of a model with pictures": (
        "Gemma3 with pictures",
        {**GEMMA, "layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
    "mistral, text of a model with pictures": ("Mistral with pictures", {"sliding_window": None}),
    "ministral 3": (
        "Ministral 3 with pictures",
        {"head_dim": 16, "rope_parameters": QUERY_SCALE},
    ),
    "ministral 3, alone": (
        "Ministral3",
        {"head_dim": 20, "rope_parameters": QUERY_SCALE},
    ),
    "qwen 2.5, text of a model with pictures": (
        "Qwen2.5 with pictures",
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1000.0,
                "mrope_section": [2, 2, 2],
            }
        },
    ),
    "qwen 3, text of a model with pictures": (
        "Qwen3 with pictures",
        {
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1000.0,
                "mrope_section": [3, 3, 2],
                "mrope_interleaved": True,
            },
        },
    ),
    "seed oss": ("SeedOss", {"head_dim": 16, "attention_out_bias": True}),
    "gemma": ("Gemma", {"head_dim": 16, "hidden_act": "gelu_pytorch_tanh"}),
    "olmo 3": (
        "Olmo3",
        {
            **SLIDING,
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
            },
        },
    ),
    "olmo 2": ("Olmo2", {}),
    "olmo 2, no shared key heads, bias": (
        "Olmo2",
        {"num_key_value_heads": 4, "attention_bias": True},
    ),
    "smollm 3": ("SmolLM3", {"no_rope_layers": [1, 0, 1, 0]}),
    "smollm 3, window, biases": (
        "SmolLM3",
        {"attention_bias": True, "mlp_bias": True, "use_sliding_window": True, **SLIDING},
    ),
    "granite": ("Granite", MULTIPLIERS),
    "granite, tied, biases": (
        "Granite",
        {**MULTIPLIERS, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "exaone 4": ("Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 4}),
    "exaone 4, hybrid": ("Exaone4", {**SLIDING, "sliding_window_pattern": 3, "head_dim": 10}),
    "exaone 4, a window that no layer has": (
        "Exaone4",
        {**SLIDING, "layer_types": ["full_attention"] * 4},
    ),
    "falcon 3": ("Llama", {"head_dim": 20, "num_key_value_heads": 1, "intermediate_size": 100}),
}
WIDE_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    # For the larger blocks of GGUF. Rounding errors are larger than in the other comparisons.
    "llama, blocks of 256": ("Llama", {"hidden_size": 256, "intermediate_size": 512}),
}
