"""Small models of the families in `potluck.model.families.glm`."""

from typing import Any

from model_variants.common import HALF_ROTARY

GLM_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "glm 4": ("Glm4", {"head_dim": 16, "rope_parameters": HALF_ROTARY}),
    "glm 4 9b": ("Glm", {"head_dim": 16, "rope_parameters": HALF_ROTARY}),
}
