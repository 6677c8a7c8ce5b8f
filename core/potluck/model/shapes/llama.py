"""The configs of well-known models: Llama: dense models, and Llama 4."""

from collections.abc import Mapping

_LLAMA: Mapping[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}


def _llama3_scaling(factor: float) -> dict[str, object]:
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


LLAMA: Mapping[str, Mapping[str, object]] = {
    # Llama-3.2-1B
    "llama-1b": {
        **_LLAMA,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "rope_scaling": _llama3_scaling(32.0),
        "tie_word_embeddings": True,
    },
    # Llama-3.2-3B
    "llama-3b": {
        **_LLAMA,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_scaling": _llama3_scaling(32.0),
        "tie_word_embeddings": True,
    },
    # Llama-3.1-8B
    "llama-8b": {
        **_LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "rope_scaling": _llama3_scaling(8.0),
        "tie_word_embeddings": False,
    },
    # Llama-3.3-70B
    "llama-70b": {
        **_LLAMA,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "rope_scaling": _llama3_scaling(8.0),
        "tie_word_embeddings": False,
    },
    # Llama 4 Scout, attention in chunks, and a mixture of which each token has one expert
    "llama-4-scout": {
        "architectures": ["Llama4ForConditionalGeneration"],
        "text_config": {
            "model_type": "llama4_text",
            "hidden_act": "silu",
            "vocab_size": 202048,
            "hidden_size": 5120,
            "intermediate_size": 8192,
            "intermediate_size_mlp": 16384,
            "num_hidden_layers": 48,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "num_local_experts": 16,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 1,
            "use_qk_norm": True,
            "attention_chunk_size": 8192,
            "attn_temperature_tuning": True,
            "floor_scale": 8192,
            "attn_scale": 0.1,
            "max_position_embeddings": 10485760,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 16.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
            },
            "tie_word_embeddings": False,
        },
    },
}
