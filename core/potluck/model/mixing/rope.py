"""Rotary position embedding (rope): how a head turns, and with which frequencies in sessions of some length.

What a config says of it is read by `rope_fields.py`; `engine/layers/rotary.py` turns with it.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Positions divided by a factor (https://arxiv.org/abs/2306.15595)."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Low frequencies are divided, high ones kept, those between blended (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicScaling:
    """A larger theta for a context longer than in training ("dynamic NTK")."""

    factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """Frequencies blended by how often their pairs turn (https://arxiv.org/abs/2309.00071)."""

    factor: float
    original_max_position: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    attention_factor: float  # multiplies cosines and sines


@dataclass(frozen=True, slots=True, kw_only=True)
class LongScaling:
    """A factor for each pair: from `short` up to the original length, beyond it from `long`.

    See https://arxiv.org/abs/2402.13753.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_max_position: int
    attention_factor: float  # multiplies cosines and sines up to the original length
    long_attention_factor: float  # and beyond it


@dataclass(frozen=True, slots=True, kw_only=True)
class ProportionalScaling:
    """Only the first pairs turn, as fast as if all did; positions are divided by a factor (Gemma 4)."""

    pairs: int
    factor: float


Scaling = (
    ProportionalScaling | LinearScaling | Llama3Scaling | DynamicScaling | YarnScaling | LongScaling
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryScale:
    """Queries are multiplied by 1 + beta · ln(1 + ⌊position / original⌋): attention stays sharp in long texts.

    See https://arxiv.org/abs/2501.19399.
    """

    beta: float
    original_max_position: int
    first: int = 0  # the number of the first position


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rope (https://arxiv.org/abs/2104.09864) of the first `dim` values of each head."""

    dim: int
    theta: float = 10000.0
    scaling: Scaling | None = None
    query_scale: QueryScale | None = None
    axes: tuple[int, ...] = ()
    """For each pair the axis of a picture by which it turns: 0 time, 1 row, 2 column. Empty: all turn by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """How many tokens of a session each of a model's sets of rotary frequencies is for.

    With some scalings the frequencies of a sequence are others when it is longer than those of the training.
    All of its tokens are rotated with them, so one set belongs to each session, and what is cached with one
    is of no use for another. A stretch is the number of such a set: 0 for the shortest sessions.
    """

    limits: tuple[int, ...] = ()  # the most tokens with each set but the last, ascending

    @classmethod
    def of(cls, ropes: Iterable[Rope]) -> "Stretches":
        """Those of a model with these ropes."""
        kinds = (DynamicScaling, LongScaling)
        scalings = (rope.scaling for rope in ropes)
        return cls(
            limits=tuple(
                sorted({one.original_max_position for one in scalings if isinstance(one, kinds)})
            )
        )

    def at(self, tokens: int) -> int:
        """The stretch of a session of so many tokens."""
        return bisect_left(self.limits, tokens)

    def most(self, stretch: int, context: int) -> int:
        """The most tokens of a session with this stretch, in a context of so many."""
        return min((*self.limits[stretch : stretch + 1], context))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ropes:
    """The distinct ropes of a model, and for each layer the index of its rope; None: it has none."""

    distinct: tuple[Rope, ...]
    layers: tuple[int | None, ...]


def unturned_rope(dim: int, scale: QueryScale | None = None) -> Rope:
    """A rope that turns nothing."""
    return Rope(dim=dim, scaling=ProportionalScaling(pairs=0, factor=1.0), query_scale=scale)
