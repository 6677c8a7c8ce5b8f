"""The rows of NVIDIA's Nemotron in the table of families."""

from collections.abc import Mapping
from dataclasses import replace

from potluck.model.families.experts import DEEPSEEK_EXPERTS
from potluck.model.families.facts import Family, LayerNorms

# What others call `mixer` is a mixer, an MLP or experts here.
_EXPERTS = replace(
    DEEPSEEK_EXPERTS,
    block="mixer",
    layers="named",
    shared_count=None,
    shared_size="moe_shared_expert_intermediate_size",
    narrow=("moe_latent_size", "fc1_latent_proj", "fc2_latent_proj"),
)

NEMOTRON: Mapping[str, Family] = {
    # Nemotron-H, Nemotron Nano 2, Nemotron 3 (Nano, Super, Ultra)
    "NemotronHForCausalLM": Family(
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 21504,
            "max_position_embeddings": 4096,
            "mlp_hidden_act": "relu2",
            "layer_norm_epsilon": 1e-5,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
            "mamba_num_heads": 128,
            "mamba_head_dim": 64,
            "n_groups": 8,
            "ssm_state_size": 128,
            "conv_kernel": 4,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 7688,
            "moe_shared_expert_intermediate_size": 7688,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.0,
            "n_group": 1,
            "topk_group": 1,
        },
        field_names={
            "layers_block_type": "layer_types",
            "layer_norm_epsilon": "rms_norm_eps",
            "mamba_num_heads": "mamba_n_heads",
            "mamba_head_dim": "mamba_d_head",
            "n_groups": "mamba_n_groups",
            "ssm_state_size": "mamba_d_state",
            "conv_kernel": "mamba_d_conv",
            "use_conv_bias": "mamba_conv_bias",
            "use_bias": "mamba_proj_bias",
            "mamba_hidden_act": "hidden_act",
        },
        norms=LayerNorms(before_mixer="norm", before_mlp="norm"),
        halves=True,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
        activation="mlp_hidden_act",
        attention_block="mixer",
        mlp_block="mixer",
        mamba="mixer",
        rope_layers="none",
        experts=_EXPERTS,
    ),
}
