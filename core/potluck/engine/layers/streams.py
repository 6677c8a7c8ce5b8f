"""Blocks that read and write several residual streams; `model/mixing/streams.py` has the formulas.

What is between the products is computed in f32, and by operators that give a row the same bits wherever it
stands. Numbers of a token's streams lie one stream after the other, (T, S·D).
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.layers.attention import Step
from potluck.engine.layers.blocks import DecoderLayer, Mixer, normed
from potluck.engine.layers.linear import Linear
from potluck.engine.layers.mlp import Mlp, MoE
from potluck.engine.layers.norms import RmsNorm
from potluck.engine.layers.parallel import ParallelMoE
from potluck.engine.layers.products import Product
from potluck.model.families.facts import Activation, LayerNorms
from potluck.model.layers import LayerSpec
from potluck.model.mixing.streams import StreamMixSpec


class StreamNorm:
    """The norm of each stream by itself, with weights of its own."""

    __slots__ = ("_norm", "weight")

    def __init__(self, weight: Tensor, norm: RmsNorm) -> None:
        """`weight` is (S·D,), and `norm` one of D numbers whose weights are ones."""
        self.weight, self._norm = weight, norm

    def __call__(self, x: Tensor) -> Tensor:
        """(T, S·D) → (T, S·D), f32."""
        normed = self._norm(x.float().view(-1, *self._norm.shape))
        return normed.view(x.shape).mul_(self.weight)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes


class StreamMix:
    """Makes a block's input of all streams, and says how much of its result each stream gets."""

    __slots__ = ("_apply", "_down", "_injection", "_norm", "_product", "_up", "streams")

    def __init__(
        self,
        spec: StreamMixSpec,
        norm: StreamNorm,
        *,
        down: Linear,
        up: Linear,
        injection: Tensor | None,
        apply: Callable[[Tensor, Activation], Tensor],
        product: Product,
    ) -> None:
        """Put the parts together.

        Args:
            spec: its specification.
            norm: of the streams.
            down: (S·D) → rank.
            up: rank → (S·D).
            injection: (S, S·D), f32; None: the block writes nothing.
            apply: computes `gates.gate`.
            product: multiplies with matrices of f32.
        """
        self.streams, self._norm, self._down, self._up = spec.streams, norm, down, up
        self._injection, self._apply, self._product = injection, apply, product

    def __call__(self, x: Tensor) -> Tensor:
        """All streams (T, S·D) → (T, D)."""
        return self._mixed(self._norm(x), x.dtype)

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """All streams (T, S·D) → the block's input (T, D), and what to give to `write` (T, S), f32."""
        assert self._injection is not None
        normed = self._norm(x)
        shares = self._product(normed, self._injection, None).div_(self.streams.count)
        shares = self._apply(torch.cat([shares, torch.full_like(shares, 2.0)], 1), "sigmoid")
        return self._mixed(normed, x.dtype), shares

    def write(self, x: Tensor, result: Tensor, shares: Tensor) -> Tensor:
        """Add a block's result (T, D) to the streams (T, S·D), which are not changed."""
        added = result.float()[:, None] * shares[:, :, None]
        return added.flatten(1).add_(x).to(x.dtype)

    @property
    def matrices(self) -> Sequence[Linear]:
        return self._down, self._up

    @property
    def nbytes(self) -> int:
        injection = 0 if self._injection is None else self._injection.nbytes
        return self._norm.nbytes + self._down.nbytes + self._up.nbytes + injection

    def _mixed(self, normed: Tensor, dtype: torch.dtype) -> Tensor:
        """What the block reads of normed streams."""
        streams = self.streams
        few = self._down(normed.to(dtype)).float().div_(streams.count)
        few = self._apply(torch.cat([few, torch.ones_like(few)], 1), "silu")
        gates = self._up(few.to(dtype)).float()
        parts = self._apply(torch.cat([gates, normed], 1), "sigmoid").chunk(streams.count, 1)
        total = parts[0].clone()
        for part in parts[1:]:  # in this order on every computer
            total += part
        return total.div_(streams.count).to(dtype)


class Around(Protocol):
    """What stands around a block: it makes the block's input of all streams, and adds its result to them."""

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]: ...
    def write(self, x: Tensor, result: Tensor, shares: Tensor) -> Tensor: ...
    @property
    def matrices(self) -> Sequence[Linear]: ...
    @property
    def nbytes(self) -> int: ...


class FinalNorm(Protocol):
    """What makes the head's input of the last layer's output, (T, width) → (T, D)."""

    def __call__(self, x: Tensor) -> Tensor: ...
    @property
    def nbytes(self) -> int: ...


class Before(Protocol):
    """What a layer adds to its streams before its two blocks."""

    def __call__(
        self, x: Tensor, caches: Sequence[LayerCache], steps: Sequence[Step]
    ) -> Tensor: ...
    @property
    def matrices(self) -> Sequence[Linear]: ...
    @property
    def nbytes(self) -> int: ...


class StreamLayer(DecoderLayer):
    """A layer whose two blocks read and write several residual streams."""

    __slots__ = ("_before", "_mixer", "_mlp", "around_mixer", "around_mlp")

    def __init__(
        self,
        spec: LayerSpec,
        mixer: Mixer,
        mlp: Mlp | MoE | ParallelMoE,
        norms: LayerNorms[RmsNorm],
        around_mixer: Around,
        around_mlp: Around,
        before: Before | None = None,
    ) -> None:
        super().__init__(spec, mixer, mlp, norms)
        self._mixer, self._mlp, self._before = mixer, mlp, before
        self.around_mixer, self.around_mlp = around_mixer, around_mlp

    def forward_all(self, x: Tensor, caches: Sequence[LayerCache], steps: Sequence[Step]) -> Tensor:
        if self._before is not None:
            x = self._before(x, caches, steps)
        around = self.around_mixer
        norms = self.norms
        mixed, shares = around.read(x)
        mixed = self._mixed(self._mixer, normed(mixed, norms.before_mixer), caches, steps)
        x = around.write(x, mixed, shares)
        mixed, shares = self.around_mlp.read(x)
        mixed = self._fed_forward(self._mlp, normed(mixed, norms.before_mlp), steps)
        return self.around_mlp.write(x, mixed, shares)

    @property
    def around(self) -> Sequence[Linear]:
        before = () if self._before is None else self._before.matrices
        return *before, *self.around_mixer.matrices, *self.around_mlp.matrices

    @property
    def nbytes(self) -> int:
        before = 0 if self._before is None else self._before.nbytes
        return super().nbytes + before + self.around_mixer.nbytes + self.around_mlp.nbytes
