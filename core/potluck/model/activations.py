"""Read from a config what feed-forwards make of a gate and an up."""

from potluck.model.families.facts import Activation, ClampedSwiglu, Family, GateFunction
from potluck.model.fields import Fields, invalid
from potluck.model.layers import Experts
from potluck.model.limits import MAX_MULTIPLIER


def read_expert_activation(
    fields: Fields, family: Family, experts: Experts
) -> ClampedSwiglu | None:
    """The activation that only the experts have; None: they have that of other layers."""
    if not family.clamped_swiglu:
        return None
    return ClampedSwiglu(
        alpha=fields.number("swiglu_alpha", 0.0, MAX_MULTIPLIER, 1.702),
        limit=fields.number("swiglu_limit", 0.0, MAX_MULTIPLIER, 7.0),
        has_pairs=experts.facts.fused is not None,
    )


def read_activation(fields: Fields, family: Family) -> Activation:
    """The activation of all other layers."""
    function = _gate_function(fields, family)
    if not family.clamped_silu or "swiglu_limit" not in fields:
        return function
    if function != "silu":
        raise invalid(family.activation, function, "must be silu, of which swiglu_limit is")
    limit = fields.number("swiglu_limit", 0.0, MAX_MULTIPLIER)
    return ClampedSwiglu(alpha=1.0, limit=limit, has_pairs=False, more=0.0)


def _gate_function(fields: Fields, family: Family) -> GateFunction:
    name = fields.text(family.activation, "silu")
    match family.activation_names.get(name, name):
        case "silu":
            return "silu"
        case "gelu_pytorch_tanh":
            return "gelu_pytorch_tanh"
        case other:
            raise invalid(family.activation, other, "must be silu or gelu_pytorch_tanh")
