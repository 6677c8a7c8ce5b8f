"""The decoder layer that every family is built of; which pieces it has, the config says.

Attention and MLP, each beside a residual; the layers here differ in where their norms stand. Pieces
are chosen when a layer is built (`builder.py`), so that computing asks no questions. Activations are
updated in place only where the block made them itself: the input of a layer belongs to the caller.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from potluck.engine.attention import Attention, Step
from potluck.engine.kvcache import LayerCache
from potluck.engine.mlp import Experts, Mlp
from potluck.engine.norms import RmsNorm


class DecoderLayer(ABC):
    """Attention, MLP and the norms around them, in the order in which a token passes them."""

    __slots__ = ("attention", "mlp", "norms")

    def __init__(self, attention: Attention, mlp: Mlp | Experts, norms: Sequence[RmsNorm]) -> None:
        self.attention, self.mlp, self.norms = attention, mlp, tuple(norms)

    def forward(self, x: Tensor, cache: LayerCache, step: Step) -> Tensor:
        """Run (T, D) through the layer; the cache gets its keys and values from `step.position`."""
        return self.add_mlp(self.add_attention(x, cache, step))

    @abstractmethod
    def add_attention(self, x: Tensor, cache: LayerCache, step: Step) -> Tensor:
        """The first half."""

    @abstractmethod
    def add_mlp(self, x: Tensor) -> Tensor:
        """The second."""

    @property
    def nbytes(self) -> int:
        return self.attention.nbytes + self.mlp.nbytes + sum(norm.nbytes for norm in self.norms)


class PreNormLayer(DecoderLayer):
    """A norm before each: Llama and most others."""

    __slots__ = ()

    def add_attention(self, x: Tensor, cache: LayerCache, step: Step) -> Tensor:
        return self.attention(self.norms[0](x), cache, step).add_(x)

    def add_mlp(self, x: Tensor) -> Tensor:
        return self.mlp(self.norms[1](x)).add_(x)


class PostNormLayer(DecoderLayer):
    """A norm after each, inside the residual: OLMo 2, EXAONE 4."""

    __slots__ = ()

    def add_attention(self, x: Tensor, cache: LayerCache, step: Step) -> Tensor:
        return self.norms[0](self.attention(x, cache, step)).add_(x)

    def add_mlp(self, x: Tensor) -> Tensor:
        return self.norms[1](self.mlp(x)).add_(x)


class SandwichLayer(DecoderLayer):
    """A norm before and after each: Gemma 2 and 3."""

    __slots__ = ()

    def add_attention(self, x: Tensor, cache: LayerCache, step: Step) -> Tensor:
        before, after = self.norms[:2]
        return after(self.attention(before(x), cache, step)).add_(x)

    def add_mlp(self, x: Tensor) -> Tensor:
        before, after = self.norms[2:]
        return after(self.mlp(before(x))).add_(x)


class ScaledLayer(DecoderLayer):
    """A norm before each, and what they add multiplied: Granite."""

    __slots__ = ("multiplier",)

    def __init__(
        self,
        attention: Attention,
        mlp: Mlp | Experts,
        norms: Sequence[RmsNorm],
        *,
        multiplier: float,
    ) -> None:
        super().__init__(attention, mlp, norms)
        self.multiplier = multiplier

    def add_attention(self, x: Tensor, cache: LayerCache, step: Step) -> Tensor:
        added = self.attention(self.norms[0](x), cache, step)
        return torch.add(x, added, alpha=self.multiplier)

    def add_mlp(self, x: Tensor) -> Tensor:
        return torch.add(x, self.mlp(self.norms[1](x)), alpha=self.multiplier)
