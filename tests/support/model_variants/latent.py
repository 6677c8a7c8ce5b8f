"""Small models of the families in `potluck.model.families.latent`."""

from typing import Any

from model_variants.common import ROUTED, YARN

_SIZES = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
}
_ROUTED = {name: size for name, size in ROUTED.items() if name != "head_dim"}
_GROUPS = {"n_routed_experts": 12, "n_group": 4, "topk_group": 2}
# Fewer tokens than the tests' texts have. With so many heads no two scores are equal, as zeros would be.
_INDEXER = {"index_topk": 8, "index_n_heads": 8, "index_head_dim": 16}
_MSCALE = {**YARN, "mscale": 0.707, "mscale_all_dim": 1.0}

LATENT_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek 2 lite": (
        "DeepseekV2",
        {
            **_SIZES,
            **_ROUTED,
            "q_lora_rank": None,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
        },
    ),
    "deepseek 2, groups": (
        "DeepseekV2",
        {
            **_SIZES,
            **_ROUTED,
            **_GROUPS,
            "topk_method": "group_limited_greedy",
            "routed_scaling_factor": 1.5,
            "attention_bias": True,
        },
    ),
    "deepseek 3": (
        "DeepseekV3",
        {
            **_SIZES,
            **_ROUTED,
            **_GROUPS,
            "qk_nope_head_dim": 32,
            "v_head_dim": 32,
            "first_k_dense_replace": 2,
            "rope_parameters": _MSCALE,
        },
    ),
    "a.x k1": (
        "AXK1",
        {**_SIZES, **_ROUTED, **_GROUPS, "mlp_layer_types": ["dense", *["sparse"] * 3]},
    ),
    "deepseek 3, dense, odd sizes, halves": (
        "DeepseekV3",
        {
            **_SIZES,
            "first_k_dense_replace": 4,
            "q_lora_rank": 20,
            "kv_lora_rank": 24,
            "qk_nope_head_dim": 12,
            "v_head_dim": 10,
            "rope_interleave": False,
        },
    ),
    "deepseek 3.2": (
        "DeepseekV32",
        {
            **_SIZES,
            **_ROUTED,
            **_GROUPS,
            **_INDEXER,
            "index_n_heads": 16,  # with these factors of rope some scores are 0 with fewer
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "glm 5": (
        "GlmMoeDsa",
        {**_SIZES, **_ROUTED, **_INDEXER, "qk_nope_head_dim": 24, "first_k_dense_replace": 1},
    ),
    "glm 5.2": (
        "GlmMoeDsa",
        {
            **_SIZES,
            **_INDEXER,
            "first_k_dense_replace": 4,
            "indexer_types": ["full", "shared", "shared", "full"],
        },
    ),
    "glm 4.7 flash": (
        "Glm4MoeLite",
        {**_SIZES, **_ROUTED, "qk_nope_head_dim": 24, "v_head_dim": 48},
    ),
    "mistral 4": (
        "Mistral4",
        {
            **_SIZES,
            **_ROUTED,
            "rope_parameters": {
                **YARN,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 16,
                "llama_4_scaling_beta": 0.1,
            },
        },
    ),
    "youtu": ("Youtu", _SIZES),
    "kimi linear": (
        "KimiLinear",
        {
            **_SIZES,
            **{name: size for name, size in _ROUTED.items() if name != "n_routed_experts"},
            "q_lora_rank": None,
            "qk_nope_head_dim": 32,
            "v_head_dim": 32,
            "num_experts": 6,
            "linear_num_heads": 4,
            "linear_head_dim": 16,
            "first_k_dense_replace": 1,
            "layer_types": ["linear_attention", "full_attention"] * 2,
        },
    ),
    "glm 5.3, text of a model with pictures": (
        "Glm5Next with pictures",
        {
            **_SIZES,
            **_ROUTED,
            **_INDEXER,
            "qk_rope_head_dim": 0,
            "index_kpool": 4,
            "linear_num_heads": 3,
            "linear_head_dim": 16,
            "hc_sinkhorn_iters": 5,
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "mlp_layer_types": ["dense", "sparse", "sparse", "dense"],
        },
    ),
}
