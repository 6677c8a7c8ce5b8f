"""What a short convolution is made of: a mixer whose state is its last inputs (LFM2)."""

from dataclasses import dataclass

from potluck.model.common_fields import read_kinds
from potluck.model.families.facts import Family
from potluck.model.fields import Fields
from potluck.model.limits import MAX_LAYERS, MAX_TAPS
from potluck.model.mixing.recurrent import RecurrentSizes
from potluck.model.projection import Projection
from potluck.model.quantized import Shape
from potluck.model.row_order import PairedRows

_BLOCK = "conv"
_KINDS = ("full_attention", "sliding_attention", _BLOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionSizes(RecurrentSizes):
    """As many numbers as hidden states have go through the convolution, each by itself."""

    size: int
    has_bias: bool = False
    norm_eps: float = 0.0  # it has no norm

    @property
    def channels(self) -> int:
        return self.size

    @property
    def values_size(self) -> int:
        return self.size

    @property
    def state_shape(self) -> Shape:
        """There is no other state than that of the convolution."""
        return (0,)

    @property
    def rows(self) -> int:
        """Numbers of a token's input: all B, C and x."""
        return 3 * self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionSpec(ConvolutionSizes):
    """C · (w * (B · x)), a causal convolution of few inputs (https://www.liquid.ai/blog/liquid-foundation-models-v2)."""

    @property
    def input(self) -> Projection:
        return Projection(
            parts=(f"{_BLOCK}.in_proj",),
            rows=(self.rows,),
            width=self.size,
            has_bias=self.has_bias,
        )

    @property
    def output(self) -> Projection:
        return Projection(
            parts=(f"{_BLOCK}.out_proj",),
            rows=(self.size,),
            width=self.size,
            has_bias=self.has_bias,
        )

    @property
    def projections(self) -> tuple[Projection, ...]:
        return self.input, self.output

    @property
    def small_tensors(self) -> dict[str, Shape]:
        """Its tensors beside the projections; the bias of the convolution is the last."""
        shapes: dict[str, Shape] = {f"{_BLOCK}.conv.weight": (self.size, 1, self.inputs)}
        if self.has_bias:
            shapes[f"{_BLOCK}.conv.bias"] = (self.size,)
        return shapes

    @property
    def rope_rows(self) -> dict[str, PairedRows]:
        """It has no rope."""
        return {}

    @property
    def kind(self) -> "ConvolutionSpec":
        """This mixer as far as its cost depends on it."""
        return self


def read_convolution(fields: Fields, family: Family, hidden: int) -> ConvolutionSpec | None:
    """The short convolutions of a model; None: its family has none."""
    if not family.convolutions:
        return None
    return ConvolutionSpec(
        size=hidden,
        inputs=fields.integer("conv_L_cache", 2, MAX_TAPS),
        has_bias=fields.flag("conv_bias", False),
    )


def convolution_layers(fields: Fields, layers: int) -> list[bool]:
    """For each layer whether it has a convolution in place of attention; without lists, none has."""
    if "layer_types" in fields:
        return [kind == _BLOCK for kind in read_kinds(fields, "layer_types", _KINDS, layers)]
    if "full_attn_idxs" not in fields:
        return [False] * layers
    attention = set(fields.integers("full_attn_idxs", 0, MAX_LAYERS, MAX_LAYERS))
    return [layer not in attention for layer in range(layers)]
