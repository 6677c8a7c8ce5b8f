"""The rows of OLMo in the table of families."""

from collections.abc import Mapping
from dataclasses import replace

from potluck.model.families.experts import QWEN_EXPERTS
from potluck.model.families.facts import POST_NORMS, Family

OLMO: Mapping[str, Family] = {
    "OlmoeForCausalLM": Family(
        defaults={
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "num_experts": 64,
            "num_experts_per_tok": 8,
        },
        qk_norm="projection",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        experts=replace(QWEN_EXPERTS, layers="all", intermediate="intermediate_size"),
    ),
    "Olmo2ForCausalLM": Family(
        defaults={"max_position_embeddings": 2048, "rms_norm_eps": 1e-5},
        norms=POST_NORMS,
        qk_norm="projection",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
    ),
    "Olmo3ForCausalLM": Family(
        defaults={
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
        },
        norms=POST_NORMS,
        qk_norm="projection",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        windows="pattern",
        layer_types=True,
        local_theta="rope_theta",
    ),
    "FlexOlmoForCausalLM": Family(
        defaults={
            "vocab_size": 100352,
            "max_position_embeddings": 4096,
            "rope_theta": 500000.0,
            "num_experts": 7,
            "num_experts_per_tok": 5,
            "eos_token_id": 100257,
        },
        norms=POST_NORMS,
        qk_norm="projection",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        experts=replace(QWEN_EXPERTS, layers="all", intermediate="intermediate_size"),
    ),
}
