"""The rows of Cohere in the table of families."""

from collections.abc import Mapping
from dataclasses import replace

from potluck.model.families.experts import DEEPSEEK_EXPERTS
from potluck.model.families.facts import Family, LayerNorms

_COMMAND: Mapping[str, object] = {
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "max_position_embeddings": 8192,
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.0625,
    "tie_word_embeddings": True,
    "eos_token_id": 255001,
}
_NORMS = LayerNorms(before_mixer="input_layernorm")

_COMMAND_A = Family(
    defaults=_COMMAND | {"sliding_window": 4096, "sliding_window_pattern": 4},
    norms=_NORMS,
    norm_kind="layer",
    side_by_side=True,
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    windows="pattern",
    layer_types=True,
    rope_layers="windowed",
    paired_rope=True,
    logits_multiplier="logit_scale",
)

COHERE: Mapping[str, Family] = {
    # Command R and Aya
    "CohereForCausalLM": Family(
        defaults=_COMMAND | {"rope_theta": 500000.0},
        norms=_NORMS,
        norm_kind="layer",
        side_by_side=True,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        paired_rope=True,
        logits_multiplier="logit_scale",
        lacks={"use_qk_norm": "layer norms of queries and keys, as Command R+ has them"},
    ),
    # Command R7B and Command A
    "Cohere2ForCausalLM": _COMMAND_A,
    # Command A+
    "Cohere2MoeForCausalLM": replace(
        _COMMAND_A,
        defaults={
            **_COMMAND_A.defaults,
            "head_dim": 128,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "num_shared_experts": 0,
            "norm_topk_prob": True,
            "first_k_dense_replace": 0,
            "prefix_dense_sliding_window_pattern": 1,
            "expert_selection_fn": "softmax",
            "shared_expert_combination_strategy": "average",
        },
        rope_layers="windowed or dense",
        mlp_size="prefix_dense_intermediate_size",
        experts=replace(
            DEEPSEEK_EXPERTS,
            intermediate="intermediate_size",
            normalise="norm_topk_prob",
            function_field="expert_selection_fn",
            shared_average="shared_expert_combination_strategy",
            bias=None,
            groups=False,
            scale=None,
            shared_count="num_shared_experts",
        ),
        norm_switch="rms_norm_eps",
    ),
}
