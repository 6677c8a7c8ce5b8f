"""What mixers share that have a recurrent state in place of cached tokens."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from potluck.model.cache_rows import State
from potluck.model.caches import CacheSizes, CacheSpec, RecurrentCache
from potluck.model.quantized import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentSizes(ABC):
    """The sizes of a mixer whose inputs go through a causal convolution, and then change a state."""

    inputs: int  # of the convolution: the token's own and those before
    norm_eps: float

    @property
    @abstractmethod
    def channels(self) -> int:
        """Numbers of a token that go through the convolution."""

    @property
    @abstractmethod
    def values_size(self) -> int:
        """Numbers of a token's result."""

    @property
    @abstractmethod
    def state_shape(self) -> Shape:
        """A matrix for each head."""

    @property
    def before_shape(self) -> Shape:
        """The inputs of the convolution before the token's own."""
        return self.inputs - 1, self.channels

    def cache(self, sizes: CacheSizes) -> CacheSpec:
        """What a session caches in this layer: the last inputs of the convolution, and the state."""
        return RecurrentCache(row=State(shapes=(self.before_shape, self.state_shape)))
