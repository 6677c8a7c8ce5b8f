"""The rows of Xiaomi in the table of families, and the words of its files."""

from collections.abc import Mapping
from dataclasses import replace

from potluck.model.families.experts import DEEPSEEK_DEFAULTS, DEEPSEEK_EXPERTS
from potluck.model.families.facts import Family
from potluck.model.families.words import FULL, WINDOWED, first_entries, renamed
from potluck.model.fields import Fields
from potluck.model.limits import MAX_HEADS, MAX_LAYERS, MAX_POSITION

_HEADS = "num_key_value_heads_per_layer"
_PART = 0.334  # of a head that rope turns, where no field says it
_THETAS = {FULL: ("rope_theta", 5e6), WINDOWED: ("swa_rope_theta", 1e4)}


def _words(fields: Fields) -> Mapping[str, object]:
    """Flags say which layers have a window and which have experts; layers with a window have heads of their own."""
    layers = fields.integer("num_hidden_layers", 1, MAX_LAYERS)
    kinds = _kinds(fields, layers)
    heads = fields.integer("num_key_value_heads", 1, MAX_HEADS)
    near = fields.integer("swa_num_key_value_heads", 1, 2 * MAX_HEADS, 2 * heads)
    mlps = first_entries(fields, "mlp_layer_types", layers) or [
        "sparse" if flag else "dense"
        for flag in first_entries(fields, "moe_layer_freq", layers) or range(layers)
    ]
    found = renamed(fields, {"layernorm_epsilon": "rms_norm_eps"}) | {
        "layer_types": kinds,
        "mlp_layer_types": mlps,
        _HEADS: first_entries(fields, _HEADS, layers)
        or [near if kind == WINDOWED else heads for kind in kinds],
        "routed_scaling_factor": fields.value("routed_scaling_factor") or 1.0,
    }
    if "sliding_window_size" in fields:  # without the token itself
        found["sliding_window"] = fields.integer("sliding_window_size", 1, MAX_POSITION) + 1
    if "rope_parameters" not in fields:
        part = fields.value("partial_rotary_factor") or _PART
        found["rope_parameters"] = {
            kind: {
                "rope_type": "default",
                "rope_theta": fields.value(name) or theta,
                "partial_rotary_factor": part,
            }
            for kind, (name, theta) in _THETAS.items()
        }
    return found


def _kinds(fields: Fields, layers: int) -> list[object]:
    if listed := first_entries(fields, "layer_types", layers):
        return listed
    flags = first_entries(fields, "hybrid_layer_pattern", layers)
    if not flags:
        flags = [bool(layer and (layer + 1) % 6) for layer in range(layers)]
    return [WINDOWED if flag else FULL for flag in flags]


XIAOMI: Mapping[str, Family] = {
    "MiMoV2FlashForCausalLM": Family(
        defaults=DEEPSEEK_DEFAULTS
        | {
            "vocab_size": 152576,
            "hidden_size": 4096,
            "intermediate_size": 16384,
            "num_hidden_layers": 48,
            "num_attention_heads": 64,
            "num_key_value_heads": 4,
            "head_dim": 192,
            "v_head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "sliding_window": 129,
            "rope_local_base_freq": 1e4,
            "attention_value_scale": 0.707,
            "n_routed_experts": 256,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 2048,
            "norm_topk_prob": True,
        },
        words=_words,
        qkv_bias="attention_bias",
        value_dim="v_head_dim",
        value_scale="attention_value_scale",
        layer_kv_heads=_HEADS,
        sinks="windowed",
        sinks_name="attention_sink_bias",
        windows="all",
        layer_types=True,
        local_theta="rope_local_base_freq",
        partial_rotary=True,
        experts=replace(DEEPSEEK_EXPERTS, shared=None, shared_count=None),
    ),
}
