"""Rotary position embedding (rope): the frequencies of every kind of scaling, and the rotation.

Checked against `transformers/modeling_rope_utils.py`. Two kinds of scaling depend on the length of
a sequence (`Stretches`). Up to the length of the training they are those of `transformers`. Beyond it, so is
longrope, whose frequencies change once, and for which `transformers` gives up a cache of before that.
Those of dynamic scaling change with each token there, which would make all cached keys wrong: here they
are those of a context that is full, as in vLLM.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from potluck.engine.kernels.products.tensors import Angles
from potluck.engine.layers.angles import cosines_and_sines
from potluck.model.mixing.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    ProportionalScaling,
    QueryScale,
    Rope,
    Stretches,
    YarnScaling,
)
from potluck.model.powers import natural_logarithm, power

_CPU = torch.device("cpu")
_AT_ONCE = 128  # positions whose angles are computed at a time, in the processor's cache


def rotary_frequencies(rope: Rope, context: int) -> tuple[Tensor, float]:
    """Radians per position of each pair, (dim / 2,), f32, and a factor for cosines and sines.

    `context` is the most tokens of the sessions that they are for.
    """
    pairs = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
    frequencies = 1.0 / _powers(rope.theta, pairs)
    match rope.scaling:
        case None:
            return frequencies, 1.0
        case ProportionalScaling(pairs=turning, factor=factor):
            frequencies[turning:] = 0.0
            return frequencies / factor, 1.0
        case LinearScaling(factor=factor):
            return frequencies / factor, 1.0
        case Llama3Scaling() as scaling:
            return _llama3(frequencies, scaling), 1.0
        case DynamicScaling() as scaling:
            return 1.0 / _powers(_dynamic_theta(rope, scaling, context), pairs), 1.0
        case YarnScaling() as scaling:
            return _yarn(frequencies, rope, scaling), scaling.attention_factor
        case LongScaling() as scaling:
            if context > scaling.original_max_position:
                factors, attention = scaling.long, scaling.long_attention_factor
            else:
                factors, attention = scaling.short, scaling.attention_factor
            return 1.0 / (torch.tensor(factors) * _powers(rope.theta, pairs)), attention


def _powers(base: float, exponents: Tensor) -> Tensor:
    """The base to the power of each exponent, as f32."""
    return torch.tensor([power(base, exponent) for exponent in exponents.tolist()])


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Blend divided and unchanged frequencies.

    The frequencies of pairs that turn less than `low` times in the original context are divided,
    those of pairs that turn more than `high` times are unchanged, and those between are blended.
    """
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_max_position * frequencies / (2 * math.pi)
    width = high - low or 1e-9  # as good as none
    kept = ((turns - low) / width).clamp(0.0, 1.0)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


def _dynamic_theta(rope: Rope, scaling: DynamicScaling, context: int) -> float:
    longer = max(context, scaling.original_max_position) / scaling.original_max_position
    stretch = scaling.factor * longer - (scaling.factor - 1)
    return rope.theta * power(stretch, rope.dim / (rope.dim - 2))


