"""Small models of the families in `potluck.model.families.gemma`."""

from typing import Any

from model_variants.common import SLIDING

GEMMA = {
    "head_dim": 16,
    "query_pre_attn_scalar": 21,
    "hidden_activation": "gelu_pytorch_tanh",
    **SLIDING,
}

GEMMA_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma 2": ("Gemma2", {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma 2, one key head, odd": (
        "Gemma2",
        {**GEMMA, "num_key_value_heads": 1, "vocab_size": 97, "attn_logit_softcapping": 1.0},
    ),
    "gemma 3": (
        "Gemma3",
        {
            **GEMMA,
            "num_key_value_heads": 1,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
            "num_hidden_layers": 6,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    "gemma 3, text of a model with pictures": (
        "Gemma3 with pictures",
        {**GEMMA, "layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
    "gemma": ("Gemma", {"head_dim": 16, "hidden_act": "gelu_pytorch_tanh"}),
}
