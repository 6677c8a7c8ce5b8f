"""Small models of the families in `potluck.model.families.cohere`."""

from typing import Any

from model_variants.common import SLIDING

MIXTURE = {
    "logit_scale": 0.25,
    **SLIDING,
    "head_dim": 16,
    "intermediate_size": 24,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "num_shared_experts": 2,
}

COHERE_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "command r": ("Cohere", {"logit_scale": 0.3, "attention_bias": True}),
    "command a": ("Cohere2", {"logit_scale": 0.25, **SLIDING}),
    "command a+": (
        "Cohere2Moe",
        {
            **MIXTURE,
            "first_k_dense_replace": 1,
            "prefix_dense_intermediate_size": 72,
            "expert_selection_fn": "sigmoid",
        },
    ),
    "command a+, softmax, sum": (
        "Cohere2Moe",
        {**MIXTURE, "shared_expert_combination_strategy": "sum", "rms_norm_eps": 1e-6},
    ),
    "command a, untied, one key head, odd": (
        "Cohere2",
        {
            "tie_word_embeddings": False,
            "num_key_value_heads": 1,
            "vocab_size": 97,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
            **SLIDING,
        },
    ),
}
