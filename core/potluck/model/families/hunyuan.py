"""The rows of Hunyuan in the table of families."""

from collections.abc import Mapping
from dataclasses import replace

from potluck.model.families.experts import HUNYUAN_EXPERTS
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
}
