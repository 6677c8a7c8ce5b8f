"""What GGUF files say of windows, and of families whose layers with a window have heads or ropes of their own."""

from collections.abc import Sequence
from typing import cast

from potluck.model.gguf.keys import Config, Keys
from potluck.model.gguf.mixtures import experts, mlp_types, turned_part
from potluck.model.mixing.mixers import WEIGHED

_FULL, _WINDOWED = "full_attention", "sliding_attention"
_PERIOD = 4  # of Laguna: the first of so many layers has no window


def windows(keys: Keys, config: Config) -> None:
    """Set which layers have a window: by a flag for each, or by a number n: each n-th has none."""
    if isinstance(_pattern(keys), list):
        config["layer_types"] = _kinds(keys)
    else:
        config["sliding_window_pattern"] = keys.integer("attention.sliding_window_pattern")


def step(keys: Keys, config: Config) -> None:
    """Set heads by layer, limits of experts, and ropes: half of a head turns where there is no window."""
    kinds = _begin(keys, config)
    layers = len(kinds)
    heads, scaling = keys.each("attention.head_count", layers), config.pop("rope_scaling", None)
    full: Config = {"rope_type": "default", "partial_rotary_factor": 0.5}
    if scaling is not None:  # of as many pairs as a whole head has, of which the first ones count
        full |= _first_factors(cast("Config", scaling), cast("int", config["head_dim"]) // 4)
    config |= {
        "num_attention_heads_per_layer": heads,
        "rope_parameters": _ropes(keys, config, full, {"partial_rotary_factor": 1.0}),
        "moe_router_scaling_factor": keys.number("expert_weights_scale", 1.0),
        "share_expert_dim": keys.integer("expert_shared_feed_forward_length"),
        "n_routed_experts": config["num_experts"],
    }
    for ours, theirs in (
        ("swiglu_limits", "swiglu_clamp_exp"),
        ("swiglu_limits_shared", "swiglu_clamp_shexp"),
    ):
        if theirs in keys:
            config[ours] = list(keys.items(f"{keys.architecture}.{theirs}"))[:layers]


def mimo(keys: Keys, config: Config) -> None:
    """Set heads of keys by layer, narrow values and what they are multiplied by."""
    kinds = _begin(keys, config)
    head = cast("int", config["head_dim"])
    part = turned_part(keys, "rope.dimension_count", head)
    config |= {
        "num_key_value_heads_per_layer": keys.each("attention.head_count_kv", len(kinds)),
        "v_head_dim": keys.integer("attention.value_length", head),
        "attention_value_scale": keys.number("attention.value_scale", 1.0),
        "rope_parameters": _ropes(keys, config, {"rope_type": "default"} | part, part),
        "n_routed_experts": config["num_experts"],
        "norm_topk_prob": True,  # llama.cpp always normalises (src/models/mimo2.cpp)
    }


def trinity(keys: Keys, config: Config) -> None:
    """Set a mixture with shared experts; that of windows and embeddings llama.cpp knows (src/models/afmoe.cpp)."""
    experts(keys, config)
    config |= {
        "mup_enabled": True,
        "global_attn_every_n_layers": 4,
        "sliding_window": keys.integer("attention.sliding_window", 0) or None,
        "num_dense_layers": keys.integer("leading_dense_block_count", 0),
        "num_shared_experts": keys.integer("expert_shared_count", 0),
        "route_scale": keys.number("expert_weights_scale", 1.0),
    }


def laguna(keys: Keys, config: Config) -> None:
    """Set heads by layer, ropes of layers with a window and without, and which gates there are."""
    layers, period = keys.layers(), "attention.sliding_window_pattern"
    experts(keys, config)
    size = keys.integer("attention.sliding_window", 0)
    heads = keys.each("attention.head_count", layers)
    head = cast("int", config["head_dim"])
    if size == 0:
        kinds: Sequence[str] = (_FULL,) * layers
    elif isinstance(_pattern(keys), list):
        kinds = _kinds(keys)
    else:
        every = max(1, keys.integer(period, _PERIOD))
        kinds = [_WINDOWED if layer % every else _FULL for layer in range(layers)]
    scaling = cast("Config", config.pop("rope_scaling", {"rope_type": "default"}))
    full, near = (turned_part(keys, f"rope.dimension_count{end}", head) for end in ("", "_swa"))
    gates = keys.rows(gate) if (gate := "blk.0.attn_gate.weight") in keys.file.shapes else 0
    config |= {
        "layer_types": list(kinds),
        "mlp_layer_types": mlp_types(keys),
        "sliding_window": size or None,
        "num_attention_heads_per_layer": heads,
        "rope_parameters": _ropes(keys, config, scaling | full, near),
        "gating": "per-head" if gates == heads[0] else "per-element",
        "moe_routed_scaling_factor": keys.number("expert_weights_scale", 1.0),
        "shared_expert_intermediate_size": keys.integer("expert_shared_feed_forward_length"),
    }


def mellum(keys: Keys, config: Config) -> None:
    """Set windows, and the ropes of layers with one and without."""
    size = keys.integer("attention.sliding_window", 0)
    experts(keys, config)
    scaling = cast("Config", config.pop("rope_scaling", {"rope_type": "default"}))
    theta = cast("float", config["rope_theta"])
    near: Config = {"rope_theta": keys.number("rope.freq_base_swa", theta)}
    kinds = _kinds_by(keys) if size else [_FULL] * keys.layers()
    config |= {
        "layer_types": kinds,
        "mlp_layer_types": mlp_types(keys),
        "sliding_window": size or None,
        "rope_parameters": _ropes(keys, config, scaling, near),
        "rope_local_base_freq": near["rope_theta"],
        "norm_topk_prob": True,  # llama.cpp always normalises (src/models/mellum.cpp)
    }


def muse(keys: Keys, config: Config) -> None:
    """Set windows, and ropes where there is one; norms of queries have the factor of these as weights."""
    theta = keys.number("rope.freq_base_swa", cast("float", config["rope_theta"]))
    kinds = _kinds_by(keys)
    config |= {
        "layer_types": kinds,
        "layer_rope_theta": [theta if kind == _WINDOWED else 0 for kind in kinds],
        "sliding_window": keys.integer("attention.sliding_window"),
        "final_logit_softcapping": keys.number("final_logit_softcapping", 0.0) or None,
        "output_multiplier": keys.number("logit_scale"),
        "post_norm_eps": 1e-8,  # as llama.cpp knows (src/models/muse-glimmer.cpp)
        "qk_scale_factor": 1.0,
        WEIGHED: True,
    }


def _kinds_by(keys: Keys) -> list[str]:
    """Each layer's kind, by flags, or by a number n: each n-th has no window."""
    if isinstance(_pattern(keys), list):
        return _kinds(keys)
    every = max(1, keys.integer("attention.sliding_window_pattern", _PERIOD))
    return [_WINDOWED if (layer + 1) % every else _FULL for layer in range(keys.layers())]


def _begin(keys: Keys, config: Config) -> list[str]:
    """Set experts and windows; return the layers' kinds."""
    experts(keys, config)
    layers, kinds = keys.layers(), _kinds(keys)
    if len(kinds) != layers:
        raise keys.invalid(
            "attention.sliding_window_pattern", f"must have one entry for each of {layers} layers"
        )
    config |= {
        "layer_types": kinds,
        "mlp_layer_types": mlp_types(keys),
        "sliding_window": keys.integer("attention.sliding_window"),
    }
    return kinds


def _pattern(keys: Keys) -> object:
    return keys.file.metadata.get(f"{keys.architecture}.attention.sliding_window_pattern")


def _kinds(keys: Keys) -> list[str]:
    """Each layer's kind, by the flags that say which have a window."""
    flags = keys.items(f"{keys.architecture}.attention.sliding_window_pattern")[: keys.layers()]
    return [_WINDOWED if flag else _FULL for flag in flags]


def _ropes(keys: Keys, config: Config, full: Config, near: Config) -> Config:
    near = {"rope_type": "default", "rope_theta": keys.number("rope.freq_base_swa", 10000.0)} | near
    return {_FULL: {"rope_theta": config["rope_theta"]} | full, _WINDOWED: near}


def _first_factors(scaling: Config, pairs: int) -> Config:
    """A scaling with the factors of so many pairs."""
    return {
        name: cast("list[object]", value)[:pairs] if isinstance(value, list) else value
        for name, value in scaling.items()
    }
