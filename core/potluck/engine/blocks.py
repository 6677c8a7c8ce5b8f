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

    @abstractmethod
    def forward(self, x: Tensor, cache: LayerCache, step: Step) -> Tensor:
        """Run (T, D) through the layer; the cache gets its keys and values from `step.position`."""

    @property
    def nbytes(self) -> int:
        return self.attention.nbytes + self.mlp.nbytes + sum(norm.nbytes for norm in self.norms)


class PreNormLayer(DecoderLayer):
    """A norm before each: Llama and most others."""

    __slots__ = ()

    def forward(self, x: Tensor, cache: LayerCache, step: Step) -> Tensor:
        before_attention, before_mlp = self.norms
        x = self.attention(before_attention(x), cache, step).add_(x)
        return self.mlp(before_mlp(x)).add_(x)


class PostNormLayer(DecoderLayer):
    """A norm after each, inside the residual: OLMo 2, EXAONE 4."""

    __slots__ = ()

    def forward(self, x: Tensor, cache: LayerCache, step: Step) -> Tensor:
        after_attention, after_mlp = self.norms
        x = after_attention(self.attention(x, cache, step)).add_(x)
        return after_mlp(self.mlp(x)).add_(x)


class SandwichLayer(DecoderLayer):
    """A norm before and after each: Gemma 2 and 3."""

    __slots__ = ()

    def forward(self, x: Tensor, cache: LayerCache, step: Step) -> Tensor:
        before_attention, after_attention, before_mlp, after_mlp = self.norms
        x = after_attention(self.attention(before_attention(x), cache, step)).add_(x)
        return after_mlp(self.mlp(before_mlp(x))).add_(x)


class ScaledLayer(DecoderLayer):
    """A norm before each, and what they add multiplied: Granite."""

    __slots__ = ("_multiplier",)

    def __init__(
        self,
        attention: Attention,
        mlp: Mlp | Experts,
        norms: Sequence[RmsNorm],
        *,
        multiplier: float,
    ) -> None:
        super().__init__(attention, mlp, norms)
        self._multiplier = multiplier

    def forward(self, x: Tensor, cache: LayerCache, step: Step) -> Tensor:
        before_attention, before_mlp = self.norms
        added = self.attention(before_attention(x), cache, step)
        x = torch.add(x, added, alpha=self._multiplier)
        return x.add_(self.mlp(before_mlp(x)), alpha=self._multiplier)
