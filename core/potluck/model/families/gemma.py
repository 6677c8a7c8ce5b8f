"""The rows of Gemma in the table of families."""

from collections.abc import Mapping

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
    "Gemma2ForCausalLM": Family(
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
    ),
    "Gemma3ForCausalLM": _GEMMA_3,
}
