"""Small models of the families in `potluck.model.families.mistral`."""

from typing import Any

from model_variants.common import SLIDING, YARN

QUERY_SCALE = {
    **YARN,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16,
    "llama_4_scaling_beta": 0.3,
}

MISTRAL_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral, window": ("Mistral", {"sliding_window": 9}),
    "mistral, no window": ("Mistral", {"sliding_window": None, "head_dim": 20}),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "mixtral, one expert, window": (
        "Mixtral",
        {"num_local_experts": 3, "num_experts_per_tok": 1, **SLIDING},
    ),
    "mistral, text of a model with pictures": ("Mistral with pictures", {"sliding_window": None}),
    "ministral 3": (
        "Ministral 3 with pictures",
        {"head_dim": 16, "rope_parameters": QUERY_SCALE},
    ),
    "ministral 3, alone": (
        "Ministral3",
        {"head_dim": 20, "rope_parameters": QUERY_SCALE},
    ),
    "ministral 8b": (
        "Ministral",
        {"head_dim": 16, "layer_types": ["full_attention", "sliding_attention"] * 2, **SLIDING},
    ),
}
