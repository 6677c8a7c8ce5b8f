"""Small models of the families in `potluck.model.families.cohere`."""

from typing import Any

from model_variants.common import SLIDING

COHERE_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "command r": ("Cohere", {"logit_scale": 0.3, "attention_bias": True}),
    "command a": ("Cohere2", {"logit_scale": 0.25, **SLIDING}),
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
