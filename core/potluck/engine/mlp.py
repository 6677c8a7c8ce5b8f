"""The feed-forward of a layer: one gated MLP, or a mixture of experts (MoE), each a gated MLP."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.kernels import QuantisedInput
from potluck.engine.linear import Linear, PackedLinear
from potluck.engine.pages import Scratch
from potluck.model.families import Activation

_TOKENS = 64  # the gates and ups of so many tokens are in memory at a time, in f32

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


class Mlp(Protocol):
    """A gated MLP: down(activation(gate x) · (up x)) (https://arxiv.org/abs/2002.05202)."""

    @property
    def gate_up(self) -> Linear:
        """The matrix of gates and ups: all gates before all ups."""
        ...

    @property
    def down(self) -> Linear: ...

    def __call__(self, x: Tensor) -> Tensor:
        """(T, D) → (T, D)."""
        ...

    @property
    def nbytes(self) -> int: ...


class GatedMlp:
    """An MLP whose activation and product of gates and ups are computed by torch."""

    __slots__ = ("_activate", "down", "gate_up")

    def __init__(self, gate_up: Linear, down: Linear, activation: Activation) -> None:
        self.gate_up, self.down = gate_up, down
        self._activate = ACTIVATIONS[activation]

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(self._activate(gate).mul_(up))

    @property
    def nbytes(self) -> int:
        return self.gate_up.nbytes + self.down.nbytes


class PackedMlp:
    """An MLP in which one kernel applies the activation and quantises the result for `down`.

    A chunk is computed a few tokens at a time, in the same scratch memory: gates and ups of a whole
    chunk would be the largest thing that prefill holds.
    """

    __slots__ = ("_scratch", "activation", "down", "gate_up")

    def __init__(
        self,
        gate_up: Linear,
        down: PackedLinear,
        activation: Activation,
        scratch: Scratch | None = None,
    ) -> None:
        """Make an MLP. MLPs that never compute at the same time may share a `scratch`."""
        self.gate_up, self.down = gate_up, down
        self.activation: Activation = activation
        self._scratch = scratch or Scratch()

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) <= _TOKENS:
            return self.down.multiply(self._gate(x))
        y = torch.empty_like(x)
        for some, out in zip(x.split(_TOKENS), y.split(_TOKENS), strict=True):
            self.down.multiply(self._gate(some), out)
        return y

    @property
    def nbytes(self) -> int:
        return self.gate_up.nbytes + self.down.nbytes

    def _gate(self, x: Tensor) -> QuantisedInput:
        kernels, gate_up = self.down.kernels, self.gate_up
        if isinstance(gate_up, PackedLinear):
            gates = self._scratch.floats(len(x), gate_up.weight.rows)
            gate_up.multiply(kernels.quantise(x), gates)
        else:
            gates = gate_up(x)
        return kernels.quantise_gated(gates, self.activation)


class MoE:
    """A mixture of experts: each token goes through the few experts that the router scores highest.

    Router, weights and sums are f32, whatever the dtype of the experts, since the choice compares
    numbers that are close to each other. Only chosen experts are computed.
    """

    __slots__ = ("experts", "normalise", "per_token", "router")

    def __init__(
        self, router: Tensor, experts: Sequence[Mlp], *, per_token: int, normalise: bool
    ) -> None:
        self.router = router  # (E, D), f32
        self.experts = tuple(experts)
        self.per_token, self.normalise = per_token, normalise

    def __call__(self, x: Tensor) -> Tensor:
        probabilities = F.linear(x.float(), self.router).softmax(-1)  # (T, E)
        weights, chosen = probabilities.topk(self.per_token, -1)  # (T, k)
        if self.normalise:
            weights /= weights.sum(-1, keepdim=True)
        total = torch.zeros(x.shape, device=x.device)
        if x.shape[0] == 1:
            self._add_one(total, x, weights, chosen)
        else:
            self._add_many(total, x, weights, chosen)
        return total.to(x.dtype)

    @property
    def nbytes(self) -> int:
        return self.router.nbytes + sum(expert.nbytes for expert in self.experts)

    def _add_one(self, total: Tensor, x: Tensor, weights: Tensor, chosen: Tensor) -> None:
        # Experts are added in the order of their indices, as in `_add_many`.
        for expert, weight in sorted(zip(chosen[0].tolist(), weights[0].tolist(), strict=True)):
            total.add_(self.experts[expert](x), alpha=weight)

    def _add_many(self, total: Tensor, x: Tensor, weights: Tensor, chosen: Tensor) -> None:
        """Compute each expert once, for all the tokens that chose it."""
        flat = chosen.flatten()  # (T·k,)
        order = flat.argsort(stable=True)
        counts = flat.bincount(minlength=len(self.experts)).tolist()
        tokens = (order // self.per_token).split(counts)
        shares = weights.flatten()[order][:, None].split(counts)
        for expert, rows, share in zip(self.experts, tokens, shares, strict=True):
            if len(rows):
                total.index_add_(0, rows, expert(x[rows]) * share)
