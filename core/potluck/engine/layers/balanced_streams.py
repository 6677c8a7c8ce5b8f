"""Blocks that read and write balanced residual streams; `model/mixing/streams.py` has the formulas.

All is computed in f32. Numbers of a token's streams lie one stream after the other, (T, S·D).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from potluck.engine.gates import Elementwise, in_order
from potluck.engine.kernels.products.tensors import MixTensors
from potluck.engine.layers.linear import Linear
from potluck.engine.layers.norms import RmsNorm
from potluck.engine.layers.products import Product
from potluck.model.mixing.streams import BalancedMixSpec, Streams


class BalancedMix:
    """Makes a block's input of all streams, and says what goes from stream to stream."""

    __slots__ = ("_apply", "_norm", "_product", "spec", "tensors")

    def __init__(
        self,
        spec: BalancedMixSpec,
        norm: RmsNorm,
        tensors: MixTensors,
        *,
        product: Product,
        apply: Elementwise,
    ) -> None:
        """Put the parts together.

        Args:
            spec: its specification.
            norm: of all S·D numbers; its weights are ones.
            tensors: matrix, base and scales.
            product: multiplies with matrices of f32.
            apply: computes functions.
        """
        self.spec, self._norm, self.tensors = spec, norm, tensors
        self._product, self._apply = product, apply

    def __call__(self, x: Tensor) -> Tensor:
        """All streams (T, S·D) → (T, D)."""
        return self._input(x, self._numbers(x)[0])

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """All streams (T, S·D) → the block's input (T, D), and what to give to `write`, (T, 1 + S, S), f32."""
        own, given, between = self._numbers(x)
        shares = torch.cat([2 * self._apply(given, "sigmoid")[:, None], self._balanced(between)], 1)
        return self._input(x, own), shares

    def write(self, x: Tensor, result: Tensor, shares: Tensor) -> Tensor:
        """What the streams (T, S·D), which are not changed, become with a block's result (T, D)."""
        streams = self._split(x)
        total = result.float()[:, None] * shares[:, 0, :, None]
        for index in range(self.spec.streams.count):  # in this order on every computer
            total += streams[:, index, None] * shares[:, 1 + index, :, None]
        return total.flatten(1).to(x.dtype)

    @property
    def matrices(self) -> Sequence[Linear]:
        return ()

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self.tensors)

    def _numbers(self, x: Tensor) -> list[Tensor]:
        """(T, S), and unless it is the head's also (T, S) and (T, S·S)."""
        rows, (matrix, base, scale) = self.spec.rows, self.tensors
        products = self._product(self._norm(x.float()), matrix, None)
        parts = zip(products.split(rows, 1), base.split(rows), scale, strict=True)
        return [part * scale + base for part, base, scale in parts]

    def _input(self, x: Tensor, own: Tensor) -> Tensor:
        balance = self.spec.streams.balance
        assert balance is not None
        shares, streams = self._apply(own, "sigmoid") + balance.eps, self._split(x)
        total = streams[:, 0] * shares[:, 0, None]
        for index in range(1, self.spec.streams.count):
            total += streams[:, index] * shares[:, index, None]
        return total.to(x.dtype)

    def _balanced(self, between: Tensor) -> Tensor:
        """(T, S·S) → (T, S, S), of which the sums over each axis are nearly one."""
        balance, count = self.spec.streams.balance, self.spec.streams.count
        assert balance is not None
        parts = self._apply.softmax(between.reshape(-1, count, count), 2) + balance.eps
        parts /= in_order(parts, 1, keepdim=True) + balance.eps
        for _ in range(balance.rounds - 1):
            parts /= in_order(parts, 2, keepdim=True) + balance.eps
            parts /= in_order(parts, 1, keepdim=True) + balance.eps
        return parts

    def _split(self, x: Tensor) -> Tensor:
        return x.float().view(len(x), self.spec.streams.count, -1)


class BalancedEnd:
    """What makes the head's input of balanced streams: a mix, or their mean, and the final norm."""

    __slots__ = ("mix", "norm", "streams")

    def __init__(self, streams: Streams, mix: BalancedMix | None, norm: RmsNorm) -> None:
        self.streams, self.mix, self.norm = streams, mix, norm

    def __call__(self, x: Tensor) -> Tensor:
        """All streams (T, S·D) → (T, D)."""
        if self.mix is not None:
            return self.norm(self.mix(x))
        count = self.streams.count
        streams = x.float().view(len(x), count, -1)
        total = streams[:, 0].clone()
        for index in range(1, count):
            total += streams[:, index]
        return self.norm(total.div_(count).to(x.dtype))

    @property
    def nbytes(self) -> int:
        return self.norm.nbytes + (0 if self.mix is None else self.mix.nbytes)
