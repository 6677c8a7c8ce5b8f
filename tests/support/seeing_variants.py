"""Configs of small models that see, in the words of `transformers`."""

from typing import Any

TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 512,
    "head_dim": 16,
    "tie_word_embeddings": False,
}
_EYE = {
    "hidden_size": 16,
    "out_hidden_size": 32,
    "intermediate_size": 24,
    "depth": 3,
    "num_heads": 2,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "num_position_embeddings": 25,
}
_SIGLIP = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 4,
    "vision_use_head": False,
}
_CLIP = _SIGLIP | {"model_type": "clip_vision_model", "num_hidden_layers": 3}
_INTERNVL = _SIGLIP | {"image_size": [32, 32], "patch_size": [4, 4]}
_GEMMA_4: dict[str, Any] = {
    "head_dim": 16,
    "global_head_dim": 16,
    "hidden_size_per_layer_input": 0,
    "sliding_window": 8,
    "use_bidirectional_attention": "vision",
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
_GEMMA_4_EYE = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "patch_size": 4,
    "pooling_kernel_size": 3,
    "position_embedding_size": 40,
}
_PIXTRAL = _SIGLIP | {"model_type": "pixtral", "image_size": 64, "head_dim": 8}


def _rope(*sections: int) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(sections)}


SEEING: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # the name in transformers; changes of its text, its eye, and fields of the whole
    "qwen 2.5": (
        "Qwen2_5_VL",
        {"head_dim": None, "rope_parameters": _rope(2, 1, 1)},
        _EYE | {"fullatt_block_indexes": [1], "window_size": 16},
        {},
    ),
    "qwen 3": (
        "Qwen3VL",
        {"rope_parameters": _rope(4, 2, 2)},
        _EYE | {"deepstack_visual_indexes": [0, 2]},
        {},
    ),
    "qwen 3.5": (
        "Qwen3_5",
        {
            "rope_parameters": _rope(2, 1, 1) | {"partial_rotary_factor": 0.5},
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 24,
        },
        _EYE,
        {},
    ),
    "qwen 3 with experts": (
        "Qwen3VLMoe",
        {
            "rope_parameters": _rope(4, 2, 2),
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
        },
        _EYE | {"deepstack_visual_indexes": [0, 2]},
        {},
    ),
    "qwen 2": (
        "Qwen2VL",
        {"head_dim": None, "rope_parameters": _rope(2, 1, 1)},
        _EYE | {"embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2},
        {},
    ),
    "gemma 3": (
        "Gemma3",
        {"sliding_window": 8, "query_pre_attn_scalar": 16},
        _SIGLIP,
        {"mm_tokens_per_image": 16},
    ),
    "mistral 3": (
        "Mistral3",
        {"model_type": "mistral", "sliding_window": None},
        _PIXTRAL,
        {"spatial_merge_size": 2},
    ),
    "light on ocr": (
        "LightOnOcr",
        {"model_type": "qwen3"},
        _PIXTRAL,
        {"spatial_merge_size": 2},
    ),
    "gemma 4": (
        "Gemma4",
        _GEMMA_4,
        _GEMMA_4_EYE | {"standardize": True},
        {},
    ),
    "gemma 4, with bounds": (
        "Gemma4",
        _GEMMA_4 | {"use_bidirectional_attention": None},
        _GEMMA_4_EYE | {"use_clipped_linears": True},
        {},
    ),
    "gemma 4 e2b": (
        "Gemma4",
        _GEMMA_4
        | {
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 96,
            "num_kv_shared_layers": 2,
            "pad_token_id": 5,
        },
        _GEMMA_4_EYE | {"use_clipped_linears": True},
        {},
    ),
    "gemma 4, without a tower": (
        "Gemma4Unified",
        _GEMMA_4,
        {
            "patch_size": 4,
            "pooling_kernel_size": 3,
            "mm_embed_dim": 24,
            "mm_posemb_size": 8,
            "output_proj_dims": 24,
        },
        {},
    ),
    "pixtral": (
        "Llava",
        {"model_type": "mistral", "sliding_window": None},
        _PIXTRAL,
        {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
    ),
    "llava": ("Llava", {"model_type": "llama"}, _CLIP, {}),
    "llava next": (
        "LlavaNext",
        {"model_type": "mistral", "sliding_window": None},
        _CLIP | {"image_size": 16},
        {"image_grid_pinpoints": [[16, 32], [32, 16], [32, 32]]},
    ),
    "glm 4": (
        "Glm4v",
        {
            "head_dim": None,
            "rope_parameters": _rope(2, 1, 1) | {"partial_rotary_factor": 1.0},
            "pad_token_id": 5,
        },
        _EYE | {"image_size": 12, "num_position_embeddings": None},
        {},
    ),
    "glm 4 with experts": (
        "Glm4vMoe",
        {
            "rope_parameters": _rope(2, 1, 1) | {"partial_rotary_factor": 0.5},
            "pad_token_id": 5,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "first_k_dense_replace": 1,
        },
        _EYE | {"image_size": 12, "num_position_embeddings": None},
        {},
    ),
    "idefics 3": (
        "Idefics3",
        {"model_type": "llama", "pad_token_id": 5},
        _SIGLIP | {"image_size": 34},  # of which two pixels make no patch
        {"scale_factor": 2},
    ),
    "smolvlm": (
        "SmolVLM",
        {"model_type": "llama", "pad_token_id": 5},
        _SIGLIP,
        {"scale_factor": 4},
    ),
    "internvl": (
        "InternVL",
        {"model_type": "qwen3"},
        _INTERNVL | {"attention_bias": True},
        {},
    ),
    "internvl, large": (
        "InternVL",
        {"model_type": "qwen2", "head_dim": None},
        _INTERNVL | {"norm_type": "rms_norm", "use_qk_norm": True},
        {},
    ),
    "llama 4": (
        "Llama4",
        {
            "num_local_experts": 4,
            "intermediate_size_mlp": 40,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": 16,
        },
        _SIGLIP
        | {
            "intermediate_size": 64,
            "projector_input_dim": 24,
            "projector_output_dim": 24,
            "vision_output_dim": 24,
        },
        {},
    ),
}


def gemma_4_config(**text: Any) -> dict[str, Any]:
    """A config.json of a small Gemma 4 that sees, with these fields of its text."""
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "text_config": {"model_type": "gemma4_text", **TEXT, **_GEMMA_4, **text},
        "vision_config": _GEMMA_4_EYE,
        "image_token_id": 7,
    }
