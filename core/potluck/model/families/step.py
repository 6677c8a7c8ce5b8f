"""The rows of StepFun in the table of families, and the words of its files."""

from collections.abc import Mapping
from dataclasses import replace

from potluck.model.families.experts import DEEPSEEK_EXPERTS
from potluck.model.families.facts import Family, OutputGate
from potluck.model.families.words import FULL, WINDOWED, first_entries, renamed, rope_of_kinds
from potluck.model.fields import Fields, invalid
from potluck.model.limits import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS

_DENSE = 3  # of the first layers, where no field says it
_HEADS = "num_attention_heads_per_layer"
_OTHERS = {
    "num_attention_groups": "num_key_value_heads",
    "moe_num_experts": "n_routed_experts",
    "moe_top_k": "num_experts_per_tok",
    "max_seq_len": "max_position_embeddings",
}


def _words(fields: Fields) -> Mapping[str, object]:
    """Lists of the layers that guess further tokens too; what layers with a window have is in an object of its own."""
    layers = fields.integer("num_hidden_layers", 1, MAX_LAYERS)
    kinds = first_entries(fields, "layer_types", layers) or [FULL] * layers
    limits = ("swiglu_limits", "swiglu_limits_shared")
    head_dim = fields.integer("head_dim", 1, MAX_HEAD_DIM)
    return renamed(fields, _OTHERS) | {
        "hidden_act": "silu",
        "layer_types": kinds,
        "mlp_layer_types": _mlps(fields, layers),
        _HEADS: first_entries(fields, _HEADS, layers) or _heads(fields, kinds),
        "query_pre_attn_scalar": fields.value("query_pre_attn_scalar") or head_dim,
        "rope_parameters": rope_of_kinds(fields, kinds),
        "rope_theta": None,  # which may be a list
        **{name: first_entries(fields, name, layers) or None for name in limits},
    }


def _heads(fields: Fields, kinds: list[object]) -> list[int]:
    heads = fields.integer("num_attention_heads", 1, MAX_HEADS)
    near = fields.integer("num_sliding_attention_heads", 1, MAX_HEADS, heads)
    if "attention_other_setting" in fields:
        near = fields.fields("attention_other_setting").integer(
            "num_attention_heads", 1, MAX_HEADS, near
        )
    return [near if kind == WINDOWED else heads for kind in kinds]


def _mlps(fields: Fields, layers: int) -> list[object]:
    if listed := first_entries(fields, "mlp_layer_types", layers):
        return listed
    name = "moe_layers_enum"
    sparse = set(range(_DENSE, layers))
    if isinstance(text := fields.value(name), str):
        numbers = [number.strip() for number in text.split(",")[:MAX_LAYERS] if number.strip()]
        if not all(number.isdecimal() for number in numbers):
            raise invalid(fields.path(name), text, "must be numbers of layers between commas")
        sparse = {int(number[:9]) for number in numbers}
    elif name in fields:
        sparse = set(fields.integers(name, 0, MAX_LAYERS, MAX_LAYERS))
    return ["sparse" if layer in sparse else "dense" for layer in range(layers)]


STEP: Mapping[str, Family] = {
    # Step-3.5, and the text of 3.7
    "Step3p5ForCausalLM": Family(
        defaults={
            "vocab_size": 128815,
            "hidden_size": 4096,
            "intermediate_size": 11264,
            "num_hidden_layers": 45,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 128000,
            "rms_norm_eps": 1e-5,
            "rope_local_base_freq": 1e4,
            "n_routed_experts": 288,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1280,
            "share_expert_dim": 1280,
            "moe_router_scaling_factor": 1.0,
        },
        words=_words,
        unit_offset=True,
        qk_norm="head",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
        output_gate=OutputGate(matrix="g_proj", function="sigmoid", of_heads=True),
        layer_heads=_HEADS,
        windows="all",
        layer_types=True,
        local_theta="rope_local_base_freq",
        partial_rotary=True,
        query_scalar="query_pre_attn_scalar",
        expert_limits=("swiglu_limits", "swiglu_limits_shared"),
        experts=replace(
            DEEPSEEK_EXPERTS,
            block="",
            router="moe.gate",
            bias="moe.router_bias",
            groups=False,
            normalise=True,
            scale="moe_router_scaling_factor",
            shared="share_expert",
            shared_size="share_expert_dim",
            shared_count=None,
            stacked="rows",
            stack_names={
                f"moe.{part}_proj.weight": f"experts.{part}_proj" for part in ("gate", "up", "down")
            },
        ),
    ),
}
