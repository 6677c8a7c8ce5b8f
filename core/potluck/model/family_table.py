"""The table of model families, with the facts in which they differ.

A family is a row of values, or of names of `config.json` fields that hold the value. Nothing else
in the code asks for a model's family. `defaults` has the values that the family's configuration
class in `transformers` (`models/*/configuration_*.py`) takes for missing fields, if they differ
from the common ones: the weights were trained with them. A field that is `null` gets no
default there, nor here. Names of tensors are those of the files on the Hub.
"""

from collections.abc import Mapping
from dataclasses import replace

from potluck.model.families import POST_NORMS, SANDWICH_NORMS, ExpertFacts, Family

_MIXTRAL_EXPERTS = ExpertFacts(
    block="block_sparse_moe",
    gate="w1",
    up="w3",
    down="w2",
    intermediate="intermediate_size",
    normalise=True,
)
_QWEN_EXPERTS = ExpertFacts(
    block="mlp",
    gate="gate_proj",
    up="up_proj",
    down="down_proj",
    intermediate="moe_intermediate_size",
    normalise="norm_topk_prob",
    layers="stepped",
)
_DEEPSEEK_EXPERTS = replace(
    _QWEN_EXPERTS,
    layers="after dense",
    function="sigmoid",
    bias="gate.e_score_correction_bias",
    groups=True,
    scale="routed_scaling_factor",
    shared="shared_experts",
    shared_count="n_shared_experts",
)
_DEEPSEEK_DEFAULTS: Mapping[str, object] = {
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 0,
    "routed_scaling_factor": 1.0,
}
_QWEN_DEFAULTS: Mapping[str, object] = {
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_THREE_AXES: Mapping[str, str] = {"mrope": "default"}  # text has the same position on all of them
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

FAMILIES: Mapping[str, Family] = {
    # Llama 1 to 3.3, Falcon 3, and all others that use this name
    "LlamaForCausalLM": Family(
        defaults={"max_position_embeddings": 2048},
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
    ),
    "MistralForCausalLM": Family(
        defaults={
            "num_key_value_heads": 8,
            "sliding_window": 4096,
            "max_position_embeddings": 131072,
        },
        windows="all",
    ),
    # Ministral 3, Devstral 2
    "Ministral3ForCausalLM": Family(
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 262144,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 16.0,
                "original_max_position_embeddings": 16384,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
        windows="all",
    ),
    "MixtralForCausalLM": Family(
        defaults={
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        windows="all",
        experts=_MIXTRAL_EXPERTS,
    ),
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
        experts=_QWEN_EXPERTS,
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
            _QWEN_EXPERTS,
            shared="shared_expert",
            shared_size="shared_expert_intermediate_size",
            shared_gate="shared_expert_gate",
        ),
    ),
    # GLM-4.5, 4.6 and 4.7, and those with Air
    "Glm4MoeForCausalLM": Family(
        defaults=_DEEPSEEK_DEFAULTS
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
        experts=_DEEPSEEK_EXPERTS,
    ),
    "SolarOpenForCausalLM": Family(
        defaults=_DEEPSEEK_DEFAULTS
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
        experts=_DEEPSEEK_EXPERTS,
    ),
    "Dots1ForCausalLM": Family(
        defaults=_DEEPSEEK_DEFAULTS
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
        experts=_DEEPSEEK_EXPERTS,
    ),
    "ExaoneMoeForCausalLM": Family(  # K-EXAONE
        defaults=_DEEPSEEK_DEFAULTS
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
            _DEEPSEEK_EXPERTS, bias="e_score_correction_bias", shared_count="num_shared_experts"
        ),
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
        experts=replace(_MIXTRAL_EXPERTS, function="sigmoid", bias="e_score_correction_bias"),
    ),
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
        experts=replace(_QWEN_EXPERTS, layers="all", intermediate="intermediate_size"),
    ),
    # Phi-3, 3.5 and 4, the mini and the medium ones
    "Phi3ForCausalLM": Family(
        defaults={
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
        },
        fused=True,
        windows="all",
        partial_rotary=True,
        scaling_names={"su": "longrope", "yarn": "longrope"},
    ),
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
    "SeedOssForCausalLM": Family(
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 524288,
            "attention_bias": True,
        },
        qkv_bias="attention_bias",
        output_bias="attention_out_bias",
        mlp_bias="mlp_bias",
    ),
    "SmolLM3ForCausalLM": Family(
        defaults={
            "num_key_value_heads": 4,
            "no_rope_layer_interval": 4,
            "rope_theta": 2e6,
            "tie_word_embeddings": True,
        },
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
        windows="without rope",
        layer_types=True,
        window_switch="use_sliding_window",
        rope_layers="listed",
    ),
    "GraniteForCausalLM": Family(
        defaults={"max_position_embeddings": 2048},
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
        attention_multiplier="attention_multiplier",
        embedding_multiplier="embedding_multiplier",
        residual_multiplier="residual_multiplier",
        logits_divisor="logits_scaling",
    ),
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
}

WITH_TEXT: Mapping[str, Mapping[str, str]] = {
    "Gemma3ForConditionalGeneration": {"gemma3_text": "Gemma3ForCausalLM"},
    "Mistral3ForConditionalGeneration": {
        "mistral": "MistralForCausalLM",
        "ministral3": "Ministral3ForCausalLM",
    },
    "Qwen2_5_VLForConditionalGeneration": {"qwen2_5_vl_text": "Qwen2ForCausalLM"},
    "Qwen3VLForConditionalGeneration": {"qwen3_vl_text": "Qwen3ForCausalLM"},
}
"""Models of more than text: for each `model_type` that their `text_config` may have, the family of their text.

The first one is taken where it says nothing.
"""
