"""What a state space layer (Mamba 2) is made of: a mixer with a recurrent state in place of cached tokens."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from potluck.model.common_fields import read_kinds, read_norm_eps
from potluck.model.families.facts import Family
from potluck.model.fields import Fields, invalid
from potluck.model.halves import FEED_FORWARDS
from potluck.model.limits import MAX_HEAD_DIM, MAX_HEADS, MAX_INTERMEDIATE, MAX_LAYERS, MAX_TAPS
from potluck.model.mixing.recurrent import RecurrentSizes
from potluck.model.projection import Projection
from potluck.model.quantized import Quantization, Shape
from potluck.model.row_order import PairedRows

_ENDLESS = (math.inf, "inf", "Infinity", {"__float__": "Infinity"})  # as files write it
_KINDS = ("attention", "full_attention", "mamba", "linear_attention")
_SPACES = _KINDS[2:]


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaHeads(RecurrentSizes):
    """The heads of a state space, of which some share the B and C of a group."""

    heads: int
    head_size: int  # numbers of x
    groups: int
    has_norm: bool = True  # of the result, in each group
    state_size: int  # numbers of B, and of C

    @property
    def values_size(self) -> int:
        return self.heads * self.head_size

    @property
    def shared_size(self) -> int:
        """Numbers of all B, and of all C."""
        return self.groups * self.state_size

    @property
    def channels(self) -> int:
        """Numbers that go through the convolution: all x, B and C."""
        return self.values_size + 2 * self.shared_size

    @property
    def state_shape(self) -> Shape:
        """Of each head a matrix (B, x)."""
        return self.heads, self.state_size, self.head_size

    @property
    def rows(self) -> int:
        """Numbers of a token's input: all z, x, B, C, and what steps are made of."""
        return self.values_size + self.channels + self.heads


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSpec(MambaHeads):
    """A state space with one decay for each head (https://arxiv.org/abs/2405.21060, section 7).

    Inputs x, B and C go through a causal convolution of few inputs, each number by itself. Then each head has a
    matrix S, which a token changes with a step Δ of its own, and reads:

        S ← exp(-exp(A) Δ) S + B (Δ x)ᵀ        y = Sᵀ C + D x

    Some heads share the B and C of a group. The result is multiplied with SiLU(z), and mostly normed in each group.
    """

    hidden_size: int
    block: str  # what files call it
    has_bias: bool  # of the convolution
    has_projection_bias: bool = False
    has_whole_decays: bool = False  # files have -exp(A), as llama.cpp's converter writes it

    @property
    def input(self) -> Projection:
        return Projection(
            parts=(f"{self.block}.in_proj",),
            rows=(self.rows,),
            width=self.hidden_size,
            has_bias=self.has_projection_bias,
        )

    @property
    def output(self) -> Projection:
        return Projection(
            parts=(f"{self.block}.out_proj",),
            rows=(self.hidden_size,),
            width=self.values_size,
            has_bias=self.has_projection_bias,
        )

    @property
    def projections(self) -> tuple[Projection, ...]:
        return self.input, self.output

    @property
    def small_tensors(self) -> dict[str, Shape]:
        """Its tensors beside the projections; the bias of the convolution is the last."""
        shapes: dict[str, Shape] = {
            "conv1d.weight": (self.channels, 1, self.inputs),
            "dt_bias": (self.heads,),
            "A_log": (self.heads,),
            "D": (self.heads,),
        }
        if self.has_norm:
            shapes["norm.weight"] = (self.values_size,)
        if self.has_bias:
            shapes["conv1d.bias"] = (self.channels,)
        return {f"{self.block}.{name}": shape for name, shape in shapes.items()}

    @property
    def rope_rows(self) -> dict[str, PairedRows]:
        """It has no rope."""
        return {}

    @property
    def kind(self) -> "MambaSpec":
        """This mixer as far as its cost depends on it."""
        return replace(self, has_whole_decays=False)


def read_mamba(
    fields: Fields, family: Family, hidden: int, stored: Quantization | None
) -> MambaSpec | None:
    """The state space layers of a model; None: its family has none. `stored` says how files hold the matrices."""
    if family.mamba is None:
        return None
    heads = fields.integer("mamba_n_heads", 1, MAX_HEADS)
    inner = _inner_size(fields, hidden)
    if fields.value("mamba_d_head") in (None, "auto"):
        if inner is None:
            raise invalid("mamba_d_head", fields.value("mamba_d_head"), "must be a number")
        size = inner // heads
    else:
        size = fields.integer("mamba_d_head", 1, MAX_HEAD_DIM)
    if inner is not None and heads * size != inner:
        raise invalid("mamba_n_heads", heads, f"times mamba_d_head must be {inner}")
    groups = fields.integer("mamba_n_groups", 1, heads)
    if heads % groups:
        raise invalid("mamba_n_groups", groups, f"must divide mamba_n_heads = {heads}")
    limits = fields.value("time_step_limit")
    if limits is not None and not _is_unlimited(limits):
        raise invalid("time_step_limit", limits, "must be from 0 to infinity")
    if (activation := fields.text("hidden_act", "silu")) != "silu":
        raise invalid("hidden_act", activation, "must be silu beside a state space")
    has_norm = fields.flag("mamba_rms_norm", True)
    if has_norm and fields.flag("mamba_norm_before_gate", False):
        raise invalid("mamba_norm_before_gate", True, "must be false")
    return MambaSpec(
        hidden_size=hidden,
        block=family.mamba,
        heads=heads,
        head_size=size,
        groups=groups,
        state_size=fields.integer("mamba_d_state", 1, MAX_HEAD_DIM),
        inputs=fields.integer("mamba_d_conv", 2, MAX_TAPS),
        norm_eps=read_norm_eps(fields),
        has_norm=has_norm,
        has_bias=fields.flag("mamba_conv_bias", True),
        has_projection_bias=fields.flag("mamba_proj_bias", False),
        has_whole_decays=stored is not None and stored.method == "gguf",
    )


def _inner_size(fields: Fields, hidden: int) -> int | None:
    """Numbers of all heads together; None: these say it themselves."""
    if "mamba_d_ssm" in fields:
        return fields.integer("mamba_d_ssm", 1, MAX_INTERMEDIATE)
    if "mamba_expand" in fields:
        return fields.integer("mamba_expand", 1, MAX_INTERMEDIATE // hidden) * hidden
    return None


def _is_unlimited(limits: object) -> bool:
    """Whether steps have no other limits than 0 and infinity, as in all published models."""
    if not isinstance(limits, list | tuple):
        return False
    both = tuple(cast("Sequence[object]", limits))
    return len(both) == 2 and both[0] == 0 and both[1] in _ENDLESS


def mamba_layers(fields: Fields, layers: int) -> list[bool]:
    """For each layer whether it has a state space in place of attention; without a list, all have."""
    if "layer_types" not in fields:
        attention = set(fields.integers("attn_layer_indices", 0, MAX_LAYERS, MAX_LAYERS))
        return [layer not in attention for layer in range(layers)]
    kinds = read_kinds(fields, "layer_types", (*_KINDS, *FEED_FORWARDS), layers)
    return [kind in _SPACES for kind in kinds]
