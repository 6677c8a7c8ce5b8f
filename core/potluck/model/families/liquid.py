"""The rows of Liquid AI in the table of families."""

from collections.abc import Mapping
from dataclasses import replace

from potluck.model.families.experts import DEEPSEEK_EXPERTS
from potluck.model.families.facts import Family, LayerNorms, OutputGate
from potluck.model.families.words import FULL, WINDOWED
from potluck.model.fields import Fields, invalid
from potluck.model.limits import MAX_LAYERS

_LFM2 = Family(
    defaults={
        "hidden_size": 2560,
        "intermediate_size": 12288,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 128000,
        "norm_eps": 1e-5,
        "rope_theta": 1e6,
        "conv_L_cache": 3,
        "block_auto_adjust_ff_dim": True,
        "block_multiple_of": 256,
        "tie_word_embeddings": True,
    },
    field_names={
        "norm_eps": "rms_norm_eps",
        "block_ff_dim": "intermediate_size",
        "tie_embedding": "tie_word_embeddings",
    },
    norms=LayerNorms(before_mixer="operator_norm", before_mlp="ffn_norm"),
    qk_norm="head",
    qk_norm_names=("q_layernorm", "k_layernorm"),
    attention_output="out_proj",
    mlp_block="feed_forward",
    mlp_parts=("w1", "w3", "w2"),
    mlp_adjusted="block_auto_adjust_ff_dim",
    convolutions=True,
)


def _lfm3_words(fields: Fields) -> Mapping[str, object]:
    """Where `layer_types` is missing, each fourth layer sees all and each fourth a window; the others have convolutions."""
    for name in ("use_sandwich_norm", "use_attention_gate"):
        if not fields.flag(name, True):
            raise invalid(name, False, "must be true")
    if "layer_types" in fields:
        return {}
    kinds = {0: WINDOWED, 2: FULL}
    layers = fields.integer("num_hidden_layers", 1, MAX_LAYERS)
    named = ["conv", *(kinds.get(layer % 4, "conv") for layer in range(1, layers))]
    return {"layer_types": named}


LIQUID: Mapping[str, Family] = {
    "Lfm2ForCausalLM": _LFM2,
    "Lfm2MoeForCausalLM": replace(
        _LFM2,
        defaults={
            **_LFM2.defaults,
            "hidden_size": 2048,
            "intermediate_size": 7168,
            "moe_intermediate_size": 1792,
            "num_dense_layers": 2,
            "num_experts": 32,
            "num_experts_per_tok": 4,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.0,
        },
        field_names={**_LFM2.field_names, "num_dense_layers": "first_k_dense_replace"},
        mlp_adjusted=None,
        experts=replace(
            DEEPSEEK_EXPERTS,
            block="feed_forward",
            gate="w1",
            up="w3",
            down="w2",
            bias="expert_bias",
            groups=False,
            shared=None,
            shared_count=None,
        ),
    ),
    # LFM3: the same with norms after mixers and MLPs, a gate for each head, and windows
    "Lfm3ForCausalLM": replace(
        _LFM2,
        defaults={
            **_LFM2.defaults,
            "hidden_size": 2048,
            "intermediate_size": 7680,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "vocab_size": 128000,
            "conv_L_cache": 7,
            "sliding_window": 256,
            "rope_local_base_freq": 10000.0,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "proportional",
                    "rope_theta": 1e6,
                    "partial_rotary_factor": 0.5,
                },
            },
            "eos_token_id": 124900,
        },
        words=_lfm3_words,
        norms=LayerNorms(
            before_mixer="operator_norm",
            after_mixer="post_operator_norm",
            before_mlp="ffn_norm",
            after_mlp="post_ffn_norm",
        ),
        qk_norm_names=("q_norm", "k_norm"),
        attention_output="o_proj",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        output_gate=OutputGate(matrix="gate_proj", function="sigmoid", of_heads=True),
        windows="all",
        layer_types=True,
        local_theta="rope_local_base_freq",
        mlp_adjusted=None,
    ),
}
