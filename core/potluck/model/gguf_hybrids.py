"""What GGUF files say of models with state spaces or short convolutions beside attention."""

from potluck.model.gguf_keys import Config, Keys


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
    layers, shapes = keys.integer("block_count"), keys.file.shapes
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
        config |= {
            "n_routed_experts": keys.integer("expert_count"),
            "num_experts_per_tok": keys.integer("expert_used_count"),
            "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
            "moe_shared_expert_intermediate_size": keys.integer(
                "expert_shared_feed_forward_length"
            ),
            "norm_topk_prob": keys.flag("expert_weights_norm", False),
            "routed_scaling_factor": keys.number("expert_weights_scale", 1.0),
            "n_group": keys.integer("expert_group_count", 1),
            "topk_group": keys.integer("expert_group_used_count", 1),
        }
    narrow = [shape for name, shape in shapes.items() if name.endswith(".ffn_latent_down.weight")]
    if narrow:
        config["moe_latent_size"] = narrow[0][0]
