"""The rows of families whose MLPs have no gates, in the table of families."""

from collections.abc import Mapping

from potluck.model.families.facts import Family, LayerNorms

UNGATED_MLPS: Mapping[str, Family] = {
    # AFM of Arcee
    "ArceeForCausalLM": Family(
        defaults={
            "hidden_act": "relu2",
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
        },
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
    ),
    # Apertus of the Swiss AI Initiative
    "ApertusForCausalLM": Family(
        defaults={
            "hidden_act": "xielu",
            "max_position_embeddings": 65536,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 12e6,
                "factor": 8.0,
                "original_max_position_embeddings": 8192,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            },
        },
        norms=LayerNorms(before_mixer="attention_layernorm", before_mlp="feedforward_layernorm"),
        qk_norm="head",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
    ),
}
