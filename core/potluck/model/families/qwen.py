"""The rows of Qwen in the table of families."""

from collections.abc import Mapping
from dataclasses import replace

from potluck.model.families.experts import QWEN_EXPERTS
from potluck.model.families.facts import Family, LayerNorms

_QWEN_DEFAULTS: Mapping[str, object] = {
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_DELTA_NET_DEFAULTS: Mapping[str, object] = {
    "hidden_act": "silu",
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 4,
    "attn_output_gate": True,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
_SHARED_EXPERTS = replace(
    QWEN_EXPERTS,
    shared="shared_expert",
    shared_size="shared_expert_intermediate_size",
    shared_gate="shared_expert_gate",
)
_THREE_AXES: Mapping[str, str] = {"mrope": "default"}  # text has the same position on all of them

_QWEN_3_5 = Family(
    defaults=_DELTA_NET_DEFAULTS | {"num_key_value_heads": 4, "intermediate_size": 12288},
    scaling_names=_THREE_AXES,
    unit_offset=True,
    qk_norm="head",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    attention_gate="attn_output_gate",
    partial_rotary=True,
    delta_net="split",
)

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
    # The text of Qwen3-VL with experts
    "Qwen3VLMoeForCausalLM": Family(
        defaults={
            "num_key_value_heads": 16,
            "num_local_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "rope_theta": 500000.0,
            "max_position_embeddings": 128000,
            "tie_word_embeddings": True,
        },
        qk_norm="head",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        experts=replace(QWEN_EXPERTS, normalise=True, stacked="either", fused="gate_up_proj"),
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
        experts=_SHARED_EXPERTS,
    ),
    # Qwen3-Next, Qwen3-Coder-Next
    "Qwen3NextForCausalLM": Family(
        defaults=_DELTA_NET_DEFAULTS
        | {
            "num_key_value_heads": 2,
            "intermediate_size": 5632,
            "num_local_experts": 512,
            "num_experts_per_tok": 10,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "norm_topk_prob": True,
        },
        unit_offset=True,
        qk_norm="head",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        attention_gate="attn_output_gate",
        partial_rotary=True,
        delta_net="joined",
        experts=_SHARED_EXPERTS,
    ),
    # The text of Qwen3.5, 3.6 and 3.8
    "Qwen3_5ForCausalLM": _QWEN_3_5,
    "Qwen3_5MoeForCausalLM": replace(
        _QWEN_3_5,
        defaults=_DELTA_NET_DEFAULTS
        | {
            "num_key_value_heads": 2,
            "intermediate_size": 512,  # of no layer: all have experts
            "num_local_experts": 256,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
        },
        experts=replace(
            _SHARED_EXPERTS,
            normalise=True,
            layers="all",
            stacked="rows",
            stacked_gates="gate_up_proj",
        ),
    ),
    # The text of Qwen 4, and Qwen3.8-Flash-Next
    "Qwen4ExpForCausalLM": replace(
        _QWEN_3_5,
        defaults=_DELTA_NET_DEFAULTS
        | {
            "partial_rotary_factor": 1.0,
            "num_key_value_heads": 2,
            "intermediate_size": 512,  # of no layer: all have experts
            "num_local_experts": 512,
            "num_experts_per_tok": 10,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "norm_topk_prob": True,
            "hc_count": 4,
            "hc_lowrank": 320,
            "ngram_size": 3,
            "heads_per_ngram": 8,
            "ngram_vocab_size_base": 20_000_000,
            "make_ngram_vocab_size_divisible_by": 128,
            "split_ngram_parts": 512,
            "ple_conv_kernel_size": 4,
            "seed": 1234,
        },
        norms=LayerNorms(),
        streams="gated",
        block_index=True,
        experts=replace(
            _SHARED_EXPERTS, layers="all", stacked="rows", stacked_gates="gate_up_proj"
        ),
    ),
}
