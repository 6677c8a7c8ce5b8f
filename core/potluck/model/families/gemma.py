"""The rows of Gemma in the table of families."""

from collections.abc import Mapping
from dataclasses import replace

from potluck.model.families.experts import GEMMA_EXPERTS
from potluck.model.families.facts import SANDWICH_NORMS, Family

_GEMMA_DEFAULTS: Mapping[str, object] = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_GEMMA_3 = Family(
    defaults=_GEMMA_DEFAULTS
    | {
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "sliding_window_pattern": 6,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    },
    norms=SANDWICH_NORMS,
    unit_offset=True,
    qk_norm="head",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    activation="hidden_activation",
    windows="pattern",
    layer_types=True,
    local_theta="rope_local_base_freq",
    query_scalar="query_pre_attn_scalar",
    logits_softcap="final_logit_softcapping",
    root_embedding=True,
    exceeds_f16=True,
)

_GEMMA_4 = Family(
    defaults={
        "vocab_size": 262144,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "global_head_dim": 512,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131072,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "rope_local_base_freq": 1e4,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1e6,
            },
        },
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262144,
        "tie_word_embeddings": True,
    },
    norms=SANDWICH_NORMS,
    qk_norm="head",
    value_norm=True,
    layer_scale="layer_scalar",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    activation="hidden_activation",
    windows="pattern",
    layer_types=True,
    ends_full=True,
    full_head_dim="global_head_dim",
    full_kv_heads="num_global_key_value_heads",
    keys_are_values="attention_k_eq_v",
    local_theta="rope_local_base_freq",
    attention_multiplier=1.0,
    logits_softcap="final_logit_softcapping",
    root_embedding=True,
    experts=GEMMA_EXPERTS,
    wide_mlp="use_double_wide_mlp",
    layer_inputs="hidden_size_per_layer_input",
    shared_keys="num_kv_shared_layers",
    exceeds_f16=True,
)

_GEMMA_2 = Family(
    defaults=_GEMMA_DEFAULTS
    | {
        "max_position_embeddings": 8192,
        "sliding_window_pattern": 2,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    norms=SANDWICH_NORMS,
    unit_offset=True,
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    activation="hidden_activation",
    windows="pattern",
    layer_types=True,
    query_scalar="query_pre_attn_scalar",
    attention_softcap="attn_logit_softcapping",
    logits_softcap="final_logit_softcapping",
    root_embedding=True,
    exceeds_f16=True,
)

GEMMA: Mapping[str, Family] = {
    "GemmaForCausalLM": Family(
        defaults={
            "num_key_value_heads": 16,
            "head_dim": 256,
            "hidden_act": "gelu_pytorch_tanh",
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
        },
        unit_offset=True,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        activation_names={"gelu": "gelu_pytorch_tanh"},
        root_embedding=True,
        exceeds_f16=True,
    ),
    "Gemma2ForCausalLM": _GEMMA_2,
    "VaultGemmaForCausalLM": replace(
        _GEMMA_2,
        norms=replace(SANDWICH_NORMS, after_mixer=None, after_mlp=None),
    ),
    "Gemma3ForCausalLM": _GEMMA_3,
    # Gemma 4 E2B, E4B, 26B-A4B and 31B
    "Gemma4ForCausalLM": _GEMMA_4,
    # Gemma 4 12B
    "Gemma4UnifiedForCausalLM": replace(
        _GEMMA_4,
        defaults={
            **_GEMMA_4.defaults,
            "max_position_embeddings": 262144,
            "sliding_window": 1024,
            "hidden_size_per_layer_input": 0,
        },
        experts=None,
    ),
}
