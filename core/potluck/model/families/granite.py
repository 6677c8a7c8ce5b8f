"""The rows of Granite in the table of families."""

from collections.abc import Mapping
from dataclasses import replace

from potluck.model.families.experts import GRANITE_EXPERTS
from potluck.model.families.facts import Family, LayerNorms

_GRANITE = Family(
    defaults={"max_position_embeddings": 2048},
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias="mlp_bias",
    attention_multiplier="attention_multiplier",
    embedding_multiplier="embedding_multiplier",
    residual_multiplier="residual_multiplier",
    logits_divisor="logits_scaling",
)
_MIXTURE = replace(
    _GRANITE,
    defaults={
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    mlp_bias=False,
    experts=GRANITE_EXPERTS,
)
_SHARED = replace(
    GRANITE_EXPERTS,
    shared="shared_mlp",
    shared_names=("input_linear", "output_linear"),
    shared_size="shared_intermediate_size",
)

GRANITE: Mapping[str, Family] = {
    "GraniteForCausalLM": _GRANITE,
    # Granite 3 with experts
    "GraniteMoeForCausalLM": _MIXTURE,
    "GraniteMoeSharedForCausalLM": replace(
        _MIXTURE, defaults={**_MIXTURE.defaults, "shared_intermediate_size": 0}, experts=_SHARED
    ),
    # Granite 4, with experts or one MLP
    "GraniteMoeHybridForCausalLM": replace(
        _MIXTURE,
        defaults={
            **_MIXTURE.defaults,
            "shared_intermediate_size": 1024,
            "mamba_n_heads": 128,
            "mamba_n_groups": 1,
            "mamba_d_state": 256,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
        },
        mlp_block="shared_mlp",
        mlp_size="shared_intermediate_size",
        mlp_names=("input_linear", "output_linear"),
        mamba="mamba",
        rope_layers="named",
        experts=_SHARED,
    ),
    # from which Granite 4 was made
    "BambaForCausalLM": Family(
        defaults={
            "num_key_value_heads": 8,
            "max_position_embeddings": 262144,
            "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 0.5,
            "mamba_n_heads": 128,
            "mamba_n_groups": 1,
            "mamba_d_state": 256,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
        },
        norms=LayerNorms(before_mixer="input_layernorm", before_mlp="pre_ff_layernorm"),
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_block="feed_forward",
        mlp_bias="mlp_bias",
        mamba="mamba",
        partial_rotary=True,
    ),
}
