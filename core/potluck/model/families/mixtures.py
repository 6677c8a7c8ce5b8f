"""The rows of mixtures of experts of other makers in the table of families."""

from collections.abc import Mapping
from dataclasses import replace

from potluck.model.families.experts import DEEPSEEK_DEFAULTS, DEEPSEEK_EXPERTS, MIXTRAL_EXPERTS
from potluck.model.families.facts import Family

MIXTURES: Mapping[str, Family] = {
    # GLM-4.5, 4.6 and 4.7, and those with Air
    "Glm4MoeForCausalLM": Family(
        defaults=DEEPSEEK_DEFAULTS
        | {
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 0.5,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1408,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
        },
        qkv_bias="attention_bias",
        qk_norm="head",
        qk_norm_switch="use_qk_norm",
        partial_rotary=True,
        experts=DEEPSEEK_EXPERTS,
    ),
    "SolarOpenForCausalLM": Family(
        defaults=DEEPSEEK_DEFAULTS
        | {
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1280,
            "norm_topk_prob": True,
        },
        qkv_bias="attention_bias",
        experts=DEEPSEEK_EXPERTS,
    ),
    "Dots1ForCausalLM": Family(
        defaults=DEEPSEEK_DEFAULTS
        | {
            "num_key_value_heads": 32,
            "max_position_embeddings": 2048,
            "moe_intermediate_size": 1408,
            "sliding_window": 4096,
            "max_window_layers": 62,
        },
        qk_norm="head",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        windows="last",
        layer_types=True,
        experts=DEEPSEEK_EXPERTS,
    ),
    "MiniMaxM2ForCausalLM": Family(
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 196608,
            "rope_theta": 5e6,
            "num_local_experts": 256,
            "num_experts_per_tok": 8,
        },
        qk_norm="projection",
        partial_rotary=True,
        experts=replace(MIXTRAL_EXPERTS, function="sigmoid", bias="e_score_correction_bias"),
    ),
}
