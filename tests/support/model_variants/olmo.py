"""Small models of the families in `potluck.model.families.olmo`."""

from typing import Any

from model_variants.common import SLIDING, YARN

OLMO_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "olmoe": ("Olmoe", {"num_experts": 6, "num_experts_per_tok": 2}),
    "olmo 3": (
        "Olmo3",
        {
            **SLIDING,
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
            },
        },
    ),
    "olmo 2": ("Olmo2", {}),
    "olmo 2, no shared key heads, bias": (
        "Olmo2",
        {"num_key_value_heads": 4, "attention_bias": True},
    ),
    "flex olmo": (
        "FlexOlmo",
        {"num_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 24},
    ),
}
