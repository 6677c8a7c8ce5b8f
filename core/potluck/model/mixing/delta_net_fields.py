"""Read from a config what its delta nets are, and which layers have one."""

from potluck.model.common_fields import read_kinds, read_norm_eps
from potluck.model.families.facts import Family, GateFunction
from potluck.model.fields import Fields, invalid
from potluck.model.limits import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_TAPS
from potluck.model.mixing.delta_net import DeltaNetSpec
from potluck.model.quantized import Quantization

_GATES: dict[str, GateFunction] = {"silu": "silu", "swish": "silu", "sigmoid": "sigmoid"}


def read_delta_net(
    fields: Fields, family: Family, hidden: int, stored: Quantization | None
) -> DeltaNetSpec | None:
    """The delta net of a model; None: its family has none. `stored` says how files hold the matrices."""
    if family.delta_net is None:
        return None
    key_heads = fields.integer("linear_num_key_heads", 1, MAX_HEADS)
    value_heads = fields.integer("linear_num_value_heads", 1, MAX_HEADS)
    if value_heads % key_heads:
        raise invalid(
            "linear_num_value_heads",
            value_heads,
            f"must be a multiple of linear_num_key_heads = {key_heads}",
        )
    if (activation := fields.text("hidden_act", "silu")) != "silu":
        raise invalid("hidden_act", activation, "must be silu beside a delta net")
    gate = fields.text("output_gate_type", activation)
    if gate not in _GATES:
        raise invalid("output_gate_type", gate, f"must be {', '.join(_GATES)}")
    converted = None if stored is None else stored.delta_net
    is_joined = family.delta_net == "joined"
    return DeltaNetSpec(
        hidden_size=hidden,
        key_heads=key_heads,
        value_heads=value_heads,
        key_size=fields.integer("linear_key_head_dim", 1, MAX_HEAD_DIM),
        value_size=fields.integer("linear_value_head_dim", 1, MAX_HEAD_DIM),
        inputs=fields.integer("linear_conv_kernel_dim", 2, MAX_TAPS),
        norm_eps=read_norm_eps(fields),
        gate=_GATES[gate],
        has_joined_inputs=is_joined and converted is None,
        has_joined_rates=is_joined,
        has_tiled_heads=converted == "tiled",
        has_whole_decays=converted is not None,
    )


def delta_net_layers(fields: Fields, layers: int) -> list[bool]:
    """For each layer whether it has a delta net in place of attention."""
    if "layer_types" in fields:
        # Qwen 4 has an indexer in its attention, which transformers gives a name of its own.
        known = ("full_attention", "indexed_attention", "linear_attention")
        kinds = read_kinds(fields, "layer_types", known, layers)
        return [kind == "linear_attention" for kind in kinds]
    interval = fields.integer("full_attention_interval", 1, MAX_LAYERS)
    return [bool((layer + 1) % interval) for layer in range(layers)]
