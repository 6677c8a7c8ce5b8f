"""The rows of Qwen in the table of families."""

from collections.abc import Mapping
from dataclasses import replace

from potluck.model.families.experts import QWEN_EXPERTS
from potluck.model.families.facts import Family

_QWEN_DEFAULTS: Mapping[str, object] = {
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_THREE_AXES: Mapping[str, str] = {"mrope": "default"}  # text has the same position on all of them

QWEN: Mapping[str, Family] = {
    "Qwen2ForCausalLM": Family(
        defaults=_QWEN_DEFAULTS,
        qkv_bias=True,
        scaling_names=_THREE_AXES,
        windows="last",
        layer_types=True,
        window_switch="use_sliding_window",
    ),
    "Qwen3ForCausalLM": Family(
        defaults=_QWEN_DEFAULTS | {"head_dim": 128},
        scaling_names=_THREE_AXES,
        qk_norm="head",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        windows="last",
        layer_types=True,
        window_switch="use_sliding_window",
    ),
    "Qwen3MoeForCausalLM": Family(
        defaults={
            "num_key_value_heads": 4,
            "sliding_window": 4096,
            "num_local_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        },
        qk_norm="head",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        windows="all",
        window_switch="use_sliding_window",
        experts=QWEN_EXPERTS,
    ),
    # Qwen1.5-MoE, Qwen2-57B-A14B
    "Qwen2MoeForCausalLM": Family(
        defaults={
            "num_key_value_heads": 16,
            "sliding_window": 4096,
            "max_window_layers": 28,
            "num_local_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "qkv_bias": True,
        },
        qkv_bias="qkv_bias",
        windows="last",
        layer_types=True,
        window_switch="use_sliding_window",
        experts=replace(
            QWEN_EXPERTS,
            shared="shared_expert",
            shared_size="shared_expert_intermediate_size",
            shared_gate="shared_expert_gate",
        ),
    ),
}
