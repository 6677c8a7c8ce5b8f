"""The rows of GLM in the table of families, without its mixtures of experts."""

from collections.abc import Mapping
from dataclasses import replace

from potluck.model.families.facts import GLM_NORMS, Family

_GLM = Family(
    defaults={
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1.5625e-7,
        "partial_rotary_factor": 0.5,
        "attention_bias": True,
        "rope_interleave": True,
        "eos_token_id": [151329, 151336, 151338],
    },
    qkv_bias="attention_bias",
    fused_mlp=True,
    partial_rotary=True,
    paired_rope="rope_interleave",
)

GLM: Mapping[str, Family] = {
    "GlmForCausalLM": _GLM,  # GLM-4-9B
    "Glm4ForCausalLM": replace(_GLM, norms=GLM_NORMS),  # GLM-4-0414, GLM-Z1
    # The text of GLM-4.1V and GLM-4.6V Flash
    "Glm4vForCausalLM": replace(
        _GLM,
        norms=GLM_NORMS,
        defaults={
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-5,
            "attention_bias": True,
            "rope_interleave": True,
        },
    ),
}
