"""Read from a config what the MLP of its layers is, and what it does with gates and ups."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from potluck.model.common_fields import read_each, read_fact
from potluck.model.families.facts import (
    UNGATED,
    Activation,
    ClampedSilu,
    ClampedSwiglu,
    Family,
    GateFunction,
    UngatedFunction,
)
from potluck.model.fields import Fields, invalid
from potluck.model.layers import DenseSpec, Experts, FeedForward, MoeSpec, ParallelSpec
from potluck.model.limits import MAX_INTERMEDIATE, MAX_MULTIPLIER
from potluck.model.projection import Projection

GIVEN_XIELU = "xielu_alpha_p", "xielu_alpha_n"  # of all layers, which no file of the Hub has
_XIELU = ("act_fn.alpha_p", "act_fn.alpha_n")  # the names of its numbers, below the MLP


Limits: TypeAlias = tuple[ClampedSilu | None, ClampedSilu | None]
"""What limits the products of a layer's experts, and those of its shared expert."""


def read_mlps(
    fields: Fields,
    family: Family,
    hidden: int,
    take: Sequence[bool],
    *,
    splits_gates: bool = False,
) -> list[DenseSpec]:
    """The MLP of each layer, if it has one. Those that take keys of earlier ones may have one twice as large."""
    dense = read_dense(fields, family, hidden, splits_gates=splits_gates)
    wide = dense
    if family.wide_mlp is not None and fields.flag(family.wide_mlp, False):
        wide = read_dense(fields, family, hidden, splits_gates=splits_gates, times=2)
    mlps = [wide if takes else dense for takes in take]
    if dense.activation != "xielu" or GIVEN_XIELU[0] not in fields:
        return mlps
    # A file that says the numbers themselves has no tensors of them.
    bound, count = MAX_MULTIPLIER, len(mlps)
    pairs = zip(*(fields.numbers(name, -bound, bound, count) for name in GIVEN_XIELU), strict=True)
    both = zip(mlps, pairs, strict=True)
    return [replace(mlp, learned=(), numbers=numbers) for mlp, numbers in both]


def read_dense(
    fields: Fields, family: Family, hidden: int, *, splits_gates: bool = False, times: int = 1
) -> DenseSpec:
    """The MLP of layers without experts, with a size so many times that of the config.

    `splits_gates`: files have gates and ups in a matrix each.
    """
    size = times * _size(fields, family)
    has_bias, block = read_fact(fields, family.mlp_bias), f"{family.mlp_block}."
    gate, up, last = family.mlp_parts
    names, rows = (gate, up), (size, size)
    if family.fused or family.fused_mlp:
        names, rows = ("gate_up_proj",), (2 * size,)
    activation = _activation(fields, family)
    if activation in UNGATED:
        names, rows = (up,), (size,)
    if family.mlp_names is not None and not splits_gates:
        (first, last), rows = family.mlp_names, (2 * size,)
        names = (first,)
    parts = tuple(block + name for name in names)
    down = Projection(parts=(block + last,), rows=(hidden,), width=size, has_bias=has_bias)
    return DenseSpec(
        gate_up=Projection(parts=parts, rows=rows, width=hidden, has_bias=has_bias),
        down=down,
        activation=activation,
        learned=tuple(block + name for name in _XIELU) if activation == "xielu" else (),
    )


def read_expert_activation(
    fields: Fields, family: Family, experts: Experts
) -> ClampedSwiglu | None:
    """The activation that only the experts have; None: they have that of other layers."""
    if family.clamped_swiglu in (False, "plain"):
        return None
    return _clamped_swiglu(fields, has_pairs=experts.facts.fused is not None)


def read_limits(fields: Fields, family: Family, layers: int) -> list[Limits]:
    """What limits products in each layer."""
    if family.expert_limits is None:
        return [(None, None)] * layers
    listed = [_listed_limits(fields, name, layers) for name in family.expert_limits]
    return list(zip(*listed, strict=True))


def limited(whole: FeedForward, limits: Limits) -> FeedForward:
    """The same with these limits; an MLP has those of a shared expert."""
    own, shared = (limit or whole.activation for limit in limits)
    match whole:
        case DenseSpec():
            return replace(whole, activation=shared)
        case MoeSpec():
            more = None if shared == own else shared
            return replace(whole, activation=own, shared_activation=more)
        case ParallelSpec():
            return whole


def _listed_limits(fields: Fields, name: str, layers: int) -> list[ClampedSilu | None]:
    if name not in fields:
        return [None] * layers
    limits = read_each(fields, name, 0.0, MAX_MULTIPLIER, layers)
    return [None if limit is None else ClampedSilu(limit) for limit in limits]


def _clamped_swiglu(fields: Fields, *, has_pairs: bool) -> ClampedSwiglu:
    return ClampedSwiglu(
        alpha=fields.number("swiglu_alpha", 0.0, MAX_MULTIPLIER, 1.702),
        limit=fields.number("swiglu_limit", 0.0, MAX_MULTIPLIER, 7.0),
        has_pairs=has_pairs,
    )


def _size(fields: Fields, family: Family) -> int:
    usual = Family().mlp_size
    size = fields.integer(
        family.mlp_size if family.mlp_size in fields else usual, 1, MAX_INTERMEDIATE
    )
    if family.mlp_adjusted is None or not fields.flag(family.mlp_adjusted, False):
        return size
    # Two thirds of it, times a factor, rounded up to whole blocks (the first LFM2).
    factor = fields.number("block_ffn_dim_multiplier", 0.0, MAX_MULTIPLIER, 1.0)
    block = fields.integer("block_multiple_of", 1, MAX_INTERMEDIATE, 1)
    size = -(-int(factor * int(2 * size / 3)) // block) * block
    if not 1 <= size <= MAX_INTERMEDIATE:
        raise invalid(
            "block_ffn_dim_multiplier", factor, f"must leave 1 to {MAX_INTERMEDIATE} rows"
        )
    return size


def _activation(fields: Fields, family: Family) -> Activation:
    function = _function(fields, family)
    if family.clamped_swiglu == "everywhere":
        return _clamped_swiglu(fields, has_pairs=False)
    if family.clamped_swiglu != "plain" or "swiglu_limit" not in fields:
        return function
    if function != "silu":
        raise invalid(family.activation, function, "must be silu, of which swiglu_limit is")
    limit = fields.number("swiglu_limit", 0.0, MAX_MULTIPLIER)
    return ClampedSwiglu(alpha=1.0, limit=limit, has_pairs=False, more=0.0)


def _function(fields: Fields, family: Family) -> GateFunction | UngatedFunction:
    name = fields.text(family.activation, "silu")
    match family.activation_names.get(name, name):
        case "silu":
            return "silu"
        case "gelu_pytorch_tanh":
            return "gelu_pytorch_tanh"
        case "relu2":
            return "relu2"
        case "gelu_alone":
            return "gelu_alone"
        case "xielu":
            return "xielu"
        case other:
            known = "silu, gelu_pytorch_tanh, relu2 or xielu"
            raise invalid(family.activation, other, f"must be {known}")
