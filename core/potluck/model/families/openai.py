"""The rows of OpenAI in the table of families."""

from collections.abc import Mapping

from potluck.model.families.experts import OPENAI_EXPERTS
from potluck.model.families.facts import Family

OPENAI: Mapping[str, Family] = {
    # gpt-oss-20b and 120b
    "GptOssForCausalLM": Family(
        defaults={
            "num_hidden_layers": 36,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "vocab_size": 201088,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150000.0,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
            "sliding_window": 128,
            "sliding_window_pattern": 2,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "attention_bias": True,
        },
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        sinks=True,
        windows="pattern",
        layer_types=True,
        clamped_swiglu=True,
        experts=OPENAI_EXPERTS,
    ),
}
