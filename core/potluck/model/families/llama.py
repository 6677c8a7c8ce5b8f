"""The rows of Llama and those close to it in the table of families."""

from collections.abc import Mapping

from potluck.model.families.experts import LLAMA_EXPERTS
from potluck.model.families.facts import Family

LLAMA: Mapping[str, Family] = {
    # Llama 1 to 3.3, Falcon 3, and all others that use this name
    "LlamaForCausalLM": Family(
        defaults={"max_position_embeddings": 2048},
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
    ),
    # The text of Llama 4: Scout and Maverick
    "Llama4ForCausalLM": Family(
        defaults={
            "vocab_size": 202048,
            "hidden_size": 5120,
            "intermediate_size": 8192,
            "intermediate_size_mlp": 16384,
            "num_hidden_layers": 48,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "num_local_experts": 16,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 1,
            "use_qk_norm": True,
            "no_rope_layer_interval": 4,
            "attention_chunk_size": 8192,
            "attn_temperature_tuning": True,
            "floor_scale": 8192,
            "attn_scale": 0.1,
        },
        qk_norm="head",
        qk_norm_switch="use_qk_norm",
        qk_norm_after_rope=True,
        qk_norm_is_plain=True,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_block="feed_forward",
        mlp_size="intermediate_size_mlp",
        windows="with rope",
        chunk_size="attention_chunk_size",
        layer_types=True,
        rope_layers="listed",
        unturned_scale="attn_temperature_tuning",
        paired_rope=True,
        experts=LLAMA_EXPERTS,
    ),
    "SmolLM3ForCausalLM": Family(
        defaults={
            "num_key_value_heads": 4,
            "no_rope_layer_interval": 4,
            "rope_theta": 2e6,
            "tie_word_embeddings": True,
        },
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
        windows="without rope",
        layer_types=True,
        window_switch="use_sliding_window",
        rope_layers="listed",
    ),
    "SeedOssForCausalLM": Family(
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 524288,
            "attention_bias": True,
        },
        qkv_bias="attention_bias",
        output_bias="attention_out_bias",
        mlp_bias="mlp_bias",
    ),
    # Phi-3, 3.5 and 4, the mini and the medium ones
    "Phi3ForCausalLM": Family(
        defaults={
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
        },
        fused=True,
        windows="all",
        partial_rotary=True,
        scaling_names={"su": "longrope", "yarn": "longrope"},
    ),
}
