"""A delta net with a decay for each channel (Kimi Delta Attention): what it is made of, and its fields in a config."""

from dataclasses import dataclass, replace

from potluck.model.common_fields import read_kinds, read_norm_eps
from potluck.model.families.facts import Family
from potluck.model.fields import Fields, invalid
from potluck.model.limits import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_TAPS
from potluck.model.mixing.delta_net import DeltaHeads
from potluck.model.projection import Projection
from potluck.model.quantized import Quantization, Shape
from potluck.model.row_order import PairedRows

_BLOCK = "self_attn."
_DECAYS = ("b_proj", "f_a_proj", "f_b_proj")
_MOST_BOUND = 100.0  # of a decay's logarithm, below zero; 5 is in use


def is_of_channel_decays(name: str) -> bool:
    """Whether a tensor is a matrix that rates and decays are computed of."""
    return name.endswith(tuple(f".{_BLOCK}{matrix}.weight" for matrix in _DECAYS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelDeltaSpec(DeltaHeads):
    """A gated delta net (see `DeltaNetSpec`) whose matrices decay by a factor of its own for each number of a key.

    https://arxiv.org/abs/2510.26692, section 3. What decays and gates are computed of goes through few numbers.
    """

    hidden_size: int
    has_whole_decays: bool = False  # files have -exp(A), not A

    @property
    def input(self) -> Projection:
        """Queries, keys, values, and what gates of the result are made of."""
        parts = tuple(f"{_BLOCK}{part}" for part in ("q_proj", "k_proj", "v_proj", "g_a_proj"))
        rows = (self.keys_size, self.keys_size, self.values_size, self.value_size)
        return Projection(parts=parts, rows=rows, width=self.hidden_size)

    @property
    def gates(self) -> Projection:
        part, rows = f"{_BLOCK}g_b_proj", self.values_size
        return Projection(parts=(part,), rows=(rows,), width=self.value_size)

    @property
    def rates(self) -> Projection:
        """β, and what decays are made of; it stays f32, since rounding of a decay adds up from token to token."""
        parts = tuple(f"{_BLOCK}{part}" for part in _DECAYS[:2])
        rows = (self.value_heads, self.key_size)
        return Projection(parts=parts, rows=rows, width=self.hidden_size)

    @property
    def decays(self) -> Projection:
        """What decays are made of → these of all channels; f32 too."""
        part, rows = f"{_BLOCK}{_DECAYS[2]}", self.keys_size
        return Projection(parts=(part,), rows=(rows,), width=self.key_size)

    @property
    def output(self) -> Projection:
        part = f"{_BLOCK}o_proj"
        return Projection(parts=(part,), rows=(self.hidden_size,), width=self.values_size)

    @property
    def projections(self) -> tuple[Projection, ...]:
        return self.input, self.gates, self.rates, self.decays, self.output

    @property
    def convolutions(self) -> dict[str, Shape]:
        """Those of queries, keys and values."""
        sizes = (self.keys_size, self.keys_size, self.values_size)
        return {
            f"{_BLOCK}{letter}_conv1d.weight": (size, 1, self.inputs)
            for letter, size in zip("qkv", sizes, strict=True)
        }

    @property
    def small_tensors(self) -> dict[str, Shape]:
        return self.convolutions | {
            f"{_BLOCK}dt_bias": (self.keys_size,),
            f"{_BLOCK}A_log": (self.value_heads,),
            f"{_BLOCK}o_norm.weight": (self.value_size,),
        }

    @property
    def rope_rows(self) -> dict[str, PairedRows]:
        """It has no rope."""
        return {}

    @property
    def kind(self) -> "ChannelDeltaSpec":
        """This mixer as far as its cost depends on it."""
        return replace(self, has_whole_decays=False)


def read_channel_delta(
    fields: Fields, family: Family, hidden: int, stored: Quantization | None
) -> ChannelDeltaSpec | None:
    """The delta net of a model; None: its family has none. `stored` says how files hold it."""
    if family.channel_delta is None:
        return None
    if (activation := fields.text("hidden_act", "silu")) != "silu":
        raise invalid("hidden_act", activation, "must be silu beside a delta net")
    eps = read_norm_eps(fields)
    heads, size, inputs = "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim"
    bound = "linear_lower_bound"
    if (name := "linear_attn_config") in fields:
        fields = fields.fields(name).over(
            {one: fields.value(one) for one in (heads, size, inputs, bound)}
        )
        heads, size, inputs = (
            own if own in fields else usual
            for own, usual in (
                ("num_heads", heads),
                ("head_dim", size),
                ("short_conv_kernel_size", inputs),
            )
        )
        bound = "gate_lower_bound" if "gate_lower_bound" in fields else bound
    count, numbers = fields.integer(heads, 1, MAX_HEADS), fields.integer(size, 1, MAX_HEAD_DIM)
    return ChannelDeltaSpec(
        hidden_size=hidden,
        key_heads=count,
        value_heads=count,
        key_size=numbers,
        value_size=numbers,
        inputs=fields.integer(inputs, 2, MAX_TAPS),
        norm_eps=eps,
        gate="sigmoid",
        has_joined_inputs=False,
        has_joined_rates=False,
        has_channel_decays=True,
        has_whole_decays=stored is not None and stored.delta_net is not None,
        least_log=_bound(fields, bound) if family.channel_delta == "bounded" else None,
    )


def _bound(fields: Fields, name: str) -> float | None:
    """Below which no decay's logarithm is; None: it has no bound."""
    return -_positive(fields, name) if name in fields else None


def _positive(fields: Fields, name: str) -> float:
    value = fields.value(name)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not -_MOST_BOUND <= value < 0
    ):
        raise invalid(fields.path(name), value, f"must be from {-_MOST_BOUND:g} to below 0")
    return -float(value)


def channel_delta_layers(fields: Fields, family: Family, layers: int) -> list[bool]:
    """For each layer whether it has a delta net in place of attention."""
    if "layer_types" in fields:
        known = ("full_attention", "indexed_attention", "linear_attention")
        kinds = read_kinds(fields, "layer_types", known, layers)
        return [kind == "linear_attention" for kind in kinds]
    listed, name = fields.value("linear_attn_config"), "kda_layers"
    if listed is not None and name in (given := fields.fields("linear_attn_config")):
        numbers = set(given.integers(name, 1, MAX_LAYERS, MAX_LAYERS))  # which count from 1
        return [layer + 1 in numbers for layer in range(layers)]
    every, place = 4, 3 if family.channel_delta == "bounded" else 0
    return [layer % every != place or not layer for layer in range(layers)]
