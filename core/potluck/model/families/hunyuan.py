"""The rows of Hunyuan in the table of families."""

from collections.abc import Mapping
from dataclasses import replace

from potluck.model.families.experts import HUNYUAN_EXPERTS, SCALED_EXPERTS
from potluck.model.families.facts import Family

_DENSE = Family(
    defaults={"max_position_embeddings": 2048, "rms_norm_eps": 1e-5},
    qk_norm="head",
    qk_norm_names=("query_layernorm", "key_layernorm"),
    qk_norm_after_rope=True,
    qkv_bias="attention_bias",
    output_bias="attention_bias",
)

HUNYUAN: Mapping[str, Family] = {
    "HunYuanDenseV1ForCausalLM": _DENSE,
    # Hunyuan-A13B
    "HunYuanMoEV1ForCausalLM": replace(
        _DENSE,
        defaults={**_DENSE.defaults, "num_experts": 1, "moe_topk": 1},
        experts=HUNYUAN_EXPERTS,
    ),
    # Hy3
    "HYV3ForCausalLM": Family(
        defaults={
            "vocab_size": 120832,
            "hidden_size": 4096,
            "intermediate_size": 13312,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 11158840.0,
            "num_experts": 192,
            "num_experts_per_tok": 8,
            "num_shared_experts": 1,
            "moe_intermediate_size": 1536,
            "first_k_dense_replace": 1,
            "router_scaling_factor": 2.826,
        },
        qk_norm="head",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
        experts=replace(SCALED_EXPERTS, scale="router_scaling_factor", shared="shared_mlp"),
    ),
}