def _yarn(frequencies: Tensor, rope: Rope, scaling: YarnScaling) -> Tensor:
    """Keep the frequencies of pairs that turn often, divide those of others, with a ramp between."""

    def pair(turns: float) -> float:  # the pair that turns so many times in the original context
        radians = scaling.original_max_position / (turns * 2 * math.pi)
        return rope.dim * natural_logarithm(radians) / (2 * natural_logarithm(rope.theta))

    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    width = high - low or 0.001
    divided = ((torch.arange(rope.dim // 2, dtype=torch.float32) - low) / width).clamp(0.0, 1.0)
    return frequencies / scaling.factor * divided + frequencies * (1 - divided)


class Rotary:
    """A table of the cosines and sines of all positions so far. A stage has one for each rope."""

    def __init__(self, rope: Rope, context: int, dtype: torch.dtype, device: torch.device) -> None:
        self._frequencies, self._factor = rotary_frequencies(rope, context)
        self._dtype, self._device = dtype, device
        self._cos = self._sin = torch.empty((0, 1, rope.dim), dtype=dtype, device=device)
        self._query_scale = rope.query_scale
        self._axes = rope.axes * 2 or (0,) * rope.dim  # of both halves
        self._factors = torch.empty((0, 1, 1), dtype=dtype, device=device)
        self._positions = 0
        self._addresses, self._row_bytes = (0, 0), rope.dim * dtype.itemsize

    def angles(self, position: int, tokens: int) -> Angles:
        """Those of tokens from this position on."""
        end = position + tokens
        if end > self._positions:
            self._grow(max(end, self._positions * 9 // 8, 512))
        return Angles(
            self._cos[position:end],
            self._sin[position:end],
            None if self._query_scale is None else self._factors[position:end],
        )

    def angles_at(self, places: Tensor) -> Angles:
        """Those of tokens at these places, (3, T), on the CPU: where each is in time, by row and by column.

        Without axes, all pairs turn by the first.
        """
        end = int(places.max()) + 1
        if end > self._positions:
            self._grow(max(end, 512))
        columns = torch.arange(self._cos.shape[-1], device=self._device)
        rows = places.long()[torch.tensor(self._axes)].t().to(self._device)  # (T, dim)
        first = rows[:, 0]
        return Angles(
            self._cos[rows, 0, columns][:, None].contiguous(),
            self._sin[rows, 0, columns][:, None].contiguous(),
            None if self._query_scale is None else self._factors[first],
        )

    def addresses(self, position: int) -> tuple[int, int, int]:
        """The addresses of one position's angles, the last 0 if there are no factors; valid until the table grows."""
        if position >= self._positions:
            self.angles(position, 1)
        offset = position * self._row_bytes
        factor = 0
        if self._query_scale is not None:
            factor = self._factors.data_ptr() + position * self._dtype.itemsize
        return self._addresses[0] + offset, self._addresses[1] + offset, factor

    def _grow(self, positions: int) -> None:
        # Angles in f32 as the models were trained; f64 would differ by 1e-3 at position 30,000.
        new = torch.arange(self._positions, positions, dtype=torch.float32)
        cos, sin = torch.empty((2, len(new), len(self._frequencies)))
        for some, *out in zip(*(each.split(_AT_ONCE) for each in (new, cos, sin)), strict=True):
            angles = torch.outer(some, self._frequencies).double().numpy()
            for target, made in zip(out, cosines_and_sines(angles), strict=True):
                target.copy_(torch.from_numpy(made)).mul_(self._factor)
        cos = torch.cat((cos, cos), -1)[:, None].to(self._device, self._dtype)
        sin = torch.cat((-sin, sin), -1)[:, None].to(self._device, self._dtype)
        self._cos, self._sin = torch.cat((self._cos, cos)), torch.cat((self._sin, sin))
        if (scale := self._query_scale) is not None:
            factors = [
                query_factor(scale, position) for position in range(self._positions, positions)
            ]
            added = torch.tensor(factors)[:, None, None].to(self._device, self._dtype)
            self._factors = torch.cat((self._factors, added))
        self._positions = positions
        self._addresses = self._cos.data_ptr(), self._sin.data_ptr()


class Rotaries:
    """The tables of a stage: for each stretch one of each rope."""

    def __init__(
        self,
        ropes: Sequence[Rope],
        context: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device = _CPU,
    ) -> None:
        """`context` is the most tokens of any session."""
        self._stretches = stretches = Stretches.of(ropes)
        self._tables = [
            [Rotary(rope, stretches.most(each, context), dtype, device) for rope in ropes]
            for each in range(stretches.at(context) + 1)
        ]

    def of(self, stretch: int) -> list[Rotary]:
        """For each rope the table of sessions with this stretch."""
        return self._tables[stretch]

    def at(self, tokens: int) -> list[Rotary]:
        """For each rope the table of sessions with so many tokens."""
        return self._tables[self._stretches.at(tokens)]


def query_factor(scale: QueryScale, position: int) -> float:
    """What multiplies the queries at a position."""
    times = (position + scale.first) // scale.original_max_position
    return 1.0 + scale.beta * natural_logarithm(1.0 + times)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate (T, H, dim) in place: the halves (a, b) of each head → (a·cos - b·sin, b·cos + a·sin)."""
    swapped = x.roll(x.shape[-1] // 2, -1)  # (b, a)
    x.mul_(cos).addcmul_(swapped, sin)
