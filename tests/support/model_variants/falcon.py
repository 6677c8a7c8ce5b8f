"""Small models of the families in `potluck.model.families.falcon`."""

from typing import Any

SPACE = {
    "mamba_d_ssm": 96,
    "mamba_n_heads": 8,
    "mamba_d_state": 24,
    "mamba_n_groups": 2,
    "key_multiplier": 0.6,
    "attention_in_multiplier": 1.3,
    "attention_out_multiplier": 0.8,
    "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.7,
    "ssm_multipliers": [0.9, 1.1, 0.6, 1.4, 0.8],
    "mlp_multipliers": [0.7, 1.3],
    "embedding_multiplier": 2.0,
    "lm_head_multiplier": 0.5,
}

FALCON_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "falcon h1": ("FalconH1", SPACE),
    "falcon h1, normed": (
        "FalconH1",
        {**SPACE, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
}
