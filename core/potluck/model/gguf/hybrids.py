"""What GGUF files say of models with state spaces or short convolutions beside attention."""

from typing import cast

from potluck.model.gguf.keys import Config, Keys
from potluck.model.gguf.mixtures import routed


def state_spaces(keys: Keys, config: Config) -> None:
    """Set the sizes of state spaces."""
    heads, inner = keys.integer("ssm.time_step_rank"), keys.integer("ssm.inner_size")
    if heads < 1:
        raise keys.invalid("ssm.time_step_rank", "must be at least 1")
    has_bias = any(name.endswith(".ssm_conv1d.bias") for name in keys.file.shapes)
    config |= {
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_d_ssm": inner,
        "mamba_n_groups": keys.integer("ssm.group_count"),
        "mamba_d_state": keys.integer("ssm.state_size"),
        "mamba_d_conv": keys.integer("ssm.conv_kernel"),
        "mamba_conv_bias": has_bias,
    }


def nemotron_h(keys: Keys, config: Config) -> None:
    """Set what each layer is: attention has heads of keys, and a feed-forward a size; the others are state spaces."""
    layers, shapes = keys.layers(), keys.file.shapes
    heads = keys.each("attention.head_count_kv", layers)
    sizes = keys.each("feed_forward_length", layers)
    state_spaces(keys, config)
    config |= {
        "layer_types": [
            "attention"
            if heads[layer]
            else "mamba"
            if not sizes[layer]
            else "moe"
            if f"blk.{layer}.ffn_gate_inp.weight" in shapes
            else "mlp"
            for layer in range(layers)
        ],
        "num_key_value_heads": max(heads),
        "intermediate_size": max(sizes),
        "mlp_bias": any(".ffn_up.bias" in name for name in shapes),
        "attention_bias": any(".attn_q.bias" in name for name in shapes),
        "mamba_proj_bias": any(".ssm_in.bias" in name for name in shapes),
    }
    if "expert_count" in keys:
        routed(keys, config)
        size = keys.integer("expert_shared_feed_forward_length")
        config["moe_shared_expert_intermediate_size"] = size
    narrow = next((name for name in shapes if name.endswith(".ffn_latent_down.weight")), None)
    if narrow is not None:
        config["moe_latent_size"] = keys.rows(narrow)


def falcon_h1(keys: Keys, config: Config) -> None:
    """Set the state spaces. Numbers that activations are multiplied by are in the file's matrices already."""
    state_spaces(keys, config)
    config |= {
        "mamba_rms_norm": any(name.endswith(".ssm_norm.weight") for name in keys.file.shapes),
        "mamba_norm_before_gate": False,
    }


def lfm2(keys: Keys, config: Config) -> None:
    """Set which layers are attention: those with heads of keys."""
    heads = keys.each("attention.head_count_kv", keys.layers())
    config |= {
        "layer_types": ["full_attention" if count else "conv" for count in heads],
        "num_key_value_heads": max(heads),
        "conv_L_cache": keys.integer("shortconv.l_cache"),
        "conv_bias": any(".shortconv.in_proj.bias" in name for name in keys.file.shapes),
        "block_auto_adjust_ff_dim": False,  # files have the size that came of it
    }
    if "expert_count" in keys:
        routed(keys, config)


def granite(keys: Keys, config: Config) -> None:
    """Set what multiplies activations."""
    for name, key in (
        ("attention_multiplier", "attention.scale"),
        ("embedding_multiplier", "embedding_scale"),
        ("residual_multiplier", "residual_scale"),
        ("logits_scaling", "logit_scale"),
    ):
        config[name] = keys.number(key, 1.0)


def granite_experts(keys: Keys, config: Config) -> None:
    """Set a mixture, and what multiplies activations."""
    granite(keys, config)
    config |= {
        "num_local_experts": keys.integer("expert_count", 0),
        "num_experts_per_tok": keys.integer("expert_used_count", 0),
        "shared_intermediate_size": keys.integer("expert_shared_feed_forward_length", 0),
    }


def granite_hybrid(keys: Keys, config: Config) -> None:
    """Set what has a state space, where a layer has no heads of keys, and whether there is a rope."""
    granite_experts(keys, config)
    state_spaces(keys, config)
    dense = cast("int", config["intermediate_size"])
    heads = keys.each("attention.head_count_kv", keys.layers())
    config |= {
        "layer_types": ["attention" if count else "mamba" for count in heads],
        "num_key_value_heads": max(heads, default=0),
        "shared_intermediate_size": config["shared_intermediate_size"] or dense,
        "position_embedding_type": "rope" if keys.flag("rope.scaling.finetuned", True) else "nope",
    }
