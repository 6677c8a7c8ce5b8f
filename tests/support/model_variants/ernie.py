"""Small models of the families in `potluck.model.families.ernie`."""

from typing import Any

ERNIE_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "ernie 4.5": ("Ernie4_5", {"head_dim": 16, "tie_word_embeddings": False}),
    "ernie 4.5, biases, tied": ("Ernie4_5", {"head_dim": 16, "use_bias": True}),
    "ernie 4.5 moe": (
        "Ernie4_5_Moe",
        {
            "moe_num_experts": 6,
            "moe_k": 2,
            "moe_num_shared_experts": 1,
            "moe_intermediate_size": 24,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 2,
        },
    ),
}
