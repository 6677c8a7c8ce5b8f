"""The configs of well-known models: Gemma 4."""

from collections.abc import Mapping

_GEMMA_4: Mapping[str, object] = {
    "model_type": "gemma4_text",
    "attention_k_eq_v": True,
    "final_logit_softcapping": 30.0,
    "global_head_dim": 512,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size_per_layer_input": 0,
    "max_position_embeddings": 262144,
    "num_kv_shared_layers": 0,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "full_attention": {
            "partial_rotary_factor": 0.25,
            "rope_theta": 1000000.0,
            "rope_type": "proportional",
        },
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "sliding_window": 1024,
    "tie_word_embeddings": True,
    "vocab_size": 262144,
}


def _gemma4(layers: int, *, every: int = 6, **sizes: object) -> dict[str, object]:
    pattern = ["sliding_attention"] * (every - 1) + ["full_attention"]
    text = {
        **_GEMMA_4,
        "num_hidden_layers": layers,
        "layer_types": pattern * (layers // every),
        **sizes,
    }
    return {"architectures": ["Gemma4ForConditionalGeneration"], "text_config": text}


GEMMA: Mapping[str, Mapping[str, object]] = {
    # Gemma 4 E2B, half of which is a table of embeddings of each layer on the disk
    "gemma-4-e2b": _gemma4(
        35,
        every=5,
        hidden_size=1536,
        intermediate_size=6144,
        num_attention_heads=8,
        num_key_value_heads=1,
        attention_k_eq_v=False,
        sliding_window=512,
        max_position_embeddings=131072,
        hidden_size_per_layer_input=256,
        vocab_size_per_layer_input=262144,
        num_kv_shared_layers=20,
        use_double_wide_mlp=True,
    ),
    # Gemma 4 26B-A4B, whose layers have an MLP beside the experts
    "gemma-4-26b-a4b": _gemma4(
        30,
        hidden_size=2816,
        intermediate_size=2112,
        num_attention_heads=16,
        num_key_value_heads=8,
        num_global_key_value_heads=2,
        enable_moe_block=True,
        num_experts=128,
        top_k_experts=8,
        moe_intermediate_size=704,
    ),
    # Gemma 4 31B
    "gemma-4-31b": _gemma4(
        60,
        hidden_size=5376,
        intermediate_size=21504,
        num_attention_heads=32,
        num_key_value_heads=16,
        num_global_key_value_heads=4,
    ),
}
