"""Small models of the families in `potluck.model.families.exaone`."""

from typing import Any

from model_variants.common import SLIDING

EXAONE_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "k-exaone": (
        "ExaoneMoe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "head_dim": 16,
            "num_shared_experts": 1,
            **SLIDING,
        },
    ),
    "exaone 4": ("Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 4}),
    "exaone 4, hybrid": ("Exaone4", {**SLIDING, "sliding_window_pattern": 3, "head_dim": 10}),
    "exaone 4.5, text of a model with pictures": (
        "Exaone4.5 with pictures",
        {**SLIDING, "sliding_window_pattern": 2},
    ),
    "exaone 4, a window that no layer has": (
        "Exaone4",
        {**SLIDING, "layer_types": ["full_attention"] * 4},
    ),
}
