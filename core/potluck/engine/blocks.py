"""A decoder layer in torch, and runs of layers that one token goes through.

A layer is a mixer and an MLP, each with norms around it and a residual beside it. Its `LayerSpec`
says what it is made of; the parts are chosen when it is built (`builder.py`). The input of a layer
belongs to the caller and is never changed. A layer may update in place only tensors that it made
itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from potluck.engine.attention import Step
from potluck.engine.kvcache import LayerCache
from potluck.engine.linear import Linear
from potluck.engine.mlp import Mlp, MoE
from potluck.engine.norms import RmsNorm
from potluck.model.families import LayerNorms
from potluck.model.layers import LayerSpec


class Mixer(Protocol):
    """What computes a layer's mixer: attention, so far."""

    @property
    def matrices(self) -> Sequence[Linear]:
        """All that it multiplies with, in the order of use."""
        ...

    @property
    def nbytes(self) -> int: ...

    def __call__(self, x: Tensor, cache: LayerCache, step: Step) -> Tensor:
        """Normed (T, D) → (T, D). The cache gets what it keeps of the tokens at `step.position`."""
        ...


class DecoderLayer:
    """The layer of every family. It has norms where the specification has them."""

    __slots__ = ("_multiplier", "mixer", "mlp", "norms", "spec")

    def __init__(
        self, spec: LayerSpec, mixer: Mixer, mlp: Mlp | MoE, norms: LayerNorms[RmsNorm]
    ) -> None:
        self.spec, self.mixer, self.mlp, self.norms = spec, mixer, mlp, norms
        self._multiplier = spec.residual_multiplier

    def forward(self, x: Tensor, cache: LayerCache, step: Step) -> Tensor:
        """Run (T, D) through the layer; the cache gets what is kept of the tokens."""
        norms = self.norms
        mixed = self.mixer(_normed(x, norms.before_mixer), cache, step)
        x = self._add(x, _normed(mixed, norms.after_mixer))
        return self._add(x, _normed(self.mlp(_normed(x, norms.before_mlp)), norms.after_mlp))

    @property
    def nbytes(self) -> int:
        norms = sum(norm.nbytes for norm in self.norms.present)
        return self.mixer.nbytes + self.mlp.nbytes + norms

    def _add(self, x: Tensor, added: Tensor) -> Tensor:
        """`added` is this layer's own memory, `x` may be the caller's."""
        if self._multiplier != 1.0:  # two steps: in one, some processors round once, and some twice
            added = added.mul_(self._multiplier)
        return added.add_(x)


class Run(ABC):
    """Consecutive layers of a stage, as one token goes through them in one call."""

    @abstractmethod
    def __call__(self, x: Tensor, caches: Sequence[LayerCache], step: Step) -> Tensor:
        """(1, D) → (1, D). `caches` has those of all layers of the stage; `x` is not changed."""


class LayerRun(Run):
    """One layer after the other, in torch."""

    def __init__(self, first: int, blocks: Sequence[DecoderLayer]) -> None:
        self._first, self._blocks = first, tuple(blocks)

    def __call__(self, x: Tensor, caches: Sequence[LayerCache], step: Step) -> Tensor:
        for block, cache in zip(self._blocks, caches[self._first :], strict=False):
            x = block.forward(x, cache, step)
        return x


def _normed(x: Tensor, norm: RmsNorm | None) -> Tensor:
    return x if norm is None else norm(x)
