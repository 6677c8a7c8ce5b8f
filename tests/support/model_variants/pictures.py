"""Models of pictures and text, whose text is compared."""

from typing import Any

TINY_EYE = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
TINY_LLAMA_EYE = TINY_EYE | {
    "vision_output_dim": 8,
    "projector_input_dim": 8,
    "projector_output_dim": 8,
}
TINY_QWEN_EYE = {
    "hidden_size": 8,
    "out_hidden_size": 48,
    "intermediate_size": 8,
    "depth": 1,
    "num_heads": 2,
    "deepstack_visual_indexes": [0],
}
TINY_GLM_EYE = {
    "hidden_size": 16,
    "intermediate_size": 8,
    "depth": 1,
    "num_heads": 2,
    "out_hidden_size": 48,
    "projection_intermediate_size": 8,
}
TINY_QWEN_3_5_EYE = {
    name: size for name, size in TINY_QWEN_EYE.items() if name != "deepstack_visual_indexes"
}
TINY_EXAONE_EYE = {
    "hidden_size": 16,
    "intermediate_size": 8,
    "depth": 1,
    "num_heads": 2,
    "num_key_value_heads": 1,
    "out_hidden_size": 48,
}
TINY_STEP_EYE = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
    "mlp_ratio": 1.0,
}
TINY_MINIMAX_EYE = TINY_EYE | {"hidden_size": 12, "num_attention_heads": 1}
# where a model's class has another name than its config
WHOLE_CLASSES = {"MiniMaxM3VL": "MiniMaxM3Sparse"}
WITH_PICTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    # a family's name here: the configs of its text, of the whole and of its eye
    "Exaone4.5 with pictures": ("Exaone4Config", "Exaone4_5_", TINY_EXAONE_EYE),
    "Gemma3 with pictures": ("Gemma3TextConfig", "Gemma3", TINY_EYE),
    "Glm5Next with pictures": ("Glm5NextTextConfig", "Glm5Next", TINY_GLM_EYE),
    "Llama4 with pictures": ("Llama4TextConfig", "Llama4", TINY_LLAMA_EYE),
    "Mistral with pictures": ("MistralConfig", "Mistral3", TINY_EYE),
    "Ministral 3 with pictures": ("Ministral3Config", "Mistral3", TINY_EYE),
    "Qwen2.5 with pictures": ("Qwen2_5_VLTextConfig", "Qwen2_5_VL", TINY_QWEN_EYE),
    "Qwen3.5 with pictures": ("Qwen3_5TextConfig", "Qwen3_5", TINY_QWEN_3_5_EYE),
    "Qwen3.5 MoE with pictures": ("Qwen3_5MoeTextConfig", "Qwen3_5Moe", TINY_QWEN_3_5_EYE),
    "Qwen4 with pictures": ("Qwen4ExpTextConfig", "Qwen4Exp", TINY_QWEN_3_5_EYE),
    "MuseGlimmer with pictures": (
        "MuseGlimmerTextConfig",
        "MuseGlimmer",
        TINY_EYE | {"pos_emb_height": 2, "pos_emb_width": 2, "layer_types": ["full_attention"]},
    ),
    "MiniMaxM3 with pictures": ("MiniMaxM3VLTextConfig", "MiniMaxM3VL", TINY_MINIMAX_EYE),
    "Step3p7 with pictures": ("Step3p7TextConfig", "Step3p7", TINY_STEP_EYE),
    "Qwen3 with pictures": ("Qwen3VLTextConfig", "Qwen3VL", TINY_QWEN_EYE),
}
