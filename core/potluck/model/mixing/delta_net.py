"""What a gated delta net is made of: a mixer with a recurrent state in place of cached tokens."""

from dataclasses import dataclass, replace

from potluck.model.families.facts import GateFunction
from potluck.model.mixing.recurrent import RecurrentSizes
from potluck.model.projection import Projection
from potluck.model.quantized import Shape
from potluck.model.row_order import PairedRows

_BLOCK = "linear_attn."
_RATES = ("in_proj_b", "in_proj_a", "in_proj_ba")


def is_of_rates(name: str) -> bool:
    """Whether a tensor is a matrix that rates and decays are computed of."""
    return name.endswith(tuple(f".{_BLOCK}{matrix}.weight" for matrix in _RATES))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaHeads(RecurrentSizes):
    """The heads of a gated delta net, and how what is computed for them is ordered."""

    key_heads: int
    value_heads: int
    key_size: int  # numbers of a key
    value_size: int  # numbers of a value
    gate: GateFunction  # of the result
    has_joined_inputs: bool  # files have all of a key head side by side, in one matrix
    has_joined_rates: bool  # likewise what decays and rates are computed of
    has_tiled_heads: bool = False  # value head i is of key head i modulo their number (llama.cpp)
    has_channel_decays: bool = False  # each number of a key has a decay of its own
    # Logarithms of decays are this · sigmoid(exp(A) · step), and not -exp(A) · softplus(step). None: they are not.
    least_log: float | None = None

    @property
    def keys_size(self) -> int:
        return self.key_heads * self.key_size

    @property
    def values_size(self) -> int:
        return self.value_heads * self.value_size

    @property
    def channels(self) -> int:
        """Numbers that go through the convolution: all queries, keys and values."""
        return 2 * self.keys_size + self.values_size

    @property
    def state_shape(self) -> Shape:
        """Of each value head a matrix (keys, values)."""
        return self.value_heads, self.key_size, self.value_size

    @property
    def rows(self) -> int:
        """Numbers of a token's input: all queries, keys and values, and gates of the result."""
        return self.channels + self.values_size

    @property
    def decays_size(self) -> int:
        """Decays of a token."""
        return self.value_heads * (self.key_size if self.has_channel_decays else 1)

    @property
    def decays_step(self) -> int:
        """Numbers that a token's decays are made of."""
        return self.key_size if self.has_channel_decays else self.value_heads

    @property
    def group(self) -> int:
        """Value heads of a key head."""
        return self.value_heads // self.key_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNetSpec(DeltaHeads):
    """A gated delta net (https://arxiv.org/abs/2412.06464), as Qwen3-Next has it.

    Queries, keys and values go through a causal convolution of few inputs, each number by itself. Then
    each value head has a matrix S, which a token changes: with a decay g and a rate β of its own,

        S ← g S + k (β (v - g Sᵀ k))ᵀ

    so that S gives its value for its key. The result is Sᵀ q, normed and gated. Some value heads share the
    queries and keys of a key head.
    """

    hidden_size: int
    has_whole_decays: bool = False  # files have -exp(A), not A

    @property
    def input(self) -> Projection:
        """Queries, keys, values, and gates of the result."""
        parts, rows = ("in_proj_qkv", "in_proj_z"), (self.channels, self.values_size)
        if self.has_joined_inputs:
            parts, rows = ("in_proj_qkvz",), (sum(rows),)
        return Projection(
            parts=tuple(_BLOCK + part for part in parts), rows=rows, width=self.hidden_size
        )

    @property
    def rates(self) -> Projection:
        """What β and decays are computed of; it stays f32, since rounding of a decay adds up from token to token."""
        parts, rows = _RATES[:2], (self.value_heads, self.value_heads)
        if self.has_joined_rates:
            parts, rows = _RATES[2:], (sum(rows),)
        return Projection(
            parts=tuple(_BLOCK + part for part in parts), rows=rows, width=self.hidden_size
        )

    @property
    def output(self) -> Projection:
        return Projection(
            parts=(f"{_BLOCK}out_proj",), rows=(self.hidden_size,), width=self.values_size
        )

    @property
    def projections(self) -> tuple[Projection, ...]:
        return self.input, self.rates, self.output

    @property
    def small_tensors(self) -> dict[str, Shape]:
        return {
            f"{_BLOCK}conv1d.weight": (self.channels, 1, self.inputs),
            f"{_BLOCK}dt_bias": (self.value_heads,),
            f"{_BLOCK}A_log": (self.value_heads,),
            f"{_BLOCK}norm.weight": (self.value_size,),
        }

    @property
    def rope_rows(self) -> dict[str, PairedRows]:
        """It has no rope."""
        return {}

    @property
    def kind(self) -> "DeltaNetSpec":
        """This mixer as far as its cost depends on it: the order of heads in files costs nothing."""
        return replace(self, has_joined_inputs=False, has_joined_rates=False, has_tiled_heads=False)
