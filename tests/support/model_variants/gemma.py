"""Small models of the families in `potluck.model.families.gemma`."""

from typing import Any

from model_variants.common import SLIDING

GEMMA = {
    "head_dim": 16,
    "query_pre_attn_scalar": 21,
    "hidden_activation": "gelu_pytorch_tanh",
    **SLIDING,
}

GEMMA_4 = {
    "head_dim": 16,
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 1000.0,
            "partial_rotary_factor": 0.25,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
    **SLIDING,
}

GEMMA_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
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
    "gemma 4": ("Gemma4", GEMMA_4),
    "gemma 4, experts": (
        "Gemma4",
        {
            **GEMMA_4,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 24,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma 4, values of their own": (
        "Gemma4",
        {**GEMMA_4, "attention_k_eq_v": False, "num_global_key_value_heads": None, "head_dim": 20},
    ),
    "gemma 4 e2b": (
        "Gemma4",
        {
            **GEMMA_4,
            "attention_k_eq_v": False,
            "num_global_key_value_heads": None,
            "num_key_value_heads": 1,
            "hidden_size_per_layer_input": 32,
            "vocab_size_per_layer_input": 131,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
        },
    ),
    "gemma 4, embeddings of layers alone": (
        "Gemma4",
        {**GEMMA_4, "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 140},
    ),
    "gemma 4 12b": ("Gemma4Unified", GEMMA_4),
    "gemma": ("Gemma", {"head_dim": 16, "hidden_act": "gelu_pytorch_tanh"}),
    "vaultgemma": (
        "VaultGemma",
        {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
}
