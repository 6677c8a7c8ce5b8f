"""The rows of EXAONE in the table of families."""

from collections.abc import Mapping
from dataclasses import replace

from potluck.model.families.experts import DEEPSEEK_DEFAULTS, DEEPSEEK_EXPERTS
from potluck.model.families.facts import POST_NORMS, Family

EXAONE: Mapping[str, Family] = {
    "Exaone4ForCausalLM": Family(
        defaults={
            "num_key_value_heads": 32,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
        },
        norms=POST_NORMS,
        qk_norm="head",
        windows="pattern",
        layer_types=True,
        rope_layers="windowed",
    ),
    "ExaoneMoeForCausalLM": Family(  # K-EXAONE
        defaults=DEEPSEEK_DEFAULTS
        | {
            "num_key_value_heads": 32,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
            "num_experts": 64,
            "num_shared_experts": 1,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1024,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
        },
        qk_norm="head",
        windows="pattern",
        layer_types=True,
        rope_layers="windowed",
        experts=replace(
            DEEPSEEK_EXPERTS, bias="e_score_correction_bias", shared_count="num_shared_experts"
        ),
    ),
}
