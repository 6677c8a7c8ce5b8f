"""Small models of the families in `potluck.model.families.qwen`."""

from typing import Any

from model_variants.common import SLIDING, YARN

QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2}
QWEN_MOE = {
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "head_dim": 16,
}

DELTA_NET = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [1, 1, 0],
    },
}
DELTA_NET_MOE = {
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}

QWEN_4 = {
    "hc_count": 3,
    "hc_lowrank": 10,
    "indexer_n_heads": 12,  # with fewer, some blocks have scores of 0, and it is open which of these are chosen
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 12,
    "indexer_compress_ratio": 4,
    "output_gate_type": "sigmoid",
}
NGRAMS = {
    "ple_embed_dim": 24,
    "ngram_size": 3,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 50,
    "make_ngram_vocab_size_divisible_by": 16,
    "split_ngram_parts": 5,
    "ple_conv_kernel_size": 3,
}

QWEN_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
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
    "qwen 3 next": ("Qwen3Next", DELTA_NET | DELTA_NET_MOE),
    "qwen 3 next, odd": (
        "Qwen3Next",
        DELTA_NET
        | DELTA_NET_MOE
        | {
            "layer_types": [
                "full_attention",
                "linear_attention",
                "full_attention",
                "linear_attention",
            ],
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 3,
            "linear_key_head_dim": 10,
            "linear_value_head_dim": 70,
            "linear_conv_kernel_dim": 3,
            "mlp_only_layers": [1],
            "attention_bias": True,
        },
    ),
    "qwen 3.5": ("Qwen3_5", DELTA_NET | {"tie_word_embeddings": True}),
    "qwen 3.5 moe": ("Qwen3_5Moe", DELTA_NET | DELTA_NET_MOE),
    "qwen 3.6, text of a model with pictures": (
        "Qwen3.5 with pictures",
        DELTA_NET | {"layer_types": ["linear_attention", "full_attention"] * 2},
    ),
    "qwen 3.6 moe, text of a model with pictures": (
        "Qwen3.5 MoE with pictures",
        DELTA_NET | DELTA_NET_MOE,
    ),
    "qwen 4, text of a model with pictures": (
        "Qwen4 with pictures",
        DELTA_NET | DELTA_NET_MOE | QWEN_4 | {"ple_layer_ids": [2], "eos_token_id": 7} | NGRAMS,
    ),
    "qwen 4, n-grams": (
        "Qwen4Exp",
        DELTA_NET
        | DELTA_NET_MOE
        | QWEN_4
        | {
            "hc_count": 2,
            "ple_layer_ids": [3, 1],
            "eos_token_id": [7, 9],
            "vocab_size": 30,
        }
        | NGRAMS,
    ),
    # GGUF files have the table of one layer.
    "qwen 4, n-grams of one layer": (
        "Qwen4Exp",
        DELTA_NET
        | DELTA_NET_MOE
        | QWEN_4
        | {"ple_layer_ids": [2], "eos_token_id": 2, "linear_value_head_dim": 16}
        | NGRAMS,
    ),
}
