"""Small models of the families in `potluck.model.families.ungated`."""

from typing import Any

UNGATED_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "arcee": ("Arcee", {}),
    "arcee, biases": ("Arcee", {"attention_bias": True, "mlp_bias": True}),
    "apertus": ("Apertus", {}),
}
