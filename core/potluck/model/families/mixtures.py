"""The rows of mixtures of experts of other makers in the table of families."""

from collections.abc import Mapping
from dataclasses import replace

from potluck.model.families.experts import (
    DEEPSEEK_DEFAULTS,
    DEEPSEEK_EXPERTS,
    QWEN_EXPERTS,
    SCALED_EXPERTS,
)
from potluck.model.families.facts import GLM_NORMS, Family, LayerNorms, OutputGate
from potluck.model.families.words import FULL, WINDOWED, first_entries, renamed
from potluck.model.fields import Fields
from potluck.model.limits import MAX_LAYERS


def _trinity_words(fields: Fields) -> Mapping[str, object]:
    return renamed(
        fields,
        {
            "global_attn_every_n_layers": "sliding_window_pattern",
            "num_dense_layers": "first_k_dense_replace",
        },
    )


def _flint_words(fields: Fields) -> Mapping[str, object]:
    """Of the first two layers, the last one and each fourth one, none has a window."""
    layers = fields.integer("num_hidden_layers", 1, MAX_LAYERS)
    whole = {0, 1, layers - 1, *range(1, layers, 4)}
    usual: list[object] = [FULL if layer in whole else WINDOWED for layer in range(layers)]
    return {"layer_types": first_entries(fields, "layer_types", layers) or usual}


def _kinds_words(fields: Fields) -> Mapping[str, object]:
    """Without a list no layer has a window."""
    layers = fields.integer("num_hidden_layers", 1, MAX_LAYERS)
    return {"layer_types": first_entries(fields, "layer_types", layers) or [FULL] * layers}


_GLM_4 = Family(
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
)

MIXTURES: Mapping[str, Family] = {
    # GLM-4.5, 4.6 and 4.7, and those with Air
    "Glm4MoeForCausalLM": _GLM_4,
    # The text of GLM-4.5V and GLM-4.6V
    "Glm4vMoeForCausalLM": replace(
        _GLM_4,
        defaults={**_GLM_4.defaults, "max_position_embeddings": 65536, "attention_bias": True},
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
    # Arcee's Trinity
    "AfmoeForCausalLM": Family(
        defaults={
            "vocab_size": 200192,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 32,
            "num_attention_heads": 16,
            "head_dim": 128,
            "max_position_embeddings": 16384,
            "rms_norm_eps": 1e-5,
            "sliding_window": 1024,
            "global_attn_every_n_layers": 4,
            "num_dense_layers": 1,
            "num_experts": 64,
            "num_experts_per_tok": 6,
            "num_shared_experts": 2,
            "moe_intermediate_size": 1408,
            "route_scale": 1.0,
        },
        words=_trinity_words,
        norms=LayerNorms(
            before_mixer="input_layernorm",
            after_mixer="post_attention_layernorm",
            before_mlp="pre_mlp_layernorm",
            after_mlp="post_mlp_layernorm",
        ),
        qk_norm="head",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        output_gate=OutputGate(matrix="gate_proj", function="sigmoid"),
        windows="pattern",
        layer_types=True,
        rope_layers="windowed",
        root_embedding="mup_enabled",
        experts=replace(SCALED_EXPERTS, scale="route_scale"),
    ),
    # Poolside's Laguna
    "LagunaForCausalLM": Family(
        defaults={
            "vocab_size": 100352,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 40,
            "num_attention_heads": 48,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "sliding_window": 512,
            "rope_local_base_freq": 1e4,
            "rope_parameters": {
                FULL: {"rope_theta": 500000.0, "partial_rotary_factor": 0.5},
                WINDOWED: {"rope_theta": 10000.0},
            },
            "gating": True,
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "first_k_dense_replace": 1,
            "moe_routed_scaling_factor": 1.0,
        },
        words=_kinds_words,
        qk_norm="head",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        output_gate=OutputGate(matrix="g_proj", function="softplus", of_heads=True),
        gate_kind="gating",
        layer_heads="num_attention_heads_per_layer",
        windows="all",
        layer_types=True,
        local_theta="rope_local_base_freq",
        partial_rotary=True,
        experts=replace(
            DEEPSEEK_EXPERTS,
            bias="experts.e_score_correction_bias",
            groups=False,
            normalise=True,
            scale="moe_routed_scaling_factor",
            shared="shared_expert",
            shared_size="shared_expert_intermediate_size",
            shared_count=None,
        ),
        lacks={"moe_router_logit_softcapping": "a softcap of the router's products"},
    ),
    # JetBrains' Mellum 2
    "MellumForCausalLM": Family(
        defaults={
            "vocab_size": 98304,
            "hidden_size": 2304,
            "intermediate_size": 7168,
            "num_hidden_layers": 28,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "sliding_window": 1024,
            "rope_local_base_freq": 1e4,
            "rope_parameters": {
                FULL: {"rope_theta": 500000.0},
                WINDOWED: {"rope_theta": 10000.0},
            },
            "num_local_experts": 64,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 896,
            "norm_topk_prob": True,
            "first_k_dense_replace": 0,
        },
        words=_kinds_words,
        qk_norm="head",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        windows="all",
        layer_types=True,
        local_theta="rope_local_base_freq",
        experts=replace(QWEN_EXPERTS, layers="after dense"),
    ),
    # RecursiveSI's Flint
    "FlintForCausalLM": Family(
        defaults={
            "vocab_size": 150144,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 49,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "max_position_embeddings": 262144,
            "sliding_window": 513,
            "num_experts": 256,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 1024,
            "norm_topk_prob": True,
            "mlp_only_layers": [0, 1],
        },
        words=_flint_words,
        qk_norm="head",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        sinks=True,
        sinks_name="softmax_offset",
        windows="all",
        layer_types=True,
        rope_layers="windowed",
        experts=replace(
            QWEN_EXPERTS,
            function="sigmoid",
            shared="shared_expert",
            shared_size="shared_expert_intermediate_size",
        ),
    ),
    # Aleph Alpha's Kolibri 1
    "Kolibri1ForCausalLM": Family(
        defaults={
            "vocab_size": 128000,
            "hidden_size": 2560,
            "intermediate_size": 512,  # there is no MLP but that of experts
            "num_hidden_layers": 50,
            "num_attention_heads": 48,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "max_position_embeddings": 262144,
            "sliding_window": 513,
            "sliding_window_pattern": 5,
            "num_local_experts": 384,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
        },
        norms=replace(GLM_NORMS, after_mixer="post_attn_norm", after_mlp="post_ffn_norm"),
        qk_norm="head",
        windows="pattern",
        layer_types=True,
        rope_layers="windowed",
        experts=replace(
            QWEN_EXPERTS,
            layers="all",
            function="sigmoid",
            bias="moe.router.expert_bias",
            bias_beside=True,
            biases_products=True,
            shared="shared_experts",
            shared_size="shared_expert_intermediate_size",
        ),
    ),
}
