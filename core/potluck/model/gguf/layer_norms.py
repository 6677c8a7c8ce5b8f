"""What GGUF files say of Phi, of families with layer norms, and of those whose MLPs have no gates."""

from typing import cast

from potluck.model.gguf.keys import Config, Keys
from potluck.model.gguf.mixtures import partial_rotary
from potluck.model.mlp_fields import GIVEN_XIELU

_BETA = 0.5  # of x in xielu


def phi3(keys: Keys, config: Config) -> None:
    """Set which part of a head is turned, the window, and the length of the training."""
    partial_rotary(keys, config)
    # In Phi-4, 0 means that there is no window.
    config["sliding_window"] = keys.integer("attention.sliding_window", 0) or None
    original = keys.integer("rope.scaling.original_context_length", keys.integer("context_length"))
    config["original_max_position_embeddings"] = original


def phi_moe(keys: Keys, config: Config) -> None:
    """Set the mixture of Phi-3.5-MoE, and whether its head has a bias."""
    phi3(keys, config)
    config |= {
        "num_local_experts": keys.integer("expert_count"),
        "num_experts_per_tok": keys.integer("expert_used_count"),
        "lm_head_bias": "output.bias" in keys.file.shapes,
    }


def starcoder2(keys: Keys, config: Config) -> None:
    """Set what has biases, and the window."""
    config["use_bias"] = config["attention_bias"]
    config["sliding_window"] = keys.integer("attention.sliding_window", 0) or None


def stablelm(keys: Keys, config: Config) -> None:
    """Set which part of a head is turned, what has biases, and what only the largest has."""
    partial_rotary(keys, config)
    shapes = keys.file.shapes
    config |= {
        "use_qkv_bias": config["attention_bias"],
        "qk_layernorm": "blk.0.attn_q_norm.weight" in shapes,
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in shapes,
    }


def apertus(keys: Keys, config: Config) -> None:
    """Set the numbers of each layer's activation, and the rope, of which the family has another."""
    layers = keys.layers()
    for name, field in zip(GIVEN_XIELU, ("alpha_p", "alpha_n"), strict=True):
        config[name] = list(keys.items(f"xielu.{field}")[:layers])
    if any(one != _BETA for one in keys.items("xielu.beta")):
        raise keys.invalid("xielu.beta", f"must be {_BETA} in all layers", whole=True)
    rope = cast("Config", config.pop("rope_scaling", None) or {"rope_type": "default"})
    config["rope_parameters"] = rope | {"rope_theta": config["rope_theta"]}
