"""Small models of the families in `potluck.model.families.nemotron`."""

from typing import Any

HYBRID = {
    "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "linear_attention"],
    "head_dim": 16,
    "mamba_num_heads": 6,
    "mamba_head_dim": 12,
    "n_groups": 2,
    "ssm_state_size": 24,
    # transformers limits steps by what they are drawn from, which the published code does not.
    "time_step_min": 1e-30,
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 2.5,
}

NEMOTRON_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "nemotron h": ("NemotronH", HYBRID),
    "nemotron h, narrow experts": ("NemotronH", {**HYBRID, "moe_latent_size": 32}),
    "nemotron h, dense, biases": (
        "NemotronH",
        {
            **HYBRID,
            "layers_block_type": ["full_attention", "linear_attention", "mlp", "full_attention"],
            "mlp_bias": True,
            "use_bias": True,
            "use_conv_bias": False,
        },
    ),
}
