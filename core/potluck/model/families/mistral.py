"""The rows of Mistral in the table of families."""

from collections.abc import Mapping

from potluck.model.families.experts import MIXTRAL_EXPERTS
from potluck.model.families.facts import Family

MISTRAL: Mapping[str, Family] = {
    "MistralForCausalLM": Family(
        defaults={
            "num_key_value_heads": 8,
            "sliding_window": 4096,
            "max_position_embeddings": 131072,
        },
        windows="all",
    ),
    # Ministral 8B
    "MinistralForCausalLM": Family(
        defaults={
            "num_key_value_heads": 8,
            "sliding_window": 4096,
            "max_position_embeddings": 131072,
        },
        windows="all",
        layer_types=True,
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
        experts=MIXTRAL_EXPERTS,
    ),
}
