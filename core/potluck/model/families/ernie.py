"""The rows of ERNIE in the table of families."""

from collections.abc import Mapping

from potluck.model.families.experts import ERNIE_EXPERTS
from potluck.model.families.facts import Family

_DEFAULTS: Mapping[str, object] = {
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
}

ERNIE: Mapping[str, Family] = {
    "Ernie4_5ForCausalLM": Family(
        defaults={**_DEFAULTS, "num_key_value_heads": 2, "head_dim": 128},
        qkv_bias="use_bias",
        output_bias="use_bias",
        mlp_bias="use_bias",
        paired_rope=True,
    ),
    "Ernie4_5_MoeForCausalLM": Family(
        defaults={
            **_DEFAULTS,
            "num_key_value_heads": 4,
            "moe_num_experts": 64,
            "moe_k": 6,
            "moe_num_shared_experts": 2,
            "moe_intermediate_size": 1536,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": -1,
            "moe_layer_interval": 1,
        },
        paired_rope=True,
        experts=ERNIE_EXPERTS,
        lacks={"use_bias": "experts with biases"},
    ),
}
