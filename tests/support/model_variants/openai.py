"""Small models of the families in `potluck.model.families.openai`."""

from typing import Any

from model_variants.common import SLIDING, YARN

OPENAI_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt-oss": (
        "GptOss",
        {
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "head_dim": 16,
            "rope_parameters": {**YARN, "truncate": False},
            "swiglu_limit": 1.5,
            **SLIDING,
        },
    ),
    "gpt-oss, odd": (
        "GptOss",
        {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "head_dim": 10,
            "intermediate_size": 44,
            "swiglu_alpha": 1.1,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
            **SLIDING,
        },
    ),
}
